//! Waiting, with a lock released meanwhile, until a notification says that something has changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::waits::{Call, Subject};
use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Blocking, Error, LivenessTimer, LockError, Result, Wait, block_on};

use crate::handle::handle;
use crate::locks::unlocked::{ConditionGuard, Waiting};
use crate::shared::Shared;
use crate::steps::condition::{ASLEEP, NOTIFIED, Notified, Notify, WAITING};
use crate::steps::slot::{Change, Claim, EMPTY, Find, Seen, Slot, Slots, set};

const NAME: &str = "mp_sync::Condition";
const USED: u64 = 0;
const TURN: u64 = 1;
const SLOTS: u64 = 16;
/// Threads that wait at once, unless said otherwise.
const WAITERS: u32 = 1024;

/// A place to wait, between processes, until what a [`Lock`](crate::Lock) or an [`RLock`](crate::RLock) protects has changed.
///
/// ```
/// use mp_sync::{Condition, Lock};
///
/// let (jobs, changed) = (Lock::new(0_u32)?, Condition::new()?);
/// let (theirs, told) = (jobs.clone(), changed.clone()); // or sent to another process
/// let worker = std::thread::spawn(move || -> Result<u32, mp_sync::LockError> {
///     let mut jobs = told.wait_for(theirs.lock()?, |jobs| *jobs > 0)?; // unlocked while it waits
///     *jobs -= 1;
///     Ok(*jobs)
/// });
/// *jobs.lock()? += 3;
/// changed.notify_one()?;
/// assert_eq!(worker.join().expect("it does not panic")?, 2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// [`notify`](Self::notify) gives that number of tokens to waiters, one each, in turn; a waiter returns when
/// it has one, and not before. So there are no wake-ups without a reason, but what a thread waited for may be
/// gone again when it has the lock: [`wait_for`](Self::wait_for) looks, and waits again. To notify one need
/// not hold the lock. Use one condition with one lock only: nothing else is unsafe, but no notification would
/// mean anything.
///
/// With an [`RLock`](crate::RLock) that the thread has several times, all of it is unlocked, and locked again as often:
///
/// ```
/// use mp_sync::{Condition, RLock};
///
/// let (jobs, changed) = (RLock::new(0_u32)?, Condition::new()?);
/// let (theirs, told) = (jobs.clone(), changed.clone());
/// let worker = std::thread::spawn(move || -> Result<u32, mp_sync::LockError> {
///     let outer = theirs.lock()?;
///     let jobs = told.wait_for(theirs.lock()?, |jobs| jobs.get() > 0)?; // gets the guard, which gives copies
///     drop(outer);
///     Ok(jobs.get())
/// });
/// jobs.lock()?.set(3);
/// changed.notify_one()?;
/// assert_eq!(worker.join().expect("it does not panic")?, 3);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When a process dies
/// A thread that waits, or was notified and has not noticed: its notification goes to another waiter, when
/// the death is noticed (the [table](crate#how-soon-a-waiter-hears-of-a-death)), also to one that has begun
/// to wait since. A holder of the lock: notified threads get [`LockError::OwnerDied`] when they take the lock
/// again.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Condition")]
pub struct Condition {
    pub(crate) shared: Shared,
    patience: Arc<AdaptiveSpin>,
}

impl Condition {
    /// A condition for up to 1024 threads that wait at once.
    ///
    /// # Errors
    /// As [`with_waiters`](Self::with_waiters).
    pub fn new() -> Result<Self> {
        Self::with_waiters(WAITERS)
    }

