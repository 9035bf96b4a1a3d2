//! Condition variables between processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::waits::{BlockingCall, Subject};
use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Blocking, Error, LivenessTimer, LockError, Result, Wait, block_on};

use crate::handle::handle;
use crate::locks::relock::{ConditionGuard, WaitToken};
use crate::shared::Shared;
use crate::steps::condition::{ASLEEP, NOTIFIED, Notify, NotifyOutcome, WAITING};
use crate::steps::slot::{ClaimSlot, EMPTY, HolderSlot, ObservedSlot, Slots, set};

const NAME: &str = "mp_sync::Condition";
const USED: u64 = 0;
const TURN: u64 = 1;
const SLOTS: u64 = 16;
/// Default maximum number of waiting threads.
const WAITERS: u32 = 1024;

/// A condition variable between processes, for the data of a [`Lock`](crate::Lock) or an
/// [`RLock`](crate::RLock).
///
/// ```
/// use mp_sync::{Condition, Lock};
///
/// let (jobs, changed) = (Lock::new(0_u32)?, Condition::new()?);
/// let (theirs, observer) = (jobs.clone(), changed.clone()); // or sent to another process
/// let worker = std::thread::spawn(move || -> Result<u32, mp_sync::LockError> {
///     let mut jobs = observer.wait_for(theirs.lock()?, |jobs| *jobs > 0)?; // unlocked while it waits
///     *jobs -= 1;
///     Ok(*jobs)
/// });
/// *jobs.lock()? += 3;
/// changed.notify_one()?;
/// assert_eq!(worker.join().expect("the thread does not panic")?, 2);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// [`notify(n)`](Self::notify) gives `n` tokens to waiters, one to each, round-robin. A waiter returns only
/// when it has a token, so there are no spurious wake-ups. Another thread may change the data again before
/// the waiter has the lock: [`wait_for`](Self::wait_for) checks a predicate, and waits again. A notifier need
/// not hold the lock. Use a condition with one lock only: with several locks the condition stays memory-safe,
/// but its notifications are meaningless.
///
/// If the thread holds an [`RLock`](crate::RLock) several times, the wait releases all levels, and takes the
/// same number of levels again:
///
/// ```
/// use mp_sync::{Condition, RLock};
///
/// let (jobs, changed) = (RLock::new(0_u32)?, Condition::new()?);
/// let (theirs, observer) = (jobs.clone(), changed.clone());
/// let worker = std::thread::spawn(move || -> Result<u32, mp_sync::LockError> {
///     let outer = theirs.lock()?;
///     let jobs = observer.wait_for(theirs.lock()?, |jobs| jobs.get() > 0)?; // the predicate gets the guard
///     drop(outer);
///     Ok(jobs.get())
/// });
/// jobs.lock()?.set(3);
/// changed.notify_one()?;
/// assert_eq!(worker.join().expect("the thread does not panic")?, 3);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # When a process dies
/// A thread may die before it has taken its notification. The notification then goes to another waiter when
/// the death is noticed (see the [table](crate#latency-after-a-death)), or to a thread that began to wait
/// later. If a holder of the lock dies, notified threads get [`LockError::OwnerDied`] when they take the lock
/// again.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Condition")]
pub struct Condition {
    pub(crate) shared: Shared,
    spin: Arc<AdaptiveSpin>,
}

impl Condition {
    /// Creates a condition for up to 1024 concurrent waiters.
    ///
    /// # Errors
    /// See [`with_waiters`](Self::with_waiters).
    pub fn new() -> Result<Self> {
        Self::with_waiters(WAITERS)
    }

    /// Creates a condition for up to `waiters` concurrent waiters.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for zero waiters, or
    /// [`Error::LimitExceeded`] for more than 2^20.
    pub fn with_waiters(waiters: u32) -> Result<Self> {
        if !(1..=1 << 20).contains(&waiters) {
            let why = format!("a condition for {waiters} that wait: 1 to {} are possible", 1 << 20);
            return Err(Error::out_of_range(waiters > 0, why));
        }
        Ok(Self::of(Shared::new(NAME, SLOTS + u64::from(waiters))?))
    }

    fn of(shared: Shared) -> Self {
        Self { shared, spin: Arc::default() }
    }

