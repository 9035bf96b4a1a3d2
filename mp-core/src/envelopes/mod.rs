//! Envelopes of the arena: their words, their memory, and the unused ones of each thread.
//!
//! `groups` reserves the memory of envelopes and returns it. `idle` keeps unused envelopes for a thread's
//! next messages.

pub(crate) mod grants;
pub(crate) mod groups;
pub(crate) mod idle;
pub(crate) mod meta;

use meta::TAIL;

use crate::arena::{Arena, view};
use crate::layout::{ENVELOPE, envelope as field};
use crate::mem::{Column, Mem, Word};
use crate::words::EnvelopeId;

/// Size of a cache line in bytes.
const LINE: u64 = 64;

/// An empty envelope of this process, with its owner word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmptyEnvelope {
    pub(crate) arena: Arena,
    pub(crate) id: EnvelopeId,
    pub(crate) owner: u64,
}

view! {
    /// Envelopes of an arena.
    pub struct Envelopes;
}

impl Envelopes {
    pub(crate) fn envelope_word(self, e: EnvelopeId, field: u64) -> Word {
        Word::at(self.layout().envelopes_at + ENVELOPE * u64::from(e) + field)
    }

    /// Returns the column of owner words of all envelopes.
    #[inline]
    pub fn owner_words(self) -> Column {
        self.layout().envelope_column(field::OWNER)
    }

    /// Returns the column of place words of all envelopes.
    #[inline]
    pub fn place_words(self) -> Column {
        self.layout().envelope_column(field::PLACE)
    }

    /// Returns the column of the meta words of all envelopes.
    pub fn meta_words(self) -> Column {
        self.layout().envelope_column(field::META)
    }

    /// Returns the column of the last two words of each envelope. A queue may use them while it has the
    /// envelope, if they are free.
    pub fn tail_words(self) -> Column {
        Column { base: self.envelope_word(0, ENVELOPE - TAIL as u64), stride: ENVELOPE }
    }

    /// Prefetches an envelope that another process has filled, before this process takes it out of a ring:
    /// the first cache line for writing, the others for reading.
    #[inline]
    pub fn fetch_filled(self, e: EnvelopeId) {
        if e < self.layout().envelopes {
            self.map().will_write(self.envelope_word(e, field::OWNER));
            (1..ENVELOPE / LINE).for_each(|i| self.map().will_read(self.envelope_word(e, LINE * i)));
        }
    }

    /// Prefetches an envelope that another process emptied, before it is filled.
    #[inline]
    pub(crate) fn fetch_empty(self, e: EnvelopeId) {
        (0..ENVELOPE / LINE).for_each(|i| self.map().will_write(self.envelope_word(e, LINE * i)));
    }
}
