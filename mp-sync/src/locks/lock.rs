//! Lock around one value of plain data.

use std::marker::PhantomData;

use mp_core::words::LockKind;
use mp_core::{LockError, Result, Wait};

use crate::handle::handle;
use crate::locks::cell::{LockCell, locking};
use crate::locks::guard::LockGuard;
use crate::plain::Plain;

/// A mutual-exclusion lock between processes, around plain data.
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
/// let section = Lock::new(())?; // protects a resource outside of the lock
/// drop(section.lock()?);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Clones and sent copies are handles to the same lock. Only the thread that acquired the lock releases it,
/// by dropping the guard. A [`Condition`](crate::Condition) waits with the guard.
///
/// To protect a type of your own, derive its traits with the re-exported `bytemuck`. A dependency on it is
/// not needed. In a program that uses `mp`, the attribute is `crate = "mp::sync::bytemuck"`:
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
/// [`lock`](Self::lock) waits without a limit: it spins for up to 50 µs, then sleeps. If the holder is
/// stopped, callers wait until it continues. [`try_lock`](Self::try_lock) and
/// [`lock_timeout`](Self::lock_timeout) return an error that names the holder. Waiters are served in no
/// particular order.
///
/// # Deadlocks
/// Threads of any processes can wait for each other's locks in a cycle, without time-outs. Within about 200
/// ms, one of these threads then gets [`LockError::Deadlock`], which names all threads of the cycle. The
/// other threads continue when that thread drops its guards:
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
/// match (mine, thread.join().expect("the thread does not panic")) {
///     (Err(LockError::Deadlock(cycle)), Ok(())) | (Ok(()), Err(LockError::Deadlock(cycle))) => {
///         assert_eq!(cycle.steps.len(), 2); // prints as a sentence, with processes, threads and locks
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When a process dies
/// A process that is killed while it holds the lock may leave the data half changed. From then on, locking
/// returns [`LockError::OwnerDied`], which names the process, until a caller repairs the data with
/// [`recover`](Self::recover) and drops the guard. (Unlike the error of `std::sync::Mutex`, this error does
/// not contain the guard, so that a worker can return it with `?`.) A panic while the lock is held unlocks
/// it, and does not mark the data. A time-out never declares a process dead: a stopped process keeps its
/// lock, and waiters return [`LockError::Held`], which names the process.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Lock")]
#[doc(alias = "multiprocessing.Value")]
#[doc(alias = "synchronized")]
#[doc(alias = "get_obj")]
pub struct Lock<T: Plain + Send> {
    cell: LockCell,
    data: PhantomData<fn(T) -> T>,
}

locking!(Lock, T, |this, raw| this.cell.value(raw));

impl<T: Plain + Send> Lock<T> {
    /// Creates a lock around `value`, in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), [`Error::ArenaFull`](mp_core::Error::ArenaFull),
    /// or [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) for a type with an alignment above 64
    /// bytes.
    pub fn new(value: T) -> Result<Self> {
        let cell = LockCell::new::<T>(LockKind::Lock, 1)?;
        *cell.value(cell.first()?) = value;
        Ok(Self { cell, data: PhantomData })
    }

    /// Returns `true` if a thread of this or another process holds the lock: a snapshot. A dead process does
    /// not hold it: the next caller gets [`LockError::OwnerDied`]. Always `false` in a forked copy.
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
        self.cell.is_locked()
    }

    /// Returns a copy of the value, made under the lock.
    ///
    /// # Errors
    /// See [`lock`](Self::lock).
    #[track_caller]
    pub fn get(&self) -> Result<T, LockError> {
        Ok(*self.lock()?)
    }

    /// Replaces the value under the lock.
    ///
    /// # Errors
    /// See [`lock`](Self::lock).
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), LockError> {
        *self.lock()? = value;
        Ok(())
    }
}

handle! {
    Lock<T: Plain + Send>, "a Lock", |lock| lock.cell.shared(), "";
    |d| match LockCell::receive::<T, D>("a Lock", LockKind::Lock, d)? {
        (cell, 1) => Ok(Self { cell, data: PhantomData }),
        (_, len) => Err(serde::de::Error::custom(format!("a lock around {len} values arrived"))),
    }
}
