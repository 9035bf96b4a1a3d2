//! Connections between programs that share no memory.

mod address;
mod connect;
mod error;
mod events;
mod handshake;
mod key;
mod listener;
mod messages;
mod stream;
mod tcp;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::Waitable;
#[cfg(feature = "authkey")]
use mp_core::serde_with::ByteString;

pub use address::Address;
use connect::ConnectAttempt;
pub use error::ConnectError;
use handshake::Handshake;
use key::Key;
pub use listener::{IncomingConnections, Listener};
pub(crate) use messages::Socket;
pub(in crate::connection) use messages::WriteError;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use messages::fuzz;

use crate::connection::{Connection, Transport};

/// Options of a connection between two programs. Both sides must use the same key.
///
/// ```
/// # #[cfg(feature = "authkey")] {
/// use mp_queue::SocketOptions;
///
/// let options = SocketOptions::new().authkey(b"a secret that both sides know").max_message(1 << 20);
/// let listener = options.listen("@example-of-options")?;
/// let client = std::thread::spawn(move || {
///     options.connect("@example-of-options")?.send("hello".to_string()).map_err(Into::into)
/// });
/// assert_eq!(listener.accept()?.recv::<String>()?, "hello");
/// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = client.join().unwrap();
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SocketOptions {
    key: Option<Arc<Key>>,
    /// `true` if the caller has explicitly chosen to have no key.
    open: bool,
    limit: usize,
    timeout: Duration,
    backlog: i32,
}

/// Fields of the options, for transfer to another process of this program.
#[cfg(feature = "authkey")]
#[doc(hidden)]
pub type OptionParts = (Option<ByteString>, usize, Duration, i32);

impl Default for SocketOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SocketOptions {
    /// Creates options with no key, messages up to 64 MiB, ten seconds for the handshake, and 128 connections
    /// in the listener's queue.
    pub fn new() -> Self {
        Self { key: None, open: false, limit: 64 << 20, timeout: Duration::from_secs(10), backlog: 127 }
    }

    /// Sets a secret that each side must know. Neither side sends the secret. Each side proves that it knows
    /// the secret, by an HMAC-SHA256 of random bytes from both sides. With an empty key, listening and
    /// connecting fail ([`ConnectError::EmptyKey`]), so that an unset environment variable can't result in a
    /// listener without a key.
    ///
    /// Over a Unix socket, other users are always refused, and the key separates programs of the same user.
    /// Over TCP, only the key refuses other users and hosts. [`Address`] describes attacks that the key does
    /// not prevent.
    #[cfg(feature = "authkey")]
    #[must_use]
    pub fn authkey(self, key: impl AsRef<[u8]>) -> Self {
        Self { key: Some(Arc::new(Key::new(key.as_ref()))), open: false, ..self }
    }

    /// Uses no key, which is the default. All programs of this user can connect or, over TCP at a loopback
    /// address, all programs of this machine. At any other TCP address, listening and connecting without a
    /// key fail ([`ConnectError::KeyRequired`]).
    #[must_use]
    pub fn no_key(self) -> Self {
        Self { key: None, open: true, ..self }
    }

    /// Returns `true` if the caller has set a key, or has explicitly chosen to have none.
    #[doc(hidden)]
    pub fn states_key(&self) -> bool {
        self.key.is_some() || self.open
    }

    /// Returns the time limit of the handshake.
    #[doc(hidden)]
    pub fn time_for_handshake(&self) -> Duration {
        self.timeout
    }

    /// Returns the largest number of bytes of a message and the time limit of the handshake, for another
    /// process of this program.
    #[doc(hidden)]
    pub fn limits(&self) -> (usize, Duration) {
        (self.limit, self.timeout)
    }

    /// Returns all options including the key, for another process of this program.
    #[cfg(feature = "authkey")]
    #[doc(hidden)]
    pub fn to_parts(&self) -> OptionParts {
        let key = self.key.as_ref().map(|key| ByteString(key.bytes().to_vec()));
        (key, self.limit, self.timeout, self.backlog)
    }

    /// Creates options from the parts returned by [`to_parts`](Self::to_parts).
    #[cfg(feature = "authkey")]
    #[doc(hidden)]
    pub fn from_parts((key, limit, timeout, backlog): OptionParts) -> Self {
        let open = key.is_none();
        Self { key: key.map(|key| Arc::new(Key::new(&key.0))), open, limit, timeout, backlog }
    }

    /// Returns an error if the key is empty, or if there is no key and other machines can reach the address.
    fn check(&self, address: &Address) -> Result<(), ConnectError> {
        match &self.key {
            Some(key) if key.is_empty() => Err(ConnectError::EmptyKey),
            None if !address.is_local() => Err(ConnectError::KeyRequired { address: address.clone() }),
            _ => Ok(()),
        }
    }

    /// Uses the secret that all processes of a family (this process, its parent, its children and so on)
    /// share: see `current_process().authkey()` in the layer of processes. The secret is read now, so later
    /// changes of it have no effect.
    ///
    /// ```
    /// use mp_queue::SocketOptions;
    ///
    /// let listener = SocketOptions::new().authkey_of_family()?.listen("@example-of-family")?;
    /// // In any process of the family. Here, in the same process:
    /// let options = SocketOptions::new().authkey_of_family()?;
    /// let client = std::thread::spawn(move || {
    ///     options.connect("@example-of-family")?.send(1).map_err(Into::into)
    /// });
    /// assert_eq!(listener.accept()?.recv::<i32>()?, 1);
    /// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = client.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the secret is not set and the system has no random bytes to create it.
    #[cfg(feature = "authkey")]
    pub fn authkey_of_family(self) -> mp_core::Result<Self> {
        Ok(self.authkey(mp_core::authkey()?))
    }

