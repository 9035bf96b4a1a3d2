//! End of a connection over a socket: its descriptor and the state of its messages.
//!
//! A receiver or sender locks the state of the current message, advances the message as far as possible, and
//! unlocks the state before it waits. So several threads and futures may use one end at the same time. A
//! thread may continue a message that another thread has begun. A message is *begun* when its first byte is
//! sent. It is sent completely before the next message begins, even if its sender is a future that is
//! dropped: see [`outbox`](super::outbox).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use mp_core::{Descriptor, Wait, WaitPoint, Waitable};
use rustix::event::PollFlags;
use rustix::net::Shutdown;

use super::reader::MessageReader;
use super::writer::MessageWriter;
use crate::connection::socket::handshake::Handshake;
use crate::connection::socket::stream::{PeerIdentity, SocketStream, found};
use crate::connection::socket::tcp;

/// End of a connection between two programs.
pub(crate) struct Socket {
    pub(super) stream: SocketStream,
    /// Process that established the connection. A forked copy must not discard the data of this process.
    process: u32,
    pub(super) limit: usize,
    /// Name of the connection, local to this process.
    name: Mutex<Option<String>>,
    pub(super) reader: Mutex<MessageReader>,
    pub(super) writer: Mutex<MessageWriter>,
}

impl Socket {
    pub(crate) fn new(handshake: Handshake, limit: usize) -> Self {
        let (stream, greeting) = handshake.end();
        let reader = Mutex::new(MessageReader::new(greeting));
        let (process, name) = (std::process::id(), Mutex::default());
        Self { stream, process, limit, name, reader, writer: Mutex::default() }
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.lock() = Some(name.into());
    }

    pub(crate) fn given_name(&self) -> Option<String> {
        self.name.lock().clone()
    }

    /// Returns the description of the connection for reports of long waits.
    pub(crate) fn description(&self) -> String {
        let name = self.given_name().map(|name| format!(" {name:?}")).unwrap_or_default();
        match self.stream.peer {
            PeerIdentity::Process(process) => format!("socket{name} to pid {}", process.pid),
            PeerIdentity::Host(host) => format!("socket{name} to {host}"),
        }
    }

    pub(crate) fn peer(&self) -> PeerIdentity {
        self.stream.peer
    }

    pub(crate) fn shut_down(&self) {
        // If the other end is closed, this fails, and nothing is left to do.
        _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
    }

    /// Returns `true` if the other end is closed. Its messages may still be unread.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.stream.is_disconnected()
    }

    /// Provides an empty buffer into which the next message is received.
    pub(crate) fn lend(&self, memory: Vec<u8>) {
        self.reader.lock().lent = memory;
    }

    /// Returns the provided buffer, or an empty vector if a message was received into the buffer.
    pub(crate) fn take_back(&self) -> Vec<u8> {
        std::mem::take(&mut self.reader.lock().lent)
    }

    /// Returns `true` if a receive would not wait: a message or its beginning has arrived, the other end is
    /// closed, or it has refused the handshake.
    pub(crate) fn has_arrived(&self) -> bool {
        while Descriptor(self.as_fd()).is_ready() {
            if !self.reader.lock().greet(self.as_fd()) {
                return true;
            }
        }
        false
    }
}

/// Waitable for bytes to receive from a socket, or for room to send if `room` is set.
pub(super) struct SocketReady {
    pub(super) socket: Arc<Socket>,
    pub(super) room: bool,
}

impl Waitable for SocketReady {
    fn wait_point(&self) -> WaitPoint<'_> {
        let fd = self.socket.as_fd();
        if self.room { WaitPoint::Writable(fd) } else { WaitPoint::Readable(fd) }
    }

    fn is_ready(&self) -> bool {
        match self.room {
            true => found(self.socket.as_fd(), PollFlags::OUT) != PollFlags::empty(),
            false => self.socket.has_arrived(),
        }
    }

    fn description(&self) -> Option<String> {
        let room = if self.room { "room in " } else { "" };
        Some(format!("{room}{}", self.socket.description()))
    }
}

/// Converts a wait into a time-out: `None` means that the call must not wait, and `Some(None)` means no
/// limit.
pub(super) fn left(wait: Wait) -> Option<Option<Duration>> {
    match wait {
        Wait::Never => None,
        Wait::Forever => Some(None),
        Wait::Until(deadline) => Some(Some(deadline.saturating_duration_since(Instant::now()))),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.stream.peer.host().is_some() && self.process == std::process::id() {
            tcp::discard(self.as_fd());
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("name", &self.given_name())
            .field("peer", &self.stream.peer)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
