//! Messages over a socket: each is its length (4 bytes, little-endian), the fingerprint of its type (8), and its bytes.
//!
//! Of what comes from there anything may be wrong. A length beyond the limit ends the connection, and no more memory is
//! taken than twice what has arrived, whatever the length says.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mp_core::{Descriptor, Message, Place, Waitable};
use mp_reduce::{Error, TypeFingerprint, from_bytes, to_bytes};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::handshake::{Met, read};
use super::peer::Peer;
use crate::error::{GetError, PutError};
use crate::raw::Wait;

/// Length and fingerprint.
const HEAD: usize = 12;
/// Room for so many bytes is made at first.
const FIRST: usize = 1 << 16;

/// One end of a connection between two programs.
pub(crate) struct Socket {
    fd: OwnedFd,
    peer: Peer,
    limit: usize,
    reader: Mutex<Reader>,
    /// Held while a message is written.
    writer: Mutex<()>,
}

/// What there is of the next message. It stays when somebody has waited long enough.
#[derive(Default)]
struct Reader {
    head: [u8; HEAD],
    have: usize,
    body: Vec<u8>,
    over: bool,
}

/// A message that has arrived, and the fingerprint of its type.
type Arrived = (Vec<u8>, u64);

impl Reader {
    /// Reads what there is, up to the end of one message; `None` when there is nothing more to read now.
    fn advance(&mut self, fd: BorrowedFd<'_>, limit: usize) -> Result<Option<Arrived>, GetError> {
        if self.over {
            return Err(GetError::Disconnected);
        }
        loop {
            let [a, b, c, d, fingerprint @ ..] = self.head;
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            let n = if self.have < HEAD {
                read(fd, &mut self.head[self.have..])
            } else if len > limit {
                let why = format!(
                    "a message of {len} bytes arrives, and {limit} is the limit here (SocketOptions::max_message)"
                );
                return Err(self.end(fd, why));
            } else if self.body.len() == len {
                self.have = 0;
                return Ok(Some((std::mem::take(&mut self.body), u64::from_le_bytes(fingerprint))));
            } else {
                let start = self.body.len();
                self.body.resize(len.min(start + start.max(FIRST)), 0);
                let n = read(fd, &mut self.body[start..]);
                self.body.truncate(start + n.unwrap_or(0));
                n
            };
            match n {
                Ok(0) | Err(Errno::CONNRESET) if self.have == 0 => {
                    self.over = true;
                    return Err(GetError::Disconnected);
                }
                Ok(0) | Err(Errno::CONNRESET) => {
                    return Err(self.end(fd, "the other end is gone, in the middle of a message".into()));
                }
                Ok(n) if self.have < HEAD => self.have += n,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(self.end(fd, format!("reading from the other end: {e}"))),
            }
        }
    }

    /// Nothing that follows would make sense.
    fn end(&mut self, fd: BorrowedFd<'_>, why: String) -> GetError {
        self.over = true;
        self.body = Vec::new();
        // The other end is told. It fails if that is gone, which is as well.
        _ = rustix::net::shutdown(fd, Shutdown::Both);
        GetError::Failed(mp_core::Error::Malformed(why).into())
    }
}

/// As something to wait for.
struct Writable<'a>(BorrowedFd<'a>);

impl Waitable for Writable<'_> {
    fn place(&self) -> Place<'_> {
        Place::Writable(self.0)
    }

    fn is_ready(&self) -> bool {
        found(self.0, PollFlags::OUT) != PollFlags::empty()
    }
}

/// What the kernel says of a descriptor now.
fn found(fd: BorrowedFd<'_>, asked: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, asked)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

impl Socket {
    pub(crate) fn new(met: Met, limit: usize) -> Self {
        let Met { fd, peer } = met;
        Self { fd, peer, limit, reader: Mutex::default(), writer: Mutex::default() }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether the other end is gone; what it sent may still be there.
    pub(crate) fn is_disconnected(&self) -> bool {
        found(self.as_fd(), PollFlags::empty()).intersects(PollFlags::HUP | PollFlags::ERR)
    }

    pub(crate) fn send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        let failed = |value, error: Error| PutError::Failed { value: Some(value), error };
        let bytes = match to_bytes(&value) {
            Ok(bytes) => bytes,
            Err(e) => return Err(failed(value, e)),
        };
        let len = match u32::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= self.limit => len,
            _ => {
                let (len, limit) = (bytes.len(), self.limit);
                let why = format!(
                    "a message of {len} bytes, and {limit} is the limit (SocketOptions::max_message)"
                );
                return Err(failed(value, mp_core::Error::Malformed(why).into()));
            }
        };
        let mut frame = Vec::with_capacity(HEAD + bytes.len());
        frame.extend_from_slice(&len.to_le_bytes());
        frame.extend_from_slice(&TypeFingerprint::<T>::new().get().to_le_bytes());
        frame.extend_from_slice(&bytes);
        match self.write(&frame) {
            Ok(()) => Ok(()),
            Err(WriteError::Gone) => Err(PutError::Disconnected(value)),
            Err(WriteError::Failed(e)) => Err(failed(value, e.into())),
        }
    }

    /// Writes it all; waits while the other end does not read.
    fn write(&self, mut frame: &[u8]) -> Result<(), WriteError> {
        let _whole = self.writer.lock();
        while !frame.is_empty() {
            match rustix::net::send(&self.fd, frame, SendFlags::NOSIGNAL) {
                Ok(n) => frame = &frame[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    mp_core::wait(&[&Writable(self.as_fd())], None).map_err(|error| self.broken(error))?;
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(WriteError::Gone),
                Err(e) => {
                    let what = "sending over a socket";
                    return Err(self.broken(mp_core::Error::Os { what, source: e.into() }));
                }
            }
        }
        Ok(())
    }

    /// Half a message can't be followed by another one.
    fn broken(&self, error: mp_core::Error) -> WriteError {
        _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
        WriteError::Failed(error)
    }

    pub(crate) fn recv<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        let reader = match wait {
            Wait::Never => self.reader.try_lock(),
            Wait::Until(deadline) => self.reader.try_lock_until(deadline),
            Wait::Forever => Some(self.reader.lock()),
        };
        // Somebody else receives what comes next.
        let Some(mut reader) = reader else { return Err(GetError::Empty) };
        let (bytes, fingerprint) = loop {
            if let Some(arrived) = reader.advance(self.as_fd(), self.limit)? {
                break arrived;
            }
            let left = match wait {
                Wait::Never => return Err(GetError::Empty),
                Wait::Forever => None,
                Wait::Until(deadline) => Some(deadline.saturating_duration_since(std::time::Instant::now())),
            };
            let found = mp_core::wait(&[&Descriptor(self.as_fd())], left).map_err(Error::from)?;
            if found.is_empty() {
                return Err(GetError::Empty);
            }
        };
        drop(reader);
        Ok(from_bytes(bytes, fingerprint)?)
    }
}

enum WriteError {
    Gone,
    Failed(mp_core::Error),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("peer", &self.peer).field("limit", &self.limit).finish_non_exhaustive()
    }
}
