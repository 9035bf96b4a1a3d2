//! The holders of a block, as steps of one shared access each.
//!
//! A block has a state word and **seats**. Each process that has handles to the block holds one seat, each
//! message on its way that carries it holds one, and the block is free when all seats are. A count can't do
//! this: "one more" and "by which process" are two steps, and a process killed between them leaves a count that
//! no process can correct. A seat names its holder in the same word that makes it a holder.
//!
//! # Words of a block, and which process may change them
//! | word | states | changed by |
//! |---|---|---|
//! | state | `FREE(v)` | a claimer → `BUSY(me, v)` |
//! |  | `BUSY(m, v)` | `m` → `LIVE(v+1)` or `FREE(v+1)`; if `m` is dead, its sweeper → `BUSY(sweeper, v)` |
//! |  | `LIVE(v)` | a holder that takes a second seat: `+1`; a process that saw all seats free at `v` → `BUSY(me, v)`, a visitor of a dead member → `BUSY(that member, v)` |
//! | seat | `FREE` | a holder of **another** seat → its new holder |
//! |  | a holder | that holder (or its sweeper) → `FREE`, or hands it on directly |
//! | link | 0 | a holder → the page with more seats; only a freer sets it back |
//!
//! # What a death leaves
//! | killed | the sweep finds | and does |
//! |---|---|---|
//! | while claiming or freeing | `BUSY(dead)` | takes it over and finishes freeing it |
//! | before its seat was given up | a seat that names the dead process | frees the seat, then looks whether the block is free |
//! | between giving up the last seat and freeing | `LIVE` without any seat | frees the block |
//! | while taking seats for a message | an envelope owned by the dead process, whose attachments name them | frees exactly these seats |
//!
//! # More seats than a header has
//! Pages of seats hang on the block in a chain that only grows, at its end, as long as the block lives. A seat says by
//! itself where it is ([`SeatAt`]), so no process walks the chain to reach one. The chain is looked through
//! as a circle that begins at the seat that was taken last: [`Take`] finds the next free one, [`FreeCheck`]
//! one that is held still, both at once if seats are given up in about the order in which they were taken.
//! That beginning is a hint: where a circle begins doesn't change what is in it.
//!
//! Once there are pages, seats are taken in them only, and a process that gives one up looks first at the one
//! beside it, on the line that it has just written ([`BlockAt::beside`]): one that is taken says that the
//! block is held. So a block of which many messages are under way is received and released without its own
//! line, which its sender writes for each of them; in a stream of messages with the same hundred tensors,
//! that line was what both waited for.
//!
//! A seat is taken in this order: note it in the envelope (write-ahead), swap the seat, count the version up, and
//! only then give up the holder's own seat. The freer reads the version before it looks at the seats and
//! swaps the state only if the version is the same: a seat that moved behind its back has counted it up.

mod claim;
pub mod clock;
#[cfg(test)]
mod crafted;
mod cursor;
mod group;
mod group_hints;
pub mod lock;
pub mod lock_cycle;
pub mod orders;
mod page;
mod part;
mod release;
pub mod row;
mod take;
mod update;
mod visit;
pub mod wait_note;

pub use claim::{Claim, Publish, SlabSeen, Unclaim};
pub(crate) use cursor::{page_next, page_owner};
pub use group::{AdoptGroup, Adopted, BeginFill, EmptyGroup, EnvelopesAt, FillGroup, GroupAt};
pub use group_hints::{HintGroup, HintsAt, UnmarkGroup};
pub use page::{FreePages, LinkPage};
pub use part::{LeaveWhole, Left, Made, MakePart};
pub use release::{FreeCheck, Release, Released};
pub use take::{Note, Take, Taken};
pub use update::{Members, Oracle, Plan, Update, UpdateAt, UpdateEnd};
pub use visit::{Alone, EndVisit, Visit};

use crate::mem::Word;
use crate::words::{BlockId, SeatAt};

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
    /// Seats in a page of seats, at most 253.
    pub per_page: u32,
}

/// Words of a page of seats before its seats: the block that it belongs to, the next page, and, in a block's first page,
/// the seat that was taken last (a hint: where to begin to look).
pub const PAGE_HEADER: u32 = 3;

impl BlockAt {
    /// The word `generation 40 | link 24`; the link is the next page's block + 1, or 0.
    pub const fn link(&self) -> Word {
        self.state.plus(1)
    }

    /// An inline seat.
    pub const fn seat(&self, i: u32) -> Word {
        self.state.plus(2 + i as u64)
    }

    /// Where a seat is; `None` if there is none. `pages` finds the first word of a page's memory by its block.
    #[inline]
    pub fn seat_word(&self, at: SeatAt, pages: impl Fn(BlockId) -> Option<Word>) -> Option<Word> {
        match at.page() {
            Err(i) => (i < self.inline).then(|| self.seat(i)),
            Ok((page, word)) => {
                let seats = PAGE_HEADER..PAGE_HEADER + self.per_page;
                pages(page).filter(|_| seats.contains(&word)).map(|first| first.plus(word.into()))
            }
        }
    }

    /// A seat on the same cache line as this one, if it is in a page: the next, which is taken after it; at the end of a line,
    /// the one before.
    #[inline(always)]
    pub fn beside(&self, at: SeatAt, word: Word) -> Option<Word> {
        let (_, n) = at.page().ok()?;
        let last_of_line = n % WORDS_OF_LINE == WORDS_OF_LINE - 1;
        if !last_of_line && n + 1 < PAGE_HEADER + self.per_page {
            Some(word.plus(1))
        } else {
            (n > PAGE_HEADER).then(|| Word::at(word.offset() - 8))
        }
    }
}

/// Words of a cache line; pages begin with one.
const WORDS_OF_LINE: u32 = 8;

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
