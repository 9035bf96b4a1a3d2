//! Reader of the frames that arrive at a socket.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::frame::{HEAD, MAX_NOTE, ReceivedFrame, is_invitation, is_note_start, refusal_of};
use crate::connection::named::MAX_NAME;
use crate::connection::socket::ConnectError;
use crate::connection::socket::error::refusal;
use crate::connection::socket::handshake::Greeting;
use crate::connection::socket::stream::read;
use crate::connection::socket::tcp;
use crate::error::{GetError, TypeRefusal};

/// Number of notes that are read at once: a side that sends only notes must not delay a caller beyond its
/// deadline.
pub(super) const NOTES_AT_ONCE: u32 = 1024;
/// Initial size of the buffer in bytes.
const FIRST: usize = 1 << 16;
/// Number of received bytes after which the buffer is enlarged to the whole message. This reserves addresses.
/// Pages are used only for bytes that have arrived.
const WHOLE: usize = 4 << 20;

/// Received part of the next message. It is retained when a receive times out. No thread waits while it holds
/// the lock.
#[derive(Default)]
pub(super) struct MessageReader {
    /// Handshake part that precedes the first message.
    greeting: Option<Greeting>,
    /// Error of the greeting, until a call returns it.
    pub(super) refused: Option<ConnectError>,
    head: [u8; HEAD],
    have: usize,
    name: Vec<u8>,
    body: Vec<u8>,
    /// Empty buffer of a waiting caller, for the next message.
    pub(super) lent: Vec<u8>,
    /// Messages that a send has received while it searched for a note, followed by the error that ended the
    /// connection, unless the other side has only closed it.
    early: VecDeque<Result<ReceivedFrame, GetError>>,
    /// Last refusal reported by the other side.
    refusal: Option<Box<TypeRefusal>>,
    closed: bool,
}

/// Result of reading one message or note.
pub(super) enum FrameEvent {
    Message(ReceivedFrame),
    Note,
    /// No complete message or note can be read at present.
    Pending,
}

/// Reads more of `len` bytes, whose beginning is already in `into`. The kernel writes each byte once: zeroing
/// the buffer for each read would make the cost of a long message quadratic.
fn read_more(fd: BorrowedFd<'_>, into: &mut Vec<u8>, len: usize) -> Result<usize, Errno> {
    let start = into.len();
    if start == into.capacity() && start >= WHOLE && into.try_reserve_exact(len - start).is_ok() {
        mp_core::advise_huge_pages(into.spare_capacity_mut());
    } else if start == into.capacity() {
        into.reserve_exact(len.min(start + start.max(FIRST)) - start);
    }
    if into.capacity() <= len {
        return rustix::net::recv(fd, spare_capacity(into), RecvFlags::empty()).map(|(n, _)| n);
    }
    // An allocator may return more than was requested. The bytes after this message belong to the next one.
    into.resize(len.min(start + FIRST), 0);
    let n = read(fd, &mut into[start..]);
    into.truncate(start + n.unwrap_or(0));
    n
}

impl MessageReader {
    /// Creates the reader of a socket. `greeting` is the part of the handshake that is still expected.
    pub(super) fn new(greeting: Option<Greeting>) -> Self {
        Self { greeting, ..Self::default() }
    }

    /// Returns the next stored message, or reads available bytes up to the end of one message. Returns `None`
    /// if there is no complete message yet.
    pub(super) fn poll(
        &mut self,
        fd: BorrowedFd<'_>,
        limit: usize,
    ) -> Result<Option<ReceivedFrame>, GetError> {
        if let Some(frame) = self.early.pop_front() {
            return frame.map(Some);
        }
        if !self.is_greeted(fd)? {
            return Ok(None);
        }
        for _ in 0..NOTES_AT_ONCE {
            match self.read_next(fd, limit)? {
                FrameEvent::Message(frame) => return Ok(Some(frame)),
                FrameEvent::Note => {}
                FrameEvent::Pending => break,
            }
        }
        Ok(None)
    }

