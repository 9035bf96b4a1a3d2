//! A lock around plain data.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use mp_core::steps::lock::Died;
use mp_core::{LockError, LockWait, Result, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::locks::unlocked::{Relock, Waiting};

/// A lock between processes, and the plain data that it protects.
///
/// ```
/// use mp_sync::Lock;
///
/// let best = Lock::new([0.0_f64; 2])?; // score and step, which belong together
/// {
///     let mut best = best.lock()?; // `&mut [f64; 2]`; dropping the guard unlocks
///     *best = [0.9, 17.0];
/// }
/// assert_eq!(best.try_lock()?[1], 17.0);
/// let section = Lock::new(())?; // protects what is elsewhere
/// drop(section.lock()?);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// It is a [`Value`], with what a lock has besides: guards that a [`Condition`](crate::Condition) can wait with. Types of
/// one's own derive [`Pod`](bytemuck::Pod). Only the thread that locked it unlocks it, by dropping the guard.
///
/// # When a process dies
/// Locking returns [`LockError::OwnerDied`], which names the process, until a caller repairs the data with
/// [`recover`](Self::recover) and drops the guard. (The error carries no guard, other than that of
/// `std::sync::Mutex`: so `?` passes it on from a worker, whose errors live longer than any guard.) A panic
/// while it is held unlocks, without a mark. No time-out makes a process dead: a stopped one keeps its lock,
/// and a waiter gives up with [`LockError::Held`], which names it.
#[doc(alias = "multiprocessing.Lock")]
pub struct Lock<T: Pod + Send>(Value<T>);

/// What a [`Lock`] protects, as long as it is held. Dropping it unlocks.
pub struct LockGuard<'a, T: Pod + Send> {
    lock: &'a Lock<T>,
    inner: mp_core::LockGuard<'a, T>,
}

impl<T: Pod + Send> Lock<T> {
    /// A lock around `value`, in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), [`Error::ArenaFull`](mp_core::Error::ArenaFull), or
    /// [`Error::Shape`](mp_core::Error::Shape) for a type that is aligned to more than 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        Value::new(value).map(Self)
    }

    /// Locks it; waits as long as it takes.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] when a process died while it held the lock and no caller has recovered since,
    /// [`LockError::WouldDeadlock`] when this thread holds it already, [`LockError::Failed`] in a forked copy.
    #[inline]
    #[doc(alias = "acquire")]
    pub fn lock(&self) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.lock()? })
    }

    /// Locks it if no other thread holds it.
    ///
    /// # Errors
    /// [`LockError::Held`], which names the holder, and as [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.try_lock()? })
    }

    /// Locks it; waits at most `timeout`.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub fn lock_timeout(&self, timeout: Duration) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.lock_timeout(timeout)? })
    }

    /// Locks it; waits until `deadline` at most.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    pub fn lock_deadline(&self, deadline: Instant) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.lock_deadline(deadline)? })
    }

    /// Locks it also when a process died while it held the lock; waits as long as it takes.
    ///
    /// [`LockGuard::died`] names the process that died. Dropping the guard says that the data is as it should
    /// be; a panic meanwhile leaves the mark for the next one.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), without `OwnerDied`.
    pub fn recover(&self) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.recover()? })
    }

    /// As [`recover`](Self::recover); waits at most `timeout`.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock), without `OwnerDied`.
    pub fn recover_timeout(&self, timeout: Duration) -> Result<LockGuard<'_, T>, LockError> {
        Ok(LockGuard { lock: self, inner: self.0.recover_timeout(timeout)? })
    }

    fn within(&self, wait: LockWait) -> Result<LockGuard<'_, T>, LockError> {
        match wait {
            LockWait::Never => self.try_lock(),
            LockWait::Until(deadline) => self.lock_deadline(deadline),
            LockWait::Forever => self.lock(),
        }
    }
}

impl<T: Pod + Send> LockGuard<'_, T> {
    /// The process that died while holding the lock, if that is why the data has to be checked.
    pub fn died(&self) -> Option<Died> {
        self.inner.died()
    }
}

impl<'a, T: Pod + Send> Relock for LockGuard<'a, T> {
    type Seen = T;
    type Unlocked = &'a Lock<T>;

    fn seen(&mut self) -> &mut T {
        self
    }

    fn unlock(self, _: Waiting) -> &'a Lock<T> {
        self.lock
    }

    fn relock(lock: &'a Lock<T>, wait: LockWait, _: Waiting) -> Result<Self, LockError> {
        lock.within(wait)
    }
}

impl<T: Pod + Send> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: Pod + Send> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: Pod + Send + fmt::Debug> fmt::Debug for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Pod + Send> Clone for Lock<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Pod + Send> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lock({:?})", self.0)
    }
}

impl<T: Pod + Send> Serialize for Lock<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T: Pod + Send> Deserialize<'de> for Lock<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Value::deserialize(d).map(Self)
    }
}
