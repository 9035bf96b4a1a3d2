//! Warm shared buffers of a tensor's size, handed to and fro by a cache line.
//!
//! There are a few of them, used in turn, as a pool that recycles would: with a single one, the same work took a few
//! percent longer.
//!
//! # Safety
//! Parent and child take turns: each touches the buffers only between a message and its answer.

use super::Link;
use super::line::{self, Line};
use crate::Result;
use crate::shm::Region;
use crate::work::tensor::{Receiver, Sender};

/// Where the buffer begins: after the cache lines.
const START: usize = line::LEN;
/// How many buffers take turns.
const BUFFERS: usize = 3;
/// Bytes needed for tensors of `elements`.
pub(crate) const fn len(elements: usize) -> usize {
    START + BUFFERS * elements * size_of::<u64>()
}

/// The buffers, seen from one end.
#[derive(Debug)]
pub(crate) struct Buffer {
    line: Line,
    /// How many elements a buffer has.
    elements: usize,
    /// Which buffer is sent next.
    turn: usize,
}

impl Buffer {
    /// The parent's end.
    pub(crate) fn parent(region: Region, elements: usize) -> Self {
        Self { line: Line::parent(region), elements, turn: 0 }
    }

    /// The child's end.
    pub(crate) fn child(region: Region, elements: usize) -> Self {
        Self { line: Line::child(region), elements, turn: 0 }
    }

    /// Where the next buffer begins.
    fn at(&self) -> usize {
        START + self.turn * self.elements * size_of::<u64>()
    }
}

impl Sender for Buffer {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        self.turn = (self.turn + 1) % BUFFERS;
        self.keep(source)?;
        self.send_again()
    }

    fn send_again(&mut self) -> Result<()> {
        self.line.send(self.at() as u64)
    }

    fn keep(&mut self, source: &[u64]) -> Result<()> {
        // SAFETY: the child reads only between a message and its answer, and every answer has been awaited.
        unsafe { self.line.region.fill(self.at(), source) };
        Ok(())
    }

    fn answer(&mut self) -> Result<u64> {
        self.line.receive()
    }
}

impl Receiver for Buffer {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let start = self.line.receive()? as usize;
        // SAFETY: the parent writes only after our answer, and the slice ends before it.
        Ok(look(unsafe { self.line.region.values(start, self.elements) }))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        self.line.send(message)
    }
}
