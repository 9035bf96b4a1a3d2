//! Connections: one end of a pipe in shared memory, or of a socket.

pub(crate) mod bytes;
pub(crate) mod future;
pub(crate) mod invite;
pub(crate) mod named;
pub(crate) mod pipe;
pub(crate) mod socket;
pub(crate) mod waitable;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mp_core::waits::Call;
use mp_core::{Message, ReadyFd, Wait};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::connection::named::{Named, unnamed};
use crate::connection::pipe::type_of;
use crate::connection::socket::Socket;
use crate::error::{GetError, PutError};
use crate::queue::channel::End;
use crate::queue::put_as;
use crate::raw::waiting::{At, Unmet};

/// One end of a [`pipe`](crate::pipe), or of a socket to another program ([`Listener`](crate::Listener),
/// [`connect`](crate::connect)): sends and receives values of any type that is a message, and raw bytes.
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
/// A connection can be cloned; what is sent by clones of one end is received by clones of the other, each message by one of
/// them. When the last handle to the other end is dropped, or the last process that had one dies, what was sent before can
/// still be received; then receiving and sending fail with `Disconnected`.
///
/// The types are checked when a value is received: another one than was sent is an error with the names of both, and with
/// the bytes of the value ([`Error::bytes`]). For one type only, a [`channel()`](crate::channel()) or two are simpler.
///
/// # In shared memory, and over a socket
/// | | of a pipe | of a socket |
/// |---|---|---|
/// | between | processes of one tree | any two processes of one user, on one machine; over TCP, any two programs that know a key, on any machines |
/// | tensors, queues and locks in messages | travel, without being copied | are an error: they are in a memory that the other side has not, unless it was [invited](Self::invite), which TCP can't do |
/// | how much may be on its way | as much as there is memory | what the socket buffers (`net.core.wmem_default` bytes, usually 208 KiB, of which the kernel's bookkeeping takes the larger part if messages are short; over TCP some MB); then sending waits |
/// | the end itself in a message | travels | is an error |
///
/// The end of the other process is reported at once, by each of them. A host that is lost (power, network) is
/// `Disconnected` over TCP 25 s after it was last heard of. While bytes that were sent are not acknowledged,
/// this takes as long as the kernel retransmits them, about 15 minutes (`net.ipv4.tcp_retries2`). Over TCP,
/// what was sent just before the other end has gone may be lost without an error: an answer is what shows
/// that a message was received.
pub struct Connection {
    ends: Ends,
    /// Made when it is first asked for; each clone has its own.
    ready: OnceLock<ReadyFd>,
}

/// What a connection is made of.
#[derive(Clone)]
pub(crate) enum Ends {
    Both { into: End, out: End },
    Into(End),
    Out(End),
    Socket(Arc<Socket>),
}

impl Ends {
    fn receiving(&self) -> Option<&End> {
        match self {
            Ends::Both { into, .. } | Ends::Into(into) => Some(into),
            Ends::Out(_) | Ends::Socket(_) => None,
        }
    }

    fn sending(&self) -> Option<&End> {
        match self {
            Ends::Both { out, .. } | Ends::Out(out) => Some(out),
            Ends::Into(_) | Ends::Socket(_) => None,
        }
    }
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self::of(self.ends.clone())
    }
}

fn one_way(what: &str) -> Error {
    mp_core::Error::Unsupported(format!("this end of a one-way pipe can't {what}: the other one can")).into()
}

impl Connection {
    pub(crate) fn of(ends: Ends) -> Self {
        Self { ends, ready: OnceLock::new() }
    }

