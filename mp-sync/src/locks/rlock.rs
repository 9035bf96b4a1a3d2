//! A lock that its holder may take again.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::mem::Word;
use mp_core::steps::lock::Died;
use mp_core::words::{LockKind, Member};
use mp_core::{AdaptiveSpin, Error, LockError, Result, Wait};

use crate::handle::handle;
use crate::locks::data::{self, Guarded};
use crate::locks::locked::owner_died;
use crate::locks::unlocked::{Relock, Waiting};
use crate::plain::Plain;
use crate::shared::{Kept, Shared};
use crate::steps::rlock::{AllLevels, Deepen, Deeper, Depth, Rise, SetDepth};

const NAME: &str = "RLock";

const LOCK: u64 = 0;
const DEPTH: u64 = 3;
const DATA: u64 = 8;

/// A lock between processes that the thread which holds it may lock again, and the plain data that it protects.
///
/// ```
/// use mp_sync::RLock;
///
/// let account = RLock::new(100_i64)?;
/// fn deposit(account: &RLock<i64>, amount: i64) -> Result<(), mp_sync::LockError> {
///     let account = account.lock()?; // also if the caller holds it
///     account.set(account.get() + amount);
///     Ok(())
/// }
/// let held = account.lock()?;
/// deposit(&account, 5)?;
/// deposit(&account, -30)?;
/// assert_eq!(held.get(), 75);
/// drop(held);
/// account.set(account.get()? + 5)?; // each locks by itself: another thread may come in between
/// assert_eq!(account.get()?, 80);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Several guards of one thread may exist at once, so that they give no references: [`get`](RLockGuard::get) and
/// [`set`](RLockGuard::set) copy. It is unlocked when the last of them is dropped, in whatever order.
///
/// Words, and what each point of death leaves: [`steps::rlock`](crate::steps::rlock).
///
/// # When a process dies
/// As for [`Lock`](crate::Lock): locking returns `OwnerDied` until a caller [`recover`](Self::recover)s.
#[derive(Clone)]
#[doc(alias = "multiprocessing.RLock")]
pub struct RLock<T: Plain + Send> {
    pub(crate) shared: Shared,
    patience: Arc<AdaptiveSpin>,
    data: PhantomData<fn(T) -> T>,
}

/// One level of an [`RLock`] that this thread holds. Dropping the last one unlocks.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct RLockGuard<'a, T: Plain + Send>(Guarded<T, Level<'a, T>>);

/// That the thread holds the lock, once more.
pub(crate) struct Level<'a, T: Plain + Send> {
    lock: &'a RLock<T>,
    me: Member,
    died: Option<Died>,
    thread: PhantomData<*const ()>,
}

impl<T: Plain + Send> RLock<T> {
    const WORDS: u64 = DATA + data::words_of::<T>();

    /// A lock around `value`, in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a type that is aligned to more
    /// than 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        data::check::<T>()?;
        let made = Self::of(Shared::new(&data::name_of::<T>(NAME), Self::WORDS)?);
        match made.lock() {
            Ok(guard) => guard.set(value),
            Err(LockError::Failed(e)) => return Err(e),
            Err(other) => return Err(Error::Malformed(other.to_string())),
        }
        Ok(made)
    }

    fn of(shared: Shared) -> Self {
        Self { shared, patience: Arc::default(), data: PhantomData }
    }

    /// Locks it, also if this thread has it already; waits as long as it takes.
    ///
    /// # Errors
    /// [`LockError::OwnerDied`] when a process died while it held the lock and no caller has recovered since,
    /// [`LockError::Deadlock`] when threads wait for each other in a cycle and this one closed it, [`LockError::Failed`] in a
    /// forked copy.
    #[doc(alias = "acquire")]
    pub fn lock(&self) -> Result<RLockGuard<'_, T>, LockError> {
        self.within(Wait::Forever, false)
    }

    mp_core::forms! {
        "Locks it": lock() -> Result<RLockGuard<'_, T>, LockError>, or "[`LockError::Held`], which names the holder";
        |lock, wait| lock.within(wait, false);
        never try_lock;
        at_most lock_timeout;
        until lock_deadline;
    }

    /// Locks it also when a process died while it held the lock; waits as long as it takes. When the last guard of this
    /// thread is dropped, the data counts as repaired.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), without `OwnerDied`.
    pub fn recover(&self) -> Result<RLockGuard<'_, T>, LockError> {
        self.within(Wait::Forever, true)
    }

    mp_core::forms! {
        "Locks it also when a process died while it held the lock": recover() -> Result<RLockGuard<'_, T>, LockError>,
        or "[`LockError::Held`], which names the holder";
        |lock, wait| lock.within(wait, true);
        at_most recover_timeout;
    }

    /// Whether some thread has it, of this process or another one: a snapshot, which another thread may change before this returns.
    /// A process that died has it no more: the next caller gets [`LockError::OwnerDied`]. Never in a forked copy.
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

    /// A copy of the value, made under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn get(&self) -> Result<T, LockError> {
        Ok(self.lock()?.get())
    }

    /// Replaces the value under the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn set(&self, value: T) -> Result<(), LockError> {
        self.lock()?.set(value);
        Ok(())
    }

    fn depth(&self) -> Word {
        self.shared.at(DEPTH)
    }

    fn within(&self, wait: Wait, recovering: bool) -> Result<RLockGuard<'_, T>, LockError> {
        let me = self.shared.me()?;
        let lock = self.shared.lock(LOCK);
        let mut died = None;
        match lock.acquire(LockKind::RLock, wait, &self.patience) {
            Ok(guard) if guard.is_marked() && !recovering => return Err(owner_died(&guard)),
            Ok(guard) => {
                died = guard.died();
                self.shared.run(SetDepth(self.depth(), Depth::new(1, recovering)));
                _ = Kept::of(lock, guard);
            }
            Err(LockError::WouldDeadlock) => match self.shared.run(Deepen::new(self.depth())) {
                Deeper::Taken => {}
                Deeper::TooOften => {
                    return Err(Error::LimitExceeded(
                        "this thread has locked it too often: drop some of its guards".into(),
                    )
                    .into());
                }
                Deeper::Garbage => {
                    let why = "this thread has the lock, and its words say not";
                    return Err(Error::Malformed(why.into()).into());
                }
            },
            Err(other) => return Err(other),
        }
        let level = Level { lock: self, me, died, thread: PhantomData };
        Ok(RLockGuard(Guarded::new(&self.shared, DATA, level)))
    }
}

