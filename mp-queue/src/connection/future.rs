//! Sending and receiving over connections as futures: see `queue::future`.

use std::sync::Arc;

use mp_core::Message;
use mp_reduce::TypeFingerprint;

use crate::connection::named::{Named, unnamed};
use crate::connection::{Connection, Ends};
use crate::error::{GetError, PutError};
use crate::queue::future::recv;

impl Connection {
    /// Receives the next value, as a future: see [`Queue::get_async`](crate::Queue::get_async). Over a socket,
    /// what has arrived of a message stays in the connection when the future is dropped, for the next receive.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); over a socket also when no thread or descriptor is left for waiting.
    pub async fn recv_async<T: Message>(&self) -> Result<T, GetError> {
        if let Ends::Socket(socket) = self.ends() {
            return socket.recv_async().await;
        }
        let fingerprint = TypeFingerprint::<Named<T>>::new();
        let got = recv(self.receiver()?, fingerprint, || Arc::new(self.clone())).await;
        self.looked();
        got.map(|named| named.0).map_err(unnamed::<T>)
    }

    /// Sends a value, as a future, which waits where [`send`](Self::send) does: for a socket whose other end does not receive.
    ///
    /// Over a socket, a future that is dropped before the first byte is sent has sent nothing. One that is
    /// dropped later has sent its message: the rest of it follows as soon as there is room, before anything
    /// else, also if this is the last handle. (If the process ends before that, the other end gets the error
    /// of a message that was cut off.)
    ///
    /// # Errors
    /// As [`send`](Self::send); over a socket also when no thread or descriptor is left for waiting.
    pub async fn send_async<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        match self.ends() {
            Ends::Socket(socket) => socket.send_async(value).await,
            _ => self.send(value),
        }
    }
}
