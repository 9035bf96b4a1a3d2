//! Frames of messages over a socket. A frame consists of the length of the message (4 bytes, little-endian),
//! the fingerprint of its type (8), the length of the type's name (2), that name, and the message.
//!
//! A side that receives an unexpected type reports this to the other side by a note, if there is room in the
//! socket. The length of the name in a note is [`NOTE`], its fingerprint is that of the message, and its
//! bytes are the two names (`note_of`). The receiver stores the note until the connection ends, and returns
//! it as the cause.
//!
//! Any byte of a frame may be wrong. A length beyond the limit ends the connection. Whatever the length, the
//! memory used never exceeds twice the number of bytes received. After 4 MiB, this limit applies to pages and
//! not to addresses. If another type is expected, the error contains the name, but only if the fingerprint is
//! the hash of it.
//!
//! A receiver or sender locks the state of the current message, advances it as far as possible, and unlocks
//! it before it waits. So threads and futures may use one end at the same time, and one of them continues a
//! message that another has begun. A message is *begun* when a part of it is sent. It is sent completely
//! before the next one begins, also if its sender is a future that is dropped: see [`outbox`](super::outbox).

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use mp_core::{Descriptor, Message, SharedWaitable, Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint, from_bytes, to_bytes_after};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::ConnectError;
use super::error::refusal;
use super::handshake::{Greeting, HandshakeResult, PeerIdentity, read};
use super::invitation::is_invitation;
use super::outbox::{FrameWriter, OutgoingFrame, PendingSend};
use super::tcp;
use crate::connection::bytes::Bytes;
use crate::connection::named::{LENGTH, MAX_NAME, is_name_of, sent_name, type_mismatch, with_name};
use crate::error::{GetError, TypeRefusal};

/// Number of bytes of length, fingerprint and length of the name.
const HEAD: usize = 12 + LENGTH;
/// Value in a note in place of the length of a name.
const NOTE: u16 = u16::MAX;
/// Largest number of bytes of a note.
const MAX_NOTE: usize = LENGTH + 2 * MAX_NAME;
/// Number of notes that are read at once: a side that sends only notes must not delay a caller beyond its
/// time.
pub(super) const NOTES_AT_ONCE: u32 = 1024;
/// Initial size of the buffer in bytes.
const FIRST: usize = 1 << 16;
/// Number of received bytes after which the buffer is enlarged to the whole message. This reserves addresses.
/// Pages are used only for bytes that have arrived.
const WHOLE: usize = 4 << 20;

/// End of a connection between two programs.
pub(crate) struct Socket {
    fd: OwnedFd,
    peer: PeerIdentity,
    /// Process that has connected. A forked copy does not read the data of the original.
    process: u32,
    pub(super) limit: usize,
    /// Name in this process.
    name: Mutex<Option<String>>,
    pub(super) reader: Mutex<FrameReader>,
    pub(super) writer: Mutex<FrameWriter>,
}

/// Received part of the next message. It is retained when a receive times out. No thread waits while it holds
/// the lock.
#[derive(Default)]
pub(super) struct FrameReader {
    /// Handshake part that precedes the first message.
    greeting: Option<Greeting>,
    /// Error of the greeting, until a call returns it.
    pub(super) refused: Option<ConnectError>,
    head: [u8; HEAD],
    have: usize,
    name: Vec<u8>,
    body: Vec<u8>,
    /// Messages that a send has received while it searched for a note, and the error that ended them, unless
    /// the other side just closed.
    early: VecDeque<Result<ReceivedFrame, GetError>>,
    /// Last refusal reported by the other side.
    refusal: Option<Box<TypeRefusal>>,
    closed: bool,
}

/// A complete message.
pub(super) struct ReceivedFrame {
    bytes: Vec<u8>,
    /// Fingerprint of its type.
    fingerprint: u64,
    /// Name of its type as sent, or empty if it was too long to be sent.
    name: Vec<u8>,
}

/// Result of reading one message or note.
pub(super) enum FrameEvent {
    Message(ReceivedFrame),
    Note,
    /// No complete message or note can be read at present.
    Pending,
}

/// Returns `true` if this is the beginning of a note.
pub(super) fn is_note_start(bytes: &[u8]) -> bool {
    bytes.get(HEAD - LENGTH..HEAD) == Some(&NOTE.to_le_bytes())
}