/// The levels that a thread has given up while it waits at a condition. Its other guards are where the thread
/// can't use them, and go on saying that it has the lock: so it comes back with the lock, as often as they
/// say, whatever happens.
#[derive(Debug)]
pub struct Unlocked<'a, T: Plain + Send> {
    lock: &'a RLock<T>,
    me: Member,
    /// How often it had the lock besides the guard that it waits with.
    others: u64,
}

impl<'a, T: Plain + Send> Unlocked<'a, T> {
    /// Locks again `others` times and once; `others` times if a holder has died meanwhile, or it takes too
    /// long.
    fn relock(&mut self, wait: Wait) -> Result<RLockGuard<'a, T>, LockError> {
        let (lock, shared) = (self.lock, &self.lock.shared);
        let raw = shared.lock(LOCK);
        // With others it can't do without, not even in a deadlock: another thread of that gives up.
        let (kind, wait) = match self.others {
            0 => (LockKind::RLock, wait),
            _ => (LockKind::RLockAgain, Wait::Forever),
        };
        let guard = raw.acquire(kind, wait, &lock.patience)?;
        let others = std::mem::take(&mut self.others);
        let died = guard.is_marked().then(|| owner_died(&guard));
        let depth = if died.is_some() { others } else { others + 1 };
        if depth > 0 {
            shared.run(SetDepth(lock.depth(), Depth::new(depth, false)));
            _ = Kept::of(raw, guard);
        }
        match died {
            Some(died) => Err(died),
            None => {
                let level = Level { lock, me: self.me, died: None, thread: PhantomData };
                Ok(RLockGuard(Guarded::new(shared, DATA, level)))
            }
        }
    }
}

impl<T: Plain + Send> Drop for Unlocked<'_, T> {
    fn drop(&mut self) {
        // The waiter reports what went wrong; this fails where nothing is locked any more, in a forked copy.
        while self.others > 0 && self.lock.shared.me().ok() == Some(self.me) {
            drop(self.relock(Wait::Forever));
        }
    }
}

impl<'a, T: Plain + Send> Relock for RLockGuard<'a, T> {
    type Seen = Self;
    type Unlocked = Unlocked<'a, T>;

    fn seen(&mut self) -> &mut Self {
        self
    }

    fn unlock(self, _: Waiting) -> Unlocked<'a, T> {
        let (lock, me) = (self.0.key.lock, self.0.key.me);
        // This level goes with the others.
        std::mem::forget(self);
        // In a forked copy it is not ours.
        if lock.shared.me().ok() != Some(me) {
            return Unlocked { lock, me, others: 0 };
        }
        let depth = lock.shared.run(AllLevels(lock.depth()));
        Kept::again(lock.shared.lock(LOCK)).release(lock.shared.arena(), depth.is_recovering());
        Unlocked { lock, me, others: depth.levels().saturating_sub(1) }
    }

    fn relock(mut unlocked: Unlocked<'a, T>, wait: Wait, _: Waiting) -> Result<Self, LockError> {
        unlocked.relock(wait)
    }
}

impl<T: Plain + Send> Drop for Level<'_, T> {
    fn drop(&mut self) {
        let shared = &self.lock.shared;
        // In a forked copy it is not ours.
        if shared.me().ok() != Some(self.me) {
            return;
        }
        if let Some(depth) = shared.run(Rise::new(self.lock.depth())) {
            Kept::again(shared.lock(LOCK)).release(shared.arena(), depth.is_recovering());
        }
    }
}

impl<T: Plain + Send> RLockGuard<'_, T> {
    /// A copy of the data.
    pub fn get(&self) -> T {
        self.0.get()
    }

    /// Replaces the data.
    pub fn set(&self, value: T) {
        self.0.set(value);
    }

    /// The process that died while holding the lock, if that is why the data has to be checked.
    pub fn died(&self) -> Option<Died> {
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
