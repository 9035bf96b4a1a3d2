//! Envelopes of the arena: their words, their memory, and the unused ones of each thread.
//!
//! `groups` reserves the memory of envelopes and returns it. `idle` keeps unused envelopes for a thread's
//! next messages.

use crate::arena::{Arena, view};
use crate::error::{Error, Result};
use crate::layout::{ENVELOPE, envelope as field};
use crate::mem::{Column, Mem, Word};
use crate::words::{Access, EnvelopeId, Grant};

pub(crate) mod groups;
pub(crate) mod idle;

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

    /// Returns the column of the last two words of each envelope. The queue that contains the envelope may
    /// use them if the message does not extend into them.
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

    /// Prefetches an envelope that another process has emptied, before this process fills it.
    #[inline]
    pub(crate) fn fetch_empty(self, e: EnvelopeId) {
        (0..ENVELOPE / LINE).for_each(|i| self.map().will_write(self.envelope_word(e, LINE * i)));
    }
}

/// Grant for a buffer: frozen elements, of any type.
pub(crate) const BUFFER: Grant = Grant::new(Access::Frozen, 0);
/// Grant for a handle that gives no access to memory by itself.
pub(crate) const OBJECT: Grant = Grant::new(Access::Object, 0);
/// Grant for the block of a message's descriptors. With it, a receiver finds the block without checking other
/// blocks.
pub(crate) const DESCRIPTORS: Grant = Grant::new(Access::Object, 1);

/// Number of inline bytes of an envelope.
pub(crate) const INLINE: usize = (ENVELOPE - field::INLINE) as usize;
/// Number of bytes at the end of an envelope that a queue may use, if the message does not extend into them.
pub(crate) const TAIL: usize = 16;
/// Version of the format and meaning of the bytes in an envelope.
///
/// All versions share the bits of the meta word, the spill word, and the list of attachments that these two
/// words locate. So a process that can't read a message can read its version, and release the attachments.
pub(crate) const WIRE_VERSION: u64 = 6;

/// The meta word: number of attachments (16 bits), "attachments are in the spill block" (1), number of
/// deliveries (7), wire version (8), number of bytes (32).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    pub(crate) attachments: usize,
    pub(crate) spilled: bool,
    pub(crate) bytes: usize,
}

impl Meta {
    pub(crate) fn pack(self) -> u64 {
        self.attachments as u64
            | u64::from(self.spilled) << 16
            | WIRE_VERSION << 24
            | (self.bytes as u64) << 32
    }
    pub(crate) fn unpack(w: u64) -> Result<Self> {
        let version = w >> 24 & 0xff;
        if version != WIRE_VERSION {
            return Err(Error::Version {
                what: "the wire version of a message",
                theirs: version,
                ours: WIRE_VERSION,
            });
        }
        Ok(Self::of_any_version(w))
    }

    /// Unpacks those parts of a meta word that all wire versions share.
    pub(crate) fn of_any_version(w: u64) -> Self {
        Self { attachments: (w & 0xffff) as usize, spilled: w >> 16 & 1 == 1, bytes: (w >> 32) as usize }
    }

    /// Returns the offset of the message's bytes. The offset is in the envelope, after the attachments, or,
    /// if `spill` is set, in a spill block of this size in bytes.
    pub(crate) fn bytes_at(self, spill: Option<u64>) -> Result<usize> {
        let listed = 8 * self.attachments;
        let inline = if self.spilled { 0 } else { listed };
        let room = spill.unwrap_or(INLINE as u64);
        let from = if spill.is_some() && !self.spilled { 0 } else { listed };
        let room_for_bytes = room;
        if self.spilled && spill.is_none()
            || inline > INLINE
            || self.bytes as u64 > room_for_bytes
            || from as u64 > room_for_bytes - self.bytes as u64
        {
            return Err(Error::Malformed("the lengths of a message exceed its envelope".into()));
        }
        Ok(from)
    }
}
