//! Waiting for a lock between processes: the [steps](crate::steps::lock) run on an arena.
//!
//! A waiter spins for an adaptive time. Then it sleeps on the lock's own word, at most a poll interval
//! ([`POLL_INTERVAL`](crate::POLL_INTERVAL)) at a time. It checks whether the holder is dead at these times:
//! after a millisecond, after each poll interval, after a death was detected, and before it returns an error.
//! Most waits end within the first millisecond, so no check is made earlier. No wait relies on a wake-up.
//! From the first poll interval on, the waiter also searches for a cycle of waiters (`deadlock`).

use std::fmt;
use std::marker::PhantomData;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocking::block_on::{Blocking, LivenessTimer, block_on};
use crate::blocking::deadlock::{Deadlock, LockWait};
use crate::blocking::reports::{BlockingCall, Subject, WaitObject};
use crate::blocking::wait_limit::Wait;
use crate::error::Error;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::parking::spin::AdaptiveSpin;
use crate::steps::lock::{
    AcquireLock, DeadHolder, DeathRecord, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked,
    is_held_by,
};
use crate::sync::shared::AtomicU32;
use crate::sys::{futex, identity};
use crate::words::{BlockId, LockKind, Member, WaitGoal};

/// Error returned when a lock, or the data that it protects, is not available.
///
/// The error can be sent to another process, like [`Error`].
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockError {
    /// A process died while it held the lock, and may have changed the data only in part. The lock is
    /// unlocked again.
    ///
    /// Every caller gets this error until one calls `recover`.
    OwnerDied {
        /// Process that died.
        member: Member,
        /// Process ID, or 0 if it was no longer known.
        pid: u32,
    },
    /// Another process, or another thread of this process, held the lock for the whole time that the caller
    /// waited.
    Held {
        /// Holder of the lock.
        holder: Member,
        /// Process ID of the holder, or 0 if it has not been published yet.
        pid: u32,
    },
    /// The calling thread already holds the lock, and would wait for itself.
    WouldDeadlock,
    /// The calling thread and other threads wait for each other in a cycle of locks, so none of them could
    /// ever continue. The lock was not taken. The other threads continue when the caller drops its guards.
    Deadlock(Box<Deadlock>),
    /// Shared memory can't be used.
    Failed(Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnerDied { member, pid } => write!(
                f,
                "{} died while it held the lock, and the data may be half changed; repair it under recover()",
                member.process(*pid)
            ),
            Self::Held { holder, pid } => {
                write!(f, "still locked by {}; is it stopped, or slow?", holder.process(*pid))
            }
            Self::WouldDeadlock => f.write_str(
                "this thread holds the lock already and would wait for itself; drop its guard first, or \
                use an RLock, \
                 which its thread may lock again",
            ),
            Self::Deadlock(cycle) => fmt::Display::fmt(cycle, f),
            Self::Failed(e) => fmt::Display::fmt(e, f),
        }
    }
}

crate::readable_debug!(LockError);

impl std::error::Error for LockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(e) => std::error::Error::source(e),
            _ => None,
        }
    }
}

impl From<Error> for LockError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl OsThread {
    /// Returns the identity of the calling thread.
    #[inline]
    pub fn here() -> Self {
        Self { pid: identity::process(), tid: identity::thread() }
    }
}

/// A lock in shared memory: three words of an arena. The owner of the lock decides which data it protects.
#[derive(Clone, Copy, Debug)]
pub struct RawLock {
    arena: Arena,
    at: LockAt,
    /// Block that contains the lock, for reports of waits.
    block: Option<BlockId>,
}

/// Guard of a held lock. Dropping it releases the lock. In a forked child, dropping does nothing.
#[derive(Debug)]
pub struct RawGuard<'a> {
    lock: &'a RawLock,
    me: Member,
    marked: bool,
    recovered: bool,
    /// Makes the guard `!Send`: the lock stores the thread that holds it.
    thread: PhantomData<*const ()>,
}

impl RawLock {
    /// Returns the lock at these words, which are zero if the lock was never used.
    pub(crate) fn new(arena: Arena, word: Word) -> Self {
        Self { arena, at: LockAt(word), block: None }
    }

    /// Sets the block that contains the lock. Only processes that hold the block can release the lock.
    pub fn in_block(self, block: &Hold) -> Self {
        Self { block: Some(block.block()), ..self }
    }

