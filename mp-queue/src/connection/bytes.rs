//! Raw bytes over a connection, without serde.

use mp_core::message::{Codec, Incoming, Outgoing, UnsentValues};
use mp_core::{Message, Wait};

use crate::connection::Connection;
use crate::error::{GetError, PutError, RecvIntoError};

/// Message whose encoding is its bytes.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Message for Bytes {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        out.bytes().extend_from_slice(&self.0);
        Ok(())
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        Ok(Self(inc.take_rest()))
    }
}

impl Connection {
    /// Sends bytes as one message, without encoding them.
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send).
    #[track_caller]
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<(), PutError<Vec<u8>>> {
        self.send_bytes_wait(bytes, Wait::Forever)
    }

    mp_core::forms! {
        "Sends bytes as one message": send_bytes(bytes: &[u8]) -> Result<(), PutError<Vec<u8>>>,
        or "[`PutError::Full`], unless a byte was sent (see [`send_timeout`](Self::send_timeout))";
        |connection, wait| connection.send_bytes_wait(bytes, wait);
        never try_send_bytes;
        at_most send_bytes_timeout;
    }

    #[track_caller]
    fn send_bytes_wait(&self, bytes: &[u8], wait: Wait) -> Result<(), PutError<Vec<u8>>> {
        let sent = match self.transport().socket() {
            Some(socket) => socket.send_bytes(bytes, wait),
            None => self.send_wait(Bytes(bytes.to_vec()), wait),
        };
        sent.map_err(|e| e.map(|raw| raw.0))
    }

    /// Sends bytes, asynchronously: see [`send_async`](Self::send_async).
    ///
    /// # Errors
    /// Returns the same errors as [`send_async`](Self::send_async).
    pub async fn send_bytes_async(&self, bytes: &[u8]) -> Result<(), PutError<Vec<u8>>> {
        let sent = match self.transport().socket() {
            Some(socket) => socket.send_bytes_async(bytes).await,
            None => self.send(Bytes(bytes.to_vec())),
        };
        sent.map_err(|e| e.map(|raw| raw.0))
    }

    /// Receives the next message, which must have been sent as bytes. Waits while there is none.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    #[track_caller]
    pub fn recv_bytes(&self) -> Result<Vec<u8>, GetError> {
        Ok(self.recv::<Bytes>()?.0)
    }

    mp_core::forms! {
        "Receives the next message as bytes": recv_bytes() -> Result<Vec<u8>, GetError>,
        or "[`GetError::Empty`]";
        |connection, wait| Ok(connection.recv_wait::<Bytes>(wait)?.0);
        never try_recv_bytes;
        at_most recv_bytes_timeout;
        until recv_bytes_deadline;
    }

    /// Receives the next message, which must have been sent as bytes, asynchronously: see
    /// [`recv_bytes`](Self::recv_bytes).
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    pub async fn recv_bytes_async(&self) -> Result<Vec<u8>, GetError> {
        Ok(self.recv_async::<Bytes>().await?.0)
    }

    /// Receives the next message, which must have been sent as bytes, into a vector, and replaces its
    /// content. Blocks until a message arrives.
    ///
    /// A message over a socket is received into the vector's own memory, if that is large enough. Long
    /// messages then take half the time: the kernel clears new memory before its first use.
    ///
    /// ```
    /// use mp_queue::{Listener, connect};
    ///
    /// let listener = Listener::bind("@example of frames")?;
    /// let frames = connect("@example of frames")?;
    /// let camera = listener.accept()?;
    /// let mut frame = Vec::new();
    /// for number in 0..3 {
    ///     camera.send_bytes(&[number; 1000])?;
    ///     frames.recv_to(&mut frame)?;
    ///     assert_eq!(frame, [number; 1000]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv). The vector is then empty.
    #[track_caller]
    pub fn recv_to(&self, buffer: &mut Vec<u8>) -> Result<(), GetError> {
        self.recv_to_wait(buffer, Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next message as bytes into a vector":
            recv_to(buffer: &mut Vec<u8>) -> Result<(), GetError>,
        or "[`GetError::Empty`]";
        |connection, wait| connection.recv_to_wait(buffer, wait);
        never try_recv_to;
        at_most recv_to_timeout;
    }

    #[track_caller]
    fn recv_to_wait(&self, buffer: &mut Vec<u8>, wait: Wait) -> Result<(), GetError> {
        buffer.clear();
        let socket = self.transport().socket();
        if let Some(socket) = socket {
            socket.lend(std::mem::take(buffer));
        }
        let received = self.recv_wait::<Bytes>(wait);
        if let Some(socket) = socket {
            *buffer = socket.take_back();
        }
        let Bytes(bytes) = received?;
        if bytes.len() <= buffer.capacity() {
            buffer.extend_from_slice(&bytes);
        } else {
            *buffer = bytes;
        }
        Ok(())
    }

    /// Receives the next message, which must have been sent as bytes, into the beginning of a buffer. Waits
    /// while there is none. Returns the length of the message.
    ///
    /// # Errors
    /// Returns [`RecvIntoError::TooShort`] with the message if it is longer than the buffer. Otherwise
    /// returns the same errors as [`recv`](Self::recv).
    #[doc(alias = "recv_bytes_into")]
    #[track_caller]
    pub fn recv_into(&self, buffer: &mut [u8]) -> Result<usize, RecvIntoError> {
        let bytes = self.recv_bytes()?;
        match buffer.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            None => Err(RecvIntoError::TooShort(bytes)),
        }
    }
}
