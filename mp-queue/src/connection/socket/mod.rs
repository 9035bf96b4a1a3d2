//! Connections between programs that have no memory in common.

mod address;
mod connecting;
mod error;
mod events;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use frame::fuzz;
mod handshake;
mod incoming;
mod invitation;
mod key;
mod listener;
mod outbox;
mod send;
mod tcp;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::Waitable;
#[cfg(feature = "authkey")]
use mp_core::sent::ByteString;

pub use address::Address;
use connecting::Attempt;
pub use error::ConnectError;
pub(crate) use frame::Socket;
use handshake::Handshake;
pub use incoming::Incoming;
use key::Key;
pub use listener::Listener;
pub(in crate::connection) use outbox::WriteError;

use crate::connection::{Connection, Ends};

/// How two programs connect: the same on both sides.
///
/// ```
/// # #[cfg(feature = "authkey")] {
/// use mp_queue::SocketOptions;
///
/// let options = SocketOptions::new().authkey(b"a secret that both sides know").max_message(1 << 20);
/// let listener = options.listen("@example-of-options")?;
/// let client = std::thread::spawn(move || options.connect("@example-of-options")?.send("hello".to_string()).map_err(Into::into));
/// assert_eq!(listener.accept()?.recv::<String>()?, "hello");
/// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = client.join().unwrap();
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SocketOptions {
    key: Option<Arc<Key>>,
    /// `true` if it was stated that there is no key.
    open: bool,
    limit: usize,
    patience: Duration,
    backlog: i32,
}

/// Options as another process of this program gets them.
#[cfg(feature = "authkey")]
#[doc(hidden)]
pub type OptionParts = (Option<ByteString>, usize, Duration, i32);

impl Default for SocketOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SocketOptions {
    /// No key, messages up to 64 MiB, ten seconds for the handshake, 128 connections in the listener's queue.
    pub fn new() -> Self {
        Self { key: None, open: false, limit: 64 << 20, patience: Duration::from_secs(10), backlog: 127 }
    }

    /// A secret that each side has to know. Neither sends it: each proves that it knows it, by HMAC-SHA256 of
    /// random bytes of both. With an empty one, listening and connecting fail ([`ConnectError::EmptyKey`]): a variable of the
    /// environment that is not set must not make a listener without a key.
    ///
    /// Over a Unix socket other users are refused with or without it, and it keeps programs of the same user
    /// apart. Over TCP it is all that keeps others out; see [`Address`] for what it does not do there.
    #[cfg(feature = "authkey")]
    #[must_use]
    pub fn authkey(self, key: impl AsRef<[u8]>) -> Self {
        Self { key: Some(Arc::new(Key::new(key.as_ref()))), open: false, ..self }
    }

    /// No secret, as by default: all programs of this user can connect, or, over TCP at a loopback address,
    /// all of this machine. At other addresses it is an error ([`ConnectError::KeyRequired`]).
    #[must_use]
    pub fn no_key(self) -> Self {
        Self { key: None, open: true, ..self }
    }

    /// Returns `true` if a key was given, or that there is none.
    #[doc(hidden)]
    pub fn states_key(&self) -> bool {
        self.key.is_some() || self.open
    }

    /// Time for the handshake.
    #[doc(hidden)]
    pub fn time_for_handshake(&self) -> Duration {
        self.patience
    }

    /// Returns the limit of messages and the time for the handshake, for another process of this program.
    #[doc(hidden)]
    pub fn limits(&self) -> (usize, Duration) {
        (self.limit, self.patience)
    }

    /// Everything in it, the key included, for another process of this program.
    #[cfg(feature = "authkey")]
    #[doc(hidden)]
    pub fn to_parts(&self) -> OptionParts {
        let key = self.key.as_ref().map(|key| ByteString(key.bytes().to_vec()));
        (key, self.limit, self.patience, self.backlog)
    }