    /// A condition for up to `waiters` threads that wait at once.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for none, or [`Error::LimitExceeded`]
    /// for more than 2^20.
    pub fn with_waiters(waiters: u32) -> Result<Self> {
        if !(1..=1 << 20).contains(&waiters) {
            let why = format!("a condition for {waiters} that wait: 1 to {} are possible", 1 << 20);
            return Err(Error::not_within(waiters > 0, why));
        }
        Ok(Self::of(Shared::new(NAME, SLOTS + u64::from(waiters))?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, patience: Arc::default() }
    }

    fn slots(&self) -> Slots {
        self.shared.slots(USED, SLOTS, u32::MAX)
    }

    /// Unlocks, waits for a notification, and locks again.
    ///
    /// # Errors
    /// As [`Lock::lock`](crate::Lock::lock), when it is locked again; it is not locked then. An [`RLock`](crate::RLock) of
    /// which the thread has other guards is, as often as there are.
    /// [`LockError::Failed`] with [`Error::ArenaFull`] when more threads that live wait than it was made for.
    pub fn wait<G: ConditionGuard>(&self, guard: G) -> Result<G, LockError> {
        self.within(guard, Wait::Forever).map(|(guard, _)| guard)
    }

    /// As [`wait`](Self::wait), but waits for a notification no longer than `timeout`; also whether it was notified.
    ///
    /// The lock is waited for as long again, at most; but an [`RLock`](crate::RLock) of which the thread has other guards, as
    /// long as it takes: they say that it is locked.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`LockError::Held`] when a process, which it names, holds the lock for
    /// that long.
    pub fn wait_timeout<G: ConditionGuard>(
        &self,
        guard: G,
        timeout: Duration,
    ) -> Result<(G, bool), LockError> {
        self.within(guard, Wait::at_most(timeout))
    }

    /// As [`wait_timeout`](Self::wait_timeout), until `deadline`.
    ///
    /// # Errors
    /// As [`wait_timeout`](Self::wait_timeout).
    pub fn wait_deadline<G: ConditionGuard>(
        &self,
        guard: G,
        deadline: Instant,
    ) -> Result<(G, bool), LockError> {
        self.within(guard, Wait::Until(deadline))
    }

    /// Waits until what the lock protects is as wanted: looks, and after each notification again. With a
    /// [`Lock`](crate::Lock) `is_so` gets the data, with an [`RLock`](crate::RLock) the guard.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for<G: ConditionGuard>(
        &self,
        guard: G,
        is_so: impl FnMut(&mut G::Seen) -> bool,
    ) -> Result<G, LockError> {
        self.until(guard, Wait::Forever, is_so).map(|(guard, _)| guard)
    }

    /// As [`wait_for`](Self::wait_for), at most `timeout`; also whether it is as wanted.
    ///
    /// # Errors
    /// As [`wait_timeout`](Self::wait_timeout).
    pub fn wait_for_timeout<G: ConditionGuard>(
        &self,
        guard: G,
        timeout: Duration,
        is_so: impl FnMut(&mut G::Seen) -> bool,
    ) -> Result<(G, bool), LockError> {
        self.until(guard, Wait::at_most(timeout), is_so)
    }

    /// As [`wait_for_timeout`](Self::wait_for_timeout), until `deadline`.
    ///
    /// # Errors
    /// As [`wait_timeout`](Self::wait_timeout).
    pub fn wait_for_deadline<G: ConditionGuard>(
        &self,
        guard: G,
        deadline: Instant,
        is_so: impl FnMut(&mut G::Seen) -> bool,
    ) -> Result<(G, bool), LockError> {
        self.until(guard, Wait::Until(deadline), is_so)
    }

    fn until<G: ConditionGuard>(
        &self,
        mut guard: G,
        wait: Wait,
        mut is_so: impl FnMut(&mut G::Seen) -> bool,
    ) -> Result<(G, bool), LockError> {
        while !is_so(guard.seen()) {
            if wait.is_over() {
                return Ok((guard, false));
            }
            guard = self.within(guard, wait)?.0;
        }
        Ok((guard, true))
    }

    /// Notifies one thread that waits, if there is one; whether there was.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[doc(alias = "notify")]
    pub fn notify_one(&self) -> Result<bool> {
        self.notify(1).map(|n| n > 0)
    }

