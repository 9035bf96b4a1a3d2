//! Recursive locks.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::mem::Word;
use mp_core::steps::lock::DeathRecord;
use mp_core::words::{LockKind, Member};
use mp_core::{AdaptiveSpin, Error, LockError, Result, Wait};

use crate::handle::handle;
use crate::locks::cell::owner_died;
use crate::locks::data::{self, GuardedData};
use crate::locks::relock::{Relock, WaitToken};
use crate::plain::Plain;
use crate::shared::{HeldLock, Shared};
use crate::steps::rlock::{AddLevel, AddLevelOutcome, Depth, ReadDepth, ReleaseLevel, SetDepth};

const NAME: &str = "RLock";

const LOCK: u64 = 0;
const DEPTH: u64 = 3;
const DATA: u64 = 8;

/// A recursive lock between processes, around plain data: the thread that holds it can lock it again.
///
/// ```
/// use mp_sync::RLock;
///
/// let account = RLock::new(100_i64)?;
/// fn deposit(account: &RLock<i64>, amount: i64) -> Result<(), mp_sync::LockError> {
///     let account = account.lock()?; // also if the caller holds the lock
///     account.set(account.get() + amount);
///     Ok(())
/// }
/// let held = account.lock()?;
/// deposit(&account, 5)?;
/// deposit(&account, -30)?;
/// assert_eq!(held.get(), 75);
/// drop(held);
/// account.set(account.get()? + 5)?; // two separate locks: another thread may lock in between
/// assert_eq!(account.get()?, 80);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A thread can have several guards at once, so they return copies instead of references:
/// [`get`](RLockGuard::get) and [`set`](RLockGuard::set). Dropping the last guard, in any order, unlocks.
///
/// State words and the effect of a death at each point: [`steps::rlock`](crate::steps::rlock).
///
/// # When a process dies
/// Works as for [`Lock`](crate::Lock): locking returns `OwnerDied` until a caller
/// [`recover`](Self::recover)s.
#[derive(Clone)]
#[doc(alias = "multiprocessing.RLock")]
pub struct RLock<T: Plain + Send> {
    pub(crate) shared: Shared,
    spin: Arc<AdaptiveSpin>,
    data: PhantomData<fn(T) -> T>,
}

/// Guard of one recursion level of an [`RLock`]. Dropping the thread's last guard unlocks.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct RLockGuard<'a, T: Plain + Send>(GuardedData<T, LevelGuard<'a, T>>);

/// A recursion level of the thread that holds the lock.
pub(crate) struct LevelGuard<'a, T: Plain + Send> {
    lock: &'a RLock<T>,
    me: Member,
    died: Option<DeathRecord>,
    thread: PhantomData<*const ()>,
}

impl<T: Plain + Send> RLock<T> {
    const WORDS: u64 = DATA + data::words_of::<T>();

