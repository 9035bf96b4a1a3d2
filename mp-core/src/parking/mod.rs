//! Sleeping until a word in the arena changes.
//!
//! A parking word counts wake-ups and marks whether a thread may be asleep: `asleep 1 bit | count 31`, in the
//! low half of a 64-bit word. The high half is the time at which the last wake-up was begun, so that sleepers
//! can measure its cost (`spin`). A sleeper sets the bit, checks its condition again, and sleeps while the
//! word is unchanged. A waker makes its change. If the waker then finds the bit set, it increments the word
//! and makes a system call. If the call woke no thread, the waker clears the bit.
//!
//! No wait relies on a wake-up: a process can be killed between its change and the call, and a woken sleeper
//! can be killed before it does anything. So no thread sleeps longer than a poll interval ([`POLL_INTERVAL`])
//! without checking again.
//!
//! # Deaths
//! A waiter for a lock, a permit, a barrier or a notification may depend on a dead member. One word of the
//! arena counts the detected deaths, and such a waiter also sleeps on that word, from its second sleep on
//! ([`LivenessTimer`](crate::LivenessTimer)).
//!
//! | word | changed by | killed | consequence |
//! |---|---|---|---|
//! | *noticed*: count, low 32 bits to sleep on | the process that swaps a member's word from `LIVE` to `DEAD`: afterwards adds 1 and wakes all | after the swap, before the addition | waiters check after a poll interval, as if *noticed* did not exist |
//! | *noticed* | the process that has released its seat of a queue, if a waiter has asked meanwhile: adds 1 and wakes all | after the release, before the addition | waiters check after a poll interval |
//! | *asked*: count | a waiter that finds a process which is leaving the queue and may still hold it: adds 1 | before the addition | none |
//!
//! A waiter reads the count *noticed*, *then* checks whether the holder is dead, then sleeps while the count
//! is unchanged. So a death that the check missed ends the sleep.
//!
//! The release of a queue is also counted in *noticed*, if a waiter may wait for it: see
//! [`detach_notice`](self::detach_notice). All waiters of the queue check once more when the count changes.
//! If the kernel can't sleep on two words, a call that waits for a single queue polls instead, first after 1
//! ms.

use std::time::{Duration, Instant};

use crate::arena::{Arena, view};
use crate::layout::control;
use crate::mem::{Mem, Steps, Word, run};
use crate::parking::spin::COST;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;

#[doc(hidden)]
pub mod detach_notice;
pub(crate) mod missed_wakes;
pub(crate) mod spin;

/// Maximum time that a sleeper sleeps before it checks its condition again and checks for dead members.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

const ASLEEP: u64 = 1;
const COUNT: u64 = 2;
const LOW: u64 = u32::MAX as u64;

/// Returns the present time, in the form of the high half of a parking word.
fn begun<M: Mem + ?Sized>(m: &M) -> u64 {
    u64::from(m.ticks()) << 32
}

/// Steps that announce a sleeper, and return the value to sleep on. The sleeper must check its condition
/// again before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Announce {
    word: Word,
    seen: Option<u64>,
}

impl Announce {
    /// Creates the steps for this parking word.
    pub fn new(word: Word) -> Self {
        Self { word, seen: None }
    }
}

impl Steps for Announce {
    type Out = u64;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<u64> {
        let Some(seen) = self.seen else {
            self.seen = Some(m.load(self.word));
            return None;
        };
        // Swaps even if the bit is already set: the barrier needs a read-modify-write before it.
        let asleep = ASLEEP;
        match m.cas(self.word, seen, seen | asleep) {
            Ok(()) => {
                m.fence_after_rmw();
                Some(seen | ASLEEP)
            }
            Err(now) => {
                self.seen = Some(now);
                None
            }
        }
    }
}

/// Steps that check for a sleeper after a change was published by a read-modify-write. They return the
/// incremented value of the word, if a sleeper must be woken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NotifyOne {
    word: Word,
    seen: Option<u64>,
    /// Mask of the word's bits that the increment keeps.
    keep: u64,
}

impl NotifyOne {
    /// Creates the steps for this parking word.
    pub fn new(word: Word) -> Self {
        Self { word, seen: None, keep: LOW }
    }
}

impl Steps for NotifyOne {
    type Out = Option<u64>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u64>> {
        let Some(seen) = self.seen else {
            m.fence_after_rmw();
            let seen = m.load_relaxed(self.word);
            if seen & ASLEEP == 0 {
                return Some(None);
            }
            self.seen = Some(seen);
            return None;
        };
        let count = COUNT;
        let next = seen.wrapping_add(count) & self.keep | begun(m);
        match m.cas(self.word, seen, next) {
            Ok(()) => Some(Some(next)),
            Err(now) if now & ASLEEP == 0 => Some(None),
            Err(now) => {
                self.seen = Some(now);
                None
            }
        }
    }
}

