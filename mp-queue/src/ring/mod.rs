//! The envelope ring: the algorithm of every queue, as steps of one shared memory access each.
//!
//! A ring is an array of slots of two words. The first word contains the lap for which the slot waits, and
//! its contents:
//!
//! | first word | meaning | changed by |
//! |---|---|---|
//! | `(lap, EMPTY)` | waits for the message of this lap | a producer → `(lap, FULL, e)`, or a closer → `(lap, CLOSED)` |
//! | `(lap, FULL, e)` | envelope `e`, published by **one** compare-and-swap | a consumer → `(lap+1, EMPTY)`, or a closer of a full ring → `(lap, LAST, e)` |
//! | `(lap, LAST, e)` | like FULL, and the last message of the ring | a consumer → `(lap+1, CLOSED)` |
//! | `(lap, CLOSED)` | the end; helpers never pass it | no process |
//!
//! `head` and `tail` are hints that any process may advance, never further than the slots allow. No operation
//! can be left half-done, so no process ever waits until another process has finished.
//!
//! An envelope's owner word changes `MEMBER(p) → QUEUED → MEMBER(c)`. Between the change of the slot and the
//! change of the owner the two disagree, and a kill there would leave the owner in doubt. Therefore each
//! thread first writes the envelope into its **intent** word before it changes either, and clears it when
//! done. A dead member's intent names the only envelope whose owner may be in doubt. [`Settle`] decides it.
//!
//! State after a kill at each point:
//!
//! | killed in | after | found by recovery or reclaim | action |
//! |---|---|---|---|
//! | put | intent written | owner `MEMBER(dead)` | frees the envelope: the message was never sent |
//! | put | owner `QUEUED`, slot unchanged | no slot contains it, no live thread intends it | takes it over, frees it |
//! | put | slot `FULL` | the slot contains it | leaves it: the message was sent |
//! | get | intent written, slot unchanged | the slot contains it | leaves it: not taken |
//! | get | slot `EMPTY`, owner still `QUEUED` | no slot contains it, no live thread intends it | takes it over, frees it: the one lost message |
//! | get | owner `MEMBER(dead)` | owned by a dead member | frees it: the one lost message |
//!
//! A process that loses a slot, or the hint, to another process of the same side reports this
//! ([`Mem::lost`]), and may back off for a moment before it retries. Until then it has changed only its own
//! words: an envelope that it owns, and its intent.
//!
//! A message of a few bytes needs no envelope: it is stored in the slot itself, see [`SmallMessage`]. For an
//! envelope, the second word is 0.
//!
//! A queue without a bound is a chain of such rings, its segments: see [`ChainAt`]. A queue with a bound of
//! bytes puts with [`PutByteBounded`]. A third kind of ring retains its messages, and readers copy them: see
//! [`Pin`] and [`RetainedAt`].
//!
//! # Garbage in these words
//! A faulty or malicious member may write anything into these words. No step accesses memory outside of its
//! ring and the ring's envelopes, none runs forever, and only queued envelopes are taken:
//!
//! | garbage | effect |
//! |---|---|
//! | a hint with an index beyond the ring | counts as the first slot |
//! | a hint that lags | is advanced in one step to the position of its slot ([`Position::skip_used`]) |
//! | a hint that is ahead | the ring appears empty or full until it reaches that position |
//! | a slot that names no envelope, or an envelope that is not queued | the slot is taken, and that get returns an error ([`TakenMessage::Stray`]) |
//! | laps that form a cycle | after 65,536 turns the ring is empty, full or closed for this call |
//! | an intent that names no envelope | is cleared |
//! | a small message whose length is too large | is truncated |
//! | wrong counts of bytes | one message more or less than the bound, or full until all messages are taken |
//!
//! Laps have 38 bits and are compared modulo 2^38. If a process sleeps for an exact multiple of 2^38 laps,
//! its compare-and-swap succeeds on a slot in exactly the state that it expects, which is correct.

mod byte_bound;
mod census;
mod chain;
mod close;
mod find;
mod get;
mod lease;
mod newest;
mod pins;
mod put;
mod retained;
mod settle;
mod slot;
mod small;

pub use byte_bound::{CheckRoom, PutByteBounded, Weight};
pub use census::{Census, MessageCounts};
pub use chain::{ChainAt, CloseChain, Extend, Link};
pub use close::Close;
pub use find::{FindOldest, GetOutcome, OldestMessage, TakenMessage};
pub use get::Get;
pub use lease::{NoteReturned, Reclaim, Return, ReturnWords, may_have_returned};
pub use newest::{AssignSkips, FindNewest, FindNext, NextMessage, ReadSkips};
pub use pins::{
    Collect, CollectOutcome, FindPublishSlot, Pin, PinOutcome, PublishSlot, Retire, SkipPosition, Unpin,
};
pub use put::{Advance, Put, PutOutcome};
pub use retained::{DiscardSmall, Pins, PublishSmall, RetainedAt};
pub use settle::{IntentContext, Settle, SettleOutcome};
pub(crate) use slot::PositionState;
pub use slot::{Content, Position, Slot, SlotState, SmallMessage};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use small::small_words;
pub use small::{Enclose, PutSmall};

use mp_core::mem::{Mem, Word};
use mp_core::words::{BlockId, RingPlace};

/// Locations of a ring's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingAt {
    /// Block that contains them.
    pub block: BlockId,
    /// Number of slots, at most [`RingAt::MAX_SLOTS`].
    pub slots: u32,
    /// Number of slots in the earlier segments: see [`ChainAt`].
    pub before: u32,
    /// Hint: next position to take.
    pub head: Word,
    /// Hint: next position to publish.
    pub tail: Word,
    /// First slot, at a multiple of 16, followed by the others. Each has two words.
    pub first: Word,
    /// Largest number of envelopes.
    pub envelopes: u32,
}

impl RingAt {
    /// Largest number of slots of a ring: a position has 24 bits for the index.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// Number of bytes of a slot.
    pub const SLOT: u64 = 16;

    /// Returns the slot of an index: the first one if the index is out of range.
    #[inline]
    pub const fn index(&self, i: u32) -> u32 {
        if i < self.slots { i } else { 0 }
    }

    /// Returns the location of slot `i`. Its second word follows.
    #[inline]
    pub const fn slot(&self, i: u32) -> Word {
        self.first.plus(self.index(i) as u64 * (Self::SLOT / 8))
    }

    /// Returns the place word of a message at a position.
    #[inline(always)]
    fn place(&self, position: Position) -> u64 {
        RingPlace { ring: self.block, slot: self.before + self.index(position.index) }.pack()
    }

    /// Advances a hint past a position, unless another process has advanced it.
    #[inline(always)]
    fn pass<M: Mem + ?Sized>(&self, m: &M, hint: Word, position: Position) {
        _ = m.cas(hint, position.pack(), position.next(self.slots).pack());
    }

    /// Advances a lagging hint past a position, whose slot is used. Returns `false` if another process has
    /// advanced it.
    #[inline(always)]
    fn help<M: Mem + ?Sized>(&self, m: &M, hint: Word, position: Position, slot: Slot) -> bool {
        m.cas(hint, position.pack(), position.skip_used(slot, self.slots).pack()).is_ok()
    }
}
