//! Connections: ends of pipes in shared memory, and ends of sockets.

pub(crate) mod bytes;
pub(crate) mod invite;
pub(crate) mod named;
pub(crate) mod pipe;
pub(crate) mod socket;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mp_core::waits::BlockingCall;
use mp_core::{Message, ReadyFd, Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::connection::named::{NamedValue, unwrap_error};
use crate::connection::pipe::type_of;
use crate::connection::socket::Socket;
use crate::error::{GetError, PutError};
use crate::queue::channel::ChannelEnd;
use crate::queue::future::get;
use crate::queue::put_as;
use crate::raw::waiting::{WaitError, WaitSite};

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
/// | connects | processes that share memory | any two processes of one user on one machine; over TCP, any two programs that know a key, on any machines |
/// | tensors, queues and locks in messages | are sent without a copy | are an error: the other side has no access to their memory. A side can be [invited](Self::invite), but not over TCP |
/// | data in transit | limited by memory | limited by the socket's buffer (`net.core.wmem_default` bytes, usually 208 KiB, most of it bookkeeping of the kernel if messages are short; over TCP a few MB). Then sending waits |
/// | the connection itself in a message | is sent | is an error |
///
/// If the other process ends, each process with a handle is notified at once. Over TCP, a lost host (power,
/// network) is reported as `Disconnected` 25 s after its last packet. While sent bytes are not acknowledged,
/// this takes as long as the kernel retransmits them, about 15 minutes (`net.ipv4.tcp_retries2`). Messages
/// sent over TCP shortly before the other end is closed may be lost without an error. Only an answer proves
/// that a message was received.
pub struct Connection {
    transport: Transport,
    /// Descriptor of [`as_fd`](Self::as_fd) for a pipe, created on first use. Each clone has its own.
    ready: OnceLock<ReadyFd>,
}

/// Transport of a connection: a pipe in shared memory, or a socket.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "each connection has one, and it is seldom moved")]
pub(crate) enum Transport {
    /// End of a pipe. A one-way end has only a receiver or only a sender.
    Pipe {
        recv: Option<ChannelEnd>,
        send: Option<ChannelEnd>,
    },
    Socket(Arc<Socket>),
}

impl Transport {
    /// Returns the channel ends of a pipe, or nothing for a socket.
    fn ends(&self) -> impl Iterator<Item = &ChannelEnd> {
        let (recv, send) = match self {
            Transport::Pipe { recv, send } => (recv.as_ref(), send.as_ref()),
            Transport::Socket(_) => (None, None),
        };
        recv.into_iter().chain(send)
    }

    pub(crate) fn socket(&self) -> Option<&Arc<Socket>> {
        match self {
            Transport::Pipe { .. } => None,
            Transport::Socket(socket) => Some(socket),
        }
    }
}

impl Clone for Connection {
    fn clone(&self) -> Self {
        Self::of(self.transport.clone())
    }
}

fn one_way(what: &str) -> Error {
    mp_core::Error::Unsupported(format!("this end of a one-way pipe can't {what}: use its other end")).into()
}

impl Connection {
    pub(crate) fn of(transport: Transport) -> Self {
        Self { transport, ready: OnceLock::new() }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
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
        self.transport.ends().for_each(|end| mp_core::waits::name_object(end.raw().hold(), name));
        self.transport.socket().into_iter().for_each(|socket| socket.set_name(name));
        self
    }

    /// Returns the [given](Self::named) name. A pipe has one name, which any process with a handle can set.
    /// The name of a socket is local to this process.
    pub fn given_name(&self) -> Option<String> {
        match self.transport.socket() {
            Some(socket) => socket.given_name(),
            None => mp_core::waits::object_name(self.transport.ends().next()?.raw().hold()),
        }
    }

    /// Sends a value. Waits only for a socket, while its other end does not receive: see
    /// [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns [`PutError::Disconnected`] if the other end is closed. Returns [`PutError::Failed`] if the
    /// value can't be encoded, there is not enough memory, or this end only receives. For a socket, also
    /// returns `Failed` if the value contains a tensor or a queue, or is too long. The error contains the
    /// value.
    #[track_caller]
    pub fn send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_wait(value, Wait::Forever)
    }

    /// Sends a value if there is room for its first byte: see [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns the same errors as [`send_timeout`](Self::send_timeout).
    #[track_caller]
    pub fn try_send<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        self.send_wait(value, Wait::Never)
    }

    /// Sends a value. If the other end of a socket does not receive because it is stopped or busy, waits for
    /// at most `timeout`. For a pipe, the call does not wait, since a pipe always has room.
    ///
    /// If at least one byte was sent when the time has expired, the message counts as sent. The rest of the
    /// message is sent as soon as there is room, before any other message, even if this was the last handle.
    /// If this process ends before that, the other end gets an error for a truncated message.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if there was no room for a byte during that time. Otherwise returns the
    /// same errors as [`send`](Self::send).
    #[track_caller]
    pub fn send_timeout<T: Message>(&self, value: T, timeout: Duration) -> Result<(), PutError<T>> {
        self.send_wait(value, Wait::at_most(timeout))
    }

    /// Sends a value. If the other end of a socket does not receive, waits until `deadline` at most: see
    /// [`send_timeout`](Self::send_timeout).
    ///
    /// # Errors
    /// Returns the same errors as [`send_timeout`](Self::send_timeout).
    #[track_caller]
    pub fn send_deadline<T: Message>(&self, value: T, deadline: Instant) -> Result<(), PutError<T>> {
        self.send_wait(value, Wait::Until(deadline))
    }

    #[track_caller]
    pub(crate) fn send_wait<T: Message>(&self, value: T, wait: Wait) -> Result<(), PutError<T>> {
        let out = match &self.transport {
            Transport::Pipe { send: Some(out), .. } => out.raw(),
            Transport::Pipe { send: None, .. } => {
                return Err(PutError::Failed { value, error: one_way("send") });
            }
            Transport::Socket(socket) => return socket.send(value, wait),
        };
        if out.is_disconnected() {
            return Err(PutError::Disconnected(value));
        }
        put_as(out, TypeFingerprint::new(), NamedValue(value), Wait::Forever)
            .map_err(|e| e.map(|named| named.0))
    }

    /// Receives the next value. Waits while there is none.
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if there is no value and the other end is closed. Returns
    /// [`GetError::Failed`] if the value has another type, or if this end only sends.
    #[track_caller]
    pub fn recv<T: Message>(&self) -> Result<T, GetError> {
        self.recv_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next value": recv[T: Message]() -> Result<T, GetError>, or "[`GetError::Empty`]";
        |connection, wait| connection.recv_wait(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    #[track_caller]
    pub(crate) fn recv_wait<T: Message>(&self, wait: Wait) -> Result<T, GetError> {
        let got = match self.transport.socket() {
            Some(socket) => socket.recv(wait),
            None => self
                .receiver()?
                .get_as::<NamedValue<T>>(TypeFingerprint::new(), wait)
                .map(|named| named.0)
                .map_err(unwrap_error::<T>),
        };
        self.update_ready_fd();
        got
    }

    /// Receives the next value, asynchronously: see [`Queue::get_async`](crate::Queue::get_async). If the
    /// future is dropped, the received part of a message stays in the connection of a socket for the next
    /// receive.
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv). For a socket, also returns an error if no thread or
    /// descriptor is left for waiting.
    pub async fn recv_async<T: Message>(&self) -> Result<T, GetError> {
        if let Some(socket) = self.transport.socket() {
            return socket.recv_async().await;
        }
        let fingerprint = TypeFingerprint::<NamedValue<T>>::new();
        let got = get(self.receiver()?.raw(), fingerprint).await;
        self.update_ready_fd();
        got.map_err(unwrap_error::<T>)?.map(|named| named.0).ok_or(GetError::Disconnected)
    }

    /// Sends a value, asynchronously. Waits like [`send`](Self::send): only for a socket whose other end does
    /// not receive.
    ///
    /// For a socket, a future that is dropped before the first byte is sent has sent nothing. If it is
    /// dropped later, the message counts as sent. The rest of the message is sent as soon as there is room,
    /// before any other message, even if this was the last handle. If the process ends before that, the other
    /// end gets an error for a truncated message.
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send). For a socket, also returns an error if no thread or
    /// descriptor is left for waiting.
    pub async fn send_async<T: Message>(&self, value: T) -> Result<(), PutError<T>> {
        match &self.transport {
            Transport::Socket(socket) => socket.send_async(value).await,
            _ => self.send(value),
        }
    }

    /// Updates the descriptor of `as_fd` after an attempt to receive, with or without a message.
    pub(crate) fn update_ready_fd(&self) {
        if let Some(ready) = self.ready.get() {
            // If the pipe can no longer be watched, the descriptor stays readable.
            _ = ready.update();
        }
    }

    /// Returns the end of the pipe from which this connection receives.
    pub(crate) fn receiver(&self) -> Result<&ChannelEnd, Error> {
        match &self.transport {
            Transport::Pipe { recv: Some(into), .. } => Ok(into),
            Transport::Pipe { recv: None, .. } => Err(one_way("receive")),
            Transport::Socket(_) => {
                Err(mp_core::Error::Unsupported("a socket has no end in shared memory".into()).into())
            }
        }
    }

    /// Waits for at most `timeout` until there is something to receive. Returns `true` if a receive would not
    /// wait, which includes the case that the other end is closed. For a socket, `true` may also mean that
    /// only the beginning of a message has arrived.
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if this end only sends.
    #[track_caller]
    pub fn poll(&self, timeout: Duration) -> Result<bool, GetError> {
        if self.transport.socket().is_some() {
            let found = mp_core::wait(&[self], Some(timeout));
            return Ok(!found.map_err(Error::from)?.is_empty());
        }
        let raw = self.receiver()?.raw();
        raw.arena().me().map_err(Error::from)?;
        let ready = || raw.memory().is_ready().then_some(Ok(()));
        let (wait, at) = (Wait::at_most(timeout), WaitSite::for_message(raw, BlockingCall::ConnectionPoll));
        let found = match raw.attempt_until(wait, (raw.get_spin(), None), at, ready) {
            Ok(()) => {
                // This thread may have been woken instead of a thread that would receive the message.
                at.parking.wake_one();
                true
            }
            Err(WaitError::Deserted(..) | WaitError::Disconnected) => true,
            Err(WaitError::TimedOut) => false,
            Err(WaitError::Interrupted) => return Err(GetError::Interrupted),
            Err(WaitError::Failed(error)) => return Err(error.into()),
        };
        self.update_ready_fd();
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
    /// while !fd.is_ready() {} // soon: another thread makes it readable
    /// assert_eq!(here.try_recv::<i32>()?, 5);
    /// assert!(!fd.is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// For a pipe, the descriptor is an eventfd of this handle. Each clone has its own. The thread that
    /// sleeps for all futures of this process makes the eventfd readable:
    /// - The descriptor becomes readable soon after there is something to receive or the other end is closed.
    ///   If the other process was killed, this takes up to 100 ms.
    /// - The descriptor stops being readable in calls to receive or to `poll` **by this handle** that leave
    ///   nothing to be received. If another handle or process has taken the message, the descriptor is
    ///   readable once without a message: receive with [`try_recv`](Self::try_recv), and continue if there is
    ///   no message.
    /// - Callers must not read or write the descriptor.
    ///
    /// The descriptor can be used for level-triggered and edge-triggered waiting. With edge-triggered
    /// waiting, receive until there are no more messages. For a socket, the descriptor is the socket. A
    /// socket that was connected without a key is readable once without a message when the listener has
    /// accepted it. The descriptor stays open as long as this handle.
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if this end only sends, or if no descriptor or thread is left.
    #[doc(alias("fileno", "epoll"))]
    pub fn as_fd(&self) -> Result<BorrowedFd<'_>, GetError> {
        if let Some(socket) = self.transport.socket() {
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
        !matches!(self.transport, Transport::Pipe { recv: None, .. })
    }

    /// Returns `true` if this end sends.
    pub fn writable(&self) -> bool {
        !matches!(self.transport, Transport::Pipe { send: None, .. })
    }

    /// Returns the id of the process that was at the other end of the socket when the connection was
    /// established. Returns `None` for a pipe, which may have many processes at each end. Also returns `None`
    /// for TCP (see [`peer_addr`](Self::peer_addr)), and for a process in another pid namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        self.transport.socket().map(|socket| socket.peer().pid()).filter(|&pid| pid != 0)
    }

    /// Returns the TCP address of the other end, or `None` for a Unix socket or a pipe.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.transport.socket()?.peer().host()
    }

    /// Shuts a socket down for all handles, also in forked copies of this process. The other end receives the
    /// messages that were sent, and then gets `Disconnected`. Does nothing for a pipe.
    #[doc(hidden)]
    pub fn shut_down(&self) {
        self.transport.socket().into_iter().for_each(|socket| socket.shut_down());
    }

    /// Returns `true` if the other end is closed in all processes. Messages that it has sent may still be
    /// unread.
    pub fn is_disconnected(&self) -> bool {
        match self.transport.socket() {
            Some(socket) => socket.is_disconnected(),
            None => self.transport.ends().any(|end| end.raw().is_disconnected()),
        }
    }
}