/// Steps like [`NotifyOne`], for all sleepers. They also clear the mark that a thread may be asleep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NotifyAll(NotifyOne);

impl NotifyAll {
    /// Creates the steps for this parking word.
    pub fn new(word: Word) -> Self {
        Self(NotifyOne { keep: LOW & !ASLEEP, ..NotifyOne::new(word) })
    }
}

impl Steps for NotifyAll {
    type Out = bool;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        self.0.step(m).map(|counted| counted.is_some())
    }
}

/// Increments a parking word, before the caller wakes all sleepers on it.
#[doc(hidden)]
pub fn count_up<M: Mem + ?Sized>(m: &M, word: Word) {
    let count = COUNT;
    m.add(word, count);
}

/// Withdraws the announcement from a parking word, which [`NotifyOne`] incremented to `counted`, after a
/// wake-up that woke no sleeper. Returns `true` if all sleepers must then be woken: a process that fell
/// asleep between the wake-up and this swap has to check again.
#[doc(hidden)]
pub fn withdraw_announcement<M: Mem + ?Sized>(word: Word, counted: u64, m: &M) -> bool {
    m.cas(word, counted, counted & !ASLEEP).is_ok()
}

/// Place in the arena where processes sleep.
#[derive(Clone, Copy, Debug)]
pub struct Parking {
    pub(crate) arena: Arena,
    pub(crate) word: Word,
}

impl Parking {
    /// Returns the arena of the word.
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Returns the low half of the word, which changes with each wake-up.
    pub(crate) fn futex(&self) -> &'static AtomicU32 {
        self.arena.map().futex_at(self.word)
    }

    /// Wakes one sleeper, if any. Call this after the change was published by a read-modify-write.
    #[inline]
    pub fn wake_one(&self) {
        self.wake_some(1);
    }

    /// Wakes up to `n` sleepers, like [`wake_one`](Self::wake_one).
    #[inline]
    pub fn wake_some(&self, n: u32) {
        if let Some(counted) = run(NotifyOne::new(self.word), self.arena.map()) {
            self.wake(counted, n);
        }
    }

    #[cold]
    fn wake(&self, counted: u64, n: u32) {
        let began = Instant::now();
        if futex::wake(self.futex(), n) != 0 {
            COST.measured_call(began.elapsed());
        } else if withdraw_announcement(self.word, counted, self.arena.map()) {
            futex::wake(self.futex(), i32::MAX as u32);
        }
    }

    /// Wakes all sleepers. Makes no system call if there are none. Call this after the change was published
    /// by a read-modify-write.
    #[inline]
    pub fn notify_all(&self) {
        if run(NotifyAll::new(self.word), self.arena.map()) {
            futex::wake(self.futex(), i32::MAX as u32);
        }
    }

    /// Wakes all sleepers. Always increments the word and makes a system call.
    pub fn wake_all(&self) {
        count_up(self.arena.map(), self.word);
        futex::wake(self.futex(), i32::MAX as u32);
    }

    /// Announces a sleeper, and returns the value to pass to [`sleep`](Self::sleep) after another check of
    /// the condition.
    pub fn announce(&self) -> u64 {
        run(Announce::new(self.word), self.arena.map())
    }

    /// Same as [`sleep`](Self::sleep), and also wakes when more deaths or releases than `noticed` are
    /// [detected](Notices::noticed), if the kernel can sleep on two words.
    pub fn sleep_unless_noticed(&self, announced: u64, noticed: u32, deadline: Option<Instant>) -> bool {
        let word = Notices(self.arena).noticed_word();
        self.sleep_at(announced, deadline, |own, expected, left| {
            if !futex::can_wait_for_many() {
                return futex::wait(own, expected, left);
            }
            futex::wait_for_any(&[(own, expected), (word, noticed)], Some(left))
        })
    }

    /// Sleeps until the word changes, but at most a poll interval and not beyond `deadline`. Returns `true`
    /// if the sleep may have ended because of a wake-up.
    pub fn sleep(&self, announced: u64, deadline: Option<Instant>) -> bool {
        self.sleep_at(announced, deadline, futex::wait)
    }

    pub(crate) fn sleep_at(
        &self,
        announced: u64,
        deadline: Option<Instant>,
        how: impl FnOnce(&'static AtomicU32, u32, Duration) -> bool,
    ) -> bool {
        // Sleeps on the announced value, not on the present one, and for a limited time.
        let left = deadline.map_or(POLL_INTERVAL, |d| d.saturating_duration_since(Instant::now()));
        let next = POLL_INTERVAL;
        let asleep = self.arena.map().ticks();
        let noticed = Notices(self.arena).noticed();
        let woken = how(self.futex(), (announced & LOW) as u32, left.min(next));
        if !woken && left >= POLL_INTERVAL {
            // Both words are recorded, even if the thread slept only on the first: the second one changes
            // later.
            missed_wakes::through([
                (self.futex(), (announced & LOW) as u32),
                (Notices(self.arena).noticed_word(), noticed),
            ]);
        }
        if woken && let Some(took) = self.took(announced, asleep) {
            COST.measured(took);
        }
        woken
    }

    /// Returns the duration of this thread's wake-up in nanoseconds, if the thread slept when the wake-up was
    /// begun, and no other wake-up followed.
    fn took(&self, announced: u64, asleep: u32) -> Option<u32> {
        let map = self.arena.map();
        let (now, word) = (map.ticks(), map.load_relaxed(self.word));
        let once = (word & LOW & !ASLEEP) == (announced.wrapping_add(COUNT) & LOW & !ASLEEP);
        let (slept, took) = (now.wrapping_sub(asleep), now.wrapping_sub((word >> 32) as u32));
        (once && took < slept).then_some(took)
    }
}

