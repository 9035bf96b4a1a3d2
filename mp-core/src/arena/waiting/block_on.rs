//! How a thread waits in a call that blocks: one loop for locks, permits, flags, barriers, conditions and queues.
//!
//! It looks for a while, as it has paid; then, again and again, it looks after dead peers if that is due, announces
//! itself where it will be woken, looks once more, and sleeps for a poll interval ([`POLL_INTERVAL`]) at most. No wake-up is relied
//! upon: its sender may die before.
//!
//! The order is what matters. What changes *before* the announcement is found by the look behind it, what changes
//! *after* it ends the sleep.

use std::time::{Duration, Instant};

use crate::arena::waiting::slept;
use crate::arena::waiting::waits::{Subject, Watch};
use crate::arena::{AdaptiveSpin, Arena, POLL_INTERVAL};
use crate::error::Error;
use crate::process::interrupt;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;

/// How long a call is willing to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    Never,
    /// Until then.
    Until(Instant),
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// At most `timeout`; one that is too long for the clock is none.
    pub fn at_most(timeout: Duration) -> Self {
        Instant::now().checked_add(timeout).map_or(Self::Forever, Self::Until)
    }

    fn is_over_at(self, now: Instant) -> bool {
        match self {
            Self::Never => true,
            Self::Until(t) => now >= t,
            Self::Forever => false,
        }
    }

    /// Whether the time is over.
    pub fn is_over(self) -> bool {
        self.is_over_at(Instant::now())
    }

    /// The earlier of its end and `then`.
    fn or_until(self, then: Instant) -> Instant {
        match self {
            Self::Until(t) => t.min(then),
            Self::Never | Self::Forever => then,
        }
    }
}

/// What a thread waits for, and where: see [`block_on`].
pub trait Blocking {
    /// What ends the wait: what was waited for, or why it will not come.
    type Found;

    /// Looks, once.
    fn attempt(&mut self) -> Option<Self::Found>;

    /// Looks for a while.
    fn spin(&mut self, patience: &AdaptiveSpin) -> Option<Self::Found> {
        patience.look(|| self.attempt())
    }

    /// Looks after dead peers, if that is due; always when the time is `over`.
    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Self::Found>;

    /// This process was [interrupted](crate::interrupted), and it would sleep now: what the wait ends with, if an interrupt ends
    /// it.
    fn interrupted(&mut self) -> Option<Self::Found> {
        None
    }

    /// Announces a sleeper; what goes to [`sleep`](Self::sleep). `None`: something has changed, look again.
    fn announce(&mut self) -> Option<u64>;

    /// Looks once more, after the announcement: what has changed before it wakes no waiter. Not needed where an
    /// announcement is a swap of the very word that is waited for.
    fn last_look(&mut self) -> Option<Self::Found> {
        self.attempt()
    }

    /// Sleeps from `now` on, until what was announced is a thing of the past, at most for a poll interval; whether it may have
    /// been woken.
    fn sleep(&mut self, announced: u64, now: Instant) -> bool;

    /// Instead of a sleep, where a wait [never sleeps](crate::Spin::Busy): looks at what is else looked at before one.
    fn between(&mut self, _now: Instant) -> Option<Self::Found> {
        None
    }

    /// What it waits for, for reports.
    fn subject(&self) -> Subject;

    /// After a sleep that may have been ended by a wake-up, before anything else: for those whose next look is to come
    /// before that at the clock.
    fn woken(&mut self) -> Option<Self::Found> {
        None
    }
}

/// Waits; `None` when the time is over.
pub fn block_on<B: Blocking>(waiter: &mut B, patience: &AdaptiveSpin, wait: Wait) -> Option<B::Found> {
    slept::forget();
    let found = wait_on(waiter, patience, wait);
    if found.is_some() {
        slept::found();
    }
    found
}

#[inline(always)]
fn wait_on<B: Blocking>(waiter: &mut B, patience: &AdaptiveSpin, wait: Wait) -> Option<B::Found> {
    let mut watch: Option<Watch> = None;
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
        if interrupt::ends_waits()
            && let Some(found) = waiter.interrupted()
        {
            return Some(found);
        }
        let watch = watch.get_or_insert_with(|| Watch::new(now, wait));
        if patience.is_busy() {
            watch.looked(now, || waiter.subject());
            // It has slept for no time at all: what is looked at beside sleeps is looked at.
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
        watch.looked(asleep, || waiter.subject());
        slept::forget();
        if waiter.sleep(announced, asleep) {
            let found = waiter.woken();
            patience.slept(asleep);
            if found.is_some() {
                return found;
            }
        }
    }
}

