//! Blocking and asynchronous sends of values and bytes over a socket.

use std::os::fd::AsFd;
use std::sync::Arc;

use mp_core::{Message, SharedWaitable, Wait};

use super::endpoint::{Socket, WritableSocket, left};
use super::error::refusal;
use super::frame::{frame_of, head_of, length};
use super::outbox::PendingSend;
use super::writer::{OutgoingFrame, WriteError};
use crate::connection::bytes::Bytes;
use crate::error::PutError;

impl Socket {
    /// Returns the error of a send. If the other side has refused a message and is gone, returns that
    /// refusal.
    #[cold]
    fn not_sent<T>(&self, error: WriteError, value: T) -> PutError<T> {
        let mut reader = self.reader.lock();
        reader.greet(self.as_fd());
        match (error, reader.refused.take()) {
            (WriteError::Gone, Some(refused)) => PutError::Failed { value, error: refusal(refused) },
            // Only if the other side has stopped sending: otherwise this might not end.
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

    /// Sends a value. When the time is over, the rest of a message that was begun is sent by the next send or
    /// by a [`Flusher`](super::outbox).
    pub(crate) fn send<T: Message>(self: &Arc<Self>, mut value: T, wait: Wait) -> Result<(), PutError<T>> {
        match frame_of(&mut value, self.limit) {
            Ok(frame) => self.send_frame(OutgoingFrame::from(frame), wait).map_err(|e| self.unsent(e, value)),
            Err(error) => Err(PutError::Failed { value, error }),
        }
    }

    /// Sends bytes as a [`Bytes`] message, without copying them during this call.
    pub(crate) fn send_bytes(self: &Arc<Self>, bytes: &[u8], wait: Wait) -> Result<(), PutError<Bytes>> {
        let value = || Bytes(bytes.to_vec());
        match length(bytes.len(), self.limit) {
            Ok(len) => {
                let frame = OutgoingFrame { head: head_of::<Bytes>(len), body: bytes };
                self.send_frame(frame, wait).map_err(|e| self.unsent(e, value()))
            }
            Err(error) => Err(PutError::Failed { value: value(), error }),
        }
    }

    /// Sends a message. Returns `Err(None)` if there was no room for its first byte.
    fn send_frame(self: &Arc<Self>, frame: OutgoingFrame<'_>, wait: Wait) -> Result<(), Option<WriteError>> {
        let mut sending = PendingSend::new(self, frame);
        loop {
            if sending.advance()? {
                return Ok(());
            }
            let found = match left(wait) {
                Some(left) => {
                    mp_core::wait(&[&WritableSocket(self.clone())], left).map_err(WriteError::from)?
                }
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

    /// Asynchronous [`send`](Self::send). If dropped before the message is begun, it has sent nothing.
    /// Afterwards, the message is sent completely.
    pub(crate) async fn send_async<T: Message>(self: &Arc<Self>, mut value: T) -> Result<(), PutError<T>> {
        match frame_of(&mut value, self.limit) {
            Ok(frame) => self.send_frame_async(frame).await.map_err(|e| self.not_sent(e, value)),
            Err(error) => Err(PutError::Failed { value, error }),
        }
    }

    /// Asynchronous [`send_bytes`](Self::send_bytes). The bytes are copied once, so that no task has to poll
    /// the future until they are sent.
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
        let mut sending = PendingSend::new(self, OutgoingFrame::from(frame));
        let what = || Arc::new(WritableSocket(self.clone())) as SharedWaitable;
        mp_core::until(what, || sending.advance().map(|all| all.then_some(()))).await
    }
}
