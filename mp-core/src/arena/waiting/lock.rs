//! Waiting for a lock between processes: the [steps](crate::steps::lock) driven on an arena.
//!
//! Looks for a while (as it has paid, up to 50 µs), then sleeps on the lock's own word, at most a poll interval
//! ([`POLL_INTERVAL`](crate::POLL_INTERVAL)) at a time. After a millisecond, after each poll interval, when a death was noticed, and before it
//! gives up it asks whether the holder is dead: not before, since most waits are shorter than it takes to ask. No
//! wake-up is relied upon. From the first poll interval on it also looks for a cycle of waiters (`deadlock`).

use std::fmt;
use std::marker::PhantomData;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::arena::waiting::block_on::{Blocking, LivenessTimer, Wait, block_on};
use crate::arena::waiting::deadlock::{Deadlock, LockWait};
use crate::arena::waiting::waits::{Call, On, Subject};
use crate::arena::{AdaptiveSpin, Arena, Hold};
use crate::error::Error;
use crate::mem::{Mem, Word, run};
use crate::steps::lock::{Acquire, Acquired, DeadHolder, Died, IsMine, LockAt, LockWord, Park, Unlock, Who};
use crate::sync::shared::AtomicU32;
use crate::sys::{futex, identity};
use crate::words::{BlockId, LockKind, Member, WaitGoal};

/// Why something that is locked could not be had.
///
/// It can be sent, as [`Error`] can.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum LockError {
    /// A process died while it held the lock: what it was changing may be half changed. It is unlocked again.
    ///
    /// Every caller gets this until one calls `recover`.
    OwnerDied {
        /// The process that died.
        member: Member,
        /// Its process id; 0 if it was not known any more.
        pid: u32,
    },
    /// It was held by another process (or thread of this one) for as long as the caller was willing to wait.
    Held {
        /// The holder.
        holder: Member,
        /// Its process id; 0 if it has not said so yet.
        pid: u32,
    },
    /// The calling thread holds it already: it would wait for itself.
    WouldDeadlock,
    /// The calling thread waits for a thread that waits for it, by way of the locks that are named: none of them would ever
    /// have what it waits for. The lock was not taken; the others go on when the caller drops what it holds.
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
                "this thread holds the lock already and would wait for itself; drop its guard first, or use an RLock, \
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

impl Who {
    /// The calling thread.
    #[inline]
    pub fn here() -> Self {
        Self { pid: identity::process(), tid: identity::thread() }
    }
}

/// A lock in shared memory: three words of an arena. What it protects is its owner's business.
#[derive(Clone, Copy, Debug)]
pub struct RawLock {
    arena: Arena,
    at: LockAt,
    /// The block that its holders hold: for reports of waits.
    block: Option<BlockId>,
}

/// The lock, held. Dropping it releases; in a forked copy of the process dropping does nothing.
#[derive(Debug)]
pub struct RawGuard<'a> {
    lock: &'a RawLock,
    me: Member,
    marked: bool,
    recovered: bool,
    /// The lock knows by which thread it is held.
    thread: PhantomData<*const ()>,
}

impl RawLock {
    /// The lock at these words, which are zero as long as it was never used.
    pub(crate) fn new(arena: Arena, word: Word) -> Self {
        Self { arena, at: LockAt(word), block: None }
    }

    /// The same lock, which lies in this block: only processes that hold the block can release it.
    pub fn in_block(self, block: &Hold) -> Self {
        Self { block: Some(block.block()), ..self }
    }