    /// Notifies up to `n` of the threads that wait; how many.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn notify(&self, n: usize) -> Result<usize> {
        self.shared.me()?;
        let mut row = Some(Notify::new(self.slots(), self.shared.at(TURN)));
        let mut given = 0;
        while given < n
            && let Some(notify) = row
            && let Notified::Given { seen, asleep, next } = self.shared.run(notify)
        {
            if asleep {
                self.shared.structure().wake(SLOTS + u64::from(seen.index));
            }
            (given, row) = (given + 1, next);
        }
        Ok(given)
    }

    /// Notifies all threads that wait; how many.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn notify_all(&self) -> Result<usize> {
        self.notify(usize::MAX)
    }

    fn within<G: ConditionGuard>(&self, guard: G, wait: Wait) -> Result<(G, bool), LockError> {
        let me = self.shared.me()?;
        let enlist = || self.shared.run(Claim::new(self.slots(), EMPTY, (WAITING, me, 0), 0).or_new());
        let mut place = enlist();
        if place.is_none() {
            // A dead process's token is a place as good as any: with the token, which the first look finds.
            place = if mp_core::mutant!("condition.full-of-the-dead") {
                None
            } else {
                self.tend(me).or_else(enlist)
            };
        }
        let Some(mine) = place else {
            let limit = u64::from(self.slots().limit);
            let full = Error::ArenaFull { what: "threads that wait at a condition", asked: limit + 1, limit };
            return Err(full.into());
        };
        let begun = Instant::now();
        let unlocked = guard.unlock(Waiting::TOKEN);
        let notified = self.sleep(me, mine, wait);
        let again = match wait {
            Wait::Until(deadline) => Wait::at_most(deadline.saturating_duration_since(begun)),
            Wait::Never | Wait::Forever => Wait::Forever,
        };
        Ok((G::relock(unlocked, again, Waiting::TOKEN)?, notified))
    }

    fn change(&self, seen: Seen, to: Slot) -> bool {
        self.shared.run(Change::new(self.slots().at(seen.index), seen.slot, to))
    }

    /// Gives one's place up; `false` if it has another word by now.
    fn leave(&self, seen: Seen) -> bool {
        self.change(seen, seen.slot.given_back(EMPTY))
    }

    /// What this process's own place says now.
    fn look(&self, mine: Seen) -> Seen {
        Seen { slot: Slot::unpack(self.shared.load(SLOTS + u64::from(mine.index))), ..mine }
    }

    /// Waits for a token; whether one came.
    fn sleep(&self, me: Member, mine: Seen, wait: Wait) -> bool {
        let mut waiter = TokenWaiter { condition: self, me, mine, asking: LivenessTimer::default(), wait };
        loop {
            if block_on(&mut waiter, &self.patience, wait).is_some() {
                return true;
            }
            // It can't be given up once there is a token in it.
            if self.leave(waiter.mine) || mp_core::mutant!("condition.late-token-dropped") {
                return false;
            }
        }
    }

    /// Recovers the places of dead processes: gives them back, up to one with a token that its owner had not
    /// taken. That one it takes over, token and all, for a thread that waits or is about to.
    fn tend(&self, me: Member) -> Option<Seen> {
        let mut next = 0;
        while let Some(seen) =
            self.shared.run(Find::new(self.slots(), set(&[WAITING, ASLEEP, NOTIFIED]), next))
        {
            next = seen.index + 1;
            if seen.slot.member == me || !self.shared.arena().is_dead(seen.slot.member) {
                continue;
            }
            if seen.slot.state != NOTIFIED || mp_core::mutant!("condition.token-of-the-dead-lost") {
                self.leave(seen);
                continue;
            }
            let taken = seen.slot.then(NOTIFIED, me, 0);
            if self.change(seen, taken) {
                return Some(Seen { slot: taken, ..seen });
            }
        }
        None
    }

    /// Has taken over a token: gives its own place up. If there is a token in it by now, one of the two is
    /// passed on.
    fn keep_one(&self, mine: Seen, taken: Seen) {
        if !self.leave(mine) {
            let own = self.look(mine);
            if !mp_core::mutant!("condition.spare-token-kept") {
                _ = self.notify(1);
            }
            self.leave(own);
        }
        self.leave(taken);
    }

    /// How many threads wait: a snapshot, without those of processes that are dead. None in a forked copy.
    pub fn waiting(&self) -> usize {
        let Ok(me) = self.shared.me() else { return 0 };
        let (mut n, mut next) = (0, 0);
        while let Some(seen) = self.shared.run(Find::new(self.slots(), set(&[WAITING, ASLEEP]), next)) {
            next = seen.index + 1;
            if seen.slot.member != me && self.shared.arena().is_dead(seen.slot.member) {
                // There may be no other process that would give it back.
                self.leave(seen);
            } else {
                n += 1;
            }
        }
        n
    }
}

