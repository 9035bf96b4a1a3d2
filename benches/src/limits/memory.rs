//! One warm shared buffer of a tensor's size, handed to and fro by a cache line.

use super::Link;
use super::line::{self, Line};
use crate::Result;
use crate::shm::Region;
use crate::work::tensor::{BYTES, ELEMENTS, Receiver, Sender};

/// Where the buffer begins: after the cache lines.
const START: usize = line::LEN;
/// Bytes needed.
pub(crate) const LEN: usize = START + BYTES;

/// The buffer, seen from one end.
#[derive(Debug)]
pub(crate) struct Buffer(Line);

impl Buffer {
    /// The parent's end.
    pub(crate) fn parent(region: Region) -> Self {
        Self(Line::parent(region))
    }

    /// The child's end.
    pub(crate) fn child(region: Region) -> Self {
        Self(Line::child(region))
    }
}

impl Sender for Buffer {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        self.keep(source)?;
        self.send_again()
    }

    fn send_again(&mut self) -> Result<()> {
        self.0.send(START as u64)
    }

    fn keep(&mut self, source: &[u64]) -> Result<()> {
        // SAFETY: the child reads only between a message and its answer, and every answer has been awaited.
        unsafe { self.0.region.fill(START, source) };
        Ok(())
    }

    fn answer(&mut self) -> Result<u64> {
        self.0.receive()
    }
}

impl Receiver for Buffer {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let start = self.0.receive()? as usize;
        // SAFETY: the parent writes only after our answer, and the slice ends before it.
        Ok(look(unsafe { self.0.region.values(start, ELEMENTS) }))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        self.0.send(message)
    }
}