    pub(crate) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Gives it a name: for reports of waits that last long, and for `Debug`. Both ends of a pipe have one name, in all processes, which
    /// is cut at 32 bytes; over a socket each side has its own. The last one given counts. It finds nothing.
    ///
    /// ```
    /// let (here, there) = mp_queue::pipe()?;
    /// let here = here.named("control");
    /// assert_eq!(there.given_name().as_deref(), Some("control"));
    /// assert!(format!("{here:?}").contains("control"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        for end in self.ends.receiving().into_iter().chain(self.ends.sending()) {
            mp_core::waits::name_object(end.raw().hold(), name);
        }
        if let Ends::Socket(socket) = &self.ends {
            socket.set_name(name);
        }
        self
    }

    /// The name that it was [given](Self::named), by whichever process has the pipe, or by this one for a socket.
    pub fn given_name(&self) -> Option<String> {
        match &self.ends {
            Ends::Both { into: end, .. } | Ends::Into(end) | Ends::Out(end) => {
                mp_core::waits::object_name(end.raw().hold())
            }
            Ends::Socket(socket) => socket.given_name(),
        }
    }

    /// Sends a value. It waits only for a socket whose other end does not receive, as long as that does not:
    /// see [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// [`PutError::Disconnected`] when the other end is gone, [`PutError::Failed`] when the value can't be encoded, there is
    /// no memory, this end only receives, or, over a socket, when there is a tensor or a queue in it, or it is too long. The
    /// value is given back.
    pub fn send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::Forever)
    }

    /// Sends a value, if there is room for the first byte of it: see [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// As [`send_timeout`](Self::send_timeout).
    pub fn try_send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::Never)
    }

    /// Sends a value; waits, at most `timeout`, for a socket whose other end does not receive, since it is stopped or busy. (A pipe
    /// has room, and it does not wait.)
    ///
    /// A message of which a byte was sent when the time is over is not taken back: it counts as sent. Its
    /// rest follows as soon as there is room, before anything else, also if this is the last handle. (If this
    /// process ends before that, the other end gets the error of a message that was cut off.)
    ///
    /// # Errors
    /// [`PutError::Full`] when there was no room for a byte in that time, and as [`send`](Self::send).
    pub fn send_timeout<T: Message>(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::at_most(timeout))
    }

    /// Sends a value; waits for a socket whose other end does not receive, but not beyond `deadline`: see
    /// [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// As [`send_timeout`](Self::send_timeout).
    pub fn send_deadline<T: Message>(&self, value: T, deadline: Instant) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::Until(deadline))
    }

    pub(crate) fn send_within<T: Message>(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        let out = match &self.ends {
            Ends::Both { out, .. } | Ends::Out(out) => out,
            Ends::Into(_) => return Err(PutError::Failed { value, error: one_way("send") }),
            Ends::Socket(socket) => return socket.send(value, wait),
        };
        if out.alone().is_some() {
            return Err(PutError::Disconnected(value));
        }
        put_as(out.raw(), TypeFingerprint::new(), Named(value), Wait::Forever, || out.alone())
            .map_err(|e| e.map(|named| named.0))
    }

    /// Receives the next value; waits while there is none.
    ///
    /// # Errors
    /// [`GetError::Disconnected`] when there is none and the other end is gone; [`GetError::Failed`] when it is of another
    /// type, or this end only sends.
    pub fn recv<T: Message>(&self) -> Result<T, GetError> {
        self.recv_within(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next value": recv[T: Message]() -> Result<T, GetError>, or "[`GetError::Empty`]";
        |connection, wait| connection.recv_within(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    pub(crate) fn recv_within<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        let got = match &self.ends {
            Ends::Both { into, .. } | Ends::Into(into) => into
                .get_as::<Named<T>>(TypeFingerprint::new(), wait)
                .map(|named| named.0)
                .map_err(unnamed::<T>),
            Ends::Out(_) => Err(one_way("receive").into()),
            Ends::Socket(socket) => socket.recv(wait),
        };
        self.looked();
        got
    }

    /// After a receive, whether it found a message or not: is there more?
    pub(crate) fn looked(&self) {
        if let Some(ready) = self.ready.get() {
            // If it can't be watched any more, it is readable from now on.
            _ = ready.update();
        }
    }

    /// The end that receives, for a future.
    pub(crate) fn receiver(&self) -> Result<&End, Error> {
        match &self.ends {
            Ends::Both { into, .. } | Ends::Into(into) => Ok(into),
            Ends::Out(_) => Err(one_way("receive")),
            Ends::Socket(_) => {
                Err(mp_core::Error::Unsupported("a socket has no end in shared memory".into()).into())
            }
        }
    }

    /// Waits, at most `timeout`, until there is something to receive. Whether receiving would not wait: also when the other
    /// end is gone. (Over a socket, there may be the beginning of a message only.)
    ///
    /// # Errors
    /// [`GetError::Failed`] when this end only sends.
    pub fn poll(&self, timeout: Duration) -> Result<bool, GetError> {
        let end = match &self.ends {
            Ends::Both { into, .. } | Ends::Into(into) => into,
            Ends::Out(_) => return Err(one_way("receive").into()),
            Ends::Socket(_) => {
                let found = mp_core::wait(&[self], Some(timeout));
                return Ok(!found.map_err(Error::from)?.is_empty());
            }
        };
        let raw = end.raw();
        raw.arena().me().map_err(Error::from)?;
        let ready = || raw.memory().is_ready().then_some(Ok(()));
        let (wait, parking) = (Wait::at_most(timeout), raw.memory().not_empty());
        let at = At { parking, what: None, call: Call::ConnectionPoll };
        let found = match raw.within(wait, (raw.getting(), None), at, ready, || end.alone()) {
            Ok(()) => {
                // It may have been woken in the place of a process that would have received.
                parking.wake_one();
                true
            }
            Err(Unmet::Alone(_)) => true,
            Err(Unmet::Waited) => false,
            Err(Unmet::Interrupted) => return Err(GetError::Interrupted),
            Err(Unmet::Failed(error)) => return Err(error.into()),
        };
        self.looked();
        Ok(found)
    }

    /// A descriptor that is readable when [`poll`](Self::poll) is true: for `epoll(7)` and its like, and for runtimes.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    /// use mp_queue::{Descriptor, Waitable};
    ///
    /// let (here, there) = mp_queue::pipe()?;
    /// let fd = Descriptor(here.as_fd()?);
    /// assert!(!fd.is_ready());
    /// there.send(5)?;
    /// while !fd.is_ready() {} // at once, but by another thread
    /// assert_eq!(here.try_recv::<i32>()?, 5);
    /// assert!(!fd.is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Of a pipe it is an eventfd of this handle (each clone has its own), written by the thread that sleeps for all
    /// futures of this process, and only while it is not readable already:
    /// - it becomes readable soon after there is something to receive, or the other end is gone (if its process was killed,
    ///   within 100 ms);
    /// - it stops being readable in calls to receive or to `poll` **by this handle** that leave nothing to be received. So
    ///   after another handle or process was faster, it is readable once in vain: receive by
    ///   [`try_recv`](Self::try_recv), and continue when it finds nothing;
    /// - reading it, or writing to it, is not for others.
    ///
    /// So it suits level-triggered waiting as well as edge-triggered (then receive until there is nothing). Of a socket it is
    /// the socket; one that was connected without a key is readable once in vain when the listener has accepted it. It stays open as long as this handle.
    ///
    /// # Errors
    /// [`GetError::Failed`] when this end only sends, and when there is no descriptor or no thread left.
    #[doc(alias("fileno", "epoll"))]
    pub fn as_fd(&self) -> Result<BorrowedFd<'_>, GetError> {
        if let Ends::Socket(socket) = &self.ends {
            return Ok(socket.as_fd());
        }
        self.receiver()?;
        if let Some(ready) = self.ready.get() {
            return Ok(ready.as_fd());
        }
        let ready = ReadyFd::new(Arc::new(self.clone())).map_err(Error::from)?;
        // If another thread was faster, this one is dropped.
        Ok(self.ready.get_or_init(|| ready).as_fd())
    }

    /// Whether this end receives.
    pub fn readable(&self) -> bool {
        !matches!(self.ends, Ends::Out(_))
    }

    /// Whether this end sends.
    pub fn writable(&self) -> bool {
        !matches!(self.ends, Ends::Into(_))
    }

    /// The process at the other end of a socket, as it was when the two connected; `None` for a pipe, whose
    /// ends many processes may have, for TCP ([`peer_addr`](Self::peer_addr)), and if it is in another pid
    /// namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        match &self.ends {
            Ends::Socket(socket) => Some(socket.peer().pid()).filter(|&pid| pid != 0),
            _ => None,
        }
    }

    /// The TCP address of the other end; `None` for a Unix socket, and for a pipe.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.ends {
            Ends::Socket(socket) => socket.peer().host(),
            _ => None,
        }
    }

    /// Ends a socket, whatever handles of it there are, also in copies of this process: the other end receives what was sent, then it is
    /// `Disconnected`. A pipe stays as it is.
    #[doc(hidden)]
    pub fn shut_down(&self) {
        if let Ends::Socket(socket) = &self.ends {
            socket.shut_down();
        }
    }

    /// Whether the other end is gone, in all processes; messages from it may still be there.
    pub fn is_disconnected(&self) -> bool {
        if let Ends::Socket(socket) = &self.ends {
            return socket.is_disconnected();
        }
        self.ends.receiving().into_iter().chain(self.ends.sending()).any(|end| end.alone().is_some())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ends::Socket(socket) = &self.ends {
            return f.debug_tuple("Connection").field(socket).finish();
        }
        f.debug_struct("Connection")
            .field("receives", &self.ends.receiving())
            .field("sends", &self.ends.sending())
            .finish()
    }
}

const NAME: &str = "a Connection";

impl Serialize for Connection {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if let Ends::Socket(_) = self.ends {
            return Err(S::Error::custom(
                "a Connection over a socket can't be sent; connect there once more",
            ));
        }
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
        Ok(Self::of(ends))
    }
}
