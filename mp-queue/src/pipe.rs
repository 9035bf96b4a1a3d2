//! Pipes: two connections, and whatever is sent into one comes out of the other.

use std::fmt;
use std::time::{Duration, Instant};

use mp_core::Message;
use mp_core::message::{Codec, Incoming, Outgoing};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::channel::{End, ends};
use crate::error::{GetError, PutError};
use crate::queue::put_as;
use crate::raw::{Ended, Wait};

/// One end of a pipe: sends and receives values of any type that is a message, and raw bytes.
///
/// ```
/// let (here, there) = mp_queue::pipe()?;
/// here.send(("x".to_string(), 1.5))?;
/// here.send_bytes(b"raw")?;
/// assert_eq!(there.recv::<(String, f64)>()?, ("x".to_string(), 1.5));
/// assert_eq!(there.recv_bytes()?, b"raw");
/// drop(there);
/// assert!(here.is_disconnected() && here.send(1).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A connection can be sent to another process, and cloned; what is sent by clones of one end is received by clones of the
/// other, each message by one of them. Nothing limits how much is on its way but memory. When the last handle to the
/// other end is dropped, or the last process that had one dies, what was sent before can still be received; then
/// receiving and sending fail with `Disconnected`.
///
/// The types are checked when a value is received: another one than was sent is an error that says so, and the value is
/// gone. For one type only, a [`channel()`](crate::channel()) or two are simpler.
#[derive(Clone)]
pub struct Connection {
    ends: Ends,
}

/// At least one.
#[derive(Clone)]
enum Ends {
    Both { into: End, out: End },
    Into(End),
    Out(End),
}

impl Ends {
    fn receiving(&self) -> Option<&End> {
        match self {
            Ends::Both { into, .. } | Ends::Into(into) => Some(into),
            Ends::Out(_) => None,
        }
    }

    fn sending(&self) -> Option<&End> {
        match self {
            Ends::Both { out, .. } | Ends::Out(out) => Some(out),
            Ends::Into(_) => None,
        }
    }
}

/// What a connection does first of all.
pub(crate) enum Side<'a> {
    /// It receives, and may send.
    Receives(&'a End),
    /// It only sends.
    OnlySends(&'a End),
}

/// Bytes as they are.
struct Raw(Vec<u8>);

impl Message for Raw {
    fn encode<C: Codec>(&self, out: &mut Outgoing) -> mp_core::Result<()> {
        out.bytes().extend_from_slice(&self.0);
        Ok(())
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let bytes = inc.rest().to_vec();
        inc.advance(bytes.len());
        Ok(Self(bytes))
    }
}

/// Received bytes that did not fit.
#[derive(Debug)]
#[non_exhaustive]
#[doc(alias = "BufferTooShort")]
pub enum RecvIntoError {
    /// The message is longer than the buffer: here it is.
    TooShort(Vec<u8>),
    /// Nothing was received.
    Get(GetError),
}

impl fmt::Display for RecvIntoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvIntoError::TooShort(m) => {
                write!(f, "the message has {} bytes, more than the buffer", m.len())
            }
            RecvIntoError::Get(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for RecvIntoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecvIntoError::TooShort(_) => None,
            RecvIntoError::Get(e) => std::error::Error::source(e),
        }
    }
}

impl From<GetError> for RecvIntoError {
    fn from(e: GetError) -> Self {
        RecvIntoError::Get(e)
    }
}

/// The type that the queues of pipes say they carry.
fn type_of() -> (u64, &'static str) {
    (TypeFingerprint::<Connection>::new().get(), "anything (a pipe)")
}

/// A pipe whose ends both send and receive.
///
/// # Errors
/// When there is no shared memory for it.
#[doc(alias = "Pipe")]
pub fn pipe() -> Result<(Connection, Connection), Error> {
    let (there_out, there_into) = ends(None, true, type_of())?;
    let (back_out, back_into) = ends(None, true, type_of())?;
    let here = Ends::Both { into: back_into, out: there_out };
    let there = Ends::Both { into: there_into, out: back_out };
    Ok((Connection { ends: here }, Connection { ends: there }))
}

/// A pipe whose first end only receives, and the second only sends: Python's `Pipe(duplex=False)`.
///
/// # Errors
/// When there is no shared memory for it.
pub fn one_way_pipe() -> Result<(Connection, Connection), Error> {
    let (out, into) = ends(None, true, type_of())?;
    Ok((Connection { ends: Ends::Into(into) }, Connection { ends: Ends::Out(out) }))
}

fn one_way<E: From<mp_core::Error>>(what: &str) -> E {
    mp_core::Error::Malformed(format!("this end of a one-way pipe can't {what}")).into()
}

