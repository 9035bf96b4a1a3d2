//! The buffer into which values are written.
//!
//! The next position is not stored here: a [`Writer`](super::Writer) has it. As long as there is room, bytes
//! are written in the caller's code, and nothing must be stored in memory for the case without room.

use std::cell::Cell;
use std::ops::Range;

use mp_core::message::nesting_depth::{self, MAX_NESTING, SHALLOW};

use super::super::error::{CodecError, too_deep};

/// Initial room for a value, in bytes.
const FIRST: usize = 256;
/// Largest number of bytes that are zeroed in advance.
const AHEAD: usize = 4 << 10;
/// Capacities up to this are powers of two: a buffer that is reused for the next message has at most this
/// capacity.
const ROUND: usize = 64 << 10;

/// Written bytes, followed by room.
pub(super) struct OutputBuffer<'a> {
    bytes: &'a mut Vec<u8>,
    /// Number of levels that may still be entered, and its lower limit `last`.
    left: &'a Cell<u16>,
    last: u16,
    /// Properties of the value that some readers can't represent.
    pub(super) written: ValueProperties,
}

/// Properties of a value that some readers can't represent.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::codec) struct ValueProperties {
    /// `true` if the value contains a number of 128 bits.
    pub(in crate::codec) wide: bool,
    /// `true` if the value has more than [`SHALLOW`] levels.
    pub(in crate::codec) deep: bool,
}

impl<'a> OutputBuffer<'a> {
    /// Creates room after the contents of `bytes`, which count as written.
    #[inline]
    pub(super) fn new(bytes: &'a mut Vec<u8>, left: &'a Cell<u16>, last: u16) -> Self {
        if bytes.capacity() - bytes.len() < FIRST {
            reserve(bytes, FIRST);
        }
        bytes.extend_from_slice(&[0; FIRST]);
        Self { bytes, left, last, written: ValueProperties::default() }
    }

    /// Removes the room after position `at`.
    #[inline]
    pub(super) fn end(self, at: usize) {
        self.bytes.truncate(at);
    }

    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), CodecError> {
        if !nesting_depth::try_enter_above(self.left, self.last) {
            return Err(too_deep(self.left, self.last));
        }
        self.written.deep |= self.left.get() < MAX_NESTING - SHALLOW;
        Ok(())
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        self.left.set(self.left.get() + 1);
    }

    #[inline]
    fn room(&mut self, at: usize, len: usize) -> Option<&mut [u8]> {
        self.bytes.get_mut(at..)?.get_mut(..len)
    }

    /// Writes bytes at a position. Returns their end.
    #[inline]
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self.room(at, bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.put_last(at, bytes),
        }
        at + bytes.len()
    }

    /// Writes a byte and the bytes after it at a position. Returns their end.
    #[inline]
    pub(super) fn put_headed(&mut self, at: usize, head: u8, bytes: &[u8]) -> usize {
        match self.room(at, 1 + bytes.len()) {
            Some([first, rest @ ..]) => {
                *first = head;
                rest.copy_from_slice(bytes);
            }
            _ => self.put_headed_last(at, head, bytes),
        }
        at + 1 + bytes.len()
    }

    /// Like [`put_headed`](Self::put_headed), for up to eight bytes, which are in a register.
    #[inline]
    pub(super) fn put_few<const N: usize>(&mut self, at: usize, head: u8, bytes: [u8; N]) -> usize {
        match self.room(at, 1 + N) {
            Some([first, rest @ ..]) => {
                *first = head;
                rest.copy_from_slice(&bytes);
            }
            _ => {
                let mut word = [0; 8];
                word[..N].copy_from_slice(&bytes);
                self.put_few_last(at, head, u64::from_le_bytes(word), N);
            }
        }
        at + 1 + N
    }

    #[cold]
    #[inline(never)]
    fn put_few_last(&mut self, at: usize, head: u8, word: u64, len: usize) {
        self.put_headed_last(at, head, &word.to_le_bytes()[..len]);
    }

    #[cold]
    #[inline(never)]
    fn put_headed_last(&mut self, at: usize, head: u8, bytes: &[u8]) {
        self.put_last(at, &[head]);
        self.put(at + 1, bytes);
    }

    /// Writes bytes where the room is too small, and creates new room after them.
    #[cold]
    #[inline(never)]
    fn put_last(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.truncate(at);
        reserve(self.bytes, bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.make_room(self.bytes.len().clamp(FIRST, AHEAD));
    }

    /// Creates room after the contents, within the existing capacity.
    fn make_room(&mut self, len: usize) {
        self.bytes.resize((self.bytes.len() + len).min(self.bytes.capacity()), 0);
    }

    /// Reserves capacity for `len` more bytes.
    pub(super) fn reserve(&mut self, len: usize) {
        self.bytes.reserve(len);
    }

    /// Returns the written bytes of a range.
    #[inline]
    pub(super) fn written(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Moves the bytes from `from` to `end` to position `to`. Returns their new end.
    pub(super) fn shift(&mut self, end: usize, from: usize, to: usize) -> usize {
        let ends = to + (end - from);
        if ends > self.bytes.len() {
            reserve(self.bytes, ends - self.bytes.len());
            self.bytes.resize(ends, 0);
            self.make_room(ends.clamp(FIRST, AHEAD));
        }
        self.bytes.copy_within(from..end, to);
        ends
    }

    /// Truncates the output to `at` bytes, and calls a function that appends bytes. Returns the new end.
    pub(super) fn append(
        &mut self,
        at: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), CodecError>,
    ) -> Result<usize, CodecError> {
        self.bytes.truncate(at);
        append(self.bytes)?;
        let end = self.bytes.len();
        // Only a little room: many such values may follow.
        self.make_room(FIRST);
        Ok(end)
    }
}

/// Reserves capacity for `len` more bytes.
#[cold]
fn reserve(bytes: &mut Vec<u8>, len: usize) {
    let all = bytes.len() + len;
    if all <= ROUND && all > bytes.capacity() {
        bytes.reserve_exact(all.next_power_of_two() - bytes.len());
    } else {
        bytes.reserve(len);
    }
}
