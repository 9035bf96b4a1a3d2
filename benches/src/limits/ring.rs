//! A ring of messages in each direction with one producer and one consumer. Each end caches the position of
//! the other end, and reads that position again only if necessary.

use std::sync::atomic::Ordering;

use super::Link;
use crate::Result;
use crate::process::spin_until;
use crate::shm::{APART, Region};

/// Number of messages that fit into one ring.
const SLOTS: u64 = 4096;
/// Number of bytes of one ring: the words `written` and `read`, then the slots.
const ONE: usize = 2 * APART + 8 * SLOTS as usize;
/// Length in bytes of the shared region for both rings.
pub(crate) const LEN: usize = (2 * ONE).next_multiple_of(4096);

/// Parent's or child's end of both rings.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) region: Region,
    out: usize,
    into: usize,
    written: u64,
    read_by_other: u64,
    read: u64,
    written_by_other: u64,
}

impl Ring {
    /// Creates the parent's end of both rings.
    pub(crate) fn parent(region: Region) -> Self {
        Self::new(region, 0, ONE)
    }

    /// Creates the child's end of both rings.
    pub(crate) fn child(region: Region) -> Self {
        Self::new(region, ONE, 0)
    }

    /// Creates a ring that receives its own messages.
    #[cfg(feature = "grow")]
    pub(crate) fn looped(region: Region) -> Self {
        Self::new(region, 0, 0)
    }

    fn new(region: Region, out: usize, into: usize) -> Self {
        Self { region, out, into, written: 0, read_by_other: 0, read: 0, written_by_other: 0 }
    }
}

impl Link for Ring {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        if self.written - self.read_by_other == SLOTS {
            let read = self.region.word(self.out + APART);
            spin_until(|| {
                self.read_by_other = read.load(Ordering::Acquire);
                self.written - self.read_by_other < SLOTS
            })?;
        }
        let slots = self.region.words(self.out + 2 * APART, SLOTS as usize);
        slots[(self.written % SLOTS) as usize].store(message, Ordering::Relaxed);
        self.written += 1;
        self.region.word(self.out).store(self.written, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        if self.read == self.written_by_other {
            let written = self.region.word(self.into);
            spin_until(|| {
                self.written_by_other = written.load(Ordering::Acquire);
                self.read != self.written_by_other
            })?;
        }
        let slots = self.region.words(self.into + 2 * APART, SLOTS as usize);
        let message = slots[(self.read % SLOTS) as usize].load(Ordering::Relaxed);
        self.read += 1;
        self.region.word(self.into + APART).store(self.read, Ordering::Release);
        Ok(message)
    }
}
