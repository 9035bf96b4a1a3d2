//! The envelope ring: the algorithm of every queue, as steps of one shared memory access each.
//!
//! A ring is an array of slots of two words. The first word contains the slot's lap and its contents:
//!
//! | first word | meaning | changed by |
//! |---|---|---|
//! | `(lap, EMPTY)` | waits for the message of this lap | a producer → `(lap, FULL, e)`, or a closer → `(lap, CLOSED)` |
//! | `(lap, FULL, e)` | envelope `e`, published by **one** compare-and-swap | a consumer → `(lap+1, EMPTY)`, or a closer of a full ring → `(lap, LAST, e)` |
//! | `(lap, LAST, e)` | like FULL, and the ring is closed: the slot's next position is the end | a consumer → `(lap+1, CLOSED)` |
//! | `(lap, CLOSED)` | the end of the ring; hints never advance past it | no process |
//!
//! `head` and `tail` are hints. Any process may advance them, but only past used slots. A put or get takes
//! effect by one swap of a slot, so no process ever waits until another process has finished.
//!
//! An envelope's owner word changes `MEMBER(p) → QUEUED → MEMBER(c)`. The slot and the owner word change one
//! after the other, so a kill between the two changes leaves the owner in doubt. Therefore each thread writes
//! the envelope's number into its **intent** word before the first change, and clears the intent after the
//! second one. A dead member's intent names the only envelope whose owner may be in doubt. [`Settle`] decides
//! who owns that envelope.
//!
//! State after a kill at each point:
//!
//! | killed in | after | found by recovery or reclaim | action |
//! |---|---|---|---|
//! | put | writing the intent | owner `MEMBER(dead)` | frees the envelope: the message was never sent |
//! | put | changing the owner to `QUEUED`, before the slot | no slot contains the envelope, no living thread intends it | takes the envelope over, frees it |
//! | put | changing the slot to `FULL` | the slot contains the envelope | leaves the envelope: the message was sent |
//! | get | writing the intent, before the slot | the slot contains the envelope | leaves the envelope: the message was not taken |
//! | get | changing the slot to `EMPTY`, before the owner | no slot contains the envelope, no living thread intends it | takes the envelope over, frees it: the one lost message |
//! | get | changing the owner to `MEMBER(dead)` | owner `MEMBER(dead)` | frees the envelope: the one lost message |
//!
//! If another process changes the slot or the hint first, the operation calls [`Mem::lost`], which may wait
//! for a moment, and then retries. At that point, the operation has changed only its own intent and the words
//! of an envelope that its process owns.
//!
//! A message of a few bytes needs no envelope: it is stored in the slot itself, see [`SmallMessage`]. For an
//! envelope, the second word is 0.
//!
//! A queue without a bound is a chain of such rings, its segments: see [`ChainAt`]. A queue with a bound of
//! bytes uses [`PutByteBounded`] for its puts. A third kind of ring retains its messages, and its readers
//! copy them: see [`Pin`] and [`RetainedAt`].
//!
//! # Garbage in these words
//! A faulty or malicious member may write anything into these words. No step accesses memory outside of its
//! ring and the ring's envelopes, none runs forever, and only queued envelopes are taken:
//!
//! | garbage | effect |
//! |---|---|
//! | a hint with an index beyond the ring | counts as the first slot |
//! | a hint that lags | is advanced in one step to the position of its slot ([`Position::skip_used`]) |
//! | a hint that is ahead | the ring appears empty or full until its messages have reached that position |
//! | a slot that names no envelope, or an envelope that is not queued | a get empties the slot and returns an error ([`TakenMessage::Stray`]) |
//! | laps that form a cycle | after 65,536 attempts, the call treats the ring as empty, full or closed |
//! | an intent that names no envelope | is cleared |
//! | a small message whose length is too large | is truncated |
//! | wrong counts of bytes | the ring accepts a message too many or too few, or appears full until all messages are taken |
//!
//! Laps have 38 bits and are compared modulo 2^38. If a process sleeps for an exact multiple of 2^38 laps,
//! its compare-and-swap may succeed. The slot is then in exactly the state that the process expects, so the
//! result is correct.

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
    /// Block that contains the ring.
    pub block: BlockId,
    /// Number of slots, at most [`RingAt::MAX_SLOTS`].
    pub slots: u32,
    /// Number of slots in the earlier segments of the queue: see [`ChainAt`].
    pub before: u32,
    /// Location of the head hint: the next position to take.
    pub head: Word,
    /// Location of the tail hint: the next position to publish.
    pub tail: Word,
    /// Location of the first slot, a multiple of 16. The other slots follow. Each slot has two words.
    pub first: Word,
    /// Largest number of envelopes in the arena. Every envelope number is smaller.
    pub envelopes: u32,
}

impl RingAt {
    /// Largest number of slots of a ring: a position has 24 bits for the index.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// Number of bytes of a slot.
    pub const SLOT: u64 = 16;

    /// Returns the slot index `i`, or 0 if `i` is out of range.
    #[inline]
    pub const fn index(&self, i: u32) -> u32 {
        if i < self.slots { i } else { 0 }
    }

    /// Returns the location of the first word of slot `i`. The second word follows.
    #[inline]
    pub const fn slot(&self, i: u32) -> Word {
        self.first.plus(self.index(i) as u64 * (Self::SLOT / 8))
    }

    /// Returns the place word for an envelope that is published at a position.
    #[inline(always)]
    fn place(&self, position: Position) -> u64 {
        RingPlace { ring: self.block, slot: self.before + self.index(position.index) }.pack()
    }

    /// Advances the hint from `position` to the next position, unless another process has changed the hint.
    #[inline(always)]
    fn pass<M: Mem + ?Sized>(&self, m: &M, hint: Word, position: Position) {
        _ = m.cas(hint, position.pack(), position.next(self.slots).pack());
    }

    /// Advances a lagging hint from `position` past the positions that are in use, according to `slot`.
    /// Returns `false` if another process has changed the hint.
    #[inline(always)]
    fn help<M: Mem + ?Sized>(&self, m: &M, hint: Word, position: Position, slot: Slot) -> bool {
        m.cas(hint, position.pack(), position.skip_used(slot, self.slots).pack()).is_ok()
    }
}