impl Connection {
    /// Sends a value. It never waits.
    ///
    /// # Errors
    /// [`PutError::Disconnected`] when the other end is gone, [`PutError::Failed`] when the value can't be encoded, there is
    /// no memory, or this end only receives. The value is given back.
    pub fn send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        let Some(out) = self.ends.sending() else {
            return Err(PutError::Failed {
                value: Some(value),
                error: one_way::<mp_core::Error>("send").into(),
            });
        };
        if out.alone().is_some() {
            return Err(PutError::Disconnected(value));
        }
        put_as(out.raw(), TypeFingerprint::new(), value, Wait::Forever, || out.alone())
    }

    /// Sends bytes as they are, as one message.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_bytes(&self, bytes: &[u8]) -> Result<(), PutError<Vec<u8>>> {
        self.send(Raw(bytes.to_vec())).map_err(|e| e.map(|raw| raw.0))
    }

    /// Receives the next value; waits while there is none.
    ///
    /// # Errors
    /// [`GetError::Disconnected`] when there is none and the other end is gone; [`GetError::Failed`] when it is of another
    /// type, or this end only sends.
    pub fn recv<T: Message>(&self) -> Result<T, GetError> {
        self.recv_within(Wait::Forever)
    }

    /// Receives the next value, if there is one.
    ///
    /// # Errors
    /// [`GetError::Empty`], and as [`recv`](Self::recv).
    pub fn try_recv<T: Message>(&self) -> Result<T, GetError> {
        self.recv_within(Wait::Never)
    }

    /// Receives the next value; waits while there is none, at most `timeout`.
    ///
    /// # Errors
    /// [`GetError::Empty`], and as [`recv`](Self::recv).
    pub fn recv_timeout<T: Message>(&self, timeout: Duration) -> Result<T, GetError> {
        self.recv_within(Wait::at_most(timeout))
    }

    /// Receives the next value; waits while there is none, but not beyond `deadline`.
    ///
    /// # Errors
    /// [`GetError::Empty`], and as [`recv`](Self::recv).
    pub fn recv_deadline<T: Message>(&self, deadline: Instant) -> Result<T, GetError> {
        self.recv_within(Wait::Until(deadline))
    }

    fn recv_within<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        self.receiver()?.get_as(TypeFingerprint::new(), wait)
    }

    pub(crate) fn side(&self) -> Side<'_> {
        match &self.ends {
            Ends::Both { into, .. } | Ends::Into(into) => Side::Receives(into),
            Ends::Out(out) => Side::OnlySends(out),
        }
    }

    pub(crate) fn receiver(&self) -> Result<&End, Error> {
        self.ends.receiving().ok_or_else(|| one_way::<mp_core::Error>("receive").into())
    }

    /// Receives the next message as bytes, which it was sent as.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_bytes(&self) -> Result<Vec<u8>, GetError> {
        Ok(self.recv::<Raw>()?.0)
    }

    /// Receives the next message, which was sent as bytes, into the beginning of a buffer. How many bytes it has.
    ///
    /// # Errors
    /// [`RecvIntoError::TooShort`] with the message, if it is longer than the buffer, and as [`recv`](Self::recv).
    #[doc(alias = "recv_bytes_into")]
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

    /// Waits, at most `timeout`, until there is something to receive. Whether receiving would not wait: also when the other
    /// end is gone.
    ///
    /// # Errors
    /// [`GetError::Failed`] when this end only sends.
    pub fn poll(&self, timeout: Duration) -> Result<bool, GetError> {
        let end = self.receiver()?;
        end.raw().arena().me().map_err(Error::from)?;
        let ready = || Ok(end.raw().memory().is_ready());
        let patience = end.raw().getting();
        let parking = end.raw().memory().not_empty();
        match end.raw().within(Wait::at_most(timeout), patience, parking, ready, || end.alone())? {
            Ended::Attempted => {
                // It may have been woken in the place of somebody who would have received.
                parking.wake_one();
                Ok(true)
            }
            Ended::Alone(_) => Ok(true),
            Ended::Waited => Ok(false),
        }
    }

    /// Whether this end receives.
    pub fn readable(&self) -> bool {
        self.ends.receiving().is_some()
    }

    /// Whether this end sends.
    pub fn writable(&self) -> bool {
        self.ends.sending().is_some()
    }

    /// Whether the other end is gone, in all processes; messages from it may still be there.
    pub fn is_disconnected(&self) -> bool {
        self.ends.receiving().into_iter().chain(self.ends.sending()).any(|end| end.alone().is_some())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("receives", &self.ends.receiving())
            .field("sends", &self.ends.sending())
            .finish()
    }
}

const NAME: &str = "a Connection";

impl Serialize for Connection {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attach = |end: Option<&End>| end.map(|end| end.attach(NAME)).transpose();
        let ends = (attach(self.ends.receiving()), attach(self.ends.sending()));
        (ends.0.map_err(S::Error::custom)?, ends.1.map_err(S::Error::custom)?).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Connection {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (into, out) = <(Option<(u32, u32)>, Option<(u32, u32)>)>::deserialize(d)?;
        let take = |end: Option<(u32, u32)>, receivers| {
            end.map(|end| End::take(NAME, end, receivers, type_of())).transpose().map_err(D::Error::custom)
        };
        let ends = match (take(into, true)?, take(out, false)?) {
            (Some(into), Some(out)) => Ends::Both { into, out },
            (Some(into), None) => Ends::Into(into),
            (None, Some(out)) => Ends::Out(out),
            (None, None) => return Err(D::Error::custom("a Connection without ends arrived")),
        };
        Ok(Self { ends })
    }
}
