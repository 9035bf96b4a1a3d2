//! Listeners for connections of other programs.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use mp_core::{Descriptor, WaitPoint, Waitable};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::address::ListeningSocket;
use super::events::{Timer, until};
use super::handshake::Handshake;
use super::{Address, ConnectError, SocketOptions, address, tcp, wait_for};
use crate::connection::Connection;

/// Largest number of concurrent handshakes of a listener.
const MAX_HANDSHAKES: usize = 64;
/// Time after which a TCP peer that has sent nothing may be disconnected in favor of a new peer.
const GRACE: Duration = Duration::from_secs(1);

/// Accepts connections from other programs of the same user. The other program calls
/// [`connect`](crate::connect).
///
/// ```
/// use mp_queue::{Listener, connect};
///
/// let listener = Listener::bind("@example")?; // or a path
/// let other = std::thread::spawn(|| connect("@example")?.send(vec![1, 2, 3]).map_err(Into::into));
/// let connection = listener.accept()?;
/// assert_eq!(connection.recv::<Vec<i32>>()?, [1, 2, 3]);
/// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = other.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The two programs may be different, and started independently. Values are sent as bytes, so both programs
/// must use the same type names (`std::any::type_name`). See [`Connection`] for values that a socket can't
/// carry.
///
/// # Which processes are accepted?
/// The listener accepts processes of the same user, as reported by the kernel, that use this library's
/// protocol. They must have the authentication key, if there is one (feature `authkey`). A process that is
/// silent, or is stopped while it connects, does not block other processes. Up to 64 processes may be in
/// their handshake at a time, each for at most [`handshake_timeout`](SocketOptions::handshake_timeout). If 64
/// handshakes are in progress, a TCP peer that has sent nothing for a second is disconnected in favor of the
/// next peer.
///
/// Processes may connect before the listener accepts, up to [`SocketOptions::backlog`]. Their data is
/// available when they are accepted, even if they have ended. With a key, they wait to be accepted, since the
/// proof precedes all messages.
///
/// # When a process dies
/// Processes that are connected to a dead process get `Disconnected` at once. The path of a killed listener
/// is replaced by the next listener at that path.
pub struct Listener {
    /// Path of the socket. Removed before `fd` is closed: the path is identified by its inode number, which
    /// can't be reused while the socket is open.
    _path: Option<address::SocketPath>,
    fd: OwnedFd,
    /// Epoll instance that is readable when a process connects or sends data, or a handshake has timed out.
    events: Arc<OwnedFd>,
    /// Timer for the earliest deadline of a handshake.
    timer: Timer,
    address: Address,
    options: SocketOptions,
    name: Option<String>,
    /// Handshakes in progress. No thread waits while it holds this lock.
    handshakes: Mutex<Vec<Handshake>>,
}

impl Listener {
    /// Listens at an address, without a key. See [`SocketOptions::listen`] for further options.
    ///
    /// # Errors
    /// Returns [`ConnectError::Io`] with `AddrInUse` if another process listens at the address, or if the
    /// path is not a socket of this user. The error is `TimedOut` if another process keeps the directory of a
    /// path locked, and otherwise the kernel's error.
    pub fn bind(address: impl Into<Address>) -> Result<Self, ConnectError> {
        SocketOptions::new().listen(address)
    }

    pub(super) fn new(address: Address, options: SocketOptions) -> Result<Self, ConnectError> {
        let asked = address.clone();
        let failed = |e: std::io::Error| ConnectError::io("listening at", &asked, e);
        let ListeningSocket { fd, path, address } = address.listen(options.backlog).map_err(failed)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let timer = Timer::new().map_err(|e| failed(e.into()))?;
        let (events, handshakes) = (Arc::new(events), Mutex::default());
        let listener = Self { _path: path, fd, events, timer, address, options, name: None, handshakes };
        listener.watch(listener.fd.as_fd())?;
        listener.watch(listener.timer.as_fd())?;
        Ok(listener)
    }

