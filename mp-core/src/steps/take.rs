//! Taking another seat of a block, by a holder: for a message, or for a part of the block
//! ([`MakePart`](super::MakePart)), whose header then serves as the envelope.

use super::cursor::{Circle, Onward, last_taken, page_next, page_owner};
use super::{BlockAt, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Attach, BlockId, BlockState, Grant, Seat, SeatAt};

/// Maximum number of seats in pages that are checked for a free one, before another page is linked. The
/// search begins after the seat taken last, so it fails only if most seats are taken.
const LOOKS: u32 = 256;

/// Position where an envelope records its next attachment, before it takes the seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Note {
    /// Word for the attachment.
    pub entry: Word,
    /// Word with the number of attachments.
    pub count: Word,
    /// Value to write there.
    pub counted: u64,
    /// Rights of the receiver.
    pub grant: Grant,
}

/// Result of taking a seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Taken {
    /// The envelope has this seat.
    Seat(SeatAt),
    /// All seats that were checked are taken: link a page with more, and try again.
    NoneFree,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Head,
    Inline(u32),
    Last,
    Owner,
    Look,
    Link,
    Note,
    Count,
    Swap,
    Bump,
    Remember,
}

/// Takes a free seat for `who`. The caller must hold another seat of the block until this has ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Take<F> {
    block: BlockAt,
    pages: F,
    who: Seat,
    note: Note,
    inline: u32,
    /// First page of seats.
    head: (BlockId, Word),
    circle: Option<Circle>,
    looks: u32,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> Take<F> {
    /// Creates the steps to take a seat of `block` for `who`, recorded in `note`.
    pub fn new(block: BlockAt, pages: F, who: Seat, note: Note) -> Self {
        let (head, pc) = ((0, Word::at(0)), Pc::Head);
        Self { block, pages, who, note, inline: 0, head, circle: None, looks: 0, pc }
    }

    /// Returns the current seat.
    fn seat(&self) -> (SeatAt, Word) {
        match self.circle {
            Some(circle) => (circle.now().at(), circle.now().word()),
            None => (SeatAt::inline(self.inline), self.block.seat(self.inline)),
        }
    }

    /// Continues after a seat that is taken.
    fn onward(&mut self) -> Option<Taken> {
        let onward = match &mut self.circle {
            Some(circle) => circle.advance(&self.block),
            None if self.inline + 1 < self.block.inline => {
                self.pc = Pc::Inline(self.inline + 1);
                return None;
            }
            None => return Some(Taken::NoneFree),
        };
        self.look(onward)
    }

    fn look(&mut self, onward: Onward) -> Option<Taken> {
        self.looks += 1;
        if onward == Onward::End || self.looks > LOOKS {
            return Some(Taken::NoneFree);
        }
        self.pc = if onward == Onward::Link { Pc::Link } else { Pc::Look };
        None
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for Take<F> {
    type Out = Taken;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Taken> {
        match self.pc {
            Pc::Inline(i) => {
                self.inline = i;
                if Seat::unpack(m.load_relaxed(self.block.seat(i))) != Seat::Free {
                    return self.onward();
                }
                self.pc = Pc::Note;
            }
            // Pages first, if there are any: they have room, and their lines differ from the line with the
            // state, which all processes access.
            Pc::Head => {
                let link = link_of(m.load(self.block.link()));
                self.pc = match link.and_then(|page| Some((page, (self.pages)(page)?))) {
                    Some(head) => {
                        self.head = head;
                        Pc::Last
                    }
                    None => Pc::Inline(0),
                };
            }
            Pc::Last => {
                let last = m.load_relaxed(last_taken(self.head.1));
                self.circle = Some(Circle::new(&self.block, self.head, last, &self.pages));
                self.pc = Pc::Owner;
            }
            // Always true: only holders of this block write the hint. But a seat in a page of another block
            // would be lost with that block, so this is checked.
            Pc::Owner => {
                let Some(circle) = &mut self.circle else { return Some(Taken::NoneFree) };
                if m.load_relaxed(page_owner(circle.now().first)) != u64::from(self.block.id) + 1 {
                    circle.restart();
                }
                self.pc = Pc::Look;
            }
            Pc::Look => {
                if Seat::unpack(m.load_relaxed(self.seat().1)) != Seat::Free {
                    return self.onward();
                }
                self.pc = Pc::Note;
            }
            Pc::Link => {
                let Some(circle) = &mut self.circle else { return Some(Taken::NoneFree) };
                let link = link_of(m.load(page_next(circle.now().first)));
                let page = link.and_then(|page| Some((page, (self.pages)(page)?)));
                let onward = circle.enter(page);
                return self.look(onward);
            }
            Pc::Note => {
                let attach = Attach { block: self.block.id, seat: self.seat().0, grant: self.note.grant };
                m.store_relaxed(self.note.entry, attach.pack());
                self.pc = Pc::Count;
            }
            Pc::Count => {
                m.store(self.note.count, self.note.counted);
                self.pc = Pc::Swap;
            }
            Pc::Swap => match m.cas(self.seat().1, Seat::Free.pack(), self.who.pack()) {
                Ok(()) => self.pc = Pc::Bump,
                Err(_) => return self.onward(),
            },
            Pc::Bump => {
                m.add(self.block.state, BlockState::BUMP);
                if self.circle.is_none() {
                    return Some(Taken::Seat(self.seat().0));
                }
                self.pc = Pc::Remember;
            }
            Pc::Remember => {
                let at = self.seat().0;
                m.store_relaxed(last_taken(self.head.1), at.raw().into());
                return Some(Taken::Seat(at));
            }
        }
        None
    }
}
