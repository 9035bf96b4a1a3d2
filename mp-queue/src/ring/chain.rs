//! Chains of rings: queues that grow.
//!
//! The segments of a chain are rings in one block, each four times as large as the previous one. The address
//! of each segment is fixed when the queue is created, and its pages are allocated when it is opened. A
//! segment is not reused while the queue exists, so a process that was stopped can't mistake it for another
//! segment. A closed segment is never opened again. The last segment is used like a single ring.
//!
//! A producer that finds the last open segment full closes it ([`Close`]: its messages can still be taken)
//! and opens the next one by writing the *link*. A consumer that finds a segment closed and drained follows
//! the link. No message enters a closed segment, and no segment is opened before the previous one is closed.
//! So messages are taken in the order of segment, lap and slot.
//!
//! | link word of a segment | meaning | changed by |
//! |---|---|---|
//! | `NONE` | no next segment yet | a producer that found the segment full or closed → `OPEN`; a closer of the queue → `END` |
//! | `OPEN` | the next segment is in use; this segment is closed | no process |
//! | `END` | the queue is closed; so is this segment | no process |
//!
//! The last segment has no link: closing it closes the queue.
//!
//! | killed | left | other processes |
//! |---|---|---|
//! | after pages were reserved for the next segment | unused pages | reserve them again, which changes nothing |
//! | after the segment was closed, before the link | a closed segment, `NONE` | producers open the next one; consumers find it empty |
//! | after the link | `OPEN`, or `END` | continue |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::BlockId;

use super::{Close, RingAt};

/// State of a segment's successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Link {
    /// The next segment is not open yet.
    None = 0,
    /// The next segment is open.
    Open = 1,
    /// The queue is closed, so there will be no successor.
    End = 2,
}

impl Link {
    /// Converts the link into a word.
    pub const fn pack(self) -> u64 {
        self as u64
    }

    /// Converts a word into a link.
    pub const fn unpack(w: u64) -> Self {
        match w {
            0 => Link::None,
            1 => Link::Open,
            _ => Link::End,
        }
    }
}

/// Locations of the segments of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChainAt {
    /// First segment of the chain.
    pub first: RingAt,
    /// Link of the first segment, followed by the links of the later segments.
    pub links: Word,
    /// Largest number of segments. 1 means that the queue is a single ring.
    pub segments: u32,
    /// Number of slots of the last segment, if the chain has several segments.
    pub most: u32,
    /// Location of the second segment, which begins on a page, like each later segment. Its tail is 128 bytes
    /// after its head, and its slots are 128 bytes after its tail.
    pub second: Word,
}

/// Ratio of the numbers of slots of consecutive segments.
const GROWTH: u64 = 4;
const PAGE: u64 = 4096;
/// Number of bytes of a segment before its slots.
const HEAD: u64 = 256;

impl ChainAt {
    /// Returns this chain for an arena with `envelopes` envelopes.
    #[must_use]
    pub const fn of(self, envelopes: u32) -> Self {
        Self { first: RingAt { envelopes, ..self.first }, ..self }
    }

    /// Returns the number of segments of a chain whose first segment has `first` slots and whose last segment
    /// has `most` slots.
    pub fn segments_for(first: u32, most: u32) -> u32 {
        let mut n = 1;
        let mut slots = u64::from(first);
        while slots < u64::from(most) {
            slots *= GROWTH;
            n += 1;
        }
        n
    }

    /// Returns the extent of segment `i`, which is not the first segment: its byte offset from the second
    /// segment, the number of slots in earlier segments, and its number of slots. Runs for each put and get
    /// in a later segment.
    #[inline]
    fn extent(&self, i: u32) -> (u64, u32, u32) {
        let (mut from, mut before, mut slots) = (0, 0, self.first.slots);
        for _ in 1..i {
            before += slots;
            slots *= GROWTH as u32;
            from += Self::len(slots);
        }
        (from, before + slots, if i + 1 == self.segments { self.most } else { slots * GROWTH as u32 })
    }

    const fn len(slots: u32) -> u64 {
        (HEAD + RingAt::SLOT * slots as u64).next_multiple_of(PAGE)
    }

    /// Returns the byte offset from the second segment and the length in bytes of segment `i`, which is not
    /// the first segment.
    pub fn bytes(&self, i: u32) -> (u64, u64) {
        let (from, _, slots) = self.extent(i);
        (from, Self::len(slots))
    }