    /// Returns the address at which the listener listens. Over TCP this is one address, with the port that
    /// the kernel has chosen for port 0.
    ///
    /// Clients connect to this address, unless it is a wildcard (`0.0.0.0`, `::`). A listener at a wildcard
    /// accepts at all addresses of this machine. Clients on other machines need one of these addresses, with
    /// the same port:
    ///
    /// ```
    /// # #[cfg(feature = "authkey")] {
    /// use mp_queue::{Address, SocketOptions};
    ///
    /// let options = SocketOptions::new().authkey(b"a secret that both sides know");
    /// let listener = options.listen(Address::tcp("0.0.0.0:0")?)?;
    /// let port = listener.local_addr().unwrap().port();
    /// let for_clients = Address::tcp(("localhost", port))?; // or the name of this machine
    /// # assert!(for_clients.to_string().contains(&port.to_string()));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the TCP address at which the listener listens, or `None` for a Unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address.hosts()?.first().copied()
    }

    /// Names the listener. The name appears in `Debug` output and in reports of long waits. A listener can't
    /// be looked up by name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Returns the [given](Self::named) name.
    pub fn given_name(&self) -> Option<String> {
        self.name.clone()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Returns a [`ConnectError`] if a connection is refused. The listener can still accept other
    /// connections, so the caller should call `accept` again, as [`incoming`](Self::incoming) does.
    /// [`ConnectError::Io`] is an error of this side, for example if it has no descriptors left. A connection
    /// that is closed without sending data was only a check for a listener, and is skipped.
    #[track_caller]
    pub fn accept(&self) -> Result<Connection, ConnectError> {
        loop {
            if let Some(connection) = self.accept_until(None)? {
                return Ok(connection);
            }
        }
    }

    /// Waits for the next connection for at most `timeout`. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns the same errors as [`accept`](Self::accept).
    #[track_caller]
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<Connection>, ConnectError> {
        self.accept_until(Instant::now().checked_add(timeout))
    }

    /// Returns an iterator over connections, which skips refused peers.
    ///
    /// ```
    /// use mp_queue::{Listener, connect};
    ///
    /// let listener = Listener::bind("@example-of-incoming")?;
    /// let other = std::thread::spawn(|| {
    ///     // Another program that happens to connect.
    ///     # use std::os::linux::net::SocketAddrExt;
    ///     let stranger = std::os::unix::net::SocketAddr::from_abstract_name("example-of-incoming").unwrap();
    ///     let mut stranger = std::os::unix::net::UnixStream::connect_addr(&stranger).unwrap();
    ///     std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ///     connect("@example-of-incoming").unwrap().send(7_u8).unwrap();
    /// });
    /// for connection in listener.incoming() {
    ///     assert_eq!(connection?.recv::<u8>()?, 7);
    ///     # break;
    /// }
    /// # other.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `next` blocks until a connection is established. A server that calls [`accept`](Self::accept) with `?`
    /// ends when a stranger connects, or when a peer has another key or dies in its handshake. This iterator
    /// skips such peers. To log them, call `accept` and check [`ConnectError::is_of_peer`].
    ///
    /// # Errors
    /// Returns [`ConnectError::Io`], for example if this process has no descriptors left. The iterator can be
    /// used after that.
    pub fn incoming(&self) -> IncomingConnections<'_> {
        IncomingConnections { listener: self }
    }

    /// Waits for the next connection, asynchronously, on any runtime.
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
    /// use mp_queue::{Listener, connect};
    ///
    /// let listener = Listener::bind("@example-of-accept-async")?;
    /// let other = std::thread::spawn(|| {
    ///     let connection = connect("@example-of-accept-async").unwrap();
    ///     let said: String = connection.recv().unwrap();
    ///     connection.send(said.len()).unwrap();
    /// });
    /// let got = block_on(async {
    ///     let connection = listener.accept_async().await?;
    ///     connection.send_async("hello".to_string()).await.map_err(|e| e.to_string())?;
    ///     Ok::<usize, Box<dyn std::error::Error>>(connection.recv_async().await?)
    /// })?;
    /// assert_eq!(got, 5);
    /// # other.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A future that is dropped before it is ready has accepted nothing. Handshakes that have begun continue
    /// in the next call.
    ///
    /// # Errors
    /// Returns the same errors as [`accept`](Self::accept).
    pub async fn accept_async(&self) -> Result<Connection, ConnectError> {
        until(&self.events, &self.address, || self.poll_accept()).await
    }

    #[track_caller]
    fn accept_until(&self, deadline: Option<Instant>) -> Result<Option<Connection>, ConnectError> {
        loop {
            if let Some(connection) = self.poll_accept()? {
                return Ok(Some(connection));
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| now >= d) {
                return Ok(None);
            }
            let left = deadline.map(|d| d.saturating_duration_since(now));
            wait_for(self, left, &self.address)?;
        }
    }

    /// Accepts pending connections and advances their handshakes, without waiting. Returns the first
    /// connection whose handshake is complete.
    fn poll_accept(&self) -> Result<Option<Connection>, ConnectError> {
        let mut handshakes = self.handshakes.lock();
        // Handshakes continue even if no connection can be accepted, since a handshake that ends frees a
        // descriptor.
        let accepted = self.accept_pending(&mut handshakes);
        let done = self.advance_handshakes(&mut handshakes);
        let waits = self.arm_events(&handshakes);
        match done {
            Ok(None) => accepted.and(waits).map(|()| None),
            done => done,
        }
    }

    /// Arms `events` for the earliest deadline of a handshake, and for new connections unless the maximum
    /// number of handshakes is reached.
    fn arm_events(&self, handshakes: &[Handshake]) -> Result<(), ConnectError> {
        let mut first = handshakes.iter().filter_map(Handshake::deadline).min();
        if has_capacity(handshakes) {
            self.watch(self.fd.as_fd())?;
        } else {
            // Further connections wait in the kernel's queue until there is a place.
            match epoll::delete(&self.events, &self.fd) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.failed(e)),
            }
            let grace =
                handshakes.iter().filter_map(Handshake::silent_since).min().map(|since| since + GRACE);
            first = first.into_iter().chain(grace).min();
        }
        self.timer.set(first).map_err(|e| self.failed(e))
    }

    /// Advances all handshakes. Returns the first connection whose handshake is complete, or the error of the
    /// first handshake that failed.
    fn advance_handshakes(
        &self,
        handshakes: &mut Vec<Handshake>,
    ) -> Result<Option<Connection>, ConnectError> {
        let mut i = 0;
        while i < handshakes.len() {
            let known = handshakes[i].advance();
            if let Ok(false) = known {
                i += 1;
                continue;
            }
            let handshake = self.remove(handshakes, i);
            let is_probe = matches!(known, Err(ConnectError::Gone)) && handshake.is_probe();
            if !is_probe {
                return known.map(|_| Some(self.options.connection(handshake)));
            }
        }
        Ok(None)
    }

    /// Removes a handshake from `handshakes`, whose order is preserved, and from `events`.
    fn remove(&self, handshakes: &mut Vec<Handshake>, number: usize) -> Handshake {
        let handshake = handshakes.remove(number);
        // Fails only if the handshake is not registered.
        _ = epoll::delete(&self.events, &handshake);
        handshake
    }

    /// Accepts the connections in the kernel's queue until the maximum number of handshakes is reached.
    fn accept_pending(&self, handshakes: &mut Vec<Handshake>) -> Result<(), ConnectError> {
        while has_capacity(handshakes) {
            match rustix::net::acceptfrom_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((fd, peer)) => {
                    let host = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    if host.is_some_and(|host| !self.is_allowed(&host)) {
                        continue;
                    }
                    if host.is_some() {
                        tcp::set_up(fd.as_fd()).map_err(|e| self.failed(e))?;
                    }
                    let (key, timeout) = (self.options.key.clone(), self.options.timeout);
                    let until = Instant::now().checked_add(timeout);
                    let handshake = Handshake::begin(fd, true, key, (timeout, until), &self.address, host)?;
                    self.watch(handshake.as_fd())?;
                    if handshakes.len() >= MAX_HANDSHAKES
                        && let Some(number) = displaceable(handshakes)
                    {
                        drop(self.remove(handshakes, number));
                    }
                    handshakes.push(handshake);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) if tcp::is_of_connection(e) => {}
                // The kernel allocates the descriptor before it checks the queue.
                Err(Errno::MFILE | Errno::NFILE) if !Descriptor(self.fd.as_fd()).is_ready() => return Ok(()),
                Err(e) => return Err(self.failed(e)),
            }
        }
        Ok(())
    }

    /// Returns `true` if a peer at this address may connect. Without a key, only a loopback address may
    /// connect. The check is needed because the kernel can be configured to route packets of other machines
    /// to a loopback address (`route_localnet`).
    fn is_allowed(&self, host: &SocketAddr) -> bool {
        self.options.key.is_some() || tcp::is_loopback(host)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), ConnectError> {
        let data = epoll::EventData::new_u64(0);
        match epoll::add(&self.events, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.failed(e)),
        }
    }

    fn failed(&self, e: Errno) -> ConnectError {
        ConnectError::io("accepting at", &self.address, e)
    }
}