    /// Limits the number of bytes of a message that is sent or received. Larger values than 4 GiB minus one
    /// byte count as 4 GiB minus one byte.
    #[must_use]
    pub fn max_message(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// Limits the time of the handshake. The limit applies to these waits:
    ///
    /// - A client waits while the listener's queue is full, and while a TCP connection is established. With a
    ///   key, the client also waits for the listener's proof.
    /// - A listener that has accepted a connection waits for the client's hello and proof.
    #[must_use]
    pub fn handshake_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Limits the number of connections that may wait to be accepted. 0 counts as 1. The default is 128. The
    /// kernel's limit for all listeners applies as well (`net.core.somaxconn`, usually 4,096). A client is
    /// connected before the listener accepts, and its data is available when it is accepted. If the limit is
    /// reached, connecting waits for up to [`handshake_timeout`](Self::handshake_timeout).
    ///
    /// ```
    /// use mp_queue::{SocketOptions, connect};
    ///
    /// let listener = SocketOptions::new().backlog(2).listen("@example-of-backlog")?;
    /// for i in 0..2 {
    ///     connect("@example-of-backlog")?.send(i)?; // and drops the connection
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
    /// Returns the same errors as [`Listener::bind`].
    pub fn listen(&self, address: impl Into<Address>) -> Result<Listener, ConnectError> {
        let address = address.into();
        self.check(&address)?;
        Listener::new(address, self.clone())
    }

    /// Connects to the listener at an address.
    ///
    /// # Errors
    /// Returns the same errors as [`connect`].
    #[track_caller]
    pub fn connect(&self, address: impl Into<Address>) -> Result<Connection, ConnectError> {
        let address = address.into();
        let mut attempt = ConnectAttempt::new(self, &address)?;
        loop {
            if let Some(connection) = attempt.advance()? {
                return Ok(connection);
            }
            attempt.wait()?;
        }
    }

    /// Connects to the listener at an address, asynchronously, on any runtime.
    ///
    /// # Errors
    /// Returns the same errors as [`connect_async`].
    pub async fn connect_async(&self, address: impl Into<Address>) -> Result<Connection, ConnectError> {
        connect::connect(self, &address.into()).await
    }

    fn connection(&self, handshake: Handshake) -> Connection {
        Connection::of(Transport::Socket(Arc::new(Socket::new(handshake, self.limit))))
    }
}

impl fmt::Debug for SocketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketOptions")
            .field("authkey", &self.key.is_some())
            .field("max_message", &self.limit)
            .field("handshake_timeout", &self.timeout)
            .field("backlog", &(i64::from(self.backlog) + 1))
            .finish()
    }
}

fn waiting(address: &Address, e: mp_core::Error) -> ConnectError {
    ConnectError::io("waiting at", address, std::io::Error::other(e))
}

/// Blocks until `what` is ready or the time `left` has expired.
#[track_caller]
fn wait_for(what: &dyn Waitable, left: Option<Duration>, address: &Address) -> Result<(), ConnectError> {
    mp_core::wait(&[what], left).map(drop).map_err(|e| waiting(address, e))
}

/// Connects to the [`Listener`] of another program at an address.
///
/// Without a key, returns as soon as the kernel has added the connection to the listener's queue
/// ([`SocketOptions::backlog`]). Messages can be sent before the listener accepts:
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
/// Therefore, the first receive fails if the other side does not use this library, has another version, or
/// has a key ([`GetError::refused`](crate::GetError::refused)). A send fails if the other side has already
/// refused ([`PutError::refused`](crate::PutError::refused)). If the listener ends before it accepts, the
/// connection is `Disconnected`. In all these cases, the messages that were sent are lost. A receive also
/// waits for a listener that does not accept, up to its timeout.
///
/// With a key ([`SocketOptions::connect`]), each side first proves that it knows the key, so connecting waits
/// until the listener accepts.
///
/// # Errors
/// Returns a [`ConnectError`] if no program or a program of another user listens at the address. Also returns
/// an error if the listener's queue stays full for ten seconds. For an address beyond loopback, returns
/// [`ConnectError::KeyRequired`]. With a key, also fails if the other side has no key or another key, does
/// not use this library, or does not answer within ten seconds. For keys and limits, see
/// [`SocketOptions::connect`].
#[doc(alias = "Client")]
#[track_caller]
pub fn connect(address: impl Into<Address>) -> Result<Connection, ConnectError> {
    SocketOptions::new().connect(address)
}

/// Connects to the [`Listener`] at an address, asynchronously, on any runtime. No thread blocks while the
/// listener's queue is full or, with a key, until the listener answers. See [`connect`].
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
/// A future that is dropped before it is ready has not connected, and the listener continues. While it waits,
/// it uses three descriptors.
///
/// # Errors
/// Returns the same errors as [`connect`], and [`ConnectError::Io`] if no descriptor or thread is left for
/// waiting.
#[doc(alias("Client", "async"))]
pub async fn connect_async(address: impl Into<Address>) -> Result<Connection, ConnectError> {
    SocketOptions::new().connect_async(address).await
}
