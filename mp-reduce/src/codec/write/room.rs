//! The bytes that values are written into.
//!
//! Where the next byte goes is not here: a [`Writer`](super::Writer) has it.

use std::cell::Cell;
use std::ops::Range;

use mp_core::message::level;

use super::super::error::{Bad, too_deep};

/// As much room as a value has at first.
const FIRST: usize = 128;
/// No more than this, or what is asked for, is made at once.
const MOST: usize = 4 << 10;

/// Bytes, of which the first are written, and the others are room.
pub(super) struct Room<'a> {
    bytes: &'a mut Vec<u8>,
    /// How many more levels may be entered.
    left: &'a Cell<u16>,
    /// Whether there was a number of 128 bits.
    pub(super) wide: bool,
}

impl<'a> Room<'a> {
    /// All that is in `bytes` is written.
    #[inline]
    pub(super) fn new(bytes: &'a mut Vec<u8>, left: &'a Cell<u16>) -> Self {
        bytes.extend_from_slice(&[0; FIRST]);
        Self { bytes, left, wide: false }
    }

    /// There are as many bytes as this, and no room.
    #[inline]
    pub(super) fn end(self, at: usize) {
        self.bytes.truncate(at);
    }

    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), Bad> {
        if level::down(self.left) { Ok(()) } else { Err(too_deep(self.left)) }
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        self.left.set(self.left.get() + 1);
    }

    /// Puts bytes there: where they end.
    #[inline]
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self.bytes.get_mut(at..).and_then(|room| room.get_mut(..bytes.len())) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.grown(at, bytes.len()).copy_from_slice(bytes),
        }
        at + bytes.len()
    }

    /// More room: these bytes of it.
    #[cold]
    #[inline(never)]
    fn grown(&mut self, at: usize, len: usize) -> &mut [u8] {
        let most = at + len.max(at.clamp(FIRST, MOST));
        self.bytes.resize(most, 0);
        &mut self.bytes[at..at + len]
    }

    /// There will be that many bytes more.
    pub(super) fn reserve(&mut self, len: usize) {
        self.bytes.reserve(len);
    }

    /// What was written there.
    #[inline]
    pub(super) fn written(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Other bytes instead of those, where what is written ends at `end`: where it ends then.
    #[cold]
    pub(super) fn replace(&mut self, end: usize, range: Range<usize>, with: &[u8]) -> usize {
        self.bytes.truncate(end);
        self.bytes.splice(range, with.iter().copied());
        self.bytes.len()
    }

    /// What something else appends.
    pub(super) fn append(
        &mut self,
        at: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Bad>,
    ) -> Result<usize, Bad> {
        self.bytes.truncate(at);
        append(self.bytes)?;
        Ok(self.bytes.len())
    }
}