/// Endless iterator over the connections to a [`Listener`]: see [`Listener::incoming`].
#[derive(Debug)]
pub struct IncomingConnections<'a> {
    listener: &'a Listener,
}

impl Iterator for IncomingConnections<'_> {
    type Item = Result<Connection, ConnectError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.listener.accept() {
                Err(error) if error.is_of_peer() => {}
                result => return Some(result),
            }
        }
    }
}

/// Returns `true` if another handshake can begin.
fn has_capacity(handshakes: &[Handshake]) -> bool {
    handshakes.len() < MAX_HANDSHAKES || displaceable(handshakes).is_some()
}

/// Returns the index of the oldest handshake of a TCP peer that has sent nothing for [`GRACE`].
fn displaceable(handshakes: &[Handshake]) -> Option<usize> {
    let now = Instant::now();
    handshakes.iter().position(|one| one.silent_since().is_some_and(|since| now >= since + GRACE))
}

/// Readable when a connection arrives or its handshake can continue. Then call
/// [`accept_timeout`](Listener::accept_timeout) with a timeout of zero.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Waitable for Listener {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.as_fd())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.as_fd()).is_ready()
    }

    fn description(&self) -> Option<String> {
        let name = self.given_name().map(|name| format!(" {name:?}")).unwrap_or_default();
        Some(format!("listener{name} at {}", self.address))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Listener");
        if let Some(name) = self.given_name() {
            shown.field("name", &name);
        }
        shown.field("address", &self.address).field("options", &self.options).finish()
    }
}
