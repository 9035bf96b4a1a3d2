//! Sending over a socket that may be full.
//!
//! A message is *begun* when its first byte is sent. From then on, the socket's [`FrameWriter`] stores its rest,
//! and the next send finishes it first.
//!
//! A blocking send of long bytes lends them instead: the rest of the message stays with the caller, and only
//! its thread continues the message. Other senders have no room until it is done. If the call gives up, the
//! rest moves to the writer.
//!
//! | dropped, or timed out | left | effect |
//! |---|---|---|
//! | before the message is begun | nothing | it is not sent |
//! | after that | the rest in the writer | the next send sends it, or a [`Flusher`] when there is room |
//! | the last handle of the connection, after that | the flusher has the socket | it closes it when the rest is sent |
//! | the process ends, or is killed | part of a message in the socket | the other end gets an error for a truncated message |

use std::sync::Arc;
use std::task::{Wake, Waker};

use mp_core::WakeRegistration;
use mp_core::mutex::Mutex;
use mp_reduce::Error;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::frame::{Socket, WritableSocket};
use super::tcp;
use crate::error::PutError;

/// The message that is being sent, if any.
#[derive(Default)]
pub(super) struct FrameWriter {
    frame: Vec<u8>,
    sent: usize,
    /// Number of messages that were begun, and number that were sent completely.
    begun: u64,
    done: u64,
    /// `true` if the sender has the rest of the message.
    lent: bool,
    closed: bool,
}

/// Bytes of a message to be sent.
pub(super) struct OutgoingFrame<'a> {
    pub(super) head: Vec<u8>,
    /// Bytes after the head that the caller still owns.
    pub(super) body: &'a [u8],
}

impl From<Vec<u8>> for OutgoingFrame<'_> {
    fn from(head: Vec<u8>) -> Self {
        Self { head, body: &[] }
    }
}

impl OutgoingFrame<'_> {
    /// Joins both parts if the body is short, so that one system call sends them.
    fn joined(mut self) -> Self {
        if self.body.len() <= SHORT {
            self.head.extend_from_slice(self.body);
            self.body = &[];
        }
        self
    }

    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Returns the bytes of one part that follow the first `sent`.
    fn after(&self, sent: usize) -> &[u8] {
        match sent.checked_sub(self.head.len()) {
            Some(of_body) => &self.body[of_body..],
            None => &self.head[sent..],
        }
    }

    /// Returns the bytes of both parts that follow the first `sent`.
    fn rest(&self, sent: usize) -> Vec<u8> {
        let head = self.head.len();
        [&self.head[sent.min(head)..], &self.body[sent.saturating_sub(head)..]].concat()
    }

    /// Sends bytes from `sent` on while there is room. Returns the total number of bytes sent.
    fn send(&self, socket: &Socket, mut sent: usize) -> Result<usize, WriteError> {
        while sent < self.len() {
            match send(socket, self.after(sent))? {
                0 => break,
                n => sent += n,
            }
        }
        Ok(sent)
    }
}

/// Longest body that is copied after its head.
const SHORT: usize = 1 << 14;

pub(in crate::connection) enum WriteError {
    Gone,
    Failed(mp_core::Error),
}

impl From<mp_core::Error> for WriteError {
    fn from(e: mp_core::Error) -> Self {
        Self::Failed(e)
    }
}

impl WriteError {
    /// Converts into an error with the value.
    pub(super) fn with<T>(self, value: T) -> PutError<T> {
        match self {
            Self::Gone => PutError::Disconnected(value),
            Self::Failed(e) => PutError::Failed { value, error: Error::from(e) },
        }
    }
}

