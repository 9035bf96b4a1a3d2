//! Connections between programs that have no memory in common.

mod address;
mod error;
mod frame;
mod handshake;
mod key;
mod peer;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::{Descriptor, Place, Waitable};
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

pub use address::Address;
pub use error::ConnectError;
pub(crate) use frame::Socket;
use handshake::{Handshake, io_error};
use key::Key;

use crate::connection::{Connection, Ends};

/// As many may be getting to know this side at the same time.
const MOST: usize = 64;
/// Between two tries to connect where too many wait.
const PAUSE: Duration = Duration::from_millis(2);

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
    limit: usize,
    patience: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SocketOptions {
    /// No key, messages up to 64 MiB, ten seconds to get to know each other.
    pub fn new() -> Self {
        Self { key: None, limit: 64 << 20, patience: Duration::from_secs(10) }
    }

    /// A secret that each side has to know. Neither says it: each proves that it knows it, by HMAC-SHA256 of random bytes of
    /// both. An empty one is none.
    ///
    /// Other users are refused with or without it. It keeps programs of the same user apart.
    #[cfg(feature = "authkey")]
    #[must_use]
    pub fn authkey(self, key: impl AsRef<[u8]>) -> Self {
        Self { key: Key::new(key.as_ref()).map(Arc::new), ..self }
    }

    /// The most bytes that a message may have, sent or received.
    #[must_use]
    pub fn max_message(self, bytes: usize) -> Self {
        Self { limit: bytes, ..self }
    }

    /// How long the two may take to get to know each other.
    #[must_use]
    pub fn handshake_timeout(self, timeout: Duration) -> Self {
        Self { patience: timeout, ..self }
    }

    /// Listens at an address.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn listen(&self, address: impl Into<Address>) -> Result<Listener, ConnectError> {
        Listener::new(address.into(), self.clone())
    }

    /// Connects to who listens at an address.
    ///
    /// # Errors
    /// As [`connect`].
    pub fn connect(&self, address: impl Into<Address>) -> Result<Connection, ConnectError> {
        let address = address.into();
        let failed =
            |e| ConnectError::Io { what: "connecting to", address: address.clone(), source: io_error(e) };
        let until = Instant::now().checked_add(self.patience);
        let fd = loop {
            match address.connect() {
                Ok(fd) => break fd,
                Err(Errno::AGAIN) if until.is_some_and(|u| Instant::now() >= u) => {
                    return Err(ConnectError::TimedOut(self.patience));
                }
                // Too many wait to be accepted.
                Err(Errno::AGAIN) => std::thread::sleep(PAUSE),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
            }
        };
        let mut handshake = Handshake::begin(fd, false, self.key.clone(), self.patience, &address)?;
        while !handshake.advance()? {
            let left = handshake.deadline().map(|until| until.saturating_duration_since(Instant::now()));
            wait_for(handshake.as_fd(), left, &address)?;
        }
        Ok(self.connection(handshake))
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
            .finish()
    }
}

/// Waits until there is something to read; whether there is.
fn wait_for(fd: BorrowedFd<'_>, left: Option<Duration>, address: &Address) -> Result<bool, ConnectError> {
    match mp_core::wait(&[&Descriptor(fd)], left) {
        Ok(found) => Ok(!found.is_empty()),
        Err(e) => {
            let source = std::io::Error::other(e);
            Err(ConnectError::Io { what: "waiting at", address: address.clone(), source })
        }
    }
}

/// Connects to the [`Listener`] at an address, of whatever program.
///
/// # Errors
/// [`ConnectError`]: when nobody listens there, or belongs to another user; when the other side has an authentication key,
/// is no program of this library, or does not answer within ten seconds. [`SocketOptions::connect`] has keys and limits.
#[doc(alias = "Client")]
pub fn connect(address: impl Into<Address>) -> Result<Connection, ConnectError> {
    SocketOptions::new().connect(address)
}

/// Waits for other programs of the same user to [`connect`].
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
/// The two programs need not be the same, nor started by the same: what travels are values as bytes, so both have to name
/// their types alike (`std::any::type_name`). See [`Connection`] for what a socket can't carry.
///
/// # Who is let in
/// Processes of the same user (as the kernel says, not they), which speak this library's protocol, and know the
/// authentication key if there is one (feature `authkey`). One that says nothing, or is stopped while it connects,
/// keeps no others out: up to 64 may be getting to know this side at a time, each for as long as
/// [`handshake_timeout`](SocketOptions::handshake_timeout).
///
/// # When a process dies
/// Who is connected to it is told (`Disconnected`), at once. A path that a killed listener leaves is replaced by the next
/// one that listens there.
pub struct Listener {
    /// Dropped before the socket is closed: as long as that is open, nobody else's path can be taken for it.
    _made: Option<address::Made>,
    fd: OwnedFd,
    /// Ready when somebody connects, or says something.
    events: OwnedFd,
    address: Address,
    options: SocketOptions,
    meeting: Mutex<Vec<Handshake>>,
}

