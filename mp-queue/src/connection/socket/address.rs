//! Where programs meet: a path, or a name that only the kernel knows.
//!
//! A path outlives the program that listened there. So a process that finds its path taken tries, under a
//! lock of the directory, whether a process listens there still; if none does, and the socket is this user's,
//! it replaces the path. A process that has bound a path holds that lock until it listens: before, the path
//! would look like one left behind. To remove its own path it needs no lock: as long as it listens there, no
//! other process replaces it.
//!
//! The lock is `flock(2)`, and any process that can read the directory can take it, and so keep others from
//! listening there. Those give up after [`TIME_LIMIT`], with an error that says why.
//!
//! | killed | left | then |
//! |---|---|---|
//! | holding the directory's lock | nothing: the kernel releases it | |
//! | after it made the path | a path where no process listens | the next listener at that path replaces it |

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mp_core::sent;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

/// How long to wait for another process's lock of the directory.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);

/// Where a [`Listener`](crate::Listener) is found.
///
/// ```
/// use mp_queue::Address;
///
/// let path = Address::from("/run/user/1000/service");
/// let name = Address::from("@service"); // of no file: the kernel's "abstract" names
/// assert_eq!((path.to_string(), name.to_string()), ("/run/user/1000/service".into(), "@service".into()));
/// ```
///
/// A path is a file: only processes that can reach its directory can connect, and it is removed with the
/// listener. A name is gone with the listener, however that ends, and can be reached by all in the same
/// network namespace (but other users are refused).
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address(Kind);

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Kind {
    Path(#[serde(with = "sent::path")] PathBuf),
    Name(Vec<u8>),
}

impl Address {
    /// A path, whatever it begins with.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self(Kind::Path(path.into()))
    }

    /// A name that only the kernel knows: up to 107 bytes.
    #[doc(alias = "abstract")]
    pub fn name(name: impl AsRef<[u8]>) -> Self {
        Self(Kind::Name(name.as_ref().to_vec()))
    }

    /// The same place, as a process with another current directory finds it.
    ///
    /// ```
    /// let here = mp_queue::Address::path("service").absolute()?;
    /// assert_eq!(here.to_string(), std::env::current_dir()?.join("service").display().to_string());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the current directory is not known: it was removed, for instance.
    pub fn absolute(self) -> io::Result<Self> {
        match self.0 {
            Kind::Path(path) => Ok(Self(Kind::Path(std::path::absolute(path)?))),
            name @ Kind::Name(_) => Ok(Self(name)),
        }
    }

    fn socket(&self) -> Result<SocketAddrUnix, Errno> {
        match &self.0 {
            Kind::Path(path) => SocketAddrUnix::new(path),
            Kind::Name(name) => SocketAddrUnix::new_abstract_name(name),
        }
    }

    /// A socket that is connected to the listener here, and does not block. [`Errno::AGAIN`] if its queue is
    /// full.
    pub(crate) fn connect(&self) -> Result<OwnedFd, Errno> {
        let fd = fresh()?;
        rustix::net::connect(&fd, &self.socket()?)?;
        Ok(fd)
    }

    /// A socket that listens here, with a queue for this many connections, and the path that it has made.
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<(OwnedFd, Option<MadePath>)> {
        let address = self.socket()?;
        let Kind::Path(path) = &self.0 else {
            let fd = fresh()?;
            rustix::net::bind(&fd, &address)?;
            rustix::net::listen(&fd, backlog)?;
            return Ok((fd, None));
        };
        let directory = Directory::lock(path)?;
        let fd = fresh()?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) if self.is_stale(path) => {
                directory.remove(path)?;
                rustix::net::bind(&fd, &address)?;
            }
            bound => bound?,
        }
        rustix::net::listen(&fd, backlog)?;
        let process = std::process::id();
        let made = MadePath { id: directory.look(path)?, path: std::path::absolute(path)?, process };
        Ok((fd, Some(made)))
    }

    /// Whether it is a socket of this user where no process listens.
    fn is_stale(&self, path: &Path) -> bool {
        let ours = rustix::fs::lstat(path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_uid == geteuid().as_raw()
        });
        (ours || mp_core::mutant!("queue.connection.path-not-a-socket"))
            && (matches!(self.connect(), Err(Errno::CONNREFUSED))
                || mp_core::mutant!("queue.connection.listener-not-asked"))
    }
}

fn fresh() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// A path that this process has made.
#[derive(Debug)]
pub(crate) struct MadePath {
    path: PathBuf,
    id: (u64, u64),
    /// The process that made it: a forked copy does not remove the path.
    process: u32,
}

impl Drop for MadePath {
    fn drop(&mut self) {
        // Unless another process has replaced it. If the directory is gone, so is the path.
        if self.process == std::process::id()
            && let Ok(directory) = Directory::open(&self.path)
            && directory.look(&self.path).is_ok_and(|id| id == self.id)
        {
            _ = directory.remove(&self.path);
        }
    }
}

/// The directory of a path.
struct Directory(OwnedFd);

impl Directory {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(directory_of(path), flags, Mode::empty())?))
    }

    /// Locked against other processes that begin to listen in it.
    fn lock(path: &Path) -> io::Result<Self> {
        let Self(fd) = Self::open(path)?;
        let until = Instant::now() + TIME_LIMIT;
        loop {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(fd)),
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "another process has kept {} locked (flock) for {TIME_LIMIT:?}; use a directory that only this user can \
                         read, or a name (@…)",
                        directory_of(path).display()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn look(&self, path: &Path) -> Result<(u64, u64), Errno> {
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

/// `@` and a name is a name; everything else is a path.
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
            Kind::Path(path) => path.display().fmt(f),
            Kind::Name(name) => write!(f, "@{}", OsStr::from_bytes(name).display()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}
