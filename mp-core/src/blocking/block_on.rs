//! Blocking calls: one wait loop for locks, permits, flags, barriers, conditions and queues.
//!
//! A waiter spins for an adaptive time. Then it repeats these steps until its condition holds:
//!
//! 1. check for dead peers, if a check is due;
//! 2. announce itself at the word where it will be woken;
//! 3. check the condition once more;
//! 4. sleep for at most a poll interval ([`POLL_INTERVAL`]). No wait relies on a wake-up, because the
//!    process that sends it may die first.
//!
//! The order of steps 2 and 3 matters. A change *before* the announcement is found by the check in step 3. A
//! change *after* the announcement ends the sleep.

use std::panic::Location;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::blocking::reports::{Subject, Watch};
use crate::blocking::wait_limit::Wait;
use crate::error::Error;
use crate::parking::Notices;
use crate::parking::spin::AdaptiveSpin;
use crate::parking::{POLL_INTERVAL, Parking, missed_wakes};
use crate::process::interrupt;
use crate::recovery::Recovery;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;

/// Condition that a thread waits for, with the checks and the sleep of the wait: see [`block_on`].
pub trait Blocking {
    /// Result of the wait: the awaited value, or the reason why the wait failed.
    type Found;

    /// Checks the condition once.
    fn attempt(&mut self) -> Option<Self::Found>;

    /// Spins while `patience` lasts, and checks the condition.
    fn spin(&mut self, patience: &AdaptiveSpin) -> Option<Self::Found> {
        patience.look(|| self.attempt())
    }

    /// Checks for dead peers if a check is due at `now`, or if the wait's time is `over`. Returns the
    /// result of the wait if the check ends it.
    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Self::Found>;

    /// Called before a sleep if this process was [interrupted](crate::interrupted). Returns the result of the
    /// wait, if an interrupt ends it.
    fn interrupted(&mut self) -> Option<Self::Found> {
        None
    }

    /// Announces that this thread is about to sleep, and returns the value to pass to [`sleep`](Self::sleep).
    /// Returns `None` if the condition must be checked again, because a word has changed.
    fn announce(&mut self) -> Option<u64>;

    /// Checks the condition once more after the announcement, because changes before the announcement wake no
    /// waiter. Not needed if the announcement is a swap of the word that stores the condition.
    fn last_look(&mut self) -> Option<Self::Found> {
        self.attempt()
    }

    /// Sleeps from `now` until the announced value has changed, at most for a poll interval. Returns `true`
    /// if the sleep may have ended because of a wake-up.
    fn sleep(&mut self, announced: u64, now: Instant) -> bool;

    /// Called instead of a sleep if the wait [never sleeps](crate::Spin::Busy). Makes the same checks as a
    /// wait makes before each sleep.
    fn between(&mut self, _now: Instant) -> Option<Self::Found> {
        None
    }

    /// Returns a description of the wait, for reports.
    fn subject(&self) -> Subject;

    /// Called with the result of a wait that began at `since`. Not called if the time has expired, or if the
    /// first spin or the checks right after it have found the result.
    fn ended(&mut self, _found: &Self::Found, _since: Instant) {}

    /// Called right after a sleep that may have ended because of a wake-up, before the clock is read. Returns
    /// the result of the wait if the condition holds. Implemented by waiters that must check this early.
    fn woken(&mut self) -> Option<Self::Found> {
        None
    }
}

/// Waits until `waiter` finds a result. Returns `None` if the time has expired.
#[track_caller]
pub fn block_on<B: Blocking>(waiter: &mut B, patience: &AdaptiveSpin, wait: Wait) -> Option<B::Found> {
    missed_wakes::forget();
    let mut watch = None;
    let found = wait_on(waiter, patience, wait, Location::caller(), &mut watch);
    if let Some(found) = &found {
        missed_wakes::found();
        if let Some(watch) = &watch {
            waiter.ended(found, watch.since());
        }
    }
    #[cfg(feature = "tracing")]
    if let Some(watch) = watch {
        watch.end_traced(found.is_none(), || waiter.subject());
    }
    found
}

