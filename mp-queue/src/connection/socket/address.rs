//! Addresses of listeners: a path, an abstract name, or a host and a port (see [`tcp`]).
//!
//! The path of a listener outlives a killed program. So a process first locks the directory of the path. If
//! the path exists, the process checks whether a listener still uses it. If no listener uses it and the
//! socket belongs to this user, the process replaces the path. The process holds the lock until it listens:
//! between `bind` and `listen`, other processes would regard the path as abandoned. A listener removes its
//! path without the lock, because no other process replaces the path of a living listener.
//!
//! The lock is `flock(2)`. Any process that can read the directory can hold this lock. Listening at a path in
//! the directory then fails after [`TIME_LIMIT`], with an error that names the cause.
//!
//! | killed | left | effect |
//! |---|---|---|
//! | holding the directory's lock | nothing: the kernel releases it | |
//! | after it created the path | a path where no process listens | the next listener at that path replaces it |

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mp_core::message::PlainOutcome;
use mp_core::serde_with;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::tcp;

/// Longest wait for the lock of a directory that another process holds.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Time between two attempts to lock a directory.
const PAUSE: Duration = Duration::from_millis(2);

/// Address of a [`Listener`](crate::Listener).
///
/// ```
/// use mp_queue::Address;
///
/// let path = Address::from("/run/user/1000/service");
/// let name = Address::from("@service"); // not a file, but an "abstract" name of the kernel
/// assert_eq!((path.to_string(), name.to_string()), ("/run/user/1000/service".into(), "@service".into()));
/// let port = Address::tcp("127.0.0.1:6000")?; // TCP: also `("localhost", 6000)`
/// assert_eq!(port.to_string(), "127.0.0.1:6000");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A path is a file: only processes that can access its directory can connect. The listener removes the path
/// when it is dropped. An abstract name disappears when the listener ends, even if the process is killed. All
/// processes in the same network namespace can reach an abstract name, but processes of other users are
/// refused.
///
/// # TCP
/// A host and a port ([`tcp`](Self::tcp)) can be reached from other machines. The kernel can't report the
/// user at the other end, and a loopback address (`127.0.0.1`, `::1`) does not separate the users of this
/// machine. So an address beyond loopback needs a key ([`SocketOptions::authkey`](crate::SocketOptions)).
/// Without a key, listening at such an address and connecting to it fail
/// ([`ConnectError::KeyRequired`](crate::ConnectError::KeyRequired)).
///
/// **The key is proved, but messages are neither encrypted nor signed.** An attacker who can read or change
/// the packets between the two hosts can read and change messages. Beyond a network that you trust, use a
/// tunnel (WireGuard, `ssh -L`) or a proxy that speaks TLS, and listen at a loopback address.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address(AddressKind);

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum AddressKind {
    Path(#[serde(with = "serde_with::path")] PathBuf),
    Name(Vec<u8>),
    /// Host addresses with ports. The list is empty only in an address that was received, and connecting to
    /// such an address fails.
    Tcp(Vec<SocketAddr>),
}

/// Listening socket.
pub(super) struct ListeningSocket {
    pub(super) fd: OwnedFd,
    /// Path that was created for the socket.
    pub(super) path: Option<SocketPath>,
    /// Address of the socket, with the port that the kernel has chosen for port 0.
    pub(super) address: Address,
}

impl Address {
    /// Returns the TCP address of a host and a port. Takes the same argument as
    /// [`std::net::TcpStream::connect`].
    ///
    /// ```
    /// use mp_queue::{Address, SocketOptions};
    ///
    /// # #[cfg(feature = "authkey")] {
    /// let options = SocketOptions::new().authkey(b"a secret that both sides know");
    /// let listener = options.listen(Address::tcp(("localhost", 0))?)?; // 0: any free port
    /// let address = listener.address().clone();
    /// let client = std::thread::spawn(move || options.connect(address)?.send(7).map_err(Into::into));
    /// assert_eq!(listener.accept()?.recv::<i32>()?, 7);
    /// # let _: Result<(), Box<dyn std::error::Error + Send + Sync>> = client.join().unwrap();
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A host name is resolved here, once, which may block. If it has several addresses, a listener uses the
    /// first one that this machine has. A client tries them in order, each for its share of
    /// [`handshake_timeout`](crate::SocketOptions::handshake_timeout).
    ///
    /// # Errors
    /// Returns the errors of the resolver, and `InvalidInput` if a name has no addresses.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Self> {
        let hosts: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        if hosts.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the host name has no addresses"));
        }
        Ok(Self(AddressKind::Tcp(hosts)))
    }

    /// Returns the host addresses of a TCP address, or `None` for a path or a name.
    pub(super) fn hosts(&self) -> Option<&[SocketAddr]> {
        match &self.0 {
            AddressKind::Tcp(hosts) => Some(hosts),
            AddressKind::Path(_) | AddressKind::Name(_) => None,
        }
    }

    /// Returns `true` if only programs of this machine can use the address.
    pub(super) fn is_local(&self) -> bool {
        self.hosts().is_none_or(|hosts| hosts.iter().all(tcp::is_loopback))
    }

    /// Returns the address of a path, which may begin with any character.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self(AddressKind::Path(path.into()))
    }

    /// Returns the address of a name in the kernel's abstract namespace, of up to 107 bytes.
    #[doc(alias = "abstract")]
    pub fn name(name: impl AsRef<[u8]>) -> Self {
        Self(AddressKind::Name(name.as_ref().to_vec()))
    }

    /// Returns the same address, independent of the current directory.
    ///
    /// ```
    /// let here = mp_queue::Address::path("service").absolute()?;
    /// assert_eq!(here.to_string(), std::env::current_dir()?.join("service").display().to_string());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the current directory is unknown, for example because it was removed.
    pub fn absolute(self) -> io::Result<Self> {
        match self.0 {
            AddressKind::Path(path) => Ok(Self(AddressKind::Path(std::path::absolute(path)?))),
            other @ (AddressKind::Name(_) | AddressKind::Tcp(_)) => Ok(Self(other)),
        }
    }

    fn socket(&self) -> Result<SocketAddrUnix, Errno> {
        match &self.0 {
            AddressKind::Path(path) => SocketAddrUnix::new(path),
            AddressKind::Name(name) => SocketAddrUnix::new_abstract_name(name),
            AddressKind::Tcp(_) => Err(Errno::AFNOSUPPORT),
        }
    }

    /// Returns a non-blocking Unix socket connected to the listener at this address, or [`Errno::AGAIN`] if
    /// the listener's queue is full.
    pub(crate) fn connect(&self) -> Result<OwnedFd, Errno> {
        let fd = new_socket()?;
        rustix::net::connect(&fd, &self.socket()?)?;
        Ok(fd)
    }

    /// Listens at this address. The kernel's queue holds up to `backlog` connections that were not accepted.
    pub(super) fn listen(self, backlog: i32) -> io::Result<ListeningSocket> {
        let path = match &self.0 {
            AddressKind::Path(path) => path,
            AddressKind::Name(_) => {
                let fd = new_socket()?;
                rustix::net::bind(&fd, &self.socket()?)?;
                rustix::net::listen(&fd, backlog)?;
                return Ok(ListeningSocket { fd, path: None, address: self });
            }
            AddressKind::Tcp(hosts) => {
                let (fd, bound) = tcp::listen_at(hosts, backlog)?;
                return Ok(ListeningSocket { fd, path: None, address: bound.into() });
            }
        };
        let address = self.socket()?;
        let directory = SocketDirectory::lock(path)?;
        let fd = new_socket()?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) if self.is_stale(path) => {
                directory.remove(path)?;
                rustix::net::bind(&fd, &address)?;
            }
            bound => bound?,
        }
        rustix::net::listen(&fd, backlog)?;
        let process = std::process::id();
        let path = SocketPath { id: directory.identify(path)?, path: std::path::absolute(path)?, process };
        Ok(ListeningSocket { fd, path: Some(path), address: self })
    }

    /// Returns `true` if the path is a socket of this user on which no process listens.
    fn is_stale(&self, path: &Path) -> bool {
        let ours = rustix::fs::lstat(path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_uid == geteuid().as_raw()
        });
        ours && matches!(self.connect(), Err(Errno::CONNREFUSED))
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Path that this process has created for a socket. Dropping it removes the path.
#[derive(Debug)]
pub(crate) struct SocketPath {
    path: PathBuf,
    id: (u64, u64),
    /// Process that created the path. A forked copy does not remove the path.
    process: u32,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Removes the path unless another process has replaced it. If the directory is gone, so is the path.
        if self.process == std::process::id()
            && let Ok(directory) = SocketDirectory::open(&self.path)
            && directory.identify(&self.path).is_ok_and(|id| id == self.id)
        {
            _ = directory.remove(&self.path);
        }
    }
}

