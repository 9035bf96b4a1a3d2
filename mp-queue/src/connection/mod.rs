//! Connections: ends of pipes in shared memory, and of sockets.

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

/// End of a [`pipe`](crate::pipe), or of a socket to another program ([`Listener`](crate::Listener),
/// [`connect`](crate::connect)). Sends and receives raw bytes and values of any type that is a message.
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
/// A connection can be cloned. Each message of a clone of one end is received by one clone of the other end.
/// When the last handle of the other end is dropped, or the last process with a handle dies, the messages
/// that were sent before can still be received. Then receiving and sending fail with `Disconnected`.
///
/// Types are checked when a value is received. If another type was sent, the error contains the names of both
/// types and the bytes of the value ([`Error::bytes`]). For a single type, [`channel()`](crate::channel()) is
/// simpler.
///
/// # Pipes and sockets
/// | | pipe | socket |
/// |---|---|---|
/// | between | processes that share memory | any two processes of one user on one machine; over TCP, any two programs that know a key, on any machines |
/// | tensors, queues and locks in messages | are sent without a copy | are an error: the other side has no access to their memory. It can be [invited](Self::invite), but not over TCP |
/// | data in transit | limited by memory | limited by the socket's buffer (`net.core.wmem_default` bytes, usually 208 KiB, most of it bookkeeping of the kernel if messages are short; over TCP a few MB). Then sending waits |
/// | the end itself in a message | is sent | is an error |
///
/// The end of the other process is reported at once, to each process with a handle. Over TCP, a lost host
/// (power, network) is reported as `Disconnected` 25 s after its last packet. While sent bytes are not
/// acknowledged, this takes as long as the kernel retransmits them, about 15 minutes
/// (`net.ipv4.tcp_retries2`). Messages sent over TCP shortly before the other end is gone may be lost without
/// an error. Only an answer proves that a message was received.
pub struct Connection {
    ends: Ends,
    /// Created on first use. Each clone has its own.
    ready: OnceLock<ReadyFd>,
}

/// Parts of a connection.
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

    /// Names the connection. The name appears in `Debug` output and in reports of long waits. A later name
    /// replaces it. Both ends of a pipe have the same name in all processes, cut at 32 bytes. Each side of a
    /// socket has its own name. A connection can't be looked up by name.
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

    /// Returns the [given](Self::named) name. Any process with a handle can name a pipe. A socket is named
    /// only in this process.
    pub fn given_name(&self) -> Option<String> {
        match &self.ends {
            Ends::Both { into: end, .. } | Ends::Into(end) | Ends::Out(end) => {
                mp_core::waits::object_name(end.raw().hold())
            }
            Ends::Socket(socket) => socket.given_name(),
        }
    }

    /// Sends a value. Waits only for a socket, while its other end does not receive: see
    /// [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns [`PutError::Disconnected`] if the other end is gone. Returns [`PutError::Failed`] if the value
    /// can't be encoded, there is not enough memory, or this end only receives. For a socket, also if the
    /// value contains a tensor or a queue, or is too long. The error contains the value.
    pub fn send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::Forever)
    }

    /// Sends a value if there is room for its first byte: see [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns the same errors as [`send_timeout`](Self::send_timeout).
    pub fn try_send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::Never)
    }

    /// Sends a value. If the other end of a socket does not receive because it is stopped or busy, waits for
    /// at most `timeout`. A pipe always has room, so it never waits.
    ///
    /// If at least one byte was sent when the time is over, the message counts as sent. Its rest follows as
    /// soon as there is room, before any other message, also if this was the last handle. If this process
    /// ends before that, the other end gets an error for a truncated message.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if there was no room for a byte during that time. Otherwise returns the
    /// same errors as [`send`](Self::send).
    pub fn send_timeout<T: Message>(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.send_within(value, Wait::at_most(timeout))
    }

    /// Sends a value. Waits for a socket whose other end does not receive until `deadline` at most: see
    /// [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns the same errors as [`send_timeout`](Self::send_timeout).
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

    /// Receives the next value. Waits while there is none.
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if there is no value and the other end is gone. Returns
    /// [`GetError::Failed`] if the value has another type, or if this end only sends.
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

    /// Updates the descriptor of `as_fd` after a receive, whether it found a message or not.
    pub(crate) fn looked(&self) {
        if let Some(ready) = self.ready.get() {
            // If it can't be watched any more, it stays readable.
            _ = ready.update();
        }
    }

    /// Returns the receiving end, for a future.
    pub(crate) fn receiver(&self) -> Result<&End, Error> {
        match &self.ends {
            Ends::Both { into, .. } | Ends::Into(into) => Ok(into),
            Ends::Out(_) => Err(one_way("receive")),
            Ends::Socket(_) => {
                Err(mp_core::Error::Unsupported("a socket has no end in shared memory".into()).into())
            }
        }
    }

    /// Waits for at most `timeout` until there is something to receive. Returns `true` if receiving would not
    /// wait, also if the other end is gone. For a socket, only the beginning of a message may have arrived.
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if this end only sends.
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
                // This thread may have been woken instead of a process that would have received.
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

    /// Returns a descriptor that is readable when [`poll`](Self::poll) would return `true`, for `epoll(7)`,
    /// similar calls, and runtimes.
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
    /// For a pipe, the descriptor is an eventfd of this handle. Each clone has its own. The thread that
    /// sleeps for all futures of this process writes to it, and only while it is not readable:
    /// - It becomes readable soon after there is something to receive or the other end is gone. If the other
    ///   process was killed, this takes up to 100 ms.
    /// - It stops being readable in calls to receive or to `poll` **by this handle** that leave nothing to be
    ///   received. So it is readable once without a message if another handle or process was faster: receive
    ///   with [`try_recv`](Self::try_recv), and continue if that returns nothing.
    /// - Callers must not read it or write to it.
    ///
    /// It can be used for level-triggered and edge-triggered waiting. If edge-triggered, receive until there
    /// is nothing. For a socket, the descriptor is the socket. A socket that was connected without a key is
    /// readable once without a message when the listener has accepted it. The descriptor stays open as long
    /// as this handle.
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if this end only sends, or if no descriptor or thread is left.
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
        // If another thread was faster, this descriptor is dropped.
        Ok(self.ready.get_or_init(|| ready).as_fd())
    }

    /// Returns `true` if this end receives.
    pub fn readable(&self) -> bool {
        !matches!(self.ends, Ends::Out(_))
    }

    /// Returns `true` if this end sends.
    pub fn writable(&self) -> bool {
        !matches!(self.ends, Ends::Into(_))
    }

    /// Returns the id of the process at the other end of a socket when the two connected. Returns `None` for
    /// a pipe, whose ends many processes may have, for TCP (see [`peer_addr`](Self::peer_addr)), and for a
    /// process in another pid namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        match &self.ends {
            Ends::Socket(socket) => Some(socket.peer().pid()).filter(|&pid| pid != 0),
            _ => None,
        }
    }

    /// Returns the TCP address of the other end, or `None` for a Unix socket or a pipe.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.ends {
            Ends::Socket(socket) => socket.peer().host(),
            _ => None,
        }
    }

    /// Shuts a socket down for all handles, also in forked copies of this process. The other end receives the
    /// messages that were sent, and then gets `Disconnected`. Does nothing for a pipe.
    #[doc(hidden)]
    pub fn shut_down(&self) {
        if let Ends::Socket(socket) = &self.ends {
            socket.shut_down();
        }
    }

    /// Returns `true` if the other end is gone in all processes. Messages from it may still be unread.
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
