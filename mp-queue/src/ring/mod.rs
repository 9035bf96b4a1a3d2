//! The envelope ring: the algorithm behind every queue, as steps of one shared access each.
//!
//! A ring is an array of slots, two words each. The first word says for which lap the slot waits and what it holds:
//!
//! | first word | meaning | changed by |
//! |---|---|---|
//! | `(lap, EMPTY)` | waits for the message of this lap | a producer → `(lap, FULL, e)`, or a closer → `(lap, CLOSED)` |
//! | `(lap, FULL, e)` | envelope `e`, published by **one** compare-and-swap | a consumer → `(lap+1, EMPTY)`, or a closer of a full ring → `(lap, LAST, e)` |
//! | `(lap, LAST, e)` | as FULL, and nothing comes after it | a consumer → `(lap+1, CLOSED)` |
//! | `(lap, CLOSED)` | the end; helpers never pass it | no process |
//!
//! `head` and `tail` are hints that any process may help forward, never further than the slots allow. So no
//! process ever waits for another one to finish a half-done operation: there is none.
//!
//! An envelope's owner word goes `MEMBER(p) → QUEUED → MEMBER(c)`. Between the slot's change and the owner's
//! change the two disagree, and a kill there would leave the owner in doubt. Therefore each thread that changes
//! either first writes the envelope into its **intent** word and clears it when done. A dead member's intent
//! names the only envelope whose owner may be in doubt; [`Settle`] decides it.
//!
//! What a kill leaves, at each point:
//!
//! | killed in | after | the sweep finds | and does |
//! |---|---|---|---|
//! | put | intent written | owner `MEMBER(dead)` | frees the envelope: the message was never sent |
//! | put | owner `QUEUED`, slot not yet | no slot holds it, no live thread intends it | takes it over, frees it |
//! | put | slot `FULL` | the slot holds it | leaves it: the message was sent |
//! | get | intent written, slot not yet | the slot holds it | leaves it: not taken |
//! | get | slot `EMPTY`, owner still `QUEUED` | no slot holds it, no live thread intends it | takes it over, frees it: the one lost message |
//! | get | owner `MEMBER(dead)` | owned by a dead member | frees it: the one lost message |
//!
//! A process that loses a slot, or the hint before it, to another of the same side says so ([`Mem::lost`]),
//! and may back off for a moment before it looks again. Until then it has changed only what is its own: an
//! envelope that it owns, an intent.
//!
//! A message of a few bytes needs no envelope: it is in the slot itself, see [`Small`]. Else the second word is 0.
//!
//! A queue without a bound is a chain of such rings, its segments: see [`ChainAt`]. A queue that is bounded
//! by bytes, too, puts by [`PutWithin`]. In rings of a third sort messages stay, and readers copy them: see [`Pin`].
//!
//! # Garbage in these words
//! A member with a bug, or with intent, may write anything into these words. No step reaches beyond its ring
//! and the ring's envelopes, none continues for ever, and no envelope is taken that is not queued:
//!
//! | garbage | then |
//! |---|---|
//! | a hint with an index beyond the ring | it counts as the first slot's |
//! | a hint that lags | helped in one step to where its slot says that it is ([`Ticket::over`]) |
//! | a hint that is ahead | the ring looks empty, or full, until it gets there |
//! | a slot that names no envelope, or one that is not queued | it is taken, and is an error of that get ([`Taken::Stray`]) |
//! | laps that go round in a circle | after 65,536 turns the ring is empty, full or closed for this call |
//! | an intent that names no envelope | is cleared |
//! | a small message whose length is too large | is cut |
//! | bytes counted wrong | a message more or less than the bound, or full until all are taken |
//!
//! Laps have 38 bits and compare modulo 2^38. A process that slept through an exact multiple of 2^38 laps and
//! then compares-and-swaps succeeds on a slot that is in precisely the state it believes in, which is correct.

mod byte_bound;
mod census;
mod chain;
mod close;
#[cfg(test)]
mod crafted;
mod find;
mod get;
mod kept;
mod lease;
mod newest;
mod put;
mod settle;
mod slot;
mod small;

pub use byte_bound::{Fits, PutWithin, Weight};
pub use census::{Census, Counted};
pub use chain::{ChainAt, CloseChain, Extend, Link};
pub use close::Close;
pub use find::{Find, Found};
pub use get::{Get, GetEnd, Taken};
pub use kept::{Collect, Collected, FindRoom, PassOver, Pin, Pinned, Pins, Retire, Room, Unpin};
pub use lease::{Note, Reclaim, Return, ReturnsAt, any_noted};
pub use newest::{FindNext, Newest, Next, NumberNext, NumberOf};
pub use put::{Advance, Put, PutEnd};
pub use settle::{Settle, Settled, Surroundings};
pub(crate) use slot::Standing;
pub use slot::{Content, Slot, SlotState, Ticket};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use small::small_words;
pub use small::{Enclose, PutSmall, Small};

#[cfg(doc)]
use mp_core::mem::Mem;
use mp_core::mem::Word;
use mp_core::words::BlockId;

/// Where a ring's words are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingAt {
    /// The block that contains them.
    pub block: BlockId,
    /// How many slots; at most [`RingAt::MAX_SLOTS`].
    pub slots: u32,
    /// How many slots the segments before it have; see [`ChainAt`].
    pub before: u32,
    /// Hint: the next ticket to take.
    pub head: Word,
    /// Hint: the next ticket to give.
    pub tail: Word,
    /// The first slot, at a multiple of 16; the others follow, two words each.
    pub first: Word,
    /// How many envelopes there can be.
    pub envelopes: u32,
}

impl RingAt {
    /// The most slots a ring may have: a ticket packs the index into 24 bits.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// Bytes of a slot.
    pub const SLOT: u64 = 16;

    /// Which slot an index is: the first one, if there is none with that index.
    #[inline]
    pub const fn index(&self, i: u32) -> u32 {
        if i < self.slots { i } else { 0 }
    }

    /// Where slot `i` is. Its second word follows.
    #[inline]
    pub const fn slot(&self, i: u32) -> Word {
        self.first.plus(self.index(i) as u64 * (Self::SLOT / 8))
    }
}
