//! The meta word of an envelope, and the division of its bytes.

use crate::error::{Error, Result};
use crate::layout::{ENVELOPE, envelope as field};

/// Number of inline bytes of an envelope.
pub(crate) const INLINE: usize = (ENVELOPE - field::INLINE) as usize;
/// Number of these bytes that a queue may use if the message does not.
pub(crate) const TAIL: usize = 16;
/// Version of the format and meaning of the bytes in an envelope.
///
/// All versions share the bits of the meta word, the spill word, and the list of attachments that these two
/// locate. So a process that can't read a message can read its version, and release the attachments.
const WIRE_VERSION: u64 = 6;

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

    /// Unpacks the parts of the word that all wire versions share.
    pub(crate) fn of_any_version(w: u64) -> Self {
        Self { attachments: (w & 0xffff) as usize, spilled: w >> 16 & 1 == 1, bytes: (w >> 32) as usize }
    }

    /// Returns the offset of the bytes: in the envelope, after its attachments, or in a spill block of
    /// `spill` bytes.
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
