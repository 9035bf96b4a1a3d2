//! Who holds a block, as steps of one shared access each.
//!
//! A block has a state word and **seats**. Each process that has handles to the block holds one seat, each
//! message on its way that carries it holds one, and the block is free when all seats are. A count can't do
//! this: "one more" and "who did that" are two steps, and a process killed between them leaves a count that
//! nobody can correct. A seat names its holder in the same word that makes it a holder.
//!
//! # Words of a block, and who may change them
//! | word | states | changed by |
//! |---|---|---|
//! | state | `FREE(v)` | a claimer → `BUSY(me, v)` |
//! |  | `BUSY(m, v)` | `m` → `LIVE(v+1)` or `FREE(v+1)`; if `m` is dead, its sweeper → `BUSY(sweeper, v)` |
//! |  | `LIVE(v)` | a holder that takes a second seat: `+1`; whoever saw all seats free at `v` → `BUSY(me, v)` |
//! | seat | `FREE` | a holder of **another** seat → its new holder |
//! |  | a holder | that holder (or its sweeper) → `FREE`, or hands it on directly |
//! | link | 0 | a holder → the page with more seats; only a freer sets it back |
//!
//! # What a death leaves
//! | killed | the sweep finds | and does |
//! |---|---|---|
//! | while claiming or freeing | `BUSY(dead)` | takes it over and finishes freeing it |
//! | before its seat was given up | a seat that names the dead | frees the seat, then looks whether the block is free |
//! | between giving up the last seat and freeing | `LIVE` without any seat | frees the block |
//! | while taking seats for a message | an envelope owned by the dead, whose attachments name them | frees exactly these seats |
//!
//! A seat is taken in this order: note it in the envelope (write-ahead), swap the seat, count the version up, and
//! only then give up the seat one holds oneself. The freer reads the version before it looks at the seats and swaps
//! the state only if the version is the same: a seat that moved behind its back has counted it up.

mod claim;
pub mod lock;
mod redo;
mod release;
mod take;

pub use claim::{Claim, Publish, Unclaim};
pub use redo::{Oracle, Plan, Redo, RedoAt, RedoEnd};
pub use release::{FreeCheck, Release, Released};
pub(crate) use take::seat_word;
pub use take::{Note, Take, Taken};

use crate::mem::Word;
use crate::words::BlockId;

/// Seats in the header of an arena's block.
pub const INLINE_SEATS: u32 = 6;

/// Where the words of a block are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockAt {
    /// Its index.
    pub id: BlockId,
    /// The state word; the link follows it, then the seats.
    pub state: Word,
    /// Seats in its own header.
    pub inline: u32,
    /// Seats in a page of seats. Each page has two words before them: the block it belongs to, the next page.
    pub per_page: u32,
}

impl BlockAt {
    /// The word `generation 40 | link 24`; the link is the next page's block + 1, or 0.
    pub const fn link(&self) -> Word {
        self.state.plus(1)
    }

    /// An inline seat.
    pub const fn seat(&self, i: u32) -> Word {
        self.state.plus(2 + i as u64)
    }
}

/// Reads the link out of its word.
pub const fn link_of(w: u64) -> Option<BlockId> {
    match (w & 0xff_ffff) as u32 {
        0 => None,
        b => Some(b - 1),
    }
}

/// The word with another link.
pub const fn with_link(w: u64, page: Option<BlockId>) -> u64 {
    let link = match page {
        None => 0,
        Some(b) => b as u64 + 1,
    };
    w & !0xff_ffff | link
}

/// The generation out of its word: how often the block was claimed, modulo 2^40.
pub const fn generation_of(w: u64) -> u64 {
    w >> 24
}

/// Walks the seats of a block in order: inline first, then page by page.
///
/// `Pages` finds the first word of a page's memory by its block; `None` if there is no such page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Cursor {
    /// Number of the seat looked at.
    index: u32,
    /// The page it is in, if not inline.
    page: Option<Word>,
}

impl Cursor {
    const START: Self = Self { index: 0, page: None };

    /// Where the present seat is; `None`: behind the last of the header or of a page.
    fn word(&self, b: &BlockAt) -> Option<Word> {
        if self.index < b.inline {
            return Some(b.seat(self.index));
        }
        let page = self.page?;
        let i = (self.index - b.inline) % b.per_page;
        Some(page.plus(2 + i as u64))
    }

    /// Where the link to the next page is.
    fn link(&self, b: &BlockAt) -> Word {
        match self.page {
            None => b.link(),
            Some(page) => page.plus(1),
        }
    }

    /// Moves on; `true` if the next seat is on another page, to be entered first.
    fn advance(&mut self, b: &BlockAt) -> bool {
        self.index += 1;
        self.index >= b.inline && (self.index - b.inline).is_multiple_of(b.per_page)
    }
}