    /// Creates a lock around `value`, in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a type with an alignment
    /// above 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        data::check::<T>()?;
        let made = Self::of(Shared::new(&data::name_of::<T>(NAME), Self::WORDS)?);
        made.lock().map_err(data::new_lock_error)?.set(value);
        Ok(made)
    }

    fn of(shared: Shared) -> Self {
        Self { shared, spin: Arc::default(), data: PhantomData }
    }

    /// Acquires the lock, also if this thread holds it already. Blocks until it is available.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] if a process died while it held the lock and no caller has recovered since,
    /// [`LockError::Deadlock`] if this thread closed a cycle of threads that wait for each other,
    /// [`LockError::Failed`] in a forked copy.
    #[doc(alias = "acquire")]
    #[track_caller]
    pub fn lock(&self) -> Result<RLockGuard<'_, T>, LockError> {
        self.lock_wait(Wait::Forever, false)
    }

    mp_core::forms! {
        "Acquires the lock": lock() -> Result<RLockGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names the holder";
        |lock, wait| lock.lock_wait(wait, false);
        never try_lock;
        at_most lock_timeout;
        until lock_deadline;
    }

    /// Acquires the lock, even if a process died while it held it. Blocks until it is available. Dropping the
    /// last guard of this thread marks the data as repaired.
    ///
    /// # Errors
    /// The errors of [`lock`](Self::lock), without `OwnerDied`.
    #[track_caller]
    pub fn recover(&self) -> Result<RLockGuard<'_, T>, LockError> {
        self.lock_wait(Wait::Forever, true)
    }

    mp_core::forms! {
        "Acquires the lock, even if a process died while it held it":
        recover() -> Result<RLockGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names the holder";
        |lock, wait| lock.lock_wait(wait, true);
        at_most recover_timeout;
    }

    /// Returns `true` if a thread of this or another process holds the lock: a snapshot. A dead process does
    /// not hold it: the next caller gets [`LockError::OwnerDied`]. Always `false` in a forked copy.
    ///
    /// ```
    /// let lock = mp_sync::RLock::new(7)?;
    /// assert!(!lock.is_locked());
    /// let guard = lock.lock()?;
    /// assert!(lock.is_locked());
    /// # drop(guard);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[doc(alias = "locked")]
    pub fn is_locked(&self) -> bool {
        self.shared.is_locked(LOCK)
    }

    /// Returns a copy of the value, made under the lock.
    ///
    /// # Errors
    /// See [`lock`](Self::lock).
    #[track_caller]
    pub fn get(&self) -> Result<T, LockError> {
        Ok(self.lock()?.get())
    }

    /// Replaces the value under the lock.
    ///
    /// # Errors
    /// See [`lock`](Self::lock).
    #[track_caller]
    pub fn set(&self, value: T) -> Result<(), LockError> {
        self.lock()?.set(value);
        Ok(())
    }

    fn depth(&self) -> Word {
        self.shared.at(DEPTH)
    }

    #[track_caller]
    fn lock_wait(&self, wait: Wait, recovering: bool) -> Result<RLockGuard<'_, T>, LockError> {
        let me = self.shared.me()?;
        let lock = self.shared.lock(LOCK);
        let mut died = None;
        match lock.acquire(LockKind::RLock, wait, &self.spin) {
            Ok(guard) if guard.is_poisoned() && !recovering => return Err(owner_died(&guard)),
            Ok(guard) => {
                died = guard.died();
                self.shared.run(SetDepth(self.depth(), Depth::new(1, recovering)));
                _ = HeldLock::forget(lock, guard);
            }
            Err(LockError::WouldDeadlock) => match self.shared.run(AddLevel::new(self.depth())) {
                AddLevelOutcome::Added => {}
                AddLevelOutcome::Overflow => {
                    return Err(Error::LimitExceeded(
                        "this thread has locked it too often: drop some of its guards".into(),
                    )
                    .into());
                }
                AddLevelOutcome::Corrupt => {
                    let why = "this thread holds the lock, but its depth is 0: another process overwrote it";
                    return Err(Error::Malformed(why.into()).into());
                }
            },
            Err(other) => return Err(other),
        }
        let level = LevelGuard { lock: self, me, died, thread: PhantomData };
        Ok(RLockGuard(GuardedData::new(&self.shared, DATA, level)))
    }
}

/// Levels that a thread has released while it waits at a condition. The thread's other guards still exist,
/// but can't be used during the wait. So the wait always ends with the lock taken again for these guards.
#[derive(Debug)]
pub struct UnlockedLevels<'a, T: Plain + Send> {
    lock: &'a RLock<T>,
    me: Member,
    /// Number of levels in addition to the guard that waits.
    others: u64,
}