/// A thread that waits for a token in its own place, and sleeps there.
struct TokenWaiter<'a> {
    condition: &'a Condition,
    me: Member,
    mine: Seen,
    asking: LivenessTimer,
    wait: Wait,
}

impl Blocking for TokenWaiter<'_> {
    type Found = ();

    fn attempt(&mut self) -> Option<()> {
        let now = self.condition.look(self.mine);
        (now.slot.state == NOTIFIED).then(|| _ = self.condition.leave(now))
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<()> {
        // An error of the sweep is for another time: the place must not stay behind.
        if !self.asking.is_due(self.condition.shared.arena(), now, over).unwrap_or(false) {
            return None;
        }
        self.condition.tend(self.me).map(|taken| self.condition.keep_one(self.mine, taken))
    }

    fn announce(&mut self) -> Option<u64> {
        if self.mine.slot.state == WAITING {
            let asleep = self.mine.slot.into_state(ASLEEP);
            if !self.condition.change(self.mine, asleep) {
                return None;
            }
            self.mine.slot = asleep;
        }
        Some(self.mine.slot.pack())
    }

    /// A token changes the word that says that it sleeps.
    fn last_look(&mut self) -> Option<()> {
        None
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        let word = SLOTS + u64::from(self.mine.index);
        self.condition.shared.structure().sleep(word, announced as u32, &self.asking, self.wait)
    }

    fn subject(&self) -> Subject {
        let hold = self.condition.shared.structure().hold();
        Subject::block(Call::Condition, hold.arena(), hold.block())
    }
}

handle! {
    Condition, "a Condition", |condition| condition.shared, format_args!("{} waiting, ", condition.waiting());
    |d| Shared::receive("a Condition", NAME, SLOTS + 1, d).map(Self::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waiter that has taken over the token of a dead one, and finds that it has one of its own by now,
    /// passes one of the two on: to exactly one waiter.
    #[test]
    fn a_spare_token_goes_to_another_one_that_waits() {
        let condition = Condition::with_waiters(8).unwrap();
        let me = condition.shared.me().unwrap();
        // No such member ever was: it counts as dead.
        let dead = Member::new(4000, 7);
        let enlist = |state, member| {
            let claim = Claim::new(condition.slots(), EMPTY, (state, member, 0), 0).or_new();
            condition.shared.run(claim).unwrap()
        };
        let (mine, other, third) = (enlist(WAITING, me), enlist(WAITING, me), enlist(WAITING, me));
        let of_the_dead = enlist(NOTIFIED, dead);
        let taken = condition.tend(me).expect("the token of the killed waiter");
        assert_eq!((taken.index, taken.slot.member), (of_the_dead.index, me));
        // Meanwhile another one has notified this one as well.
        assert!(condition.change(mine, mine.slot.into_state(NOTIFIED)));
        condition.keep_one(mine, taken);
        let state = |seen| condition.look(seen).slot.state;
        assert_eq!((state(mine), state(taken)), (EMPTY, EMPTY));
        let notified = [other, third].iter().filter(|&&seen| state(seen) == NOTIFIED).count();
        assert_eq!((notified, condition.waiting()), (1, 1));
    }

    /// A place of a dead waiter is given back; its token is not.
    #[test]
    fn places_of_dead_waiters_are_given_back_and_their_tokens_are_not() {
        let condition = Condition::with_waiters(2).unwrap();
        let me = condition.shared.me().unwrap();
        let dead = Member::new(4000, 7);
        let enlist = |state, member| {
            let claim = Claim::new(condition.slots(), EMPTY, (state, member, 0), 0).or_new();
            condition.shared.run(claim)
        };
        enlist(ASLEEP, dead).unwrap();
        let token = enlist(NOTIFIED, dead).unwrap();
        assert!(enlist(WAITING, me).is_none(), "it is full");
        let taken = condition.tend(me).expect("the token of the killed waiter");
        assert_eq!((taken.index, taken.slot.state), (token.index, NOTIFIED));
        assert_eq!(enlist(WAITING, me).map(|seen| seen.index), Some(0));
        assert!(condition.tend(me).is_none());
    }
}