view! {
    /// Count in an arena of two kinds of events: detected deaths, and releases of queues that waiters asked
    /// for.
    pub struct Notices;
}

impl Notices {
    /// Returns the low half of the count, to sleep on.
    pub(crate) fn noticed_word(self) -> &'static AtomicU32 {
        self.map().futex_at(Word::at(control::NOTICED))
    }

    /// Returns the number of deaths that any process has detected, and of releases of queues that waiters
    /// asked for, modulo 2^32.
    #[inline]
    pub fn noticed(self) -> u32 {
        self.map().load(Word::at(control::NOTICED)) as u32
    }

    /// Wakes all waiters that may depend on a member that is marked dead, or on a queue that this process has
    /// released.
    #[cold]
    pub(crate) fn tell_of_a_lost_holder(self) {
        self.map().add(Word::at(control::NOTICED), 1);
        futex::wake(self.noticed_word(), i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use crate::alloc::Allocator;
    use crate::blocks::Blocks;
    use crate::mem::HeapMem;

    const WORD: Word = Word::at(0);

    /// A process that has announced itself, and does not sleep yet, must not fall asleep after a wake-up for
    /// all, even if another process announces itself after this wake-up.
    #[test]
    fn notify_all_prevents_an_announced_sleep() {
        let m = HeapMem::new(1);
        let first = run(Announce::new(WORD), &m);
        assert!(run(NotifyAll::new(WORD), &m));
        let second = run(Announce::new(WORD), &m);
        assert_eq!(m.load(WORD), second);
        assert_ne!(first, second, "the first sleeper would miss its wake-up");
    }

    fn parking() -> (Parking, crate::Hold) {
        let arena = Arena::current().unwrap();
        let hold = Allocator(arena).alloc(64).unwrap();
        let word = Word::at(Blocks(arena).data_of(hold.block()).0);
        arena.map().store(word, 0);
        (Parking { arena, word }, hold)
    }

    #[test]
    fn wake_all_prevents_an_announced_sleep() {
        let (parking, _hold) = parking();
        let announced = parking.announce();
        parking.wake_all();
        assert_ne!(parking.announce(), announced, "the sleeper would miss its wake-up");
    }

    #[test]
    fn sleeper_measures_only_wake_ups_during_its_sleep() {
        let (parking, _hold) = parking();
        let took = |announced, asleep| parking.took(announced, asleep);
        let asleep = parking.arena.map().ticks();
        let announced = parking.announce();
        assert_eq!(took(announced, asleep), None, "the sleeper was not woken");
        parking.wake_one();
        let woken = took(announced, asleep).expect("the sleeper was woken");
        assert!(woken <= parking.arena.map().ticks().wrapping_sub(asleep));
        assert_eq!(took(announced, parking.arena.map().ticks()), None, "the sleep began after the wake-up");
        let second = parking.announce();
        parking.wake_one();
        assert_eq!(took(announced, asleep), None, "another sleeper was woken, too");
        assert!(took(second, asleep).is_some());
        _ = parking.announce();
        parking.notify_all();
        assert_eq!(took(second, asleep), None);
    }

    /// A wake-up is lost if the waking process is killed. The sleeper then wakes by itself after a poll
    /// interval.
    #[test]
    fn sleep_without_a_wake_up_ends_after_a_poll_interval() {
        let (send, woken) = mpsc::channel();
        std::thread::spawn(move || {
            let (parking, _hold) = parking();
            let announced = parking.announce();
            parking.sleep(announced, Some(Instant::now() + 1000 * POLL_INTERVAL));
            send.send(()).unwrap();
        });
        woken.recv_timeout(100 * POLL_INTERVAL).expect("the sleep ends after a poll interval");
    }
}
