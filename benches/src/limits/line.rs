//! Link with a cache line in each direction, on which the receivers spin.

use std::sync::atomic::Ordering;

use super::Link;
use crate::Result;
use crate::process::spin_until;
use crate::shm::{APART, Region};

/// Length in bytes of the shared region for one link.
pub(crate) const LEN: usize = 4096;

/// End of the link. Each line has a count of messages and the message. The rest of the region can have other
/// uses.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) region: Region,
    out: usize,
    into: usize,
    sent: u64,
    received: u64,
}

impl Line {
    /// Creates the parent's end of the link.
    pub(crate) fn parent(region: Region) -> Self {
        Self { region, out: 0, into: APART, sent: 0, received: 0 }
    }

    /// Creates the child's end of the link.
    pub(crate) fn child(region: Region) -> Self {
        Self { region, out: APART, into: 0, sent: 0, received: 0 }
    }
}

impl Link for Line {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        self.sent += 1;
        self.region.word(self.out + 8).store(message, Ordering::Relaxed);
        // Release: the message, and all memory that it refers to, is visible before the count.
        self.region.word(self.out).store(self.sent, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let count = self.region.word(self.into);
        spin_until(|| count.load(Ordering::Acquire) != self.received)?;
        self.received += 1;
        Ok(self.region.word(self.into + 8).load(Ordering::Relaxed))
    }
}
