//! Sending over a socket whose buffer may be full.
//!
//! A message is *begun* when its first byte is sent. The socket's
//! [`MessageWriter`](super::writer::MessageWriter) stores the unsent rest of a begun message. The next send
//! continues that message before its own.
//!
//! A blocking send of more than 16 KiB of raw bytes does not copy the bytes: the unsent rest stays in the
//! caller's memory, and only the calling thread continues the message. Meanwhile, other senders wait. If the
//! call ends before the message is complete, the rest is copied into the writer.
//!
//! | event | left | effect |
//! |---|---|---|
//! | the send is dropped or times out before the message is begun | nothing | the message is not sent |
//! | the send is dropped or times out after the message is begun | the rest in the writer | the next send or a [`Flusher`] sends the rest when there is room |
//! | the last handle of the connection is dropped while a rest is unsent | a flusher that owns the socket | the flusher sends the rest and then closes the socket |
//! | the process ends or is killed | part of a message in the socket | the other end gets an error for a truncated message |

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use mp_core::WakeRegistration;
use mp_core::mutex::Mutex;
use rustix::net::Shutdown;

use super::endpoint::{Socket, SocketReady};
use super::writer::{OutgoingFrame, WriteError};

/// Send of one message. If it is dropped after the message was begun, a [`Flusher`] sends the rest.
pub(super) struct PendingSend<'a> {
    socket: &'a Arc<Socket>,
    frame: OutgoingFrame<'a>,
    /// Number of the message, while it is begun and not complete.
    begun: Option<u64>,
}

impl<'a> PendingSend<'a> {
    pub(super) fn new(socket: &'a Arc<Socket>, frame: OutgoingFrame<'a>) -> Self {
        Self { socket, frame: frame.joined(), begun: None }
    }

    /// Returns `true` if the message is begun and not complete.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Sends as much of the message as there is room for. Returns `true` if the message is complete.
    pub(super) fn advance(&mut self) -> Result<bool, WriteError> {
        let mut writer = self.socket.writer.lock();
        if self.begun.is_none() {
            self.begun = writer.begin(&self.socket.stream, &mut self.frame)?;
        }
        if self.begun.is_some_and(|mine| writer.done < mine) {
            // Only this thread continues a message whose body it still owns.
            let lent = !self.frame.body.is_empty() && !writer.closed;
            let sent = if lent {
                writer.lend(&self.socket.stream, &self.frame)
            } else {
                writer.flush(&self.socket.stream)
            };
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

/// Sends the rest of a message whose sender no longer waits. The flusher is woken when there is room, and
/// dropped when all bytes are sent.
struct Flusher {
    socket: Arc<Socket>,
    watch: Mutex<Option<WakeRegistration>>,
}

impl Wake for Flusher {
    fn wake(self: Arc<Self>) {
        // The other end gets the error, or the next send returns it.
        let left = matches!(self.socket.writer.lock().flush(&self.socket.stream), Ok(false));
        if !left {
            return;
        }
        let waker = Waker::from(self.clone());
        let room =
            || WakeRegistration::new(Arc::new(SocketReady { socket: self.socket.clone(), room: true }));
        if self.watch.lock().get_or_insert_with(room).arm(&waker).is_err() {
            // No thread or descriptor is left for the flusher: the rest is not sent, and the other end gets
            // an error.
            _ = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
        }
    }
}
