//! Blocking and asynchronous sends and receives of values and bytes over a socket.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::{Message, SharedWaitable, Wait};
use mp_reduce::Error;

use super::endpoint::{Socket, SocketReady, left};
use super::frame::{ReceivedFrame, frame_of, head_of, length, note_of, value_of};
use super::outbox::PendingSend;
use super::writer::{OutgoingFrame, WriteError};
use crate::connection::bytes::Bytes;
use crate::connection::socket::error::refusal;
use crate::error::{GetError, PutError};

impl Socket {
    /// Returns the error of a failed send. If the other side has refused the handshake or an earlier message
    /// and closed the connection, the error contains that refusal.
    #[cold]
    fn not_sent<T>(&self, error: WriteError, value: T) -> PutError<T> {
        if !matches!(error, WriteError::Gone) {
            return error.with(value);
        }
        let mut reader = self.reader.lock();
        reader.greet(self.as_fd());
        if let Some(refused) = reader.refused.take() {
            return PutError::Failed { value, error: refusal(refused) };
        }
        // Only if the other side has stopped sending: otherwise this might not end.
        if self.is_disconnected()
            && let Some(refusal) = reader.find_note(self.as_fd(), self.limit)
        {
            return PutError::TypeRefused { value, refusal };
        }
        error.with(value)
    }

    /// Sends a value. If the time expires after the message is begun, the next send or a
    /// [`Flusher`](super::outbox) sends the rest.
    #[track_caller]
    pub(crate) fn send<T: Message>(self: &Arc<Self>, mut value: T, wait: Wait) -> Result<(), PutError<T>> {
        let sent = match frame_of(&mut value, self.limit) {
            Ok(frame) => self.send_frame(OutgoingFrame::from(frame), wait),
            Err(error) => Err(WriteError::Failed(error)),
        };
        sent.map_err(|e| self.not_sent(e, value))
    }

    /// Sends bytes as a [`Bytes`] message. Long bytes are not copied while the caller waits.
    #[track_caller]
    pub(crate) fn send_bytes(self: &Arc<Self>, bytes: &[u8], wait: Wait) -> Result<(), PutError<Bytes>> {
        let sent = match length(bytes.len(), self.limit) {
            Ok(len) => self.send_frame(OutgoingFrame { head: head_of::<Bytes>(len), body: bytes }, wait),
            Err(error) => Err(WriteError::Failed(error)),
        };
        sent.map_err(|e| self.not_sent(e, Bytes(bytes.to_vec())))
    }

    #[track_caller]
    fn send_frame(self: &Arc<Self>, frame: OutgoingFrame<'_>, wait: Wait) -> Result<(), WriteError> {
        let mut sending = PendingSend::new(self, frame);
        loop {
            if sending.advance()? {
                return Ok(());
            }
            let found = match left(wait) {
                Some(left) => mp_core::wait(&[&self.room()], left)?,
                None => Vec::new(),
            };
            if found.is_empty() {
                return if sending.is_begun() { Ok(()) } else { Err(WriteError::Full) };
            }
        }
    }

    fn room(self: &Arc<Self>) -> SocketReady {
        SocketReady { socket: self.clone(), room: true }
    }

    /// Sends a value like [`send`](Self::send), asynchronously. A future that is dropped before the message
    /// is begun has sent nothing. A begun message is sent completely.
    pub(crate) async fn send_async<T: Message>(self: &Arc<Self>, mut value: T) -> Result<(), PutError<T>> {
        let frame = frame_of(&mut value, self.limit);
        self.send_frame_async(frame).await.map_err(|e| self.not_sent(e, value))
    }

    /// Sends bytes like [`send_bytes`](Self::send_bytes), asynchronously. The bytes are copied, so that a
    /// [`Flusher`](super::outbox) or another send can continue the message while the future is not polled.
    pub(crate) async fn send_bytes_async(self: &Arc<Self>, bytes: &[u8]) -> Result<(), PutError<Bytes>> {
        let frame = length(bytes.len(), self.limit).map(|len| [&head_of::<Bytes>(len), bytes].concat());
        self.send_frame_async(frame).await.map_err(|e| self.not_sent(e, Bytes(bytes.to_vec())))
    }

    async fn send_frame_async(self: &Arc<Self>, frame: Result<Vec<u8>, Error>) -> Result<(), WriteError> {
        let mut sending = PendingSend::new(self, OutgoingFrame::from(frame?));
        let what = || Arc::new(self.room()) as SharedWaitable;
        mp_core::until(what, || sending.advance().map(|all| all.then_some(()))).await
    }

    #[track_caller]
    pub(crate) fn recv<T: Message>(self: &Arc<Self>, wait: Wait) -> Result<T, GetError> {
        self.wait_for(wait, || self.poll_frame()?.map(|frame| self.decode(frame)).transpose())
    }

    /// Calls `poll` until it returns a result. After each call without a result, waits for more data.
    #[track_caller]
    pub(super) fn wait_for<R>(
        self: &Arc<Self>,
        wait: Wait,
        poll: impl Fn() -> Result<Option<R>, GetError>,
    ) -> Result<R, GetError> {
        loop {
            // Computed first: a side that keeps sending data that is not a message must not extend the time.
            let left = left(wait);
            if let Some(found) = poll()? {
                return Ok(found);
            }
            match left {
                None | Some(Some(Duration::ZERO)) => return Err(GetError::Empty),
                Some(left) => mp_core::wait(&[&self.data()], left).map_err(Error::from)?,
            };
        }
    }

    fn data(self: &Arc<Self>) -> SocketReady {
        SocketReady { socket: self.clone(), room: false }
    }

    /// Receives a value like [`recv`](Self::recv), asynchronously. If the future is dropped, the received
    /// part of a message is retained.
    pub(crate) async fn recv_async<T: Message>(self: &Arc<Self>) -> Result<T, GetError> {
        let what = || Arc::new(self.data()) as SharedWaitable;
        let frame = mp_core::until(what, || Ok::<_, Error>(self.poll_frame().transpose())).await??;
        self.decode(frame)
    }

    /// Reads available bytes. Returns the next message, or `None` if it is incomplete.
    fn poll_frame(&self) -> Result<Option<ReceivedFrame>, GetError> {
        self.reader.lock().poll(self.as_fd(), self.limit)
    }

    /// Decodes a message. If the message has another type, sends a note to the other side.
    fn decode<T: Message>(self: &Arc<Self>, frame: ReceivedFrame) -> Result<T, GetError> {
        let fingerprint = frame.fingerprint;
        let error = match value_of(frame) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if let Error::TypeMismatch { expected, found, .. } = &error {
            let note = note_of(expected, found.as_deref().unwrap_or_default(), fingerprint);
            // Not reported if there is no room or the other side is closed.
            _ = PendingSend::new(self, OutgoingFrame::from(note)).advance();
        }
        Err(error.into())
    }
}