#[inline(always)]
fn wait_on<B: Blocking>(
    waiter: &mut B,
    patience: &AdaptiveSpin,
    wait: Wait,
    place: &'static Location<'static>,
    watch: &mut Option<Watch>,
) -> Option<B::Found> {
    loop {
        if wait != Wait::Never
            && let Some(found) = waiter.spin(patience)
        {
            return Some(found);
        }
        let now = Instant::now();
        let over = wait.is_over_at(now);
        if let Some(found) = waiter.on_interval(now, over) {
            return Some(found);
        }
        if over {
            return None;
        }
        if interrupt::should_end_waits()
            && let Some(found) = waiter.interrupted()
        {
            return Some(found);
        }
        let watch = watch.get_or_insert_with(|| Watch::new(now, wait, place));
        if patience.is_busy() {
            watch.record_poll(now, || waiter.subject());
            // Make the checks that a sleeping wait makes around its sleep.
            if let Some(found) = waiter.between(now) {
                return Some(found);
            }
            continue;
        }
        let Some(announced) = waiter.announce() else { continue };
        if let Some(found) = waiter.last_look() {
            return Some(found);
        }
        let asleep = Instant::now();
        watch.record_poll(asleep, || waiter.subject());
        missed_wakes::forget();
        #[cfg(feature = "tracing")]
        watch.record_sleep();
        if waiter.sleep(announced, asleep) {
            let found = waiter.woken();
            patience.slept(asleep);
            if found.is_some() {
                return found;
            }
        }
    }
}

/// Time from the beginning of a wait until the waiter first checks for dead processes.
const FIRST: Duration = Duration::from_millis(1);

/// Timer for a waiter's checks for dead processes. The timer uses the clock and the count of detected deaths.
/// The timer does not count sleeps, because signals may end every sleep early.
#[derive(Clone, Copy, Debug)]
pub struct LivenessTimer {
    next: Instant,
    /// Number of detected deaths at the last check. `None` before the first check.
    asked: Option<u32>,
}

impl Default for LivenessTimer {
    fn default() -> Self {
        Self { next: Instant::now() + FIRST, asked: None }
    }
}

