//! A lock around one value of plain data.

use std::marker::PhantomData;

use mp_core::words::LockKind;
use mp_core::{LockError, Result, Wait};

use crate::handle::handle;
use crate::locks::guard::LockGuard;
use crate::locks::locked::{Locked, locking};
use crate::plain::Plain;

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
/// assert_eq!(best.get()?, [0.9, 17.0]); // a copy, made under the lock
/// let section = Lock::new(())?; // protects what is elsewhere
/// drop(section.lock()?);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Clones and sent copies are handles to the same lock. Only the thread that locked it unlocks it, by dropping the guard; a
/// [`Condition`](crate::Condition) can wait with the guard.
///
/// Types of one's own need no dependency on `bytemuck`, but the attribute that says where its derive macros find it; in a
/// program that uses `mp`, that is `crate = "mp::sync::bytemuck"`:
///
/// ```
/// use mp_core::bytemuck::{Pod, Zeroable};
/// use mp_sync::Lock;
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[bytemuck(crate = "mp_core::bytemuck")]
/// #[repr(C)]
/// struct Best {
///     loss: f64,
///     epoch: u64,
/// }
///
/// let best = Lock::new(Best { loss: 0.5, epoch: 3 })?;
/// assert_eq!(best.get()?.epoch, 3);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Blocking
/// [`lock`](Self::lock) waits as long as it takes, spinning for up to 50 µs and then asleep; a caller that waits for a stopped
/// process waits until that continues. [`try_lock`](Self::try_lock) and [`lock_timeout`](Self::lock_timeout) give up, and name
/// the holder. Waiters are not served in order.
///
/// # Deadlocks
/// When threads of any processes wait for each other's locks in a cycle, without a time-out, one of them gets
/// [`LockError::Deadlock`] within about 200 ms, which names them all; the others go on when it drops its guards:
///
/// ```
/// use mp_sync::{Lock, LockError};
///
/// let (a, b) = (Lock::new(1)?, Lock::new(2)?);
/// let (theirs, others) = (a.clone(), b.clone());
/// let both = std::sync::Arc::new(std::sync::Barrier::new(2)); // or processes, and a barrier of this crate
/// let there = both.clone();
/// let thread = std::thread::spawn(move || {
///     let _b = others.lock()?;
///     there.wait();
///     theirs.lock().map(drop)
/// });
/// let held = a.lock()?;
/// both.wait();
/// let mine = b.lock().map(drop);
/// drop(held);
/// match (mine, thread.join().expect("it does not panic")) {
///     (Err(LockError::Deadlock(cycle)), Ok(())) | (Ok(()), Err(LockError::Deadlock(cycle))) => {
///         assert_eq!(cycle.steps.len(), 2); // it prints as a sentence, with processes, threads and locks
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When a process dies
/// A process that is killed while it holds the lock may have changed half of the data. From then on, locking returns
/// [`LockError::OwnerDied`], which names the process, to every caller, until one repairs the data with
/// [`recover`](Self::recover) and drops the guard. (The error carries no guard, other than that of `std::sync::Mutex`: so `?`
/// passes it on from a worker, whose errors live longer than any guard.) A panic while it is held unlocks, without a mark. No
/// time-out makes a process dead: a stopped one keeps its lock, and a waiter gives up with [`LockError::Held`], which names it.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Lock")]
#[doc(alias = "multiprocessing.Value")]
#[doc(alias = "synchronized")]
#[doc(alias = "get_obj")]
pub struct Lock<T: Plain + Send> {
    locked: Locked,
    data: PhantomData<fn(T) -> T>,
}

locking!(Lock, T, |this, raw| this.locked.value(raw));

impl<T: Plain + Send> Lock<T> {
    /// A lock around `value`, in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), [`Error::ArenaFull`](mp_core::Error::ArenaFull), or
    /// [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) for a type that is aligned to more than 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        let locked = Locked::new::<T>(LockKind::Lock, 1)?;
        *locked.value(locked.first()?) = value;
        Ok(Self { locked, data: PhantomData })
    }

    /// Whether some thread has it, of this process or another one: a snapshot, which another thread may change before this returns.
    /// A process that died has it no more: the next caller gets [`LockError::OwnerDied`]. Never in a forked copy.
    ///
    /// ```
    /// let lock = mp_sync::Lock::new(7)?;
    /// assert!(!lock.is_locked());
    /// let guard = lock.lock()?;
    /// assert!(lock.is_locked());
    /// # drop(guard);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[doc(alias = "locked")]
    pub fn is_locked(&self) -> bool {
        self.locked.is_locked()
    }

    /// A copy of the value, made under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn get(&self) -> Result<T, LockError> {
        Ok(*self.lock()?)
    }

    /// Replaces the value under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn set(&self, value: T) -> Result<(), LockError> {
        *self.lock()? = value;
        Ok(())
    }
}

handle! {
    Lock<T: Plain + Send>, "a Lock", |lock| lock.locked.shared(), "";
    |d| match Locked::receive::<T, D>("a Lock", LockKind::Lock, d)? {
        (locked, 1) => Ok(Self { locked, data: PhantomData }),
        (_, len) => Err(serde::de::Error::custom(format!("a lock around {len} values arrived"))),
    }
}
