//! Blocking and asynchronous receives of values and bytes over a socket.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::{Message, SharedWaitable, Wait};
use mp_reduce::{Error, TypeFingerprint};

use super::endpoint::{ReadableSocket, Socket, left};
use super::frame::{ReceivedFrame, note_of, value_of};
use super::outbox::PendingSend;
use super::writer::OutgoingFrame;
use crate::connection::bytes::Bytes;
use crate::connection::named::is_name_of;
use crate::error::GetError;

impl Socket {
    pub(crate) fn recv<T: Message>(self: &Arc<Self>, wait: Wait) -> Result<T, GetError> {
        self.wait_for(wait, || self.poll_frame()?.map(|frame| self.decode(frame)).transpose())
    }

    /// Receives a [`Bytes`] message. The received bytes are not copied.
    pub(crate) fn recv_bytes(self: &Arc<Self>, wait: Wait) -> Result<Vec<u8>, GetError> {
        self.wait_for(wait, || self.poll_frame()?.map(|frame| self.bytes_of(frame)).transpose())
    }

    /// Calls `poll` until it returns a result, and waits for more data in between.
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
                Some(left) => mp_core::wait(&[&ReadableSocket(self.clone())], left).map_err(Error::from)?,
            };
        }
    }

    /// Asynchronous [`recv`](Self::recv). If the future is dropped, the received part of a message is
    /// retained.
    pub(crate) async fn recv_async<T: Message>(self: &Arc<Self>) -> Result<T, GetError> {
        self.decode(self.arrived().await?)
    }

    /// Asynchronous [`recv_bytes`](Self::recv_bytes).
    pub(crate) async fn recv_bytes_async(self: &Arc<Self>) -> Result<Vec<u8>, GetError> {
        self.bytes_of(self.arrived().await?)
    }

    async fn arrived(self: &Arc<Self>) -> Result<ReceivedFrame, GetError> {
        let what = || Arc::new(ReadableSocket(self.clone())) as SharedWaitable;
        mp_core::until(what, || self.poll_frame().map_err(PollError)).await.map_err(|e| e.0)
    }

    fn bytes_of(self: &Arc<Self>, frame: ReceivedFrame) -> Result<Vec<u8>, GetError> {
        let is_bytes = frame.fingerprint == TypeFingerprint::<Bytes>::new().get();
        if is_bytes && is_name_of::<Bytes>(&frame.name) {
            return Ok(frame.bytes);
        }
        self.decode::<Bytes>(frame).map(|bytes| bytes.0)
    }

    /// Reads available bytes. Returns the message if it is complete.
    fn poll_frame(&self) -> Result<Option<ReceivedFrame>, GetError> {
        self.reader.lock().poll(self.as_fd(), self.limit)
    }

    /// Decodes a message. If it has another type, reports this to the other side.
    fn decode<T: Message>(self: &Arc<Self>, frame: ReceivedFrame) -> Result<T, GetError> {
        let fingerprint = frame.fingerprint;
        let error = match value_of(frame) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if let Error::TypeMismatch { expected, found, .. } = &error {
            let note = note_of(expected, found.as_deref().unwrap_or_default(), fingerprint);
            // Not reported if there is no room or the other side is gone.
            _ = PendingSend::new(self, OutgoingFrame::from(note)).advance();
        }
        Err(error.into())
    }
}

/// Error of [`Socket::poll_frame`] or of waiting.
struct PollError(GetError);

impl From<mp_core::Error> for PollError {
    fn from(e: mp_core::Error) -> Self {
        Self(Error::from(e).into())
    }
}