/// The first time that a waiter asks for dead processes.
const FIRST: Duration = Duration::from_millis(1);

/// When a waiter asks for dead processes: by the clock, not by how a sleep ended, since signals may end each
/// of them early; and when a process has noticed a death since.
#[derive(Clone, Copy, Debug)]
pub struct LivenessTimer {
    next: Instant,
    /// How many deaths were noticed when it asked last, if it has asked.
    asked: Option<u32>,
}

impl Default for LivenessTimer {
    fn default() -> Self {
        Self { next: Instant::now() + FIRST, asked: None }
    }
}

impl LivenessTimer {
    /// Whether to ask now: after a millisecond, then after each poll interval, when a death was noticed that it has not asked
    /// about, and when the time is `over`. After a poll interval, the arena is swept as well, if that is due.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn is_due(&mut self, arena: Arena, now: Instant, over: bool) -> Result<bool, Error> {
        // Before the caller asks: see `arena::waiting::parking`.
        let noticed = arena.noticed();
        let news = self.asked.is_some_and(|asked| asked != noticed);
        if now < self.next && !news && !over {
            return Ok(false);
        }
        if self.asked.is_some() && now >= self.next {
            arena.sweep_if_due()?;
        }
        *self = Self { next: now + POLL_INTERVAL, asked: Some(noticed) };
        Ok(true)
    }

    /// Until when to sleep, at most.
    pub(crate) fn until(&self, wait: Wait) -> Instant {
        wait.or_until(self.next)
    }

    /// Sleeps while `word` is as expected, until it is time to ask again. Whether it may have been woken.
    ///
    /// The first sleep is short, and most waits end in it: that one is on one word, which is cheaper.
    pub(crate) fn sleep(&self, arena: Arena, word: &AtomicU32, expected: u32, wait: Wait) -> bool {
        self.sleep_for(arena, word, expected, self.until(wait).saturating_duration_since(Instant::now()))
    }

    /// As [`sleep`](Self::sleep), at most for `left`.
    pub(crate) fn sleep_for(&self, arena: Arena, word: &AtomicU32, expected: u32, left: Duration) -> bool {
        match self.asked {
            Some(noticed) if futex::can_wait_for_many() => {
                futex::wait_for_any(&[(word, expected), (arena.noticed_word(), noticed)], Some(left));
                true
            }
            _ => futex::wait(word, expected, left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::waiting::waits::{Call, On};

    /// A waiter that finds something in the `finds`-th of its looks, and notes what it was asked.
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
            let looks =
                self.calls.iter().filter(|call| ["look", "last look", "woken"].contains(call)).count();
            (looks == self.finds).then_some(looks)
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
            Subject::other(Call::Other, On::Other, String::new())
        }
    }

    fn run(mut waiter: Noted, wait: Wait) -> (Option<usize>, Vec<&'static str>) {
        let found = block_on(&mut waiter, &AdaptiveSpin::none(), wait);
        (found, waiter.calls)
    }

    #[test]
    fn what_changes_before_the_announcement_is_found_before_the_sleep() {
        let (found, calls) = run(Noted::finding(2), Wait::Forever);
        assert_eq!((found, calls), (Some(2), vec!["look", "peers", "announce", "last look"]));
    }

    #[test]
    fn a_wake_up_is_followed_by_a_look_and_the_end_of_a_slice_by_a_look_after_peers() {
        let (found, calls) = run(Noted { wakes: true, ..Noted::finding(3) }, Wait::Forever);
        assert_eq!((found, calls.last()), (Some(3), Some(&"woken")));
        let (found, calls) = run(Noted::finding(4), Wait::Forever);
        assert_eq!(found, Some(4));
        assert_eq!(calls[4..], ["sleep", "look", "peers", "announce", "last look"]);
    }

    #[test]
    fn peers_are_looked_after_before_a_waiter_gives_up_and_it_does_not_announce_itself() {
        assert_eq!(run(Noted::finding(9), Wait::Never), (None, vec!["peers, at the end"]));
        let over = Wait::Until(Instant::now());
        assert_eq!(run(Noted::finding(9), over), (None, vec!["look", "peers, at the end"]));
    }

    #[test]
    fn a_waiter_that_could_not_announce_itself_looks_again_and_does_not_sleep() {
        let (found, calls) = run(Noted { announces: false, ..Noted::finding(2) }, Wait::Forever);
        assert_eq!((found, calls), (Some(2), vec!["look", "peers", "announce", "look"]));
    }
}
