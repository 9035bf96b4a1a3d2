//! Data to be sent to a process before it begins: frames, and file descriptors that are sent with the first
//! of them.
//!
//! Common data of many processes is encoded first ([`Outbox::new`]). Data of a single process is added just
//! before its start ([`Outbox::prepend`]), so that no file is open before it is needed.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::protocol::fields::to_bytes;
use crate::protocol::frame::{self, FrameKind, WireError};
use crate::protocol::message::EnvironmentChanges;
use crate::sys::MAX_FDS;

const MEMORY: u8 = 1;
const LIFELINE: u8 = 2;
const STDOUT: u8 = 4;
const STDERR: u8 = 8;

/// Standard streams of a process, if they are not inherited.
#[derive(Debug, Default)]
pub(crate) struct StreamEnds {
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl StreamEnds {
    /// In the started process: makes these files its standard streams.
    #[inline]
    pub(crate) fn install(self) -> io::Result<()> {
        self.stdout.as_ref().map_or(Ok(()), rustix::stdio::dup2_stdout)?;
        self.stderr.as_ref().map_or(Ok(()), rustix::stdio::dup2_stderr)?;
        Ok(())
    }
}

/// Data to be sent to a process at its start.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// File of the arena, which must not be closed. Sent with the first byte.
    memory: Option<BorrowedFd<'static>>,
    /// Files that are sent with the first byte too, in this order, and then closed.
    own: Vec<OwnedFd>,
    /// Inherited files, sent after `own`.
    files: Vec<Arc<OwnedFd>>,
}

impl Outbox {
    /// Creates an outbox from frames and the file of the shared memory.
    pub(crate) fn new(bytes: Vec<u8>, memory: BorrowedFd<'static>) -> Outbox {
        Outbox { bytes, sent: 0, memory: Some(memory), own: Vec::new(), files: Vec::new() }
    }

    /// Creates an outbox without frames, from files that are sent with the first frame.
    pub(crate) fn owning(own: Vec<OwnedFd>) -> Outbox {
        Outbox { own, ..Outbox::default() }
    }

    /// Inserts the data of this process at the front: its lifeline, its streams, changes to its environment,
    /// and inherited files, unless they are inherited by `exec`.
    pub(crate) fn prepend(
        &mut self,
        lifeline: Option<OwnedFd>,
        ends: StreamEnds,
        environment: &EnvironmentChanges,
        files: &[(RawFd, Arc<OwnedFd>)],
    ) -> Result<(), WireError> {
        let mut which = if self.memory.is_some() { MEMORY } else { 0 };
        for (bit, end) in [(LIFELINE, lifeline), (STDOUT, ends.stdout), (STDERR, ends.stderr)] {
            if let Some(end) = end {
                which |= bit;
                self.own.push(end);
            }
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() + 64);
        let mut all = Vec::with_capacity(1 + size_of::<RawFd>() * files.len());
        all.push(which);
        for (number, file) in files {
            all.extend(number.to_le_bytes());
            self.files.push(Arc::clone(file));
        }
        frame::append(&mut bytes, FrameKind::Fds, &all)?;
        if !environment.is_empty() {
            frame::append(&mut bytes, FrameKind::Environment, &to_bytes(environment))?;
        }
        bytes.append(&mut self.bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Appends a frame.
    pub(crate) fn append(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
        frame::append(&mut self.bytes, kind, payload)
    }

    /// Sends as much as the socket accepts. Returns `true` if nothing is left.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let more = self.files.iter().map(|file| file.as_fd());
            let fds: Vec<_> =
                self.memory.into_iter().chain(self.own.iter().map(AsFd::as_fd)).chain(more).collect();
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(Errno::INVAL.into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(socket, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(count) => {
                    self.sent += count;
                    self.memory = None;
                    self.own.clear();
                    self.files.clear();
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

/// Returns `true` if the error of a [flush](Outbox::flush) means that the process at the other end has ended.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// File descriptors that a process received.
#[derive(Debug, Default)]
pub(crate) struct ReceivedFiles {
    pub(crate) memory: Option<OwnedFd>,
    /// Read end of the lifeline, see [`lifeline`](crate::protocol::lifeline).
    pub(crate) lifeline: Option<OwnedFd>,
    pub(crate) ends: StreamEnds,
    /// Inherited files and their numbers.
    pub(crate) inherited: Vec<(RawFd, OwnedFd)>,
}

impl ReceivedFiles {
    /// Assigns the received descriptors to the fields, according to the payload `which` that announced them.
    /// Returns `None` if descriptors and payload don't match.
    #[inline]
    pub(crate) fn assign(which: &[u8], mut arrived: Vec<OwnedFd>) -> Option<ReceivedFiles> {
        let (&which, numbers) = which.split_first()?;
        let (numbers, rest) = numbers.as_chunks();
        let inherited = arrived.split_off(arrived.len().checked_sub(numbers.len())?);
        let numbers = numbers.iter().map(|number| RawFd::from_le_bytes(*number));
        let inherited: Vec<_> = numbers.zip(inherited).collect();
        // Descriptors are taken from the last to the first.
        let mut last = |bit| if which & bit == 0 { Some(None) } else { arrived.pop().map(Some) };
        let (stderr, stdout, lifeline, memory) =
            (last(STDERR)?, last(STDOUT)?, last(LIFELINE)?, last(MEMORY)?);
        let known = which <= MEMORY | LIFELINE | STDOUT | STDERR;
        let sound = known && rest.is_empty() && inherited.iter().all(|(number, _)| *number >= 3);
        let files = ReceivedFiles { memory, lifeline, ends: StreamEnds { stdout, stderr }, inherited };
        (arrived.is_empty() && sound).then_some(files)
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
    fn received_files_are_assigned_by_their_mask() {
        for which in 0..16_u8 {
            let present = |bit: u8| which & bit != 0;
            let files: Vec<_> = (0..4).filter(|bit| present(1 << bit)).map(|_| file("f")).collect();
            let ids: Vec<_> = files.iter().map(id).collect();
            let sorted = ReceivedFiles::assign(&[which], files).unwrap();
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
    fn inherited_files_keep_their_numbers() {
        let files: Vec<_> = (0..3).map(|_| file("f")).collect();
        let ids: Vec<_> = files.iter().map(id).collect();
        let which = [&[MEMORY][..], &9_i32.to_le_bytes(), &700_i32.to_le_bytes()].concat();
        let sorted = ReceivedFiles::assign(&which, files).unwrap();
        let got: Vec<_> = sorted.inherited.iter().map(|(number, file)| (*number, id(file))).collect();
        assert_eq!((sorted.memory.as_ref().map(id), got), (Some(ids[0]), vec![(9, ids[1]), (700, ids[2])]));
    }

    #[test]
    fn unannounced_received_files_are_refused() {
        let some = |count: usize| (0..count).map(|_| file("f")).collect::<Vec<_>>();
        for (which, count) in [
            (&[3_u8][..], 1),
            (&[3], 3),
            (&[0], 1),
            (&[16], 0),
            (&[], 0),
            (&[1, 0], 1),
            (&[0, 9, 0, 0, 0], 0),
            (&[0, 9, 0, 0, 0], 2),
            // A standard stream, and an invalid number.
            (&[0, 2, 0, 0, 0], 1),
            (&[0, 255, 255, 255, 255], 1),
        ] {
            assert!(ReceivedFiles::assign(which, some(count)).is_none(), "{which:?} {count}");
        }
    }
}