/// Ready when a receive would not wait: there is a message, the other end is closed, or this end only sends,
/// so that receiving returns an error.
impl Waitable for Connection {
    fn wait_point(&self) -> WaitPoint<'_> {
        match &self.transport {
            Transport::Pipe { recv: Some(into), .. } => into.raw().message_wait_point(),
            Transport::Pipe { recv: None, send } => {
                send.as_ref().map_or(WaitPoint::Nowhere, |out| out.raw().room_wait_point())
            }
            Transport::Socket(socket) => WaitPoint::Readable(socket.as_fd()),
        }
    }

    fn is_ready(&self) -> bool {
        match &self.transport {
            Transport::Pipe { recv: Some(into), .. } => into.raw().has_message(),
            Transport::Pipe { recv: None, send } => {
                send.as_ref().is_none_or(|out| out.raw().memory().is_accessible())
            }
            Transport::Socket(socket) => socket.has_arrived(),
        }
    }

    fn description(&self) -> Option<String> {
        match (&self.transport, self.given_name()) {
            (Transport::Socket(socket), _) => Some(socket.description()),
            (_, Some(name)) => Some(format!("pipe {name:?}")),
            (_, None) => Some("pipe".into()),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::Socket(socket) => f.debug_tuple("Connection").field(socket).finish(),
            Transport::Pipe { recv, send } => {
                f.debug_struct("Connection").field("receives", recv).field("sends", send).finish()
            }
        }
    }
}

const NAME: &str = "a Connection";

impl Serialize for Connection {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Transport::Pipe { recv, send } = &self.transport else {
            return Err(S::Error::custom(
                "a Connection over a socket can't be sent to another process: connect there instead",
            ));
        };
        let attach = |end: &Option<ChannelEnd>| {
            end.as_ref().map(|end| end.attach(NAME)).transpose().map_err(S::Error::custom)
        };
        (attach(recv)?, attach(send)?).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Connection {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (into, out) = <(Option<(u32, u32)>, Option<(u32, u32)>)>::deserialize(d)?;
        let take = |end: Option<(u32, u32)>, receivers| {
            end.map(|end| ChannelEnd::take(NAME, end, receivers, type_of()))
                .transpose()
                .map_err(D::Error::custom)
        };
        let (recv, send) = (take(into, true)?, take(out, false)?);
        if recv.is_none() && send.is_none() {
            return Err(D::Error::custom("a received Connection has no ends"));
        }
        Ok(Self::of(Transport::Pipe { recv, send }))
    }
}