    /// Reads available bytes up to the end of one message or note. The greeting has been read.
    pub(super) fn read_next(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Result<FrameEvent, GetError> {
        loop {
            let [a, b, c, d, fingerprint @ .., e, f] = self.head;
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            let name = u16::from_le_bytes([e, f]);
            let is_note = self.is_in_note();
            let (name, limit) = if is_note { (0, MAX_NOTE) } else { (usize::from(name), limit) };
            let n = if self.have < HEAD {
                read(fd, &mut self.head[self.have..])
            } else if len > limit {
                let why = format!(
                    "a message of {len} bytes arrived, and {limit} is the limit of this side \
                     (SocketOptions::max_message)"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if name > MAX_NAME {
                let why = format!(
                    "a message arrived whose type name has {name} bytes, and {MAX_NAME} is the limit"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if self.name.len() < name {
                read_more(fd, &mut self.name, name)
            } else if self.body.len() < len {
                if self.body.is_empty() && self.lent.capacity() >= len {
                    self.body = std::mem::take(&mut self.lent);
                }
                read_more(fd, &mut self.body, len)
            } else if is_note {
                self.have = 0;
                self.refusal = refusal_of(&std::mem::take(&mut self.body)).map(Box::new);
                return Ok(FrameEvent::Note);
            } else {
                self.have = 0;
                return Ok(FrameEvent::Message(ReceivedFrame {
                    bytes: std::mem::take(&mut self.body),
                    fingerprint: u64::from_le_bytes(fingerprint),
                    name: std::mem::take(&mut self.name),
                }));
            };
            match n.or_else(|e| if tcp::is_gone(e) { Ok(0) } else { Err(e) }) {
                Ok(0) if self.have == 0 => {
                    self.closed = true;
                    return Err(self.gone());
                }
                Ok(0) => {
                    let why = "the other side closed the connection in the middle of a message";
                    return Err(self.end(fd, mp_core::Error::Malformed(why.into())));
                }
                Ok(n) if self.have < HEAD => self.have += n,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(FrameEvent::Pending),
                Err(e) => {
                    let what = "reading from the other end of a connection";
                    return Err(self.end(fd, mp_core::Error::Os { what, source: e.into() }));
                }
            }
        }
    }

    /// Returns the error for the end of the other side, with its refusal if it sent one.
    pub(super) fn gone(&self) -> GetError {
        self.refusal.clone().map_or(GetError::Disconnected, GetError::TypeRefused)
    }

    /// Returns `true` if a note was partly read.
    pub(super) fn is_in_note(&self) -> bool {
        self.have == HEAD && is_note_start(&self.head)
    }

    /// Searches the data of a closed connection for a note. Stops at an invitation, whose descriptor would be
    /// lost.
    pub(super) fn find_note(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Option<Box<TypeRefusal>> {
        let invites = |have| have == 0 && is_invitation(fd);
        while !self.closed && self.greeting.is_none() && !invites(self.have) {
            match self.read_next(fd, limit) {
                Ok(FrameEvent::Message(frame)) => self.early.push_back(Ok(frame)),
                Ok(FrameEvent::Note) => {}
                Ok(FrameEvent::Pending) | Err(GetError::Disconnected | GetError::TypeRefused(_)) => break,
                Err(error) => self.early.push_back(Err(error)),
            }
        }
        self.refusal.clone()
    }

    /// Stores a message for a later receive.
    pub(super) fn store(&mut self, frame: ReceivedFrame) {
        self.early.push_back(Ok(frame));
    }

    /// Reads the available part of the greeting. Returns `true` if messages can follow.
    pub(super) fn is_greeted(&mut self, fd: BorrowedFd<'_>) -> Result<bool, GetError> {
        self.greet(fd);
        if let Some(refused) = self.refused.take() {
            return Err(GetError::Failed(refusal(refused)));
        }
        if self.closed {
            return Err(self.gone());
        }
        Ok(self.greeting.is_none())
    }

    /// Returns `true` if the next byte to read begins a message.
    pub(super) fn is_between_messages(&self) -> bool {
        self.have == 0 && self.early.is_empty()
    }

    /// Returns `true` if stored messages precede the next byte to read.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Reads the available part of the greeting. Returns `true` if the greeting was still expected before
    /// this call.
    pub(super) fn greet(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Some(greeting) = &mut self.greeting else { return false };
        match greeting.advance(fd) {
            Ok(false) => {}
            Ok(true) => self.greeting = None,
            Err(refused) => {
                // A listener that has ended has not refused the connection.
                let refused = Some(refused).filter(|e| !matches!(e, ConnectError::Gone));
                (self.greeting, self.refused, self.closed) = (None, refused, true);
                // Reports the end to the other side, as in `end`.
                _ = rustix::net::shutdown(fd, Shutdown::Both);
            }
        }
        true
    }

    /// Ends the connection, since the following bytes can't be interpreted.
    fn end(&mut self, fd: BorrowedFd<'_>, error: mp_core::Error) -> GetError {
        self.closed = true;
        (self.name, self.body) = (Vec::new(), Vec::new());
        // Reports the end to the other side. If the other side is closed, this fails, and nothing is left to
        // do.
        _ = rustix::net::shutdown(fd, Shutdown::Both);
        GetError::Failed(error.into())
    }
}

#[cfg(any(test, feature = "fuzz"))]
#[path = "fuzz.rs"]
pub(crate) mod fuzz;