    /// Returns the locations of segment `i`.
    #[inline]
    pub fn segment(&self, i: u32) -> RingAt {
        if i == 0 { self.first } else { self.later(i) }
    }

    fn later(&self, i: u32) -> RingAt {
        let (from, before, slots) = self.extent(i);
        let at = |n| Word::at(self.second.offset() + from + n);
        RingAt {
            block: self.first.block,
            slots,
            before,
            head: at(0),
            tail: at(HEAD / 2),
            first: at(HEAD),
            envelopes: self.first.envelopes,
        }
    }

    /// Returns the location of the link of segment `i`, or `None` for the last segment.
    pub fn link(&self, i: u32) -> Option<Word> {
        (i + 1 < self.segments).then(|| self.links.plus(u64::from(i)))
    }

    /// Returns the location of slot `slot`, counted over all segments, or `None` if there is no such slot.
    pub fn slot(&self, slot: u32) -> Option<Word> {
        let segment =
            (0..self.segments).map(|i| self.segment(i)).find(|s| slot.wrapping_sub(s.before) < s.slots)?;
        Some(segment.slot(slot - segment.before))
    }

    /// Returns the block that contains the chain.
    pub fn block(&self) -> BlockId {
        self.first.block
    }
}

/// Closes a segment and opens the next one, whose memory must be ready. Ends with [`Link::Open`], also if
/// another producer has opened the next segment, or with [`Link::End`] if the queue was closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extend {
    close: Close,
    link: Word,
    closed: bool,
}

impl Extend {
    /// Creates the steps for `segment`, whose link is at `link`.
    pub fn new(segment: RingAt, link: Word) -> Self {
        Self { close: Close::new(segment), link, closed: false }
    }
}

impl Steps for Extend {
    type Out = Link;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Link> {
        if !self.closed {
            self.closed = self.close.step(m).is_some();
            return None;
        }
        match m.cas(self.link, Link::None.pack(), Link::Open.pack()) {
            Ok(()) => Some(Link::Open),
            Err(found) => Some(Link::unpack(found)),
        }
    }
}

/// Closes a chain: the last open segment, and then its link. Ends with `true` if this call closed the chain.
///
/// If a producer opens the next segment meanwhile, the close continues with that segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CloseChain {
    chain: ChainAt,
    segment: u32,
    close: Option<Close>,
}

impl CloseChain {
    /// Creates the steps to close `chain`.
    pub fn new(chain: ChainAt) -> Self {
        Self { chain, segment: 0, close: Some(Close::new(chain.first)) }
    }
}

impl Steps for CloseChain {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if let Some(close) = &mut self.close {
            let open = close.step(m)?;
            if self.chain.link(self.segment).is_none() {
                return Some(open);
            }
            self.close = None;
            return None;
        }
        let Some(link) = self.chain.link(self.segment) else { return Some(false) };
        match m.cas(link, Link::None.pack(), Link::End.pack()) {
            Ok(()) => Some(true),
            Err(found) if Link::unpack(found) == Link::End => Some(false),
            Err(_) => {
                self.segment += 1;
                self.close = Some(Close::new(self.chain.segment(self.segment)));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_a_growing_queue_are_contiguous() {
        let first = RingAt {
            block: 7,
            slots: 192,
            before: 0,
            head: Word::at(256),
            tail: Word::at(384),
            first: Word::at(1024),
            envelopes: 8,
        };
        let segments = ChainAt::segments_for(192, 100_000);
        let chain = ChainAt { first, links: Word::at(896), segments, most: 100_000, second: Word::at(4096) };
        assert_eq!(segments, 6);
        let (mut end, mut before) = (4096, 192);
        for i in 1..segments {
            let s = chain.segment(i);
            assert_eq!(s.head.offset(), end);
            assert!(s.first.offset() >= s.tail.offset() + 128);
            assert_eq!((s.before, s.block), (before, 7));
            assert_eq!(chain.slot(before), Some(s.first));
            let (from, len) = chain.bytes(i);
            assert_eq!(4096 + from, end);
            end += len;
            before += s.slots;
            assert!(s.slot(s.slots).offset() <= end && end.is_multiple_of(4096));
        }
        assert_eq!(chain.segment(5).slots, 100_000);
        assert_eq!(chain.slot(before), None);
        assert_eq!(chain.link(4), Some(Word::at(896 + 32)));
        assert_eq!(chain.link(5), None);
    }
}