    fn slots(&self) -> Slots {
        self.shared.slots(USED, SLOTS, u32::MAX)
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// # Errors
    /// The errors of [`Lock::lock`](crate::Lock::lock), when the lock is taken again. After an error, the
    /// guard is lost. An [`RLock`](crate::RLock) stays locked at the levels of the thread's other guards.
    /// [`LockError::Failed`] with [`Error::ArenaFull`] if more live threads wait than the condition was
    /// created for.
    #[track_caller]
    pub fn wait<G: ConditionGuard>(&self, guard: G) -> Result<G, LockError> {
        self.wait_once(guard, Wait::Forever).map(|(guard, _)| guard)
    }

    /// Waits for a notification for at most `timeout`. Returns the guard, and `true` if the thread was
    /// notified. Otherwise like [`wait`](Self::wait).
    ///
    /// Taking the lock again may take `timeout` once more. An [`RLock`](crate::RLock) with other guards of
    /// this thread is taken again without a limit, because these guards rely on it.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait), and [`LockError::Held`] if another holder keeps the lock during
    /// that time. The error names the holder's process.
    #[track_caller]
    pub fn wait_timeout<G: ConditionGuard>(
        &self,
        guard: G,
        timeout: Duration,
    ) -> Result<(G, bool), LockError> {
        self.wait_once(guard, Wait::at_most(timeout))
    }

    /// Waits for a notification until `deadline`. Otherwise like [`wait_timeout`](Self::wait_timeout).
    ///
    /// # Errors
    /// See [`wait_timeout`](Self::wait_timeout).
    #[track_caller]
    pub fn wait_deadline<G: ConditionGuard>(
        &self,
        guard: G,
        deadline: Instant,
    ) -> Result<(G, bool), LockError> {
        self.wait_once(guard, Wait::Until(deadline))
    }

    /// Waits until `predicate` returns `true`. The predicate is called at once and after each notification,
    /// with the data of a [`Lock`](crate::Lock) or the guard of an [`RLock`](crate::RLock).
    ///
    /// # Errors
    /// See [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_for<G: ConditionGuard>(
        &self,
        guard: G,
        predicate: impl FnMut(&mut G::Contents) -> bool,
    ) -> Result<G, LockError> {
        self.until(guard, Wait::Forever, predicate).map(|(guard, _)| guard)
    }

    /// Waits until `predicate` returns `true`, for at most `timeout`. Returns the guard, and the last result
    /// of `predicate`. Otherwise like [`wait_for`](Self::wait_for).
    ///
    /// # Errors
    /// See [`wait_timeout`](Self::wait_timeout).
    #[track_caller]
    pub fn wait_for_timeout<G: ConditionGuard>(
        &self,
        guard: G,
        timeout: Duration,
        predicate: impl FnMut(&mut G::Contents) -> bool,
    ) -> Result<(G, bool), LockError> {
        self.until(guard, Wait::at_most(timeout), predicate)
    }

    /// Waits until `predicate` returns `true`, or until `deadline`. Otherwise like
    /// [`wait_for_timeout`](Self::wait_for_timeout).
    ///
    /// # Errors
    /// See [`wait_timeout`](Self::wait_timeout).
    #[track_caller]
    pub fn wait_for_deadline<G: ConditionGuard>(
        &self,
        guard: G,
        deadline: Instant,
        predicate: impl FnMut(&mut G::Contents) -> bool,
    ) -> Result<(G, bool), LockError> {
        self.until(guard, Wait::Until(deadline), predicate)
    }

    #[track_caller]
    fn until<G: ConditionGuard>(
        &self,
        mut guard: G,
        wait: Wait,
        mut predicate: impl FnMut(&mut G::Contents) -> bool,
    ) -> Result<(G, bool), LockError> {
        while !predicate(guard.contents()) {
            if wait.is_over() {
                return Ok((guard, false));
            }
            guard = self.wait_once(guard, wait)?.0;
        }
        Ok((guard, true))
    }

    /// Notifies one waiting thread. Returns `false` if no thread waits.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[doc(alias = "notify")]
    pub fn notify_one(&self) -> Result<bool> {
        self.notify(1).map(|n| n > 0)
    }

