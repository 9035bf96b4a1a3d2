//! Output buffer of a writer.
//!
//! The position of the next byte is not stored in the buffer but in a [`Writer`](super::Writer). The free
//! space after the written bytes is already zeroed, so a short write is a copy in the caller's code. The
//! caller's position need not be stored in memory, not even for the rare case that the space is too small.

use std::cell::Cell;
use std::ops::Range;

use mp_core::message::nesting_depth::{self, MAX_NESTING, SHALLOW};

use super::super::error::{CodecError, too_deep};

/// Number of bytes of free space before a value is written.
const FIRST: usize = 256;
/// Largest number of bytes of free space that are zeroed at once.
const AHEAD: usize = 4 << 10;
/// Largest capacity that is rounded up to a power of two. A buffer that is reused for the next message has at
/// most this capacity.
const ROUND: usize = 64 << 10;

/// Written bytes, followed by zeroed free space.
pub(super) struct OutputBuffer<'a> {
    bytes: &'a mut Vec<u8>,
    /// Number of nesting levels that are left. `last` is the number that must stay unused.
    left: &'a Cell<u16>,
    last: u16,
    /// Properties, found so far, of the value that is being written.
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
    /// Creates an output that appends to `bytes`, and zeroes the first free space.
    #[inline]
    pub(super) fn new(bytes: &'a mut Vec<u8>, left: &'a Cell<u16>, last: u16) -> Self {
        if bytes.capacity() - bytes.len() < FIRST {
            reserve(bytes, FIRST);
        }
        bytes.extend_from_slice(&[0; FIRST]);
        Self { bytes, left, last, written: ValueProperties::default() }
    }

    /// Ends the output after `at` bytes, and removes the free space.
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

    /// Writes bytes at position `at`. Returns the position after them.
    #[inline]
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self.room(at, bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.put_last(at, bytes),
        }
        at + bytes.len()
    }

    /// Writes a byte followed by `bytes` at position `at`. Returns the position after them.
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

    /// Writes a byte followed by up to eight bytes, like [`put_headed`](Self::put_headed). The bytes are
    /// passed in a register.
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

    /// Writes bytes for which the free space is too small, and zeroes new free space after them.
    #[cold]
    #[inline(never)]
    fn put_last(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.truncate(at);
        reserve(self.bytes, bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.make_room(self.bytes.len().clamp(FIRST, AHEAD));
    }

    /// Zeroes up to `len` bytes of free space after the written bytes, within the existing capacity.
    fn make_room(&mut self, len: usize) {
        self.bytes.resize((self.bytes.len() + len).min(self.bytes.capacity()), 0);
    }

    /// Increases the capacity for `len` more bytes, without zeroing.
    pub(super) fn reserve(&mut self, len: usize) {
        self.bytes.reserve(len);
    }

    /// Returns the written bytes of a range.
    #[inline]
    pub(super) fn written(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// Moves the bytes between `from` and `end` to position `to`. Returns the position after them.
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

    /// Truncates the output to `at` bytes, and calls `append` to add bytes. Returns the position after them.
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

/// Increases the capacity of `bytes` for `len` more bytes. A capacity of up to [`ROUND`] is a power of two.
#[cold]
fn reserve(bytes: &mut Vec<u8>, len: usize) {
    let all = bytes.len() + len;
    if all <= ROUND && all > bytes.capacity() {
        bytes.reserve_exact(all.next_power_of_two() - bytes.len());
    } else {
        bytes.reserve(len);
    }
}
