//! Taking another seat of a block, by a process that holds the block. The seat is for a message, or for a
//! child of the block ([`JoinParent`](super::JoinParent)). A child records its seat in its header, as a
//! message does in its envelope.

use super::cursor::{NextSeat, SeatCursor, SeatHints, page_next, page_owner, seat_hints};
use super::{BlockAt, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Attachment, BlockId, BlockState, Grant, Seat, SeatAt};

/// Maximum number of seats in pages that a search for a free seat reads, before another page is linked. The
/// search begins after the seat taken last, so it fails only if most seats are taken.
const MAX_PROBES: u32 = 256;

/// Words in which an envelope records its next attachment, before a seat is taken for the envelope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttachRecord {
    /// Word for the attachment.
    pub entry: Word,
    /// Word with the number of attachments.
    pub count: Word,
    /// Value to write to `count`.
    pub counted: u64,
    /// Rights of the receiver.
    pub grant: Grant,
}

/// Result of taking a seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TakeOutcome {
    /// This seat was taken.
    Seat(SeatAt),
    /// All checked seats are taken. The caller links a page of seats and retries.
    NoSeat,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Head,
    Inline(u32),
    Last,
    Owner,
    Probe,
    Link,
    Record,
    Count,
    Swap,
    Bump,
    Remember,
}

/// Takes a free seat for `holder`. The caller must hold another seat of the block until these steps have
/// ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TakeSeat<F> {
    block: BlockAt,
    /// Function that returns the first word of a page. Cloned before each call, so that the compiler need not
    /// keep these steps in memory (see `SeatCursor`).
    pages: F,
    holder: Seat,
    record: AttachRecord,
    inline: u32,
    /// First page of seats.
    head: (BlockId, Word),
    hints: SeatHints,
    cursor: Option<SeatCursor>,
    probes: u32,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> TakeSeat<F> {
    /// Creates the steps to take a seat of `block` for `holder`, recorded in `record`.
    pub fn new(block: BlockAt, pages: F, holder: Seat, record: AttachRecord) -> Self {
        let (head, hints, pc) = ((0, Word::at(0)), SeatHints::default(), Pc::Head);
        Self { block, pages, holder, record, inline: 0, head, hints, cursor: None, probes: 0, pc }
    }

    /// Returns the position and the word of the current seat.
    #[inline(always)]
    fn seat(&self) -> (SeatAt, Word) {
        match self.cursor {
            Some(cursor) => (cursor.now().at(), cursor.now().word()),
            None => (SeatAt::inline(self.inline), self.block.seat(self.inline)),
        }
    }

    /// Moves to the next seat, because the current seat is taken.
    #[inline(always)]
    fn next_seat(&mut self) -> Option<TakeOutcome> {
        let next_seat = match &mut self.cursor {
            Some(cursor) => cursor.advance(&self.block),
            None if self.inline + 1 < self.block.inline => {
                self.pc = Pc::Inline(self.inline + 1);
                return None;
            }
            None => return Some(TakeOutcome::NoSeat),
        };
        self.probe(next_seat)
    }

    #[inline(always)]
    fn probe(&mut self, next_seat: NextSeat) -> Option<TakeOutcome> {
        self.probes += 1;
        if next_seat == NextSeat::End || self.probes > MAX_PROBES {
            return Some(TakeOutcome::NoSeat);
        }
        self.pc = if next_seat == NextSeat::Link { Pc::Link } else { Pc::Probe };
        None
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> Steps for TakeSeat<F> {
    type Out = TakeOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<TakeOutcome> {
        match self.pc {
            Pc::Inline(i) => {
                self.inline = i;
                if Seat::unpack(m.load_relaxed(self.block.seat(i))) != Seat::Free {
                    return self.next_seat();
                }
                self.pc = Pc::Record;
            }
            // Pages are searched first, if there are any: they have room, and are on other cache lines than
            // the state, which all processes access.
            Pc::Head => {
                let link = link_of(m.load(self.block.link()));
                self.pc = match link.and_then(|page| Some((page, self.pages.clone()(page)?))) {
                    Some(head) => {
                        self.head = head;
                        Pc::Last
                    }
                    None => Pc::Inline(0),
                };
            }
            Pc::Last => {
                self.hints = SeatHints(m.load_relaxed(seat_hints(self.head.1)));
                self.cursor =
                    Some(SeatCursor::new(&self.block, self.head, self.hints.taken(), self.pages.clone()));
                self.pc = Pc::Owner;
            }
            // A seat in a page of another block would be lost with that block.
            Pc::Owner => {
                let Some(cursor) = &mut self.cursor else { return Some(TakeOutcome::NoSeat) };
                if m.load_relaxed(page_owner(cursor.now().first)) != u64::from(self.block.id) + 1 {
                    cursor.restart();
                }
                self.pc = Pc::Probe;
            }
            Pc::Probe => {
                if Seat::unpack(m.load_relaxed(self.seat().1)) != Seat::Free {
                    return self.next_seat();
                }
                self.pc = Pc::Record;
            }
            Pc::Link => {
                let Some(cursor) = &mut self.cursor else { return Some(TakeOutcome::NoSeat) };
                let link = link_of(m.load(page_next(cursor.now().first)));
                let page = link.and_then(|page| Some((page, self.pages.clone()(page)?)));
                let next_seat = cursor.enter(page);
                return self.probe(next_seat);
            }
            Pc::Record => {
                let attach =
                    Attachment { block: self.block.id, seat: self.seat().0, grant: self.record.grant };
                m.store_relaxed(self.record.entry, attach.pack());
                self.pc = Pc::Count;
            }
            Pc::Count => {
                m.store(self.record.count, self.record.counted);
                self.pc = Pc::Swap;
            }
            Pc::Swap => match m.cas(self.seat().1, Seat::Free.pack(), self.holder.pack()) {
                Ok(()) => self.pc = Pc::Bump,
                Err(_) => return self.next_seat(),
            },
            Pc::Bump => {
                m.add(self.block.state, BlockState::BUMP);
                if self.cursor.is_none() {
                    return Some(TakeOutcome::Seat(self.seat().0));
                }
                self.pc = Pc::Remember;
            }
            Pc::Remember => {
                let at = self.seat().0;
                m.store_relaxed(seat_hints(self.head.1), self.hints.with_taken(at).0);
                return Some(TakeOutcome::Seat(at));
            }
        }
        None
    }
}
