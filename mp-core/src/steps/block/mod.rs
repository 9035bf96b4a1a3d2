//! Holders of a block, as steps of one shared access each.
//!
//! A block has a state word and **seats**. Each process with handles to the block holds one seat, and so does
//! each message in flight that attaches it. The block is free when all its seats are free. A count of holders
//! would not be sufficient: to increment the count and to record the process that did it are two steps, and a
//! process killed between them leaves a count that no process can correct. A seat is a single word, which is
//! taken and names its holder in one step.
//!
//! # Words of a block, and the processes that change them
//! | word | states | changed by |
//! |---|---|---|
//! | state | `FREE(v)` | a claimer → `BUSY(me, v)` |
//! |  | `BUSY(m, v)` | `m` → `LIVE(v+1)` or `FREE(v+1)`; if `m` is dead, the process that reclaims it → `BUSY(me, v)` |
//! |  | `LIVE(v)` | a holder that takes a second seat: `+1`; a process that found all seats free at `v` → `BUSY(me, v)`, or, in a recovery of a dead member, → `BUSY(that member, v)` |
//! | seat | `FREE` | a holder of **another** seat → its new holder |
//! |  | a holder | that holder (or, if it is dead, a process that recovers or reclaims it) → `FREE`, or directly → the next holder |
//! | link | 0 | a holder → the page with more seats; only the process that frees the block resets it |
//!
//! # Effects of a death
//! | killed process | recovery or reclaim finds | and does |
//! |---|---|---|
//! | while claiming or freeing | `BUSY(dead)` | takes over the block and frees it |
//! | before its seat was released | a seat that names the dead process | frees the seat, then checks if the block is free |
//! | between releasing the last seat and freeing | `LIVE` without any seat | frees the block |
//! | while taking seats for a message | an envelope owned by the dead process, whose attachments name them | frees exactly these seats |
//!
//! # Pages of seats
//! If a header has too few seats, pages of seats are linked to the block in a chain, which only grows, at
//! its end, while the block lives. A seat's position contains its page ([`SeatAt`]), so no process
//! traverses the chain to reach a seat. Searches treat the chain as a circle. [`TakeSeat`] searches for a
//! free seat, beginning at the seat that was taken last. [`FreeCheck`] searches for a held seat: it reads the
//! seat that was taken last, and then begins at a seat that an earlier check found held after many free ones.
//! So checks pass each free seat about once, in whatever order seats are released. The seat where a search
//! begins is only a hint: a search around the whole circle reads the same seats from any start.
//!
//! | hints of a block's first page | changed by | effect of a death before the change |
//! |---|---|---|
//! | the seat taken last | a holder that took a seat or linked a page: one store, with the other hint as it was read | a search takes longer |
//! | a seat found held | a process that has released a seat: one swap of both hints, from the values that it has read | the next check reads the same free seats again |
//!
//! Once a block has pages, seats are taken only in the pages. A process that releases a seat first checks the
//! neighboring seat, on the cache line that it has just written ([`BlockAt::neighbor`]): if that seat is
//! taken, the block is held. So a block with many messages in flight is received and released without access
//! to the cache line of its state, which the sender writes for each message. Otherwise that line would limit
//! both processes, for example in a stream of messages with the same hundred tensors.
//!
//! A seat is taken in this order: record it in the envelope (write-ahead), swap the seat, increment the
//! version, and only then release the holder's own seat. The freeing process reads the version before it
//! checks the seats, and swaps the state only if the version is the same. If a holder took another seat
//! during the check, the version differs.

mod child;
mod claim;
mod cursor;
mod page;
mod release;
mod take;

pub use child::{JoinOutcome, JoinParent, LeaveOutcome, LeaveParent};
pub use claim::{ClaimBlock, PublishBlock, SlabSnapshot, UnclaimBlock};
#[cfg(test)]
pub(super) use cursor::seat_hints;
pub(crate) use cursor::{page_next, page_owner};
pub use page::{FreePages, LinkPage};
pub use release::{FreeCheck, ReleaseOutcome, ReleaseSeat};
pub use take::{AttachRecord, TakeOutcome, TakeSeat};

use crate::mem::Word;
use crate::words::{BlockId, SeatAt};

/// Number of seats in the header of an arena's block.
pub const INLINE_SEATS: u32 = 6;

/// Positions of a block's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockAt {
    /// Index of the block.
    pub id: BlockId,
    /// State word; the link follows it, then the seats.
    pub state: Word,
    /// Number of seats in the header.
    pub inline: u32,
    /// Number of seats in a page of seats, at most 253.
    pub per_page: u32,
}

/// Number of words in a page before its seats. They contain the block to which the page belongs, the link to
/// the next page, and, in a block's first page, the hints for searches.
pub const PAGE_HEADER: u32 = 3;

impl BlockAt {
    /// Returns the word `generation 40 | link 24`; the link is the next page's block + 1, or 0.
    pub const fn link(&self) -> Word {
        self.state.plus(1)
    }

    /// Returns the word of seat `i` in the header.
    pub const fn seat(&self, i: u32) -> Word {
        self.state.plus(2 + i as u64)
    }

    /// Returns the word of a seat, or `None` if the seat does not exist. `pages` returns the first word of a
    /// page, given the page's block.
    #[inline(always)]
    pub fn seat_word(&self, at: SeatAt, pages: impl Fn(BlockId) -> Option<Word>) -> Option<Word> {
        match at.page() {
            Err(i) => (i < self.inline).then(|| self.seat(i)),
            Ok((page, word)) => {
                let seats = PAGE_HEADER..PAGE_HEADER + self.per_page;
                pages(page).filter(|_| seats.contains(&word)).map(|first| first.plus(word.into()))
            }
        }
    }

    /// Returns the word of a neighbor of a seat, on the same cache line. The neighbor is the next seat, which
    /// is taken after this seat, or, at the end of a line, the previous seat. Returns `None` for a seat in
    /// the header.
    #[inline(always)]
    pub fn neighbor(&self, at: SeatAt, word: Word) -> Option<Word> {
        let (_, n) = at.page().ok()?;
        let last_of_line = n % WORDS_OF_LINE == WORDS_OF_LINE - 1;
        if !last_of_line && n + 1 < PAGE_HEADER + self.per_page {
            Some(word.plus(1))
        } else {
            (n > PAGE_HEADER).then(|| Word::at(word.offset() - 8))
        }
    }
}

/// Number of words in a cache line. Pages begin at the start of a line.
const WORDS_OF_LINE: u32 = 8;

/// Extracts the link from its word.
pub const fn link_of(w: u64) -> Option<BlockId> {
    match (w & 0xff_ffff) as u32 {
        0 => None,
        b => Some(b - 1),
    }
}

/// Returns the word with another link.
pub const fn with_link(w: u64, page: Option<BlockId>) -> u64 {
    let link = match page {
        None => 0,
        Some(b) => b as u64 + 1,
    };
    w & !0xff_ffff | link
}

/// Extracts the generation from its word: the number of times that the block was claimed, modulo 2^40.
pub const fn generation_of(w: u64) -> u64 {
    w >> 24
}
