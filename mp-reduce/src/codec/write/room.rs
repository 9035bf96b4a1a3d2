//! The bytes that values are written into.
//!
//! Where the next byte goes is not here: a [`Writer`](super::Writer) has it. What is written where there is room is written in its caller's
//! code, and nothing there has to be in memory for the case that there is none.

use std::cell::Cell;
use std::ops::Range;

use mp_core::message::level::{self, MAX_NESTING, SHALLOW};

use super::super::error::{Bad, too_deep};

/// As much room as a value has at first.
const FIRST: usize = 256;
/// So much is zeroed ahead, at most.
const AHEAD: usize = 4 << 10;
/// Up to here, capacities are powers of two: a buffer that is kept for the next message has at most such a one.
const ROUND: usize = 64 << 10;

/// Bytes, of which the first are written, and the others are room.
pub(super) struct Room<'a> {
    bytes: &'a mut Vec<u8>,
    /// Number of levels that may still be entered, down to the last.
    left: &'a Cell<u16>,
    last: u16,
    /// Parts of the value for which a reader may have no place.
    pub(super) written: Written,
}

/// Parts of a value for which a reader may have no place.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::codec) struct Written {
    /// A number of 128 bits.
    pub(in crate::codec) wide: bool,
    /// More than [`SHALLOW`] levels.
    pub(in crate::codec) deep: bool,
}

impl<'a> Room<'a> {
    /// All that is in `bytes` is written.
    #[inline]
    pub(super) fn new(bytes: &'a mut Vec<u8>, left: &'a Cell<u16>, last: u16) -> Self {
        if bytes.capacity() - bytes.len() < FIRST {
            reserve(bytes, FIRST);
        }
        bytes.extend_from_slice(&[0; FIRST]);
        Self { bytes, left, last, written: Written::default() }
    }

    /// There are as many bytes as this, and no room.
    #[inline]
    pub(super) fn end(self, at: usize) {
        self.bytes.truncate(at);
    }

    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), Bad> {
        if !level::down_to(self.left, self.last) {
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

    /// Puts bytes there: where they end.
    #[inline]
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self.room(at, bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.put_last(at, bytes),
        }
        at + bytes.len()
    }

    /// Puts a byte, and others behind it, there.
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

    /// As [`put_headed`](Self::put_headed), of up to eight bytes, which are in a register.
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

    /// Puts bytes where there is too little room, and makes more behind them.
    #[cold]
    #[inline(never)]
    fn put_last(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.truncate(at);
        reserve(self.bytes, bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.make_room(self.bytes.len().clamp(FIRST, AHEAD));
    }

    /// Makes room behind all that is there, in the memory that is there.
    fn make_room(&mut self, len: usize) {
        self.bytes.resize((self.bytes.len() + len).min(self.bytes.capacity()), 0);
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

    /// Moves what was written from `from` on, up to `end`, to `to`: where it ends then.
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

    /// What something else appends.
    pub(super) fn append(
        &mut self,
        at: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Bad>,
    ) -> Result<usize, Bad> {
        self.bytes.truncate(at);
        append(self.bytes)?;
        let end = self.bytes.len();
        // Little: there may be one such value after the other.
        self.make_room(FIRST);
        Ok(end)
    }
}

/// Reserves room for that many bytes more.
#[cold]
fn reserve(bytes: &mut Vec<u8>, len: usize) {
    let all = bytes.len() + len;
    if all <= ROUND && all > bytes.capacity() {
        bytes.reserve_exact(all.next_power_of_two() - bytes.len());
    } else {
        bytes.reserve(len);
    }
}
