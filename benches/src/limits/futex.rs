//! Link with a futex word in each direction, whose receivers sleep in the kernel.

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

use super::Link;
use crate::Result;
use crate::process::DEADLINE;
use crate::shm::{APART, Region};

/// Length in bytes of the shared region for one link.
pub(crate) const LEN: usize = 4096;

/// End of the link. Each word is next to its message.
#[derive(Debug)]
pub(crate) struct Futex {
    region: Region,
    out: usize,
    into: usize,
    sent: u32,
    received: u32,
}

impl Futex {
    /// Creates the parent's end of the link.
    pub(crate) fn parent(region: Region) -> Self {
        Self { region, out: 0, into: APART, sent: 0, received: 0 }
    }

    /// Creates the child's end of the link.
    pub(crate) fn child(region: Region) -> Self {
        Self { region, out: APART, into: 0, sent: 0, received: 0 }
    }
}

impl Link for Futex {
    fn send(&mut self, message: u64) -> Result<()> {
        self.sent = self.sent.wrapping_add(1);
        self.region.word(self.out + 8).store(message, Ordering::Relaxed);
        let word = self.region.word32(self.out);
        word.store(self.sent, Ordering::Release);
        // No PRIVATE flag: the sleeper is in another process.
        futex::wake(word, Flags::empty(), 1)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u64> {
        let word = self.region.word32(self.into);
        let limit = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        while word.load(Ordering::Acquire) == self.received {
            match futex::wait(word, Flags::empty(), self.received, Some(&limit)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(format!("waiting for the other process: {error}").into()),
            }
        }
        self.received = self.received.wrapping_add(1);
        Ok(self.region.word(self.into + 8).load(Ordering::Relaxed))
    }
}
