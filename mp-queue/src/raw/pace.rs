//! Back-off of a thread that finds a queue empty or full.
//!
//! A consumer that is faster than its producer waits at the slot that is written next. Each of its reads
//! takes the slot's cache line away from the producer, which has to fetch it back for the next slot in the
//! same line: two transfers per message. A consumer that backs off for a while finds many messages, at one
//! transfer per line. The same applies to a producer that waits for room.
//!
//! Backing off helps only while the other side continues to work, and it would delay a response. Therefore a
//! thread backs off only after a wait was followed by more than one message. The length of the back-off is
//! doubled while the number of messages after it grows in proportion, and halved otherwise. In request and
//! response, one message ends each wait, so there is no back-off.
//!
//! The state of back-offs is local to this process. Correctness does not depend on it.

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;

/// Length of the first back-off, in pauses of the processor of 10 to 50 ns each.
const FIRST: u32 = 4;
/// Length of the longest back-off in pauses of the processor: a few microseconds in total.
const MOST: u32 = 64;

/// Back-off state of one side of a queue, in one process.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Number of messages that were put or taken since the last back-off.
    messages: AtomicU32,
    hold: AtomicU32,
}

impl Pace {
    /// Smallest capacity of a queue with back-off. During a back-off, a smaller queue would become full or
    /// empty, so that the other side would have to wait.
    pub(crate) const MIN_SLOTS: u32 = 64;

    /// Smallest capacity of a channel with retained messages whose receivers back off. During the longest
    /// back-off, a sender could replace all messages of a smaller channel.
    pub(crate) const MIN_RETAINED: u32 = 4 * MOST;

    /// Counts a message that was put or taken.
    #[inline]
    pub(crate) fn record_message(&self) {
        // Inexact if threads share a handle. Correctness does not depend on it.
        self.messages.store(self.messages.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Backs off after an attempt that found the queue empty or full. The length of the back-off depends on
    /// the number of messages since the last back-off.
    pub(crate) fn back_off(&self) {
        let messages = self.messages.load(Ordering::Relaxed);
        self.messages.store(0, Ordering::Relaxed);
        let hold = next(self.hold.load(Ordering::Relaxed), messages);
        self.hold.store(hold, Ordering::Relaxed);
        (0..hold).for_each(|_| std::hint::spin_loop());
    }
}

/// Returns the length of the next back-off in pauses. `hold` is the length of the last back-off, and
/// `messages` is the number of messages that followed it.
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

    /// Returns the longest back-off, in pauses, after many waits. The sender needs `pauses_each` pauses for a
    /// message. At least `at_once` messages follow each wait.
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
    fn queue_back_off_is_short_for_request_and_response() {
        assert_eq!(settles(u32::MAX, 1), 0, "one request at a time");
        assert!(settles(u32::MAX, 2) <= 8, "two at a time");
        assert!(settles(u32::MAX, 4) <= 16, "four at a time");
        assert_eq!((0..10).fold(MOST, |hold, _| next(hold, 1)), 0, "requests after a stream");
    }

    #[test]
    fn queue_back_off_is_longest_for_a_one_way_stream() {
        assert_eq!(settles(2, 2), MOST);
        assert_eq!(settles(1, 3), MOST);
    }
}