    /// As [`to_parts`](Self::to_parts) has taken them apart.
    #[cfg(feature = "authkey")]
    #[doc(hidden)]
    pub fn from_parts((key, limit, patience, backlog): OptionParts) -> Self {
        let open = key.is_none();
        Self { key: key.map(|key| Arc::new(Key::new(&key.0))), open, limit, patience, backlog }
    }

    /// Refuses an empty key, and an address beyond this machine without one.
    fn check(&self, address: &Address) -> Result<(), ConnectError> {
        match &self.key {
            Some(key) if key.is_empty() => Err(ConnectError::EmptyKey),
            None if !address.is_local() => Err(ConnectError::KeyRequired { address: address.clone() }),
            _ => Ok(()),
        }
    }

    /// The secret that this process has in common with its children, its parent, and so on: see
    /// `current_process().authkey()` in the layer of processes. Its value now: what is set later doesn't
    /// count.
    ///
    /// ```
    /// use mp_queue::SocketOptions;
    ///
    /// let listener = SocketOptions::new().authkey_of_family()?.listen("@example-of-family")?;
    /// // In any process of the family, or as here in the same:
    /// let options = SocketOptions::new().authkey_of_family()?;
    /// let client = std::thread::spawn(move || options.connect("@example-of-family")?.send(1).map_err(Into::into));
    /// assert_eq!(listener.accept()?.recv::<i32>()?, 1);
    /// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = client.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the system has no random bytes, from which the secret is made where it was not set.
    #[cfg(feature = "authkey")]
    pub fn authkey_of_family(self) -> mp_core::Result<Self> {
        Ok(self.authkey(mp_core::authkey()?))
    }

    /// The most bytes that a message may have, sent or received: 4 GiB less one byte, if it is more than that.
    #[must_use]
    pub fn max_message(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// How long the handshake may take: a client waits for a place in the listener's queue, over TCP for the
    /// other host, and with a key for its proof; the listener waits, once it has accepted, for the client's
    /// first bytes.
    #[must_use]
    pub fn handshake_timeout(self, timeout: Duration) -> Self {
        Self { patience: timeout, ..self }
    }

    /// How many connections may wait to be accepted by the listener, at least 1; 128 by default, and no more
    /// than the kernel has for all (`net.core.somaxconn`, usually 4,096). They are connected: what they send
    /// is there when they are accepted. Beyond that number, connecting waits, as long as
    /// [`handshake_timeout`](Self::handshake_timeout) says.
    ///
    /// ```
    /// use mp_queue::{SocketOptions, connect};
    ///
    /// let listener = SocketOptions::new().backlog(2).listen("@example-of-backlog")?;
    /// for i in 0..2 {
    ///     connect("@example-of-backlog")?.send(i)?; // and leaves
    /// }
    /// assert_eq!(listener.accept()?.recv::<i32>()?, 0);
    /// assert_eq!(listener.accept()?.recv::<i32>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn backlog(self, connections: u32) -> Self {
        // The kernel counts from 0.
        Self { backlog: i32::try_from(connections.saturating_sub(1)).unwrap_or(i32::MAX), ..self }
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn listen(&self, address: impl Into<Address>) -> Result<Listener, ConnectError> {
        let address = address.into();
        self.check(&address)?;
        Listener::new(address, self.clone())
    }

    /// Connects to the listener at an address.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn connect(&self, address: impl Into<Address>) -> Result<Connection, ConnectError> {
        let address = address.into();
        let mut attempt = Attempt::new(self, &address)?;
        loop {
            if let Some(connection) = attempt.advance()? {
                return Ok(connection);
            }
            attempt.wait()?;
        }
    }

    /// Connects to the listener at an address, as a future, on any runtime.
    ///
    /// # Errors
    /// As [`connect_async`].
    pub async fn connect_async(&self, address: impl Into<Address>) -> Result<Connection, ConnectError> {
        connecting::connect(self, &address.into()).await
    }

