//! Sending values and bytes over a socket: the calls that block, and their futures.

use std::os::fd::AsFd;
use std::sync::Arc;

use mp_core::{Message, SharedWaitable, Wait};

use super::error::refusal;
use super::frame::{Room, Socket, frame_of, head_of, left, length};
use super::outbox::{Frame, Sending, WriteError};
use crate::connection::bytes::Bytes;
use crate::error::PutError;

impl Socket {
    /// The error of a send: if the other side is gone since it refused, that is the error.
    #[cold]
    fn not_sent<T>(&self, error: WriteError, value: T) -> PutError<T> {
        let mut reader = self.reader.lock();
        reader.greet(self.as_fd());
        match (error, reader.refused.take()) {
            (WriteError::Gone, Some(refused)) => PutError::Failed { value, error: refusal(refused) },
            // Not of a side that goes on sending: there would be no end to it.
            (WriteError::Gone, None) if self.is_disconnected() => {
                match reader.find_note(self.as_fd(), self.limit) {
                    Some(refusal) => PutError::TypeRefused { value, refusal },
                    None => WriteError::Gone.with(value),
                }
            }
            (error, refused) => {
                reader.refused = refused;
                error.with(value)
            }
        }
    }

    /// Sends a value. When the time is over, a message that was begun is sent on, by the next send or a
    /// [`Flusher`](super::outbox).
    pub(crate) fn send<T: Message>(self: &Arc<Self>, mut value: T, wait: Wait) -> Result<(), PutError<T>> {
        match frame_of(&mut value, self.limit) {
            Ok(frame) => self.send_frame(Frame::from(frame), wait).map_err(|e| self.unsent(e, value)),
            Err(error) => Err(PutError::Failed { value, error }),
        }
    }

    /// Sends bytes as a [`Bytes`] message, without copying them while this call lasts.
    pub(crate) fn send_bytes(self: &Arc<Self>, bytes: &[u8], wait: Wait) -> Result<(), PutError<Bytes>> {
        let value = || Bytes(bytes.to_vec());
        match length(bytes.len(), self.limit) {
            Ok(len) => {
                let frame = Frame { head: head_of::<Bytes>(len), body: bytes };
                self.send_frame(frame, wait).map_err(|e| self.unsent(e, value()))
            }
            Err(error) => Err(PutError::Failed { value: value(), error }),
        }
    }

    /// Sends a message. `None` as an error: there was no room for its first byte.
    fn send_frame(self: &Arc<Self>, frame: Frame<'_>, wait: Wait) -> Result<(), Option<WriteError>> {
        let mut sending = Sending::new(self, frame);
        loop {
            if sending.advance()? {
                return Ok(());
            }
            let found = match left(wait) {
                Some(left) => mp_core::wait(&[&Room(self.clone())], left).map_err(WriteError::from)?,
                None => Vec::new(),
            };
            if found.is_empty() {
                return if sending.is_begun() { Ok(()) } else { Err(None) };
            }
        }
    }

    fn unsent<T>(&self, error: Option<WriteError>, value: T) -> PutError<T> {
        match error {
            Some(error) => self.not_sent(error, value),
            None => PutError::Full(value),
        }
    }

    /// As [`send`](Self::send), as a future. Dropped before the message is begun, it has sent nothing; after that, it sends it.
    pub(crate) async fn send_async<T: Message>(self: &Arc<Self>, mut value: T) -> Result<(), PutError<T>> {
        match frame_of(&mut value, self.limit) {
            Ok(frame) => self.send_frame_async(frame).await.map_err(|e| self.not_sent(e, value)),
            Err(error) => Err(PutError::Failed { value, error }),
        }
    }

    /// As [`send_bytes`](Self::send_bytes), as a future. The bytes are copied once: no thread has to poll it until they are sent.
    pub(crate) async fn send_bytes_async(self: &Arc<Self>, bytes: &[u8]) -> Result<(), PutError<Bytes>> {
        let value = || Bytes(bytes.to_vec());
        match length(bytes.len(), self.limit) {
            Ok(len) => {
                let frame = [&head_of::<Bytes>(len), bytes].concat();
                self.send_frame_async(frame).await.map_err(|e| self.not_sent(e, value()))
            }
            Err(error) => Err(PutError::Failed { value: value(), error }),
        }
    }

    async fn send_frame_async(self: &Arc<Self>, frame: Vec<u8>) -> Result<(), WriteError> {
        let mut sending = Sending::new(self, Frame::from(frame));
        let what = || Arc::new(Room(self.clone())) as SharedWaitable;
        mp_core::until(what, || sending.advance().map(|all| all.then_some(()))).await
    }
}