impl Listener {
    /// Listens at an address, without a key: see [`SocketOptions::listen`] for more.
    ///
    /// # Errors
    /// [`ConnectError::Io`]: `AddrInUse` when somebody else listens there, or the path is something else than a socket of this
    /// user; or what the kernel has against it.
    pub fn bind(address: impl Into<Address>) -> Result<Self, ConnectError> {
        SocketOptions::new().listen(address)
    }

    fn new(address: Address, options: SocketOptions) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Io { what: "listening at", address: address.clone(), source };
        let (fd, made) = address.listen().map_err(failed)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let listener = Self { _made: made, fd, events, address, options, meeting: Mutex::default() };
        listener.watch(listener.fd.as_fd())?;
        Ok(listener)
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next one who connects.
    ///
    /// # Errors
    /// [`ConnectError`] of one who is refused; the listener goes on, and so should who calls this. (Who leaves without a word
    /// has only looked whether somebody listens, and is none.) [`ConnectError::Io`] is of this side: when it has no
    /// descriptor left, say.
    pub fn accept(&self) -> Result<Connection, ConnectError> {
        loop {
            if let Some(connection) = self.accept_until(None)? {
                return Ok(connection);
            }
        }
    }

    /// Waits for the next one who connects, at most `timeout`; `None` if nobody does.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Option<Connection>, ConnectError> {
        self.accept_until(Instant::now().checked_add(timeout))
    }

    fn accept_until(&self, deadline: Option<Instant>) -> Result<Option<Connection>, ConnectError> {
        let meeting = match deadline {
            Some(deadline) => self.meeting.try_lock_until(deadline),
            None => Some(self.meeting.lock()),
        };
        // Another thread accepts.
        let Some(mut meeting) = meeting else { return Ok(None) };
        loop {
            self.let_in(&mut meeting)?;
            if let Some(connection) = self.meet(&mut meeting)? {
                return Ok(Some(connection));
            }
            let now = Instant::now();
            if deadline.is_some_and(|d| now >= d) {
                return Ok(None);
            }
            let next = meeting.iter().filter_map(Handshake::deadline).chain(deadline).min();
            let left = next.map(|next| next.saturating_duration_since(now));
            wait_for(self.events.as_fd(), left, &self.address)?;
        }
    }

    /// Goes on with all who have said something; the first one that is known by now, or refused.
    fn meet(&self, meeting: &mut Vec<Handshake>) -> Result<Option<Connection>, ConnectError> {
        let mut i = 0;
        while i < meeting.len() {
            let known = meeting[i].advance();
            if let Ok(false) = known {
                i += 1;
                continue;
            }
            let handshake = meeting.swap_remove(i);
            // It fails only if it is not there.
            _ = epoll::delete(&self.events, &handshake);
            // There is room again.
            self.watch(self.fd.as_fd())?;
            let only_looked = matches!(known, Err(ConnectError::Gone)) && handshake.has_heard_nothing();
            if !only_looked {
                return known.map(|_| Some(self.options.connection(handshake)));
            }
        }
        Ok(None)
    }

    /// Accepts all who wait, as long as there is room.
    fn let_in(&self, meeting: &mut Vec<Handshake>) -> Result<(), ConnectError> {
        while meeting.len() < MOST {
            match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    let (key, patience) = (self.options.key.clone(), self.options.patience);
                    let handshake = match Handshake::begin(fd, true, key, patience, &self.address) {
                        Err(ConnectError::Gone) => continue,
                        begun => begun?,
                    };
                    self.watch(handshake.as_fd())?;
                    meeting.push(handshake);
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        // Whoever waits now waits for those to be done.
        epoll::delete(&self.events, &self.fd)
            .or_else(|e| if e == Errno::NOENT { Ok(()) } else { Err(self.failed(e)) })
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), ConnectError> {
        let data = epoll::EventData::new_u64(0);
        match epoll::add(&self.events, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.failed(e)),
        }
    }

    fn failed(&self, e: Errno) -> ConnectError {
        ConnectError::Io { what: "accepting at", address: self.address.clone(), source: io_error(e) }
    }
}

/// Readable when somebody connects, or goes on connecting: then [`accept_timeout`](Listener::accept_timeout) with no time has
/// something to do.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Waitable for Listener {
    fn place(&self) -> Place<'_> {
        Place::Readable(self.as_fd())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.as_fd()).is_ready()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).field("options", &self.options).finish()
    }
}
