//! Sending over a socket that may be full.
//!
//! A message is *begun* when its first byte is sent. From then on its rest lies in the [`Writer`] of the
//! socket, and the next send finishes it first.
//!
//! | dropped, or given up | left | then |
//! |---|---|---|
//! | before the message is begun | nothing | it is not sent |
//! | after that, also since its time is over | its rest in the writer | the next send sends it, or a [`Flusher`] when there is room |
//! | the last handle of the connection, after that | the flusher has the socket | it closes it when the rest is sent |
//! | the process ends, or is killed | part of a message in the socket | the other end gets an error: the message was cut off |

use std::sync::Arc;
use std::task::{Wake, Waker};

use mp_core::WakeRegistration;
use mp_core::mutex::Mutex;
use mp_reduce::Error;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::frame::{Room, Socket};
use crate::error::PutError;

/// The message that is being sent, if there is one.
#[derive(Default)]
pub(super) struct Writer {
    frame: Vec<u8>,
    sent: usize,
    /// How many messages were begun, and how many are sent to their ends.
    begun: u64,
    done: u64,
    over: bool,
}

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
    /// Gives the value back.
    pub(super) fn with<T>(self, value: T) -> PutError<T> {
        match self {
            Self::Gone => PutError::Disconnected(value),
            Self::Failed(e) => PutError::Failed { value, error: Error::from(e) },
        }
    }
}

impl Writer {
    /// Sends as much as there is room for; whether nothing is left.
    pub(super) fn flush(&mut self, socket: &Socket) -> Result<bool, WriteError> {
        if self.over {
            return Err(WriteError::Gone);
        }
        while self.begun > self.done {
            self.sent += match send(socket, &self.frame[self.sent..]) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(e) => {
                    self.over = true;
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

    /// Begins a message, if the one before it is sent and there is room for a byte of it.
    fn begin(&mut self, socket: &Socket, frame: &mut Vec<u8>) -> Result<Option<u64>, WriteError> {
        if !self.flush(socket)? {
            return Ok(None);
        }
        let sent = send(socket, frame)?;
        if sent == 0 {
            return Ok(None);
        }
        self.begun += 1;
        if sent == frame.len() {
            self.done = self.begun;
        } else {
            (self.frame, self.sent) = (std::mem::take(frame), sent);
        }
        Ok(Some(self.begun))
    }
}

/// Sends some of this; none if there is no room.
fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, WriteError> {
    use std::os::fd::AsFd;
    loop {
        return match rustix::net::send(socket.as_fd(), bytes, SendFlags::NOSIGNAL) {
            Ok(n) => Ok(n),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(WriteError::Gone),
            Err(e) => {
                // Half a message can't be followed by another one.
                _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Both);
                Err(WriteError::Failed(mp_core::Error::Os {
                    what: "sending over a socket",
                    source: e.into(),
                }))
            }
        };
    }
}

/// A message that is being sent. Dropped, it is sent on if it was begun.
pub(super) struct Sending<'a> {
    socket: &'a Arc<Socket>,
    frame: Vec<u8>,
    /// Which one it is, if it was begun and not sent to its end.
    begun: Option<u64>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(socket: &'a Arc<Socket>, frame: Vec<u8>) -> Self {
        Self { socket, frame, begun: None }
    }

    /// Whether a part of it is sent, and not all.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Continues; whether it is sent to its end.
    pub(super) fn advance(&mut self) -> Result<bool, WriteError> {
        let mut writer = self.socket.writer.lock();
        if let Some(mine) = self.begun {
            if writer.done < mine
                && let Err(e) = writer.flush(self.socket)
            {
                self.begun = None;
                return Err(e);
            }
        } else {
            self.begun = writer.begin(self.socket, &mut self.frame)?;
        }
        let done = self.begun.is_some_and(|mine| writer.done >= mine);
        if done {
            self.begun = None;
        }
        Ok(done)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.begun.is_some() {
            let flusher = Flusher { socket: self.socket.clone(), watch: Mutex::new(None) };
            Arc::new(flusher).wake();
        }
    }
}

/// Sends the rest of a message whose sender no longer waits: woken whenever there is room, and gone when
/// nothing is left.
struct Flusher {
    socket: Arc<Socket>,
    watch: Mutex<Option<WakeRegistration>>,
}

impl Wake for Flusher {
    fn wake(self: Arc<Self>) {
        // The other end sees the error, or the next send returns it.
        let left = matches!(self.socket.writer.lock().flush(&self.socket), Ok(false));
        if !left {
            return;
        }
        let waker = Waker::from(self.clone());
        let room = || WakeRegistration::new(Arc::new(Room(self.socket.clone())));
        if self.watch.lock().get_or_insert_with(room).arm(&waker).is_err() {
            // No thread, or no descriptor, is left for it: it is not sent, and the other end gets an error.
            _ = rustix::net::shutdown(std::os::fd::AsFd::as_fd(&*self.socket), Shutdown::Both);
        }
    }
}