/// Open directory that contains the path of a socket.
struct SocketDirectory(OwnedFd);

impl SocketDirectory {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(directory_of(path), flags, Mode::empty())?))
    }

    /// Locks the directory of `path` against other processes that start to listen at a path in it.
    fn lock(path: &Path) -> io::Result<Self> {
        let Self(fd) = Self::open(path)?;
        let until = Instant::now() + TIME_LIMIT;
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(fd)),
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "another process has locked {} (flock) for more than {TIME_LIMIT:?}: use a \
                         directory that only this user can read, or a name (@…)",
                        directory_of(path).display()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn identify(&self, path: &Path) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::statat(self.0.as_fd(), name_of(path)?, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn remove(&self, path: &Path) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.0.as_fd(), name_of(path)?, AtFlags::empty())
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn name_of(path: &Path) -> Result<&OsStr, Errno> {
    path.file_name().ok_or(Errno::INVAL)
}

impl PlainOutcome for Address {}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::path(path)
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self::path(path)
    }
}

impl From<SocketAddr> for Address {
    fn from(host: SocketAddr) -> Self {
        Self(AddressKind::Tcp(vec![host]))
    }
}

/// Parses an address. A text that begins with `@` is an abstract name, and any other text is a path. For TCP,
/// use [`Address::tcp`].
impl From<&str> for Address {
    fn from(text: &str) -> Self {
        match text.strip_prefix('@') {
            Some(name) => Self::name(name),
            None => Self::path(text),
        }
    }
}

impl From<String> for Address {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddressKind::Path(path) => path.display().fmt(f),
            AddressKind::Name(name) => write!(f, "@{}", OsStr::from_bytes(name).display()),
            AddressKind::Tcp(hosts) => {
                for (number, host) in hosts.iter().enumerate() {
                    write!(f, "{}{host}", if number == 0 { "" } else { " or " })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