    /// Notifies up to `n` waiting threads. Returns their number.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    pub fn notify(&self, n: usize) -> Result<usize> {
        self.shared.me()?;
        let mut row = Some(Notify::new(self.slots(), self.shared.at(TURN)));
        let mut given = 0;
        while given < n
            && let Some(notify) = row
            && let NotifyOutcome::Delivered { seen, asleep, next } = self.shared.run(notify)
        {
            if asleep {
                self.shared.structure().wake(SLOTS + u64::from(seen.index));
            }
            (given, row) = (given + 1, next);
        }
        Ok(given)
    }

    /// Notifies all waiting threads. Returns their number.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    pub fn notify_all(&self) -> Result<usize> {
        self.notify(usize::MAX)
    }

    /// Registers the caller as a waiter. For a caller that protects its data by other means than a
    /// [`Lock`](crate::Lock) or an [`RLock`](crate::RLock). The caller enlists, releases its own lock, waits,
    /// and takes its lock again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_sync::{BoundedSemaphore, Condition};
    ///
    /// let (section, changed) = (BoundedSemaphore::new(1)?, Condition::new()?);
    /// let held = section.acquire()?;
    /// let mut waiter = changed.enlist()?;
    /// drop(held);
    /// changed.notify_one()?; // in another process, usually
    /// assert!(waiter.wait_timeout(Duration::from_millis(1)));
    /// let held = section.acquire()?;
    /// # drop(held);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ArenaFull`] if more live threads wait than the condition was created for, [`Error::Forked`]
    /// in a forked copy.
    pub fn enlist(&self) -> Result<ConditionWaiter> {
        let me = self.shared.me()?;
        Ok(ConditionWaiter { condition: self.clone(), me, mine: self.place(me)?, notified: false })
    }

    /// Claims a slot for a thread that is about to wait.
    fn place(&self, me: Member) -> Result<ObservedSlot> {
        let enlist = || self.shared.run(ClaimSlot::new(self.slots(), EMPTY, (WAITING, me, 0), 0).or_grow());
        let mut place = enlist();
        if place.is_none() {
            // The slot of a dead process with a token also serves as a place: the first check finds the
            // token.
            place = self.tend(me).or_else(enlist);
        }
        let Some(mine) = place else {
            let limit = u64::from(self.slots().limit);
            return Err(Error::ArenaFull {
                what: "threads that wait at a condition",
                asked: limit + 1,
                limit,
            });
        };
        Ok(mine)
    }

    #[track_caller]
    fn wait_once<G: ConditionGuard>(&self, guard: G, wait: Wait) -> Result<(G, bool), LockError> {
        let me = self.shared.me()?;
        let mine = self.place(me)?;
        let begun = Instant::now();
        let unlocked = guard.unlock(WaitToken::TOKEN);
        let notified = self.sleep(me, mine, wait);
        let again = match wait {
            Wait::Until(deadline) => Wait::at_most(deadline.saturating_duration_since(begun)),
            Wait::Never | Wait::Forever => Wait::Forever,
        };
        Ok((G::relock(unlocked, again, WaitToken::TOKEN)?, notified))
    }

    fn change(&self, seen: ObservedSlot, to: HolderSlot) -> bool {
        self.shared.replace(self.slots(), seen, to)
    }

    /// Releases the slot. Returns `false` if the slot's word has changed.
    fn leave(&self, seen: ObservedSlot) -> bool {
        self.change(seen, seen.slot.vacated(EMPTY))
    }

    /// Loads the slot of this thread.
    fn load_slot(&self, mine: ObservedSlot) -> ObservedSlot {
        ObservedSlot { slot: HolderSlot::unpack(self.shared.load(SLOTS + u64::from(mine.index))), ..mine }
    }

    /// Waits for a token. Returns `true` if one arrived.
    #[track_caller]
    fn sleep(&self, me: Member, mine: ObservedSlot, wait: Wait) -> bool {
        let mut waiter = TokenWaiter { condition: self, me, mine, liveness: LivenessTimer::default(), wait };
        loop {
            if block_on(&mut waiter, &self.spin, wait).is_some() {
                return true;
            }
            // A slot with a token can't be released.
            if self.leave(waiter.mine) {
                return false;
            }
        }
    }

    /// Releases the slots of dead processes, up to the first slot with an unused token. The caller, which
    /// waits or is about to wait, takes over that slot with the token. Returns the slot that was taken over.
    fn tend(&self, me: Member) -> Option<ObservedSlot> {
        for seen in self.shared.find(self.slots(), set(&[WAITING, ASLEEP, NOTIFIED])) {
            if seen.slot.member == me || !self.shared.is_dead(seen.slot.member) {
                continue;
            }
            if seen.slot.state != NOTIFIED {
                self.leave(seen);
                continue;
            }
            let taken = seen.slot.then(NOTIFIED, me, 0);
            if self.change(seen, taken) {
                return Some(ObservedSlot { slot: taken, ..seen });
            }
        }
        None
    }

    /// Releases both slots of a thread: its own slot `mine`, and the slot `taken` with the token that it has
    /// taken over. If `mine` got a token too, another waiter gets that token.
    fn keep_one(&self, mine: ObservedSlot, taken: ObservedSlot) {
        self.pass_on(mine);
        self.leave(taken);
    }

    /// Releases the slot of this thread. If it has a token, another waiter gets the token.
    fn pass_on(&self, mine: ObservedSlot) {
        if !self.leave(mine) {
            let own = self.load_slot(mine);
            _ = self.notify(1);
            self.leave(own);
        }
    }

    /// Returns the number of waiting threads of live processes: a snapshot. 0 in a forked copy.
    pub fn waiting(&self) -> usize {
        let Ok(me) = self.shared.me() else { return 0 };
        let waits = |seen: &ObservedSlot| {
            let dead = seen.slot.member != me && self.shared.is_dead(seen.slot.member);
            if dead {
                // There may be no other process to release the slot.
                self.leave(*seen);
            }
            !dead
        };
        self.shared.find(self.slots(), set(&[WAITING, ASLEEP])).filter(waits).count()
    }
}

