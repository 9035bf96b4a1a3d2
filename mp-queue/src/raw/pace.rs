//! How long to back off from a queue that is empty, or full, before looking at it again.
//!
//! A consumer that is faster than its producer waits at the very slot that is written next. Each look takes
//! the slot's cache line away from the producer, which has to fetch it back for the next slot, in the same
//! line: two transfers for each message. If the consumer backs off for a while, it finds many messages, at
//! one transfer for each line. The same is true of a producer that waits for room.
//!
//! Backing off is of use only while the other side goes on meanwhile, and would delay an answer that is
//! waited for. So it begins when more than the one message that ended a wait was there at once, is doubled as
//! long as it brings messages in proportion, and is halved otherwise. In request and response one message
//! ends each wait: then there is no back-off.
//!
//! These words are this process's, and hints.

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;

/// The first hold, in pauses of the processor: 10 to 50 ns each.
const FIRST: u32 = 4;
/// The longest: some microseconds.
const MOST: u32 = 64;

/// The pace of one side of a queue, in one process.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Messages since the last wait began.
    moved: AtomicU32,
    hold: AtomicU32,
}

impl Pace {
    /// In smaller queues the other side could not go on meanwhile: it would find it full, or empty.
    pub(crate) const LEAST_SLOTS: u32 = 64;

    /// A message was put, or taken.
    #[inline]
    pub(crate) fn moves(&self) {
        // Not exact where threads share a handle: nothing depends on it.
        self.moved.store(self.moved.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Nothing can be done at present: backs off as long as it has paid.
    pub(crate) fn hold_off(&self) {
        let moved = self.moved.load(Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        let hold = next(self.hold.load(Ordering::Relaxed), moved);
        self.hold.store(hold, Ordering::Relaxed);
        (0..hold).for_each(|_| std::hint::spin_loop());
    }
}

/// The next hold, after one of `hold` that was followed by `moved` messages.
fn next(hold: u32, moved: u32) -> u32 {
    match moved {
        0 | 1 => hold / 2,
        _ if hold == 0 => FIRST,
        // A message takes its sender two pauses or more.
        _ if moved >= hold / 2 => (hold * 2).min(MOST),
        _ if moved < hold / 3 => hold / 2,
        _ => hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hold that settles in, after a while, with a sender that needs `pauses_each` pauses for a message.
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
    fn answers_are_not_held_off() {
        assert_eq!(settles(u32::MAX, 1), 0, "one request at a time");
        assert!(settles(u32::MAX, 2) <= 8, "two at a time");
        assert!(settles(u32::MAX, 4) <= 16, "four at a time");
        assert_eq!((0..10).fold(MOST, |hold, _| next(hold, 1)), 0, "a stream that becomes one");
    }

    #[test]
    fn a_stream_is_left_alone() {
        assert_eq!(settles(2, 2), MOST);
        assert_eq!(settles(1, 3), MOST);
    }
}
