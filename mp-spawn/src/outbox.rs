//! What goes to a process before it begins: frames, and file descriptors that come with the first of them.
//!
//! What is the same for many processes is put together first ([`Outbox::new`]); what is one process's own is added when it is
//! about to be started ([`Outbox::address`]), so that no file is open before it is needed.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::fields::{put_bytes, put_number, put_option};
use crate::output::Ends;
use crate::wire::{self, Kind, WireError};

/// The most file descriptors that go to a process.
pub(crate) const MAX_FDS: usize = 4;

const MEMORY: u8 = 1;
const LIFELINE: u8 = 2;
const STDOUT: u8 = 4;
const STDERR: u8 = 8;

/// What a process gets at its start.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// The arena's file, which must not be closed. With the first byte.
    memory: Option<BorrowedFd<'static>>,
    /// With the first byte as well, in their order. Closed when they are sent.
    own: Vec<OwnedFd>,
}

impl Outbox {
    /// Frames, and the file of the shared memory.
    pub(crate) fn new(bytes: Vec<u8>, memory: BorrowedFd<'static>) -> Outbox {
        Outbox { bytes, sent: 0, memory: Some(memory), own: Vec::new() }
    }

    /// Puts first what is this process's own: what ends it with its parent, what it is to write to, and changes to its
    /// environment, as far as it doesn't have them from the start.
    pub(crate) fn address(
        &mut self,
        lifeline: Option<OwnedFd>,
        ends: Ends,
        environment: &[(OsString, Option<OsString>)],
    ) -> Result<(), WireError> {
        let mut which = if self.memory.is_some() { MEMORY } else { 0 };
        for (bit, end) in [(LIFELINE, lifeline), (STDOUT, ends.stdout), (STDERR, ends.stderr)] {
            if let Some(end) = end {
                which |= bit;
                self.own.push(end);
            }
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() + 64);
        wire::append(&mut bytes, Kind::Fds, &[which])?;
        if !environment.is_empty() {
            let mut changes = Vec::new();
            put_number(&mut changes, environment.len() as u64);
            for (name, value) in environment {
                put_bytes(&mut changes, name.as_bytes());
                put_option(&mut changes, value.as_ref(), |out, value| put_bytes(out, value.as_bytes()));
            }
            wire::append(&mut bytes, Kind::Environment, &changes)?;
        }
        bytes.append(&mut self.bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Appends a frame.
    pub(crate) fn append(&mut self, kind: Kind, payload: &[u8]) -> Result<(), WireError> {
        wire::append(&mut self.bytes, kind, payload)
    }

    /// Sends what the socket takes; true when nothing is left.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = self.memory.into_iter().chain(self.own.iter().map(AsFd::as_fd)).collect();
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Errno::INVAL.into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(socket, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(count) => {
                    self.sent += count;
                    self.memory = None;
                    self.own.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        *self = Outbox::default();
        Ok(true)
    }
}

/// The file descriptors that a process got.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) memory: Option<OwnedFd>,
    /// See [`lifeline`](crate::lifeline).
    pub(crate) lifeline: Option<OwnedFd>,
    pub(crate) ends: Ends,
}

impl Files {
    /// Tells those that arrived apart, by the payload that announced them; `None` if they are not as announced.
    #[inline]
    pub(crate) fn sort(which: &[u8], mut arrived: Vec<OwnedFd>) -> Option<Files> {
        let &[which] = which else { return None };
        // From the last to the first.
        let mut last = |bit| if which & bit == 0 { Some(None) } else { arrived.pop().map(Some) };
        let (stderr, stdout, lifeline, memory) =
            (last(STDERR)?, last(STDOUT)?, last(LIFELINE)?, last(MEMORY)?);
        let files = Files { memory, lifeline, ends: Ends { stdout, stderr } };
        (arrived.is_empty() && which <= MEMORY | LIFELINE | STDOUT | STDERR).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> OwnedFd {
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn id(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn files_are_told_apart_whichever_are_there() {
        for which in 0..16_u8 {
            let present = |bit: u8| which & bit != 0;
            let files: Vec<_> = (0..4).filter(|bit| present(1 << bit)).map(|_| file("f")).collect();
            let ids: Vec<_> = files.iter().map(id).collect();
            let sorted = Files::sort(&[which], files).unwrap();
            let got = [sorted.memory, sorted.lifeline, sorted.ends.stdout, sorted.ends.stderr];
            assert_eq!(
                got.iter().map(Option::is_some).collect::<Vec<_>>(),
                [1, 2, 4, 8].map(present),
                "{which}"
            );
            assert_eq!(got.iter().flatten().map(id).collect::<Vec<_>>(), ids, "{which}");
        }
    }

    #[test]
    fn files_that_are_not_as_announced_are_refused() {
        let some = |count: usize| (0..count).map(|_| file("f")).collect::<Vec<_>>();
        for (which, count) in [(&[3_u8][..], 1), (&[3], 3), (&[0], 1), (&[16], 0), (&[], 0), (&[1, 0], 1)] {
            assert!(Files::sort(which, some(count)).is_none(), "{which:?} {count}");
        }
    }
}
