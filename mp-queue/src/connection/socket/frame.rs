//! Messages over a socket: each is its length (4 bytes, little-endian), the fingerprint of its type (8), how long the name of
//! its type is (2), that name, and its bytes.
//!
//! A side that gets another type than it expects tells the other one, if there is room in the socket: by a note, whose length
//! of a name is [`NOTE`], whose fingerprint is that of the message, and whose bytes are the two names (`note_of`). It is kept
//! until the connection ends, and is the reason that is given then.
//!
//! Anything in it may be wrong. A length beyond the limit ends the connection, and no more memory is taken
//! than twice what has arrived, whatever the length says (after 4 MiB, no more pages). A name is shown in the
//! error if another type is expected, and only if the fingerprint is the hash of it.
//!
//! A receiver or sender locks the state of the message under way, goes as far as the kernel lets it, and
//! unlocks before it waits. So threads and futures may use one end at the same time, and one of them
//! continues what another has begun: a message of which a part is sent is *begun*. It is sent to its end
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
use super::handshake::{Greeting, Met, Peer, read};
use super::invitation::is_invitation;
use super::outbox::{Frame, Sending, Writer};
use super::tcp;
use crate::connection::bytes::Bytes;
use crate::connection::named::{LENGTH, LONGEST, is_of, other_type, sent_name, with_name};
use crate::error::{GetError, TypeRefusal};

/// Length, fingerprint and length of the name.
const HEAD: usize = 12 + LENGTH;
/// What stands in place of the length of a name in a note.
const NOTE: u16 = u16::MAX;
/// How many bytes a note has, at most.
const LONGEST_NOTE: usize = LENGTH + 2 * LONGEST;
/// How many notes are read at once: a side that sends nothing else must not keep a caller here for longer than its time.
pub(super) const NOTES_AT_ONCE: u32 = 1024;
/// How many bytes of buffer are made at first.
const FIRST: usize = 1 << 16;
/// Number of received bytes after which the buffer gets room for the whole message: addresses, and pages only
/// where bytes have arrived.
const WHOLE: usize = 4 << 20;

/// One end of a connection between two programs.
pub(crate) struct Socket {
    fd: OwnedFd,
    peer: Peer,
    /// Process that has connected: a copy of it (`fork`) does not read what is the original's.
    process: u32,
    pub(super) limit: usize,
    /// As this process calls it.
    name: Mutex<Option<String>>,
    pub(super) reader: Mutex<Reader>,
    pub(super) writer: Mutex<Writer>,
}

/// What has arrived of the next message. It stays when a receive times out. No thread waits while it holds
/// the lock.
#[derive(Default)]
pub(super) struct Reader {
    /// What comes before the first message.
    greeting: Option<Greeting>,
    /// What was wrong with it, until a call returns it.
    pub(super) refused: Option<ConnectError>,
    head: [u8; HEAD],
    have: usize,
    name: Vec<u8>,
    body: Vec<u8>,
    /// Messages that a send has found here when it looked for a note, and what ended them, unless the other side just closed.
    early: VecDeque<Result<Arrived, GetError>>,
    /// What the other side has refused, as it says.
    refusal: Option<Box<TypeRefusal>>,
    over: bool,
}

/// A whole message.
pub(super) struct Arrived {
    bytes: Vec<u8>,
    /// Of its type.
    fingerprint: u64,
    /// Of its type, as the other side says; none if it is too long to be sent.
    name: Vec<u8>,
}

/// What was read to its end.
pub(super) enum Next {
    Message(Arrived),
    Note,
    /// There is nothing more to read now.
    Nothing,
}

/// Whether what begins like this is a note.
pub(super) fn begins_a_note(bytes: &[u8]) -> bool {
    bytes.get(HEAD - LENGTH..HEAD) == Some(&NOTE.to_le_bytes())
}

/// Reads more of `len` bytes, of which `into` has the first. Each byte is written once, by the kernel: zeroing the buffer for
/// each read would make a long message quadratic.
fn more(fd: BorrowedFd<'_>, into: &mut Vec<u8>, len: usize) -> Result<usize, Errno> {
    let start = into.len();
    let has_room = start < into.capacity() || start >= WHOLE && into.try_reserve_exact(len - start).is_ok();
    if !has_room {
        into.reserve_exact(len.min(start + start.max(FIRST)) - start);
    }
    if into.capacity() <= len {
        return rustix::net::recv(fd, spare_capacity(into), RecvFlags::empty()).map(|(n, _)| n);
    }
    // An allocator may give more than it was asked for. The bytes after this message belong to the next one.
    into.resize(len.min(start + FIRST), 0);
    let n = read(fd, &mut into[start..]);
    into.truncate(start + n.unwrap_or(0));
    n
}