impl<'a, T: Plain + Send> UnlockedLevels<'a, T> {
    /// Takes the lock again at `others + 1` levels. If a holder has died meanwhile, takes the lock at
    /// `others` levels and returns an error. The time-out applies only if `others` is 0.
    #[track_caller]
    fn relock(&mut self, wait: Wait) -> Result<RLockGuard<'a, T>, LockError> {
        let (lock, shared) = (self.lock, &self.lock.shared);
        let raw = shared.lock(LOCK);
        // The other guards rely on the lock, even in a deadlock: another thread of the cycle gets the error.
        let (kind, wait) = match self.others {
            0 => (LockKind::RLock, wait),
            _ => (LockKind::RLockReentry, Wait::Forever),
        };
        let guard = raw.acquire(kind, wait, &lock.spin)?;
        let others = std::mem::take(&mut self.others);
        let died = guard.is_poisoned().then(|| owner_died(&guard));
        let depth = if died.is_some() { others } else { others + 1 };
        if depth > 0 {
            shared.run(SetDepth(lock.depth(), Depth::new(depth, false)));
            _ = HeldLock::forget(raw, guard);
        }
        match died {
            Some(died) => Err(died),
            None => {
                let level = LevelGuard { lock, me: self.me, died: None, thread: PhantomData };
                Ok(RLockGuard(GuardedData::new(shared, DATA, level)))
            }
        }
    }
}

impl<T: Plain + Send> Drop for UnlockedLevels<'_, T> {
    fn drop(&mut self) {
        // The waiting call has returned the error already. In a forked copy, nothing is locked and the loop
        // ends.
        while self.others > 0 && self.lock.shared.me().ok() == Some(self.me) {
            drop(self.relock(Wait::Forever));
        }
    }
}

impl<'a, T: Plain + Send> Relock for RLockGuard<'a, T> {
    type Contents = Self;
    type Unlocked = UnlockedLevels<'a, T>;

    fn contents(&mut self) -> &mut Self {
        self
    }

    fn unlock(self, _: WaitToken) -> UnlockedLevels<'a, T> {
        let (lock, me) = (self.0.key.lock, self.0.key.me);
        // This level is released with the others.
        std::mem::forget(self);
        // The levels belong to the parent, not to a forked copy.
        if lock.shared.me().ok() != Some(me) {
            return UnlockedLevels { lock, me, others: 0 };
        }
        let depth = lock.shared.run(ReadDepth(lock.depth()));
        HeldLock::resume(lock.shared.lock(LOCK)).release(lock.shared.arena(), depth.is_recovering());
        UnlockedLevels { lock, me, others: depth.levels().saturating_sub(1) }
    }

    #[track_caller]
    fn relock(mut unlocked: UnlockedLevels<'a, T>, wait: Wait, _: WaitToken) -> Result<Self, LockError> {
        unlocked.relock(wait)
    }
}

impl<T: Plain + Send> Drop for LevelGuard<'_, T> {
    fn drop(&mut self) {
        let shared = &self.lock.shared;
        // The level belongs to the parent, not to a forked copy.
        if shared.me().ok() != Some(self.me) {
            return;
        }
        if let Some(depth) = shared.run(ReleaseLevel::new(self.lock.depth())) {
            HeldLock::resume(shared.lock(LOCK)).release(shared.arena(), depth.is_recovering());
        }
    }
}

impl<T: Plain + Send> RLockGuard<'_, T> {
    /// Returns a copy of the data.
    pub fn get(&self) -> T {
        self.0.get()
    }

    /// Replaces the data.
    pub fn set(&self, value: T) {
        self.0.set(value);
    }

    /// Returns the process that died while it held the lock, if the data has to be checked for that reason.
    pub fn died(&self) -> Option<DeathRecord> {
        self.0.key.died
    }
}

impl<T: Plain + Send + fmt::Debug> fmt::Debug for RLockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

handle! {
    RLock<T: Plain + Send>, "an RLock", |lock| lock.shared, "";
    |d| data::receive::<T, D>("an RLock", NAME, Self::WORDS, d).map(Self::of)
}
