//! State of the message that is being sent over a socket.

use std::os::fd::AsFd;

use mp_reduce::Error;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use crate::connection::socket::stream::SocketStream;
use crate::connection::socket::tcp;
use crate::error::PutError;

/// State of sending: the message that is being sent, if any.
#[derive(Default)]
pub(super) struct MessageWriter {
    pub(super) frame: Vec<u8>,
    pub(super) sent: usize,
    /// Number of messages that were begun. `done` counts the messages that were sent completely.
    begun: u64,
    pub(super) done: u64,
    /// `true` if the unsent bytes of the message are in its sender's memory, and `false` if they are in
    /// `frame`.
    pub(super) lent: bool,
    pub(super) closed: bool,
}

/// Frame of a message to send.
pub(super) struct OutgoingFrame<'a> {
    pub(super) head: Vec<u8>,
    /// Bytes that follow `head`, in the caller's memory.
    pub(super) body: &'a [u8],
}

impl From<Vec<u8>> for OutgoingFrame<'_> {
    fn from(head: Vec<u8>) -> Self {
        Self { head, body: &[] }
    }
}

impl OutgoingFrame<'_> {
    /// Appends a short body to the head, so that one system call sends both.
    pub(super) fn joined(mut self) -> Self {
        if self.body.len() <= SHORT {
            self.head.extend_from_slice(self.body);
            self.body = &[];
        }
        self
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Returns unsent bytes, if the first `sent` bytes were sent: the rest of the head, or else the rest of
    /// the body.
    fn after(&self, sent: usize) -> &[u8] {
        match sent.checked_sub(self.head.len()) {
            Some(of_body) => &self.body[of_body..],
            None => &self.head[sent..],
        }
    }

    /// Returns a copy of all bytes after the first `sent`.
    pub(super) fn rest(&self, sent: usize) -> Vec<u8> {
        let head = self.head.len();
        [&self.head[sent.min(head)..], &self.body[sent.saturating_sub(head)..]].concat()
    }

    /// Sends the bytes from offset `sent` on, as many as there is room for. Returns the offset of the first
    /// unsent byte.
    fn send(&self, stream: &SocketStream, mut sent: usize) -> Result<usize, WriteError> {
        while sent < self.len() {
            match send(stream, self.after(sent))? {
                0 => break,
                n => sent += n,
            }
        }
        Ok(sent)
    }
}

/// Largest number of bytes of a body that is copied into the head.
const SHORT: usize = 1 << 14;

/// Cause of a message that was not sent.
pub(in crate::connection) enum WriteError {
    /// The socket has no room for the first byte of the message.
    Full,
    Gone,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for WriteError {
    fn from(e: E) -> Self {
        Self::Failed(e.into())
    }
}

impl WriteError {
    /// Converts the cause into an error that contains the value.
    pub(in crate::connection) fn with<T>(self, value: T) -> PutError<T> {
        match self {
            Self::Full => PutError::Full(value),
            Self::Gone => PutError::Disconnected(value),
            Self::Failed(error) => PutError::Failed { value, error },
        }
    }
}

impl MessageWriter {
    /// Sends the rest of the current message while there is room. Returns `true` if all bytes are sent.
    pub(super) fn flush(&mut self, stream: &SocketStream) -> Result<bool, WriteError> {
        if self.closed {
            return Err(WriteError::Gone);
        }
        if self.lent {
            return Ok(false);
        }
        while self.begun > self.done {
            self.sent += match send(stream, &self.frame[self.sent..]) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(e) => {
                    self.closed = true;
                    self.frame = Vec::new();
                    return Err(e);
                }
            };
            if self.sent == self.frame.len() {
                self.frame = Vec::new();
                self.done = self.begun;
            }
        }
        Ok(true)
    }

    /// Begins a message if the previous message is complete and there is room for a byte. Returns the number
    /// of the message, or `None` if the message was not begun.
    pub(super) fn begin(
        &mut self,
        stream: &SocketStream,
        frame: &mut OutgoingFrame<'_>,
    ) -> Result<Option<u64>, WriteError> {
        if !self.flush(stream)? {
            return Ok(None);
        }
        if stream.is_peer_closed() {
            return Err(WriteError::Gone);
        }
        let sent = send(stream, frame.after(0))?;
        if sent == 0 {
            return Ok(None);
        }
        self.begun += 1;
        if sent == frame.len() {
            self.done = self.begun;
        } else if frame.body.is_empty() {
            (self.frame, self.sent) = (std::mem::take(&mut frame.head), sent);
        } else {
            (self.lent, self.sent) = (true, sent);
        }
        Ok(Some(self.begun))
    }

    /// Continues a message whose unsent bytes are in its sender's memory. Returns `true` if the message is
    /// complete.
    pub(super) fn lend(
        &mut self,
        stream: &SocketStream,
        frame: &OutgoingFrame<'_>,
    ) -> Result<bool, WriteError> {
        let sent = frame.send(stream, self.sent);
        match sent {
            Ok(sent) => self.sent = sent,
            Err(_) => (self.closed, self.lent) = (true, false),
        }
        let all = sent? == frame.len();
        if all {
            (self.lent, self.done) = (false, self.begun);
        }
        Ok(all)
    }
}

/// Sends as many of these bytes as there is room for. Returns the number of bytes sent, which is 0 if there
/// is no room.
fn send(stream: &SocketStream, bytes: &[u8]) -> Result<usize, WriteError> {
    loop {
        return match rustix::net::send(stream.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(n) => Ok(n),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            Err(e) if tcp::is_gone(e) => Err(WriteError::Gone),
            Err(e) => {
                // No other message can follow a partial message.
                _ = rustix::net::shutdown(stream.as_fd(), Shutdown::Both);
                Err(mp_core::Error::Os { what: "sending over a socket", source: e.into() }.into())
            }
        };
    }
}
