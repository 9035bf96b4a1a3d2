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

/// Largest number of notes that one call reads, so that a peer that sends only notes can't delay the call
/// beyond its deadline.
pub(super) const NOTES_AT_ONCE: u32 = 1024;
/// Initial size of the buffer for a message, in bytes.
const FIRST: usize = 1 << 16;
/// Number of received bytes after which the buffer grows to the size of the whole message. This reserves
/// addresses. Pages are used only for bytes that have arrived.
const WHOLE: usize = 4 << 20;

/// State of receiving: the received part of the next message, which is kept when a receive times out. No
/// thread waits while it holds the lock of this state.
#[derive(Default)]
pub(super) struct MessageReader {
    /// Received part of the listener's hello, while the hello is incomplete.
    greeting: Option<Greeting>,
    /// Error of the handshake, which the next call returns.
    pub(super) refused: Option<ConnectError>,
    head: [u8; HEAD],
    have: usize,
    name: Vec<u8>,
    body: Vec<u8>,
    /// Empty buffer of a caller of `recv_to`, used for the next message.
    pub(super) lent: Vec<u8>,
    /// Messages that a send has read while it searched for a note. If reading ended with an error other than
    /// a closed connection, the error is the last element.
    early: VecDeque<Result<ReceivedFrame, GetError>>,
    /// Last note that the other side has sent. The note names a message of this side that the other side has
    /// refused.
    refusal: Option<Box<TypeRefusal>>,
    closed: bool,
}

/// Result of reading one message or note.
pub(super) enum FrameEvent {
    Message(ReceivedFrame),
    Note,
    /// The next message or note is incomplete, and no more bytes can be read without waiting.
    Pending,
}

/// Appends available bytes to `into`, up to `len` bytes in total. The kernel writes each byte once: zeroing
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
    /// Creates the reader of a socket. `greeting` is the received part of a hello that is incomplete.
    pub(super) fn new(greeting: Option<Greeting>) -> Self {
        Self { greeting, ..Self::default() }
    }

    /// Returns the next message, or `None` if it is incomplete. Reads available bytes, up to the end of one
    /// message.
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

    /// Reads available bytes, up to the end of one message or note. Called after the hello was read.
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

    /// Returns the error for a connection that the other side has closed. The error contains the note of the
    /// other side, if there was one.
    pub(super) fn gone(&self) -> GetError {
        self.refusal.clone().map_or(GetError::Disconnected, GetError::TypeRefused)
    }

    /// Returns `true` if a note was partly read.
    pub(super) fn is_in_note(&self) -> bool {
        self.have == HEAD && is_note_start(&self.head)
    }

    /// Reads the remaining data of a closed connection and returns the last note in it. Stops at an
    /// invitation, whose descriptor would be lost.
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

    /// Stores a received message, which a later receive returns.
    pub(super) fn store(&mut self, frame: ReceivedFrame) {
        self.early.push_back(Ok(frame));
    }

    /// Reads available bytes of the listener's hello. Returns `true` if the hello is complete or not
    /// expected.
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

    /// Returns `true` if there are stored messages, which a receive returns first.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Reads available bytes of the listener's hello. Returns `true` if the hello was incomplete before this
    /// call.
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

    /// Shuts the connection down, because the following bytes can't be interpreted. Returns `error`.
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