/// Registration as a waiter of a [`Condition`], created by [`Condition::enlist`].
///
/// Dropping this value ends the registration. If a notification has arrived that no wait has returned, it
/// goes to another waiter. The death of the process ends the registration too.
#[derive(Debug)]
#[must_use = "dropping it leaves the place"]
pub struct ConditionWaiter {
    condition: Condition,
    me: Member,
    mine: ObservedSlot,
    notified: bool,
}

impl ConditionWaiter {
    /// Waits for a notification for at most `timeout`. Returns `true` if there was one. Returns at once if an
    /// earlier call has returned `true`. After `false`, the caller is still registered.
    #[track_caller]
    pub fn wait_timeout(&mut self, timeout: Duration) -> bool {
        if !self.notified && self.condition.shared.me().ok() == Some(self.me) {
            let Self { condition, me, mine, .. } = self;
            let (wait, liveness) = (Wait::at_most(timeout), LivenessTimer::default());
            let mut waiter = TokenWaiter { condition, me: *me, mine: *mine, liveness, wait };
            self.notified = block_on(&mut waiter, &condition.spin, wait).is_some();
            self.mine = waiter.mine;
        }
        self.notified
    }

    /// Ends the registration. Returns `true` if there was a notification.
    pub fn leave(mut self) -> bool {
        // A slot with a token can't be released, but only consumed.
        while !self.notified && !self.condition.leave(self.mine) {
            if self.condition.shared.me().ok() != Some(self.me) {
                return false;
            }
            self.wait_timeout(Duration::ZERO);
        }
        let notified = self.notified;
        self.notified = true;
        notified
    }
}

impl Drop for ConditionWaiter {
    fn drop(&mut self) {
        // The slot belongs to the parent, not to a forked copy.
        if !self.notified && self.condition.shared.me().ok() == Some(self.me) {
            self.condition.pass_on(self.mine);
        }
    }
}

/// A thread that waits for a token in its slot, and sleeps on the slot.
struct TokenWaiter<'a> {
    condition: &'a Condition,
    me: Member,
    mine: ObservedSlot,
    liveness: LivenessTimer,
    wait: Wait,
}