impl FrameWriter {
    /// Sends the rest of the message while there is room. Returns `true` if nothing is left.
    pub(super) fn flush(&mut self, socket: &Socket) -> Result<bool, WriteError> {
        if self.closed {
            return Err(WriteError::Gone);
        }
        if self.lent {
            return Ok(false);
        }
        while self.begun > self.done {
            self.sent += match send(socket, &self.frame[self.sent..]) {
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

    /// Begins a message if the previous one is complete and there is room for a byte. Returns its number.
    fn begin(&mut self, socket: &Socket, frame: &mut OutgoingFrame<'_>) -> Result<Option<u64>, WriteError> {
        if !self.flush(socket)? {
            return Ok(None);
        }
        if socket.is_peer_closed() {
            return Err(WriteError::Gone);
        }
        let sent = send(socket, frame.after(0))?;
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

    /// Continues a message whose rest its sender has. Returns `true` if it is complete.
    fn lend(&mut self, socket: &Socket, frame: &OutgoingFrame<'_>) -> Result<bool, WriteError> {
        let sent = frame.send(socket, self.sent);
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

/// Sends some of these bytes. Returns 0 if there is no room.
fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, WriteError> {
    use std::os::fd::AsFd;
    loop {
        return match rustix::net::send(socket.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(n) => Ok(n),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            Err(e) if tcp::is_gone(e) => Err(WriteError::Gone),
            Err(e) => {
                // No other message can follow a partial message.
                _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
                Err(WriteError::Failed(mp_core::Error::Os {
                    what: "sending over a socket",
                    source: e.into(),
                }))
            }
        };
    }
}

/// A message that is being sent. If it was begun, dropping this continues it in the background.
pub(super) struct PendingSend<'a> {
    socket: &'a Arc<Socket>,
    frame: OutgoingFrame<'a>,
    /// Number of the message, if it was begun and is not complete.
    begun: Option<u64>,
}

impl<'a> PendingSend<'a> {
    pub(super) fn new(socket: &'a Arc<Socket>, frame: OutgoingFrame<'a>) -> Self {
        Self { socket, frame: frame.joined(), begun: None }
    }

    /// Returns `true` if the message is partly sent.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Continues the message. Returns `true` if it is complete.
    pub(super) fn advance(&mut self) -> Result<bool, WriteError> {
        let mut writer = self.socket.writer.lock();
        if self.begun.is_none() {
            self.begun = writer.begin(self.socket, &mut self.frame)?;
        }
        if self.begun.is_some_and(|mine| writer.done < mine) {
            // Only this thread continues a message whose body it still owns.
            let lent = !self.frame.body.is_empty() && !writer.closed;
            let sent = if lent { writer.lend(self.socket, &self.frame) } else { writer.flush(self.socket) };
            if let Err(e) = sent {
                self.begun = None;
                return Err(e);
            }
        }
        let done = self.begun.is_some_and(|mine| writer.done >= mine);
        if done {
            self.begun = None;
        }
        Ok(done)
    }
}

impl Drop for PendingSend<'_> {
    fn drop(&mut self) {
        if self.begun.is_some() {
            let mut writer = self.socket.writer.lock();
            if writer.lent && !self.frame.body.is_empty() {
                writer.frame = self.frame.rest(writer.sent);
                (writer.lent, writer.sent) = (false, 0);
            }
            drop(writer);
            let flusher = Flusher { socket: self.socket.clone(), watch: Mutex::new(None) };
            Arc::new(flusher).wake();
        }
    }
}

/// Sends the rest of a message whose sender does not wait any more. It is woken when there is room, and
/// dropped when nothing is left.
struct Flusher {
    socket: Arc<Socket>,
    watch: Mutex<Option<WakeRegistration>>,
}

impl Wake for Flusher {
    fn wake(self: Arc<Self>) {
        // The other end gets the error, or the next send returns it.
        let left = matches!(self.socket.writer.lock().flush(&self.socket), Ok(false));
        if !left {
            return;
        }
        let waker = Waker::from(self.clone());
        let room = || WakeRegistration::new(Arc::new(WritableSocket(self.socket.clone())));
        if self.watch.lock().get_or_insert_with(room).arm(&waker).is_err() {
            // No thread or descriptor is left for the flusher: the rest is not sent, and the other end gets
            // an error.
            _ = rustix::net::shutdown(std::os::fd::AsFd::as_fd(&*self.socket), Shutdown::Both);
        }
    }
}
