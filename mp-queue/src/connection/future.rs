//! Asynchronous send and receive over connections: see `queue::future`.

use mp_core::Message;
use mp_reduce::TypeFingerprint;

use crate::connection::named::{Named, unwrap_error};
use crate::connection::{Connection, Transport};
use crate::error::{GetError, PutError};
use crate::queue::future::get;

impl Connection {
    /// Receives the next value, asynchronously: see [`Queue::get_async`](crate::Queue::get_async). If the
    /// future is dropped, the received part of a message stays in the connection of a socket for the next
    /// receive.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv). For a socket, also returns an error if no thread or
    /// descriptor is left for waiting.
    pub async fn recv_async<T: Message>(&self) -> Result<T, GetError> {
        if let Transport::Socket(socket) = self.transport() {
            return socket.recv_async().await;
        }
        let fingerprint = TypeFingerprint::<Named<T>>::new();
        let got = get(self.receiver()?.raw(), fingerprint).await;
        self.update_ready_fd();
        got.map_err(unwrap_error::<T>)?.map(|named| named.0).ok_or(GetError::Disconnected)
    }

    /// Sends a value, asynchronously. Waits like [`send`](Self::send): only for a socket whose other end does
    /// not receive.
    ///
    /// For a socket, a future that is dropped before the first byte is sent has sent nothing. If it is
    /// dropped later, the message counts as sent. The rest of the message follows as soon as there is room,
    /// before any other message, also if this was the last handle. If the process ends before that, the other
    /// end gets an error for a truncated message.
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send). For a socket, also returns an error if no thread or
    /// descriptor is left for waiting.
    pub async fn send_async<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        match self.transport() {
            Transport::Socket(socket) => socket.send_async(value).await,
            _ => self.send(value),
        }
    }
}