    /// Takes it. `kind`: for others that it waits for.
    ///
    /// The guard says whether a [holder died](RawGuard::died).
    ///
    /// # Errors
    /// [`LockError::Held`], [`LockError::WouldDeadlock`], [`LockError::Deadlock`] or [`LockError::Failed`].
    #[inline(always)]
    pub fn acquire(
        &self,
        kind: LockKind,
        wait: Wait,
        patience: &AdaptiveSpin,
    ) -> Result<RawGuard<'_>, LockError> {
        let me = self.arena.me()?;
        let who = Who::here();
        match run(Acquire::new(self.at, me, who, false, None), self.arena.map()) {
            Acquired::Mine(word) => Ok(self.guard(me, word)),
            Acquired::Held(word) => self.wait((me, who), word, kind, wait, patience),
        }
    }

    /// The lock word, as it is now.
    #[inline]
    pub fn look(&self) -> LockWord {
        LockWord(self.arena.map().load(self.at.word()))
    }

    /// The guard of a lock that the calling process holds.
    pub(crate) fn held(&self, me: Member) -> RawGuard<'_> {
        self.guard(me, self.look())
    }

    #[inline(always)]
    fn guard(&self, me: Member, word: LockWord) -> RawGuard<'_> {
        RawGuard { lock: self, me, marked: word.is_marked(), recovered: false, thread: PhantomData }
    }

    /// The holder, if it is dead.
    fn dead_holder(&self, word: LockWord) -> Option<DeadHolder> {
        let holder = word.holder()?;
        // The member table forgets it once it is swept; `by` does not.
        (self.arena.is_dead(holder)).then(|| DeadHolder { word, pid: self.arena.pid_of(holder) })
    }

    /// The holder, for an error.
    fn held_by(&self, word: LockWord) -> LockError {
        let holder = word.holder().unwrap_or(Member::from_raw(0));
        let signed = Who::of(self.arena.map().load(self.at.by()), word);
        LockError::Held { holder, pid: signed.map_or_else(|| self.arena.pid_of(holder), |who| who.pid) }
    }

    #[cold]
    fn wait(
        &self,
        (me, who): (Member, Who),
        seen: LockWord,
        kind: LockKind,
        wait: Wait,
        patience: &AdaptiveSpin,
    ) -> Result<RawGuard<'_>, LockError> {
        let map = self.arena.map();
        if seen.holder() == Some(me) && run(IsMine::new(self.at, seen, who), map) {
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
        let low = if cfg!(target_endian = "big") { 4 } else { 0 };
        self.arena.map().u32_at(self.at.word().offset() + low)
    }
}

/// A thread that waits for a lock.
struct Waiter<'a> {
    lock: &'a RawLock,
    me: Member,
    who: Who,
    /// What was last found in the lock word.
    seen: LockWord,
    slept: bool,
    asking: LivenessTimer,
    cycles: LockWait,
    wait: Wait,
}

impl Waiter<'_> {
    fn acquire(&mut self, dead: Option<DeadHolder>) -> Option<Result<LockWord, LockError>> {
        let RawLock { at, arena, .. } = *self.lock;
        match run(Acquire::new(at, self.me, self.who, self.slept, dead), arena.map()) {
            Acquired::Mine(word) => Some(Ok(word)),
            Acquired::Held(word) => {
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
        run(Park::new(self.lock.at, self.seen), self.lock.arena.map()).map(|parked| parked.0)
    }

    /// The lock word said that it is held when it was announced in it.
    fn last_look(&mut self) -> Option<Self::Found> {
        None
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        self.slept = true;
        self.asking.sleep(self.lock.arena, self.lock.futex(), announced as u32, self.wait)
    }

    fn subject(&self) -> Subject {
        let on = self.lock.block.map_or(On::Other, |block| On::Block(self.lock.arena, block));
        let state = match self.lock.held_by(self.seen) {
            LockError::Held { pid, .. } if pid != 0 => format!("held by pid {pid}"),
            _ => "held".to_owned(),
        };
        Subject::other(Call::Lock, on, state)
    }
}

impl RawGuard<'_> {
    /// Whether a process died holding it, and no holder has said since that the data is sound.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// The process that died holding it, if [`is_marked`](Self::is_marked).
    pub fn died(&self) -> Option<Died> {
        self.marked.then(|| Died::unpack(self.lock.arena.map().load(self.lock.at.died())))
    }

    /// Says that the data is as it should be: dropping the guard, other than by a panic, takes the mark away.
    #[inline]
    pub fn mark_recovered(&mut self) {
        self.recovered = true;
    }
}

impl Drop for RawGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // In a forked copy it is not this process's: the copy is no member, or another one.
        if self.lock.arena.me().ok() != Some(self.me) {
            return;
        }
        let sound = self.recovered && !std::thread::panicking();
        if run(Unlock::new(self.lock.at, sound), self.lock.arena.map()) {
            self.lock.wake();
        }
    }
}