    fn connection(&self, handshake: Handshake) -> Connection {
        Connection::of(Ends::Socket(Arc::new(Socket::new(handshake.end(), self.limit))))
    }
}

impl fmt::Debug for SocketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketOptions")
            .field("authkey", &self.key.is_some())
            .field("max_message", &self.limit)
            .field("handshake_timeout", &self.patience)
            .field("backlog", &(i64::from(self.backlog) + 1))
            .finish()
    }
}

fn waiting(address: &Address, e: mp_core::Error) -> ConnectError {
    let source = std::io::Error::other(e);
    ConnectError::Io { what: "waiting at", address: address.clone(), source }
}

/// Waits until something is ready; whether it is.
fn wait_for(what: &dyn Waitable, left: Option<Duration>, address: &Address) -> Result<bool, ConnectError> {
    match mp_core::wait(&[what], left) {
        Ok(found) => Ok(!found.is_empty()),
        Err(e) => Err(waiting(address, e)),
    }
}

/// Connects to the [`Listener`] at an address, of whatever program.
///
/// Without a key it returns as soon as the kernel has put it into the listener's queue ([`SocketOptions::backlog`]), and what is
/// sent is there when it is accepted:
///
/// ```
/// use mp_queue::{Listener, connect};
///
/// let listener = Listener::bind("@example-of-connect")?;
/// let there = connect("@example-of-connect")?;
/// there.send("hello".to_string())?;
/// let here = listener.accept()?;
/// assert_eq!(here.recv::<String>()?, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// So it is the first receive that fails if the other side is no program of this library, speaks another
/// version, or has a key ([`GetError::refused`](crate::GetError::refused)); or a send, when the other side
/// has refused already ([`PutError::refused`](crate::PutError::refused)). If the listener ends before it
/// accepts, the connection is `Disconnected`. In all these cases what was sent is lost. A receive waits also
/// for a listener that does not accept, for as long as its timeout.
///
/// With a key ([`SocketOptions::connect`]) each side proves first that it knows it: connecting waits until the listener accepts.
///
/// # Errors
/// [`ConnectError`]: when no program listens there, or one of another user; [`ConnectError::KeyRequired`]
/// beyond loopback; when too many connections wait to be accepted, and there is no place within ten seconds;
/// with a key also when the other side has none or another one, is no program of this library, or does not
/// answer within that time. [`SocketOptions::connect`] has keys and limits.
#[doc(alias = "Client")]
pub fn connect(address: impl Into<Address>) -> Result<Connection, ConnectError> {
    SocketOptions::new().connect(address)
}

/// Connects to the [`Listener`] at an address, as a future, on any runtime: no thread waits for a place in the listener's queue,
/// nor, with a key, for an answer. See [`connect`].
///
/// ```
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     use std::task::{Context, Poll, Wake, Waker};
/// #     struct Unpark(std::thread::Thread);
/// #     impl Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
/// #     let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
/// #             Poll::Ready(v) => return v,
/// #             Poll::Pending => std::thread::park(),
/// #         }
/// #     }
/// # }
/// use mp_queue::{Listener, connect_async};
///
/// let listener = Listener::bind("@example-of-connect-async")?;
/// let other = std::thread::spawn(move || listener.accept().unwrap().send(7).unwrap());
/// let got: i32 = block_on(async {
///     let connection = connect_async("@example-of-connect-async").await?;
///     Ok::<_, Box<dyn std::error::Error>>(connection.recv_async().await?)
/// })?;
/// assert_eq!(got, 7);
/// # other.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A future that is dropped before it is ready has not connected, and the listener continues. While it waits
/// it has three descriptors.
///
/// # Errors
/// As [`connect`], and [`ConnectError::Io`] when no descriptor or thread is left for waiting.
#[doc(alias("Client", "async"))]
pub async fn connect_async(address: impl Into<Address>) -> Result<Connection, ConnectError> {
    SocketOptions::new().connect_async(address).await
}