impl LivenessTimer {
    /// Returns `true` if a check is due. Checks are due after a millisecond, then after each poll interval,
    /// after each newly detected death, and when the time is `over`. After a poll interval, also reclaims the
    /// arena's dead members if that is due.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn is_due(&mut self, arena: Arena, now: Instant, over: bool) -> Result<bool, Error> {
        // Read before the caller checks: see `parking`.
        let noticed = Notices(arena).noticed();
        let news = self.asked.is_some_and(|asked| asked != noticed);
        if now < self.next && !news && !over {
            return Ok(false);
        }
        if self.asked.is_some() && now >= self.next {
            Recovery(arena).reclaim_if_due()?;
        }
        *self = Self { next: now + POLL_INTERVAL, asked: Some(noticed) };
        Ok(true)
    }

    /// Returns the time at which a sleep must end.
    pub(crate) fn until(&self, wait: Wait) -> Instant {
        wait.or_until(self.next)
    }

    /// Sleeps at a parking word on which the calling thread has announced itself. `announced` is the value
    /// that the announcement returned. The sleep also ends when a death is detected that this timer's
    /// previous check has not found. Returns `true` if the sleep may have ended because of a wake-up.
    pub fn park(&self, parking: &Parking, announced: u64, wait: Wait) -> bool {
        parking.sleep_at(announced, Some(self.until(wait)), |word, expected, left| {
            self.sleep_for(parking.arena(), word, expected, left)
        })
    }

    /// Sleeps while `word` has the expected value, until the next check is due. Returns `true` if the sleep
    /// may have ended because of a wake-up.
    ///
    /// The first sleep is short, and most waits end in it, so this sleep uses one word only, which is
    /// cheaper. Later sleeps also end when a death is detected.
    pub(crate) fn sleep(&self, arena: Arena, word: &AtomicU32, expected: u32, wait: Wait) -> bool {
        self.sleep_for(arena, word, expected, self.until(wait).saturating_duration_since(Instant::now()))
    }

    /// Same as [`sleep`](Self::sleep), at most for `left`.
    pub(crate) fn sleep_for(&self, arena: Arena, word: &AtomicU32, expected: u32, left: Duration) -> bool {
        match self.asked {
            Some(noticed) if futex::can_wait_for_many() => {
                futex::wait_for_any(
                    &[(word, expected), (Notices(arena).noticed_word(), noticed)],
                    Some(left),
                );
                true
            }
            _ => futex::wait(word, expected, left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::reports::{BlockingCall, WaitObject};

    /// A waiter that finds a result in the `finds`-th check of its condition, and records the calls of its
    /// methods.
    #[derive(Default)]
    struct Noted {
        calls: Vec<&'static str>,
        finds: usize,
        announces: bool,
        wakes: bool,
    }

    impl Noted {
        fn finding(finds: usize) -> Self {
            Self { finds, announces: true, ..Self::default() }
        }

        fn look(&mut self, call: &'static str) -> Option<usize> {
            self.calls.push(call);
            let polls =
                self.calls.iter().filter(|call| ["look", "last look", "woken"].contains(call)).count();
            (polls == self.finds).then_some(polls)
        }
    }

    impl Blocking for Noted {
        type Found = usize;

        fn attempt(&mut self) -> Option<usize> {
            self.look("look")
        }

        fn on_interval(&mut self, _: Instant, over: bool) -> Option<usize> {
            self.calls.push(if over { "peers, at the end" } else { "peers" });
            None
        }

        fn announce(&mut self) -> Option<u64> {
            self.calls.push("announce");
            std::mem::replace(&mut self.announces, true).then_some(7)
        }

        fn last_look(&mut self) -> Option<usize> {
            self.look("last look")
        }

        fn sleep(&mut self, announced: u64, _: Instant) -> bool {
            assert_eq!(announced, 7);
            self.calls.push("sleep");
            self.wakes
        }

        fn woken(&mut self) -> Option<usize> {
            self.look("woken")
        }

        fn subject(&self) -> Subject {
            Subject::other(BlockingCall::Other, WaitObject::Other, String::new())
        }
    }

    fn run(mut waiter: Noted, wait: Wait) -> (Option<usize>, Vec<&'static str>) {
        let found = block_on(&mut waiter, &AdaptiveSpin::none(), wait);
        (found, waiter.calls)
    }

    #[test]
    fn waiter_finds_a_last_moment_change_without_sleep() {
        let (found, calls) = run(Noted::finding(2), Wait::Forever);
        assert_eq!((found, calls), (Some(2), vec!["look", "peers", "announce", "last look"]));
    }

    #[test]
    fn waiter_not_woken_from_sleep_checks_peers_again() {
        let (found, calls) = run(Noted { wakes: true, ..Noted::finding(3) }, Wait::Forever);
        assert_eq!((found, calls.last()), (Some(3), Some(&"woken")));
        let (found, calls) = run(Noted::finding(4), Wait::Forever);
        assert_eq!(found, Some(4));
        assert_eq!(calls[4..], ["sleep", "look", "peers", "announce", "last look"]);
    }

    #[test]
    fn waiter_checks_its_peers_before_timing_out() {
        assert_eq!(run(Noted::finding(9), Wait::Never), (None, vec!["peers, at the end"]));
        let over = Wait::Until(Instant::now());
        assert_eq!(run(Noted::finding(9), over), (None, vec!["look", "peers, at the end"]));
    }

    #[test]
    fn waiter_polls_again_if_its_announcement_fails() {
        let (found, calls) = run(Noted { announces: false, ..Noted::finding(2) }, Wait::Forever);
        assert_eq!((found, calls), (Some(2), vec!["look", "peers", "announce", "look"]));
    }
}
