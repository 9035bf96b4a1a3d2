//! Back-off of a thread that finds a queue empty or full.
//!
//! A consumer that is faster than its producer waits at the slot that is written next. Each of its reads
//! takes the slot's cache line away from the producer, which has to fetch it back for the next slot in the
//! same line: two transfers per message. A consumer that backs off for a while finds many messages, at one
//! transfer per line. The same applies to a producer that waits for room.
//!
//! Backing off helps only while the other side continues to work, and it would delay a response. Therefore it
//! begins only when a wait was followed by more than one message. It is doubled while it yields messages in
//! proportion, and halved otherwise. In request and response, one message ends each wait, so there is no
//! back-off.
//!
//! These words are local to this process and are hints.

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;

/// First hold, in pauses of the processor of 10 to 50 ns each.
const FIRST: u32 = 4;
/// Longest hold: a few microseconds.
const MOST: u32 = 64;

/// Pace of one side of a queue in one process.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Number of messages since the last wait began.
    messages: AtomicU32,
    hold: AtomicU32,
}

impl Pace {
    /// In a smaller queue, the other side could not continue during a hold: the queue would be full or empty.
    pub(crate) const MIN_SLOTS: u32 = 64;

    /// Minimum capacity of a channel that replaces messages, for its receivers to hold. During the longest
    /// hold, a sender could fill a smaller one.
    pub(crate) const MIN_RETAINED: u32 = 4 * MOST;

    /// Counts a message that was put or taken.
    #[inline]
    pub(crate) fn record_message(&self) {
        // Inexact if threads share a handle. Correctness does not depend on it.
        self.messages.store(self.messages.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Backs off after an attempt that found the queue empty or full, for as long as this has been
    /// worthwhile.
    pub(crate) fn back_off(&self) {
        let messages = self.messages.load(Ordering::Relaxed);
        self.messages.store(0, Ordering::Relaxed);
        let hold = next(self.hold.load(Ordering::Relaxed), messages);
        self.hold.store(hold, Ordering::Relaxed);
        (0..hold).for_each(|_| std::hint::spin_loop());
    }
}

/// Returns the next hold after a hold of `hold` that was followed by `messages` messages.
fn next(hold: u32, messages: u32) -> u32 {
    match messages {
        0 | 1 => hold / 2,
        _ if hold == 0 => FIRST,
        // Sending a message takes at least two pauses.
        _ if messages >= hold / 2 => (hold * 2).min(MOST),
        _ if messages < hold / 3 => hold / 2,
        _ => hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the hold that results after some time, with a sender that needs `pauses_each` pauses per
    /// message.
    fn settles(pauses_each: u32, at_once: u32) -> u32 {
        let mut hold = 0;
        let mut all = Vec::new();
        for _ in 0..100 {
            hold = next(hold, at_once.max(hold / pauses_each));
            all.push(hold);
        }
        *all[50..].iter().max().unwrap()
    }

    #[test]
    fn answers_are_not_delayed() {
        assert_eq!(settles(u32::MAX, 1), 0, "one request at a time");
        assert!(settles(u32::MAX, 2) <= 8, "two at a time");
        assert!(settles(u32::MAX, 4) <= 16, "four at a time");
        assert_eq!((0..10).fold(MOST, |hold, _| next(hold, 1)), 0, "a stream that becomes one");
    }

    #[test]
    fn one_way_stream_keeps_the_longest_delay() {
        assert_eq!(settles(2, 2), MOST);
        assert_eq!(settles(1, 3), MOST);
    }
}