    /// Acquires the lock. `kind` describes the wait to the deadlock detection.
    ///
    /// The guard reports whether a [holder died](RawGuard::died).
    ///
    /// # Errors
    /// [`LockError::Held`], [`LockError::WouldDeadlock`], [`LockError::Deadlock`] or [`LockError::Failed`].
    #[inline(always)]
    #[track_caller]
    pub fn acquire(
        &self,
        kind: LockKind,
        wait: Wait,
        patience: &AdaptiveSpin,
    ) -> Result<RawGuard<'_>, LockError> {
        let me = self.arena.me()?;
        let who = OsThread::here();
        match run(AcquireLock::new(self.at, me, who, false, None), self.arena.map()) {
            LockAttempt::Acquired(word) => Ok(self.guard(me, word)),
            LockAttempt::Held(word) => self.wait((me, who), word, kind, wait, patience),
        }
    }

    /// Returns the present lock word.
    #[inline]
    pub fn look(&self) -> LockWord {
        LockWord(self.arena.map().load(self.at.word()))
    }

    /// Returns the guard of a lock that the calling process holds.
    pub(crate) fn held(&self, me: Member) -> RawGuard<'_> {
        self.guard(me, self.look())
    }

    #[inline(always)]
    fn guard(&self, me: Member, word: LockWord) -> RawGuard<'_> {
        RawGuard { lock: self, me, marked: word.is_poisoned(), recovered: false, thread: PhantomData }
    }

    /// Returns the holder, if it is dead.
    fn dead_holder(&self, word: LockWord) -> Option<DeadHolder> {
        let holder = word.holder()?;
        // After the reclaim of the holder, the member table has no pid of it. The lock's `by` word may have
        // it.
        (Members(self.arena).is_dead(holder))
            .then(|| DeadHolder { word, pid: Members(self.arena).pid_of(holder) })
    }

    /// Returns the error that names the holder.
    fn held_by(&self, word: LockWord) -> LockError {
        let holder = word.holder().unwrap_or(Member::from_raw(0));
        let signed = OsThread::of(self.arena.map().load(self.at.by()), word);
        LockError::Held {
            holder,
            pid: signed.map_or_else(|| Members(self.arena).pid_of(holder), |who| who.pid),
        }
    }

    #[cold]
    #[track_caller]
    fn wait(
        &self,
        (me, who): (Member, OsThread),
        seen: LockWord,
        kind: LockKind,
        wait: Wait,
        patience: &AdaptiveSpin,
    ) -> Result<RawGuard<'_>, LockError> {
        let map = self.arena.map();
        if seen.holder() == Some(me) && is_held_by(self.at, seen, who, map) {
            return Err(LockError::WouldDeadlock);
        }
        let asking = LivenessTimer::default();
        let goal = WaitGoal { kind, lock: self.at.word(), readers: None };
        let cycles = LockWait::new(self.arena, me, goal, wait);
        let mut waiter = Waiter { lock: self, me, who, seen, slept: false, asking, cycles, wait };
        match block_on(&mut waiter, patience, wait) {
            Some(found) => Ok(self.guard(me, found?)),
            None => Err(self.held_by(waiter.seen)),
        }
    }

    #[cold]
    fn wake(&self) {
        futex::wake(self.futex(), 1);
    }

    fn futex(&self) -> &'static AtomicU32 {
        self.arena.map().futex_at(self.at.word())
    }
}

/// Thread that waits for a lock.
struct Waiter<'a> {
    lock: &'a RawLock,
    me: Member,
    who: OsThread,
    /// Lock word as last read.
    seen: LockWord,
    slept: bool,
    asking: LivenessTimer,
    cycles: LockWait,
    wait: Wait,
}

impl Waiter<'_> {
    fn acquire(&mut self, dead: Option<DeadHolder>) -> Option<Result<LockWord, LockError>> {
        let RawLock { at, arena, .. } = *self.lock;
        match run(AcquireLock::new(at, self.me, self.who, self.slept, dead), arena.map()) {
            LockAttempt::Acquired(word) => Some(Ok(word)),
            LockAttempt::Held(word) => {
                self.seen = word;
                None
            }
        }
    }
}

impl Blocking for Waiter<'_> {
    type Found = Result<LockWord, LockError>;

    fn attempt(&mut self) -> Option<Self::Found> {
        self.acquire(None)
    }

    fn spin(&mut self, patience: &AdaptiveSpin) -> Option<Self::Found> {
        patience.look_rarely(|| self.attempt())
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Self::Found> {
        match self.asking.is_due(self.lock.arena, now, over) {
            Ok(true) => match self.lock.dead_holder(self.seen) {
                Some(dead) => self.acquire(Some(dead)),
                None => self.cycles.look(now).map(|cycle| Err(LockError::Deadlock(cycle))),
            },
            Ok(false) => None,
            Err(e) => Some(Err(e.into())),
        }
    }

    fn announce(&mut self) -> Option<u64> {
        run(SetParked::new(self.lock.at, self.seen), self.lock.arena.map()).map(|parked| parked.0)
    }

    /// Returns `None`. No check is needed, because the announcement was a swap of the lock word that found
    /// the lock held.
    fn last_look(&mut self) -> Option<Self::Found> {
        None
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        self.slept = true;
        self.asking.sleep(self.lock.arena, self.lock.futex(), announced as u32, self.wait)
    }

    fn subject(&self) -> Subject {
        let on = self.lock.block.map_or(WaitObject::Other, |block| WaitObject::Block(self.lock.arena, block));
        let state = match self.lock.held_by(self.seen) {
            LockError::Held { pid, .. } if pid != 0 => format!("held by pid {pid}"),
            _ => "held".to_owned(),
        };
        Subject::other(BlockingCall::Lock, on, state)
    }
}

impl RawGuard<'_> {
    /// Returns `true` if a process died while it held the lock, and no holder has marked the data as
    /// recovered since.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.marked
    }

    /// Returns the process that died while it held the lock, if the lock [is poisoned](Self::is_poisoned).
    pub fn died(&self) -> Option<DeathRecord> {
        self.marked.then(|| DeathRecord::unpack(self.lock.arena.map().load(self.lock.at.died())))
    }

    /// Removes the mark *poisoned* when the guard is dropped, unless the thread then panics. For callers that
    /// have repaired the lock's data.
    #[inline]
    pub fn mark_recovered(&mut self) {
        self.recovered = true;
    }
}

impl Drop for RawGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // In a forked child, the lock does not belong to this process, which is not a member, or is another
        // member.
        if self.lock.arena.me().ok() != Some(self.me) {
            return;
        }
        let sound = self.recovered && !std::thread::panicking();
        if run(ReleaseLock::new(self.lock.at, sound), self.lock.arena.map()) {
            self.lock.wake();
        }
    }
}
