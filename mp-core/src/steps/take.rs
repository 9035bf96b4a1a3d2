//! A holder takes another seat of a block, for a message.

use super::{BlockAt, Cursor, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{Access, Attach, BlockId, BlockState, Seat};

/// Where an envelope notes its next attachment, before it takes the seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Note {
    /// The word for the attachment.
    pub entry: Word,
    /// The word that says how many attachments there are.
    pub count: Word,
    /// What to write there.
    pub counted: u64,
    /// How the receiver may use it.
    pub access: Access,
    /// The element type.
    pub tag: u8,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Taken {
    /// This seat is the envelope's now.
    Seat(u32),
    /// All seats are taken: link a page with more, and try again.
    NoneFree,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Look,
    Link,
    Note,
    Count,
    Swap,
    Bump,
}

/// Takes a free seat for `who`. The caller must hold another seat of the block until this has ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Take<F> {
    block: BlockAt,
    pages: F,
    who: Seat,
    note: Note,
    at: Cursor,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> Take<F> {
    /// To take a seat of `block` for `who`, noted in `note`.
    pub fn new(block: BlockAt, pages: F, who: Seat, note: Note) -> Self {
        Self { block, pages, who, note, at: Cursor::START, pc: Pc::Look }
    }

    fn next(&mut self) {
        self.pc = if self.at.advance(&self.block) { Pc::Link } else { Pc::Look };
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for Take<F> {
    type Out = Taken;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Taken> {
        match self.pc {
            Pc::Look => {
                let Some(seat) = self.at.word(&self.block) else { return Some(Taken::NoneFree) };
                if Seat::unpack(m.load_relaxed(seat)) == Seat::Free {
                    self.pc = Pc::Note;
                } else {
                    self.next();
                }
            }
            Pc::Link => {
                let link = link_of(m.load(self.at.link(&self.block)));
                let Some(page) = link.and_then(&self.pages) else { return Some(Taken::NoneFree) };
                self.at.page = Some(page);
                self.pc = Pc::Look;
            }
            Pc::Note => {
                let Note { access, tag, .. } = self.note;
                let attach = Attach { block: self.block.id, seat: self.at.index, access, tag };
                m.store_relaxed(self.note.entry, attach.pack());
                self.pc = Pc::Count;
            }
            Pc::Count => {
                m.store(self.note.count, self.note.counted);
                self.pc = Pc::Swap;
            }
            Pc::Swap => {
                let Some(seat) = self.at.word(&self.block) else { return Some(Taken::NoneFree) };
                match m.cas(seat, Seat::Free.pack(), self.who.pack()) {
                    Ok(()) => self.pc = Pc::Bump,
                    Err(_) => self.next(),
                }
            }
            Pc::Bump => {
                m.add(self.block.state, BlockState::BUMP);
                return Some(Taken::Seat(self.at.index));
            }
        }
        None
    }
}

/// Where seat `index` of a block is, reading the links that lead to it.
pub(crate) fn seat_word<M: Mem + ?Sized>(
    m: &M,
    block: &BlockAt,
    pages: impl Fn(BlockId) -> Option<Word>,
    index: u32,
) -> Option<Word> {
    if index < block.inline {
        return Some(block.seat(index));
    }
    let mut page = pages(link_of(m.load(block.link()))?)?;
    for _ in 0..(index - block.inline) / block.per_page {
        page = pages(link_of(m.load(page.plus(1)))?)?;
    }
    Some(page.plus(2 + ((index - block.inline) % block.per_page) as u64))
}