impl Reader {
    /// Reads what there is, up to the end of one message; `None` when there is nothing more to read now.
    fn advance(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Result<Option<Arrived>, GetError> {
        if !self.is_greeted(fd)? {
            return Ok(None);
        }
        let most = NOTES_AT_ONCE;
        for _ in 0..most {
            match self.read_next(fd, limit)? {
                Next::Message(arrived) => return Ok(Some(arrived)),
                Next::Note => {}
                Next::Nothing => break,
            }
        }
        Ok(None)
    }

    /// Reads what there is, up to the end of one message or note. The greeting has been read.
    pub(super) fn read_next(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Result<Next, GetError> {
        loop {
            let [a, b, c, d, fingerprint @ .., e, f] = self.head;
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            let name = u16::from_le_bytes([e, f]);
            let is_note = self.is_in_note();
            let (name, limit) = if is_note { (0, LONGEST_NOTE) } else { (usize::from(name), limit) };
            let n = if self.have < HEAD {
                read(fd, &mut self.head[self.have..])
            } else if len > limit {
                let why = format!(
                    "a message of {len} bytes arrives, and {limit} is the limit here (SocketOptions::max_message)"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if name > LONGEST {
                let why = format!(
                    "a message arrives whose type has a name of {name} bytes, and {LONGEST} is the limit"
                );
                return Err(self.end(fd, mp_core::Error::LimitExceeded(why)));
            } else if self.name.len() < name {
                more(fd, &mut self.name, name)
            } else if self.body.len() < len {
                more(fd, &mut self.body, len)
            } else if is_note {
                self.have = 0;
                self.refusal = refusal_of(&std::mem::take(&mut self.body)).map(Box::new);
                return Ok(Next::Note);
            } else {
                self.have = 0;
                return Ok(Next::Message(Arrived {
                    bytes: std::mem::take(&mut self.body),
                    fingerprint: u64::from_le_bytes(fingerprint),
                    name: std::mem::take(&mut self.name),
                }));
            };
            match n.or_else(|e| if tcp::is_gone(e) { Ok(0) } else { Err(e) }) {
                Ok(0) if self.have == 0 => {
                    self.over = true;
                    return Err(self.gone());
                }
                Ok(0) => {
                    let why = "the other end is gone, in the middle of a message";
                    return Err(self.end(fd, mp_core::Error::Malformed(why.into())));
                }
                Ok(n) if self.have < HEAD => self.have += n,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Next::Nothing),
                Err(e) => {
                    let what = "reading from the other end of a connection";
                    return Err(self.end(fd, mp_core::Error::Os { what, source: e.into() }));
                }
            }
        }
    }

    /// The other end is gone, and why if it said so.
    pub(super) fn gone(&self) -> GetError {
        self.refusal.clone().map_or(GetError::Disconnected, GetError::TypeRefused)
    }

    /// Whether a note was begun, and is to be read on.
    pub(super) fn is_in_note(&self) -> bool {
        self.have == HEAD && begins_a_note(&self.head)
    }

    /// The other end is closed: reads what it has sent, for the note in it, up to an invitation, whose file would be lost.
    pub(super) fn find_note(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Option<Box<TypeRefusal>> {
        let invites = |have| have == 0 && is_invitation(fd);
        while !self.over && self.greeting.is_none() && !invites(self.have) {
            match self.read_next(fd, limit) {
                Ok(Next::Message(arrived)) => self.early.push_back(Ok(arrived)),
                Ok(Next::Note) => {}
                Ok(Next::Nothing) | Err(GetError::Disconnected | GetError::TypeRefused(_)) => break,
                Err(error) => self.early.push_back(Err(error)),
            }
        }
        self.refusal.clone()
    }

    /// Keeps what has arrived for a receive.
    pub(super) fn keep(&mut self, arrived: Arrived) {
        self.early.push_back(Ok(arrived));
    }

    /// Reads what there is of the greeting; whether messages can follow.
    pub(super) fn is_greeted(&mut self, fd: BorrowedFd<'_>) -> Result<bool, GetError> {
        self.greet(fd);
        if let Some(refused) = self.refused.take() {
            return Err(GetError::Failed(refusal(refused)));
        }
        if self.over {
            return Err(self.gone());
        }
        Ok(self.greeting.is_none())
    }

    /// Whether a message can begin with what is next to be read.
    pub(super) fn is_between_messages(&self) -> bool {
        self.have == 0 && self.early.is_empty()
    }

    /// Whether something is to be received before what is next to be read.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Reads what there is of the greeting, if it is still to come; whether it was.
    pub(super) fn greet(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Some(greeting) = &mut self.greeting else { return false };
        match greeting.advance(fd) {
            Ok(false) => {}
            Ok(true) => self.greeting = None,
            Err(refused) => {
                // A listener that is gone has not refused.
                let refused = Some(refused).filter(|e| !matches!(e, ConnectError::Gone));
                (self.greeting, self.refused, self.over) = (None, refused, true);
                // As in `end`.
                _ = rustix::net::shutdown(fd, Shutdown::Both);
            }
        }
        true
    }

    /// Ends the connection: nothing that follows would make sense.
    fn end(&mut self, fd: BorrowedFd<'_>, error: mp_core::Error) -> GetError {
        self.over = true;
        (self.name, self.body) = (Vec::new(), Vec::new());
        // So that the other end sees it. It fails if that is gone, where nothing is left to do.
        _ = rustix::net::shutdown(fd, Shutdown::Both);
        GetError::Failed(error.into())
    }
}

/// What arrives at a socket, as something to wait for.
struct Arrivals(Arc<Socket>);

impl Waitable for Arrivals {
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

/// Room in a socket, as something to wait for.
pub(super) struct Room(pub(super) Arc<Socket>);

impl Waitable for Room {
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

/// What the kernel says of a descriptor now.
pub(super) fn found(fd: BorrowedFd<'_>, asked: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, asked)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

impl Socket {
    pub(crate) fn new(met: Met, limit: usize) -> Self {
        let Met { fd, peer, greeting } = met;
        let reader = Mutex::new(Reader { greeting, ..Reader::default() });
        let (process, name) = (std::process::id(), Mutex::default());
        Self { fd, peer, process, limit, name, reader, writer: Mutex::default() }
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.lock() = Some(name.into());
    }

    pub(crate) fn given_name(&self) -> Option<String> {
        self.name.lock().clone()
    }

    /// As reports call it.
    pub(crate) fn described(&self) -> String {
        let name = self.given_name().map(|name| format!(" {name:?}")).unwrap_or_default();
        match self.peer {
            Peer::Process(process) => format!("socket{name} to pid {}", process.pid),
            Peer::Host(host) => format!("socket{name} to {host}"),
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    pub(crate) fn shut_down(&self) {
        // It fails if the other end is gone, where nothing is left to do.
        _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
    }

    /// Whether the other end is gone; what it sent may still be there.
    pub(crate) fn is_disconnected(&self) -> bool {
        // Over TCP, the end of the other side alone is not a hang-up.
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        found(self.as_fd(), PollFlags::RDHUP).intersects(gone)
    }

    /// Returns `true` if sending would be in vain. The kernel says so of a Unix socket by itself; over TCP it
    /// takes bytes for a side that is gone, until that one's host has refused them.
    pub(super) fn is_known_to_be_gone(&self) -> bool {
        self.peer.host().is_some() && self.is_disconnected()
    }

    /// Whether there is something to receive: a message or its beginning, the end, or that the other side refused.
    pub(crate) fn has_arrived(&self) -> bool {
        while Descriptor(self.as_fd()).is_ready() {
            if !self.reader.lock().greet(self.as_fd()) {
                return true;
            }
        }
        false
    }

    pub(crate) fn recv<T: Message>(self: &Arc<Self>, wait: Wait) -> Result<T, GetError> {
        self.wait_for(wait, || self.look()?.map(|arrived| self.decode(arrived)).transpose())
    }

    /// Receives a [`Bytes`] message. Its bytes are those that arrived: they are not copied.
    pub(crate) fn recv_bytes(self: &Arc<Self>, wait: Wait) -> Result<Vec<u8>, GetError> {
        self.wait_for(wait, || self.look()?.map(|arrived| self.bytes_of(arrived)).transpose())
    }

    /// Looks until there is something, and waits for more to arrive in between.
    pub(super) fn wait_for<R>(
        self: &Arc<Self>,
        wait: Wait,
        look: impl Fn() -> Result<Option<R>, GetError>,
    ) -> Result<R, GetError> {
        loop {
            // Before it looks: a side that goes on sending what is no message does not make this longer.
            let left = left(wait);
            if let Some(found) = look()? {
                return Ok(found);
            }
            match left {
                None | Some(Some(Duration::ZERO)) => return Err(GetError::Empty),
                Some(left) => mp_core::wait(&[&Arrivals(self.clone())], left).map_err(Error::from)?,
            };
        }
    }

    /// As [`recv`](Self::recv), as a future. What has arrived of a message stays when it is dropped.
    pub(crate) async fn recv_async<T: Message>(self: &Arc<Self>) -> Result<T, GetError> {
        self.decode(self.arrived().await?)
    }

    /// As [`recv_bytes`](Self::recv_bytes), as a future.
    pub(crate) async fn recv_bytes_async(self: &Arc<Self>) -> Result<Vec<u8>, GetError> {
        self.bytes_of(self.arrived().await?)
    }

    async fn arrived(self: &Arc<Self>) -> Result<Arrived, GetError> {
        let what = || Arc::new(Arrivals(self.clone())) as SharedWaitable;
        mp_core::until(what, || self.look().map_err(Looked)).await.map_err(|e| e.0)
    }

    fn bytes_of(self: &Arc<Self>, arrived: Arrived) -> Result<Vec<u8>, GetError> {
        let is_bytes = arrived.fingerprint == TypeFingerprint::<Bytes>::new().get();
        if is_bytes && is_of::<Bytes>(&arrived.name) {
            return Ok(arrived.bytes);
        }
        self.decode::<Bytes>(arrived).map(|bytes| bytes.0)
    }

    /// Reads what there is; the message, if it is whole.
    fn look(&self) -> Result<Option<Arrived>, GetError> {
        let mut reader = self.reader.lock();
        match reader.early.pop_front() {
            Some(arrived) => arrived.map(Some),
            None => reader.advance(self.as_fd(), self.limit),
        }
    }

    /// The value of a message. If it is of another type, the other side is told.
    fn decode<T: Message>(self: &Arc<Self>, arrived: Arrived) -> Result<T, GetError> {
        let fingerprint = arrived.fingerprint;
        let error = match value_of(arrived) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if let Error::TypeMismatch { expected, found, .. } = &error {
            let note = note_of(expected, found.as_deref().unwrap_or_default(), fingerprint);
            // Where there is no room, or the other side is gone, it does not hear of it.
            _ = Sending::new(self, Frame::from(note)).advance();
        }
        Err(error.into())
    }
}

/// A value as it is sent.
pub(super) fn frame_of<T: Message>(value: &mut T, limit: usize) -> Result<Vec<u8>, Error> {
    let head = head_of::<T>(0);
    let before = head.len();
    let mut frame = to_bytes_after(head, value)?;
    let len = length(frame.len() - before, limit)?;
    frame[..size_of_val(&len)].copy_from_slice(&len.to_le_bytes());
    Ok(frame)
}

/// Bytes before the value of a message: length of the value, fingerprint, length of the type's name, and the name.
pub(super) fn head_of<T: Message>(len: u32) -> Vec<u8> {
    let (name_length, name) = sent_name::<T>();
    let fingerprint = TypeFingerprint::<T>::new().get().to_le_bytes();
    [&len.to_le_bytes(), &fingerprint[..], &name_length, name].concat()
}

/// A note: length, fingerprint, that it is one; the length of the expected type's name, that name, and that of the type which was sent.
fn note_of(expected: &str, sent: &str, fingerprint: u64) -> Vec<u8> {
    let cut = |name: &str| name.as_bytes()[..name.len().min(LONGEST)].to_vec();
    let (expected, sent) = (cut(expected), cut(sent));
    let len = (LENGTH + expected.len() + sent.len()) as u32;
    let head = [&len.to_le_bytes()[..], &fingerprint.to_le_bytes(), &NOTE.to_le_bytes()].concat();
    [&head[..], &(expected.len() as u16).to_le_bytes(), &expected, &sent].concat()
}

/// What the bytes of a note say.
fn refusal_of(bytes: &[u8]) -> Option<TypeRefusal> {
    let (length, names) = bytes.split_first_chunk::<LENGTH>()?;
    let (expected, sent) = names.split_at_checked(u16::from_le_bytes(*length).into())?;
    let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some(TypeRefusal { sent: name(sent), expected: name(expected) })
}

/// How long to wait, if at all: with or without an end.
pub(super) fn left(wait: Wait) -> Option<Option<Duration>> {
    match wait {
        Wait::Never => None,
        Wait::Forever => Some(None),
        Wait::Until(deadline) => Some(Some(deadline.saturating_duration_since(Instant::now()))),
    }
}

/// The value of a message.
fn value_of<T: Message>(Arrived { bytes, fingerprint, name }: Arrived) -> Result<T, Error> {
    // Two names may have one fingerprint.
    if fingerprint == TypeFingerprint::<T>::new().get() && !is_of::<T>(&name) {
        return Err(other_type::<T>(&name, &bytes));
    }
    from_bytes(bytes, fingerprint).map_err(|error| with_name(error, fingerprint, &name))
}

/// An error of [`Socket::look`], or of waiting.
struct Looked(GetError);

impl From<mp_core::Error> for Looked {
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

/// The length of a message as it is written in its frame, if it may be so long.
pub(super) fn length(len: usize, limit: usize) -> Result<u32, Error> {
    // There is no room for more in a frame, whatever the options say.
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

    /// A message with the fingerprint of the type that is expected, and the name of another.
    #[test]
    fn a_message_with_the_fingerprint_and_another_name_is_of_another_type() {
        let received = |name: &str| {
            let fingerprint = TypeFingerprint::<u8>::new().get();
            value_of::<u8>(Arrived { bytes: vec![1, 5], fingerprint, name: name.into() })
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
