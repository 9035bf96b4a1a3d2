//! Locks inside one process, for all crates of this library.
//!
//! The locks are those of the standard library, which consist of a single word. This matters when a process
//! is copied ([`fork`](crate::fork)). Other implementations keep waiters in a table of the program, and the
//! copy inherits that table. If another thread of the original was changing the table at that time, the table
//! stays locked in the copy forever, even for new locks.
//!
//! ```
//! use mp_core::mutex::{Condvar, Mutex};
//!
//! let (count, changed) = (Mutex::new(0), Condvar::new());
//! std::thread::scope(|threads| {
//!     threads.spawn(|| {
//!         *count.lock() += 1;
//!         changed.notify_all();
//!     });
//!     let mut count = count.lock();
//!     while *count == 0 {
//!         changed.wait(&mut count);
//!     }
//! });
//! assert_eq!(*count.lock(), 1);
//! ```
//!
//! A panic of the holder unlocks the lock without poisoning it. So a thread must not call code that can panic
//! while the protected value is inconsistent.

use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar as StdCondvar, Mutex as StdMutex, MutexGuard as StdGuard, PoisonError, TryLockError,
    WaitTimeoutResult,
};
use std::thread;
use std::time::{Duration, Instant};

/// First pause between two attempts of a waiter with a deadline. Each later pause is twice as long.
const SHORTEST: Duration = Duration::from_micros(20);
/// Longest pause between two attempts of a waiter with a deadline.
const LONGEST: Duration = Duration::from_millis(1);

/// Mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(StdMutex<T>);

/// Guard that unlocks the lock on drop.
#[derive(Debug)]
#[must_use = "dropping the guard unlocks the lock"]
pub struct MutexGuard<'a, T> {
    lock: &'a StdMutex<T>,
    /// `None` only while a method has unlocked the lock.
    held: Option<StdGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(StdMutex::new(value))
    }

    /// Blocks until no other thread holds the lock, and acquires it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: &self.0, held: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Returns a mutable reference to the value. The lock is not acquired, because no other thread can access
    /// the value.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the lock if no thread holds it. Does not block.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { lock: &self.0, held: Some(held) })
    }

    /// Blocks until no other thread holds the lock, and acquires it. Returns `None` after `timeout`.
    pub fn try_lock_for(&self, timeout: Duration) -> Option<MutexGuard<'_, T>> {
        let begin = Instant::now();
        let mut pause = SHORTEST;
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            let left = timeout.checked_sub(begin.elapsed())?;
            thread::sleep(pause.min(left));
            pause = (2 * pause).min(LONGEST);
        }
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Calls `f` while the lock is unlocked.
    pub fn unlocked<R>(guard: &mut Self, f: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = f();
        guard.held = Some(guard.lock.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }

    fn replace<R>(&mut self, wait: impl FnOnce(StdGuard<'a, T>) -> (StdGuard<'a, T>, R)) -> R {
        let (held, result) = wait(self.held.take().expect(HELD));
        self.held = Some(held);
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
    }
}

/// Panic message for an invariant: only a method that has borrowed the guard unlocks it.
const HELD: &str = "the guard holds the lock";

/// Condition variable, for changes of a value protected by a lock.
#[derive(Debug, Default)]
pub struct Condvar(StdCondvar);

impl Condvar {
    /// Creates a condition variable without waiters.
    pub const fn new() -> Self {
        Self(StdCondvar::new())
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Unlocks the lock and blocks until a notification. Spurious wake-ups are possible.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.replace(|held| (self.0.wait(held).unwrap_or_else(PoisonError::into_inner), ()));
    }

    /// Blocks like [`wait`](Self::wait), at most until `until`, and then until no other thread holds the
    /// lock.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        let left = until.saturating_duration_since(Instant::now());
        guard.replace(|held| self.0.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutex_excludes_other_threads() {
        let lock = Mutex::new(1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        thread::scope(|s| assert!(s.spawn(|| lock.try_lock_for(Duration::ZERO).is_none()).join().unwrap()));
        drop(guard);
        *lock.try_lock_for(Duration::ZERO).unwrap() += 1;
        assert_eq!(*lock.try_lock().unwrap(), 2);
    }

    #[test]
    fn panic_unlocks_the_mutex() {
        let lock = Mutex::new(1);
        let panicked = thread::scope(|s| {
            let hold = || {
                let _guard = lock.lock();
                std::panic::resume_unwind(Box::new(()));
            };
            s.spawn(hold).join().is_err()
        });
        assert!(panicked && *lock.lock() == 1 && lock.try_lock().is_some());
    }

    #[test]
    fn mutex_is_free_during_a_call_of_unlocked() {
        let lock = Mutex::new(1);
        let mut guard = lock.lock();
        MutexGuard::unlocked(&mut guard, || *lock.lock() += 1);
        assert!(*guard == 2 && lock.try_lock().is_none());
    }

    #[test]
    fn condvar_wait_ends_on_notification_or_timeout() {
        let (lock, changed) = (Mutex::new(false), Condvar::new());
        assert!(changed.wait_until(&mut lock.lock(), Instant::now()).timed_out());
        thread::scope(|s| {
            let mut guard = lock.lock();
            s.spawn(|| {
                *lock.lock() = true;
                changed.notify_one();
            });
            while !*guard {
                assert!(
                    !changed.wait_until(&mut guard, Instant::now() + Duration::from_secs(60)).timed_out()
                );
            }
        });
    }
}
