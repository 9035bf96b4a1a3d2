//! Warm shared buffers of a tensor's size, handed over in both directions by a cache line, or in a stream by
//! a ring.
//!
//! A few buffers are used in turn, as in a recycling pool, because work with a single buffer took a few
//! percent longer. A stream has one more buffer than can be in flight.
//!
//! # Safety
//! Parent and child never access a buffer at the same time. The child reads a buffer only after the message
//! with its offset, and before the answer. The parent writes a buffer only after the answer to its previous
//! message. In a stream, one answer covers all buffers of a batch.

use super::Link;
use super::line::{self, Line};
use super::ring::{self, Ring};
use crate::Result;
use crate::shm::Region;
use crate::work::tensor::{BATCH, Receiver, Sender};

/// Link that carries the offsets of buffers.
pub(crate) trait Carrier: Link {
    /// Offset of the buffers: after the carrier's own words.
    const START: usize;
    /// Number of buffers that take turns.
    const BUFFERS: usize;
    /// Returns the region with the link's words and the buffers.
    fn region(&self) -> &Region;
}

impl Carrier for Line {
    const START: usize = line::LEN;
    const BUFFERS: usize = 3;
    fn region(&self) -> &Region {
        &self.region
    }
}

impl Carrier for Ring {
    const START: usize = ring::LEN;
    const BUFFERS: usize = 2 * BATCH as usize + 1;
    fn region(&self) -> &Region {
        &self.region
    }
}

/// Returns the number of bytes needed for tensors of `elements`.
pub(crate) const fn len<C: Carrier>(elements: usize) -> usize {
    C::START + C::BUFFERS * elements * size_of::<u64>()
}

/// End of a link with buffers.
#[derive(Debug)]
pub(crate) struct Buffer<C> {
    carrier: C,
    /// Number of elements of a buffer.
    elements: usize,
    /// Index of the next buffer to send.
    turn: usize,
}

impl<C: Carrier> Buffer<C> {
    /// Creates the buffers after the carrier's words.
    pub(crate) fn new(carrier: C, elements: usize) -> Self {
        Self { carrier, elements, turn: 0 }
    }

    /// Returns the offset of the next buffer.
    fn at(&self) -> usize {
        C::START + self.turn * self.elements * size_of::<u64>()
    }
}

impl<C: Carrier> Sender for Buffer<C> {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        self.turn = (self.turn + 1) % C::BUFFERS;
        self.keep(source)?;
        self.send_again()
    }

    fn send_again(&mut self) -> Result<()> {
        self.carrier.send(self.at() as u64)
    }

    fn keep(&mut self, source: &[u64]) -> Result<()> {
        // SAFETY: the child reads only between a message and its answer, and the answer for this buffer was
        // received.
        unsafe { self.carrier.region().fill(self.at(), source) };
        Ok(())
    }

    fn answer(&mut self) -> Result<u64> {
        self.carrier.receive()
    }
}

impl<C: Carrier> Receiver for Buffer<C> {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let start = self.carrier.receive()? as usize;
        // SAFETY: the parent writes only after our answer, and the slice ends before it.
        Ok(look(unsafe { self.carrier.region().values(start, self.elements) }))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        self.carrier.send(message)
    }
}