impl Blocking for TokenWaiter<'_> {
    type Found = ();

    fn attempt(&mut self) -> Option<()> {
        let now = self.condition.load_slot(self.mine);
        (now.slot.state == NOTIFIED).then(|| _ = self.condition.leave(now))
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<()> {
        // Errors of the reclaim are ignored here: returning early would leave the slot occupied.
        if !self.liveness.is_due(self.condition.shared.arena(), now, over).unwrap_or(false) {
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

    /// Returns `None`, because a token changes the word that this thread sleeps on: the sleep then returns at
    /// once.
    fn last_look(&mut self) -> Option<()> {
        None
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        let word = SLOTS + u64::from(self.mine.index);
        self.condition.shared.structure().sleep(word, announced as u32, &self.liveness, self.wait)
    }

    fn subject(&self) -> Subject {
        let hold = self.condition.shared.structure().hold();
        Subject::block(BlockingCall::Condition, hold.arena(), hold.block())
    }
}

handle! {
    Condition, "a Condition", |condition| condition.shared, format_args!("{} waiting, ", condition.waiting());
    |d| Shared::receive("a Condition", NAME, SLOTS + 1, d).map(Self::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter that has taken over a dead waiter's token, and then gets a token of its own, passes one token
    /// to exactly one waiter.
    #[test]
    fn condition_waiter_with_two_tokens_passes_one_on() {
        let condition = Condition::with_waiters(8).unwrap();
        let me = condition.shared.me().unwrap();
        // This member never existed, so it counts as dead.
        let dead = Member::new(4000, 7);
        let enlist = |state, member| {
            let claim = ClaimSlot::new(condition.slots(), EMPTY, (state, member, 0), 0).or_grow();
            condition.shared.run(claim).unwrap()
        };
        let (mine, other, third) = (enlist(WAITING, me), enlist(WAITING, me), enlist(WAITING, me));
        let of_the_dead = enlist(NOTIFIED, dead);
        let taken = condition.tend(me).expect("the token of the killed waiter");
        assert_eq!((taken.index, taken.slot.member), (of_the_dead.index, me));
        // Meanwhile a notifier has given a token to this waiter as well.
        assert!(condition.change(mine, mine.slot.into_state(NOTIFIED)));
        condition.keep_one(mine, taken);
        let state = |seen| condition.load_slot(seen).slot.state;
        assert_eq!((state(mine), state(taken)), (EMPTY, EMPTY));
        let notified = [other, third].iter().filter(|&&seen| state(seen) == NOTIFIED).count();
        assert_eq!((notified, condition.waiting()), (1, 1));
    }

    /// A waiter that leaves with a token passes it on, and an enlisted waiter waits in several attempts.
    #[test]
    fn condition_waiter_that_leaves_passes_on_its_token() {
        let condition = Condition::with_waiters(4).unwrap();
        let short = Duration::from_millis(1);
        let (mut one, two) = (condition.enlist().unwrap(), condition.enlist().unwrap());
        assert!(!one.wait_timeout(short) && !one.wait_timeout(short));
        assert_eq!((condition.waiting(), condition.notify(2).unwrap()), (2, 2));
        let mut three = condition.enlist().unwrap();
        assert!(!three.wait_timeout(short));
        drop(two);
        assert!(three.wait_timeout(short) && three.wait_timeout(short));
        assert!(one.leave(), "the waiter was notified after its last wait");
        assert!(!condition.enlist().unwrap().leave());
        assert_eq!((condition.waiting(), condition.notify_all().unwrap()), (0, 0));
    }

    /// The slot of a dead waiter is released. A token of a dead waiter goes to a live one.
    #[test]
    fn tokens_of_dead_condition_waiters_go_to_live_ones() {
        let condition = Condition::with_waiters(2).unwrap();
        let me = condition.shared.me().unwrap();
        let dead = Member::new(4000, 7);
        let enlist = |state, member| {
            let claim = ClaimSlot::new(condition.slots(), EMPTY, (state, member, 0), 0).or_grow();
            condition.shared.run(claim)
        };
        enlist(ASLEEP, dead).unwrap();
        let token = enlist(NOTIFIED, dead).unwrap();
        assert!(enlist(WAITING, me).is_none(), "all slots are in use");
        let taken = condition.tend(me).expect("the token of the killed waiter");
        assert_eq!((taken.index, taken.slot.state), (token.index, NOTIFIED));
        assert_eq!(enlist(WAITING, me).map(|seen| seen.index), Some(0));
        assert!(condition.tend(me).is_none());
    }
}