/// Reads more of `len` bytes, whose beginning is already in `into`. The kernel writes each byte once: zeroing
/// the buffer for each read would make the cost of a long message quadratic.
fn read_more(fd: BorrowedFd<'_>, into: &mut Vec<u8>, len: usize) -> Result<usize, Errno> {
    let start = into.len();
    let has_room = start < into.capacity() || start >= WHOLE && into.try_reserve_exact(len - start).is_ok();
    if !has_room {
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

impl FrameReader {
    /// Reads available bytes up to the end of one message. Returns `None` if there is no complete message
    /// yet.
    fn advance(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Result<Option<ReceivedFrame>, GetError> {
        if !self.is_greeted(fd)? {
            return Ok(None);
        }
        let most = NOTES_AT_ONCE;
        for _ in 0..most {
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
                    "a message of {len} bytes arrives, and {limit} is the limit here (SocketOptions::max_message)"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if name > MAX_NAME {
                let why = format!(
                    "a message arrives whose type has a name of {name} bytes, and {MAX_NAME} is the limit"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if self.name.len() < name {
                read_more(fd, &mut self.name, name)
            } else if self.body.len() < len {
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
                    let why = "the other end is gone, in the middle of a message";
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
                // A listener that is gone has not refused.
                let refused = Some(refused).filter(|e| !matches!(e, ConnectError::Gone));
                (self.greeting, self.refused, self.closed) = (None, refused, true);
                // As in `end`.
                _ = rustix::net::shutdown(fd, Shutdown::Both);
            }
        }
        true
    }

    /// Ends the connection, since the following bytes can't be interpreted.
    fn end(&mut self, fd: BorrowedFd<'_>, error: mp_core::Error) -> GetError {
        self.closed = true;
        (self.name, self.body) = (Vec::new(), Vec::new());
        // Reports the end to the other side. If that is gone, this fails, and nothing is left to do.
        _ = rustix::net::shutdown(fd, Shutdown::Both);
        GetError::Failed(error.into())
    }
}

/// Waitable for bytes that arrive at a socket.
struct ReadableSocket(Arc<Socket>);

impl Waitable for ReadableSocket {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.0.as_fd())
    }

    fn is_ready(&self) -> bool {
        self.0.has_arrived()
    }

    fn described(&self) -> Option<String> {
        Some(self.0.described())
    }
}

/// Waitable for room in a socket.
pub(super) struct WritableSocket(pub(super) Arc<Socket>);

impl Waitable for WritableSocket {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Writable(self.0.as_fd())
    }

    fn is_ready(&self) -> bool {
        found(self.0.as_fd(), PollFlags::OUT) != PollFlags::empty()
    }

    fn described(&self) -> Option<String> {
        Some(format!("room in {}", self.0.described()))
    }
}

/// Polls a descriptor without waiting.
pub(super) fn found(fd: BorrowedFd<'_>, asked: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, asked)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

impl Socket {
    pub(crate) fn new(result: HandshakeResult, limit: usize) -> Self {
        let HandshakeResult { fd, peer, greeting } = result;
        let reader = Mutex::new(FrameReader { greeting, ..FrameReader::default() });
        let (process, name) = (std::process::id(), Mutex::default());
        Self { fd, peer, process, limit, name, reader, writer: Mutex::default() }
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.lock() = Some(name.into());
    }

    pub(crate) fn given_name(&self) -> Option<String> {
        self.name.lock().clone()
    }

    /// Returns the description for reports.
    pub(crate) fn described(&self) -> String {
        let name = self.given_name().map(|name| format!(" {name:?}")).unwrap_or_default();
        match self.peer {
            PeerIdentity::Process(process) => format!("socket{name} to pid {}", process.pid),
            PeerIdentity::Host(host) => format!("socket{name} to {host}"),
        }
    }

    pub(crate) fn peer(&self) -> PeerIdentity {
        self.peer
    }

    pub(crate) fn shut_down(&self) {
        // If the other end is gone, this fails, and nothing is left to do.
        _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
    }

    /// Returns `true` if the other end is gone. Its messages may still be unread.
    pub(crate) fn is_disconnected(&self) -> bool {
        // Over TCP, the end of the other side alone is not a hang-up.
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        found(self.as_fd(), PollFlags::RDHUP).intersects(gone)
    }

    /// Returns `true` if sending would be useless. For a Unix socket, the kernel reports this by itself. Over
    /// TCP, the kernel accepts bytes until the host of the other side has refused them.
    pub(super) fn is_peer_closed(&self) -> bool {
        self.peer.host().is_some() && self.is_disconnected()
    }

    /// Returns `true` if there is something to receive: a message or its beginning, the end, or the other
    /// side's refusal.
    pub(crate) fn has_arrived(&self) -> bool {
        while Descriptor(self.as_fd()).is_ready() {
            if !self.reader.lock().greet(self.as_fd()) {
                return true;
            }
        }
        false
    }

    pub(crate) fn recv<T: Message>(self: &Arc<Self>, wait: Wait) -> Result<T, GetError> {
        self.wait_for(wait, || self.poll_frame()?.map(|frame| self.decode(frame)).transpose())
    }

    /// Receives a [`Bytes`] message. The received bytes are not copied.
    pub(crate) fn recv_bytes(self: &Arc<Self>, wait: Wait) -> Result<Vec<u8>, GetError> {
        self.wait_for(wait, || self.poll_frame()?.map(|frame| self.bytes_of(frame)).transpose())
    }

    /// Calls `poll` until it returns a result, and waits for more data in between.
    pub(super) fn wait_for<R>(
        self: &Arc<Self>,
        wait: Wait,
        poll: impl Fn() -> Result<Option<R>, GetError>,
    ) -> Result<R, GetError> {
        loop {
            // Computed first: a side that keeps sending data that is not a message must not extend the time.
            let left = left(wait);
            if let Some(found) = poll()? {
                return Ok(found);
            }
            match left {
                None | Some(Some(Duration::ZERO)) => return Err(GetError::Empty),
                Some(left) => mp_core::wait(&[&ReadableSocket(self.clone())], left).map_err(Error::from)?,
            };
        }
    }

    /// Asynchronous [`recv`](Self::recv). If the future is dropped, the received part of a message is
    /// retained.
    pub(crate) async fn recv_async<T: Message>(self: &Arc<Self>) -> Result<T, GetError> {
        self.decode(self.arrived().await?)
    }

    /// Asynchronous [`recv_bytes`](Self::recv_bytes).
    pub(crate) async fn recv_bytes_async(self: &Arc<Self>) -> Result<Vec<u8>, GetError> {
        self.bytes_of(self.arrived().await?)
    }

    async fn arrived(self: &Arc<Self>) -> Result<ReceivedFrame, GetError> {
        let what = || Arc::new(ReadableSocket(self.clone())) as SharedWaitable;
        mp_core::until(what, || self.poll_frame().map_err(PollError)).await.map_err(|e| e.0)
    }

    fn bytes_of(self: &Arc<Self>, frame: ReceivedFrame) -> Result<Vec<u8>, GetError> {
        let is_bytes = frame.fingerprint == TypeFingerprint::<Bytes>::new().get();
        if is_bytes && is_name_of::<Bytes>(&frame.name) {
            return Ok(frame.bytes);
        }
        self.decode::<Bytes>(frame).map(|bytes| bytes.0)
    }

    /// Reads available bytes. Returns the message if it is complete.
    fn poll_frame(&self) -> Result<Option<ReceivedFrame>, GetError> {
        let mut reader = self.reader.lock();
        match reader.early.pop_front() {
            Some(frame) => frame.map(Some),
            None => reader.advance(self.as_fd(), self.limit),
        }
    }

    /// Decodes a message. If it has another type, reports this to the other side.
    fn decode<T: Message>(self: &Arc<Self>, frame: ReceivedFrame) -> Result<T, GetError> {
        let fingerprint = frame.fingerprint;
        let error = match value_of(frame) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if let Error::TypeMismatch { expected, found, .. } = &error {
            let note = note_of(expected, found.as_deref().unwrap_or_default(), fingerprint);
            // Not reported if there is no room or the other side is gone.
            _ = PendingSend::new(self, OutgoingFrame::from(note)).advance();
        }
        Err(error.into())
    }
}

/// Encodes a value as a frame.
pub(super) fn frame_of<T: Message>(value: &mut T, limit: usize) -> Result<Vec<u8>, Error> {
    let head = head_of::<T>(0);
    let before = head.len();
    let mut frame = to_bytes_after(head, value)?;
    let len = length(frame.len() - before, limit)?;
    frame[..size_of_val(&len)].copy_from_slice(&len.to_le_bytes());
    Ok(frame)
}

/// Returns the part of a frame before the value: length of the value, fingerprint, length of the type's name,
/// and the name.
pub(super) fn head_of<T: Message>(len: u32) -> Vec<u8> {
    let (name_length, name) = sent_name::<T>();
    let fingerprint = TypeFingerprint::<T>::new().get().to_le_bytes();
    [&len.to_le_bytes(), &fingerprint[..], &name_length, name].concat()
}

/// Encodes a note: length, fingerprint, [`NOTE`], the length of the expected type's name, that name, and the
/// name of the type that was sent.
fn note_of(expected: &str, sent: &str, fingerprint: u64) -> Vec<u8> {
    let cut = |name: &str| name.as_bytes()[..name.len().min(MAX_NAME)].to_vec();
    let (expected, sent) = (cut(expected), cut(sent));
    let len = (LENGTH + expected.len() + sent.len()) as u32;
    let head = [&len.to_le_bytes()[..], &fingerprint.to_le_bytes(), &NOTE.to_le_bytes()].concat();
    [&head[..], &(expected.len() as u16).to_le_bytes(), &expected, &sent].concat()
}

/// Decodes a note.
fn refusal_of(bytes: &[u8]) -> Option<TypeRefusal> {
    let (length, names) = bytes.split_first_chunk::<LENGTH>()?;
    let (expected, sent) = names.split_at_checked(u16::from_le_bytes(*length).into())?;
    let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some(TypeRefusal { sent: name(sent), expected: name(expected) })
}

/// Returns the remaining time to wait: `None` for no waiting, `Some(None)` for no limit.
pub(super) fn left(wait: Wait) -> Option<Option<Duration>> {
    match wait {
        Wait::Never => None,
        Wait::Forever => Some(None),
        Wait::Until(deadline) => Some(Some(deadline.saturating_duration_since(Instant::now()))),
    }
}

/// Decodes the value of a message.
fn value_of<T: Message>(ReceivedFrame { bytes, fingerprint, name }: ReceivedFrame) -> Result<T, Error> {
    // Two names may have the same fingerprint.
    if fingerprint == TypeFingerprint::<T>::new().get() && !is_name_of::<T>(&name) {
        return Err(type_mismatch::<T>(&name, &bytes));
    }
    from_bytes(bytes, fingerprint).map_err(|error| with_name(error, fingerprint, &name))
}

/// Error of [`Socket::poll_frame`] or of waiting.
struct PollError(GetError);

impl From<mp_core::Error> for PollError {
    fn from(e: mp_core::Error) -> Self {
        Self(Error::from(e).into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.peer.host().is_some() && self.process == std::process::id() {
            tcp::discard(self.as_fd());
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("name", &self.given_name())
            .field("peer", &self.peer)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Returns the length of a message for its frame, or an error if it exceeds the limit.
pub(super) fn length(len: usize, limit: usize) -> Result<u32, Error> {
    // The length field has 4 bytes, whatever the options allow.
    let limit = limit.min(u32::MAX as usize);
    u32::try_from(len).ok().filter(|_| len <= limit).ok_or_else(|| {
        let why = format!("a message of {len} bytes, and {limit} is the limit (SocketOptions::max_message)");
        mp_core::Error::LimitExceeded(why).into()
    })
}

#[cfg(any(test, feature = "fuzz"))]
#[path = "fuzz.rs"]
pub(crate) mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with the fingerprint of the expected type and the name of another type.
    #[test]
    fn a_message_with_the_fingerprint_and_another_name_is_of_another_type() {
        let received = |name: &str| {
            let fingerprint = TypeFingerprint::<u8>::new().get();
            value_of::<u8>(ReceivedFrame { bytes: vec![1, 5], fingerprint, name: name.into() })
        };
        assert_eq!(received("u8").unwrap(), 5);
        let error = received("u9").unwrap_err();
        let Error::TypeMismatch { expected, found, bytes } = error else { panic!("{error:?}") };
        assert_eq!((expected, found.as_deref(), &bytes[..]), ("u8", Some("u9"), &[1, 5][..]));
    }

    #[test]
    fn the_limit_that_is_told_is_the_one_that_was_hit() {
        for (len, limit) in [(0, 0), (10, 10), (u32::MAX as usize, usize::MAX)] {
            assert_eq!(length(len, limit).unwrap() as usize, len);
        }
        for (len, limit, told) in
            [(1, 0, 0), (11, 10, 10), (1 << 32, usize::MAX, u32::MAX), (usize::MAX, 1 << 40, u32::MAX)]
        {
            let error = length(len, limit).unwrap_err().to_string();
            assert!(error.contains(&format!("{len} bytes, and {told} is the limit")), "{error}");
        }
    }
}
