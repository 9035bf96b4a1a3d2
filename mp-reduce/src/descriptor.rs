//! Descriptors in messages: files, sockets, pipes, pidfds, memfds.
//!
//! ```
//! use std::io::{Read, Write, pipe};
//! use std::os::fd::OwnedFd;
//!
//! use mp_reduce::{Fd, pack, unpack};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Job {
//!     name: String,
//!     #[serde(with = "mp_reduce::descriptor")]
//!     answer: OwnedFd,
//! }
//!
//! let (mut reader, writer) = pipe()?;
//! let job = Job { name: "first".into(), answer: writer.into() };
//! let envelope = pack(job).map_err(|e| e.error)?; // like a queue's `put`
//! let job: Job = unpack(envelope)?; // like `get`, in any process that has the queue
//! std::io::PipeWriter::from(job.answer).write_all(job.name.as_bytes())?;
//!
//! let mut answer = String::new();
//! reader.read_to_string(&mut answer)?; // both ends are closed: the sender's and the receiver's
//! assert_eq!(answer, "first");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Fd<T>`](Fd) is a message, or a field of one. For a field of your own type, use
//! `#[serde(with = "mp_reduce::descriptor")]`. `T` is [`OwnedFd`] or a type that wraps one: `File`,
//! `TcpListener`, `TcpStream`, `UdpSocket`, `UnixListener`, `UnixStream`, `UnixDatagram`, `PipeReader`,
//! `PipeWriter`, `ChildStdin`, or a pidfd or memfd of another crate.
//!
//! A message owns its descriptors: after `put`, the sender's copy is closed, and the sender may exit. Each
//! receiver gets a close-on-exec descriptor of its own for the same open file. Offset and flags such as
//! `O_NONBLOCK` belong to the open file, and are shared with all its descriptors. A descriptor that no
//! receiver took is closed when its message or queue is dropped, or when the consumer that received the
//! message has died. (A message with several readers, as in `broadcast` or `watch`, gives a descriptor to
//! each. A leased message keeps its descriptors open until it is acknowledged.)
//!
//! # Limits
//! - At most 8,192 messages with descriptors are in flight at once, or some 1,100 without privileges and with
//!   the default `net.core.wmem_max`. A message with more than 256 descriptors counts as several.
//! - The kernel counts the descriptors of a user that are in messages of all programs. Unless the process is
//!   privileged, the kernel refuses more than the sending process's soft limit of open files (`ulimit -n`). A
//!   message with `n` descriptors counts `n + 1`. The additional descriptor stays counted until the program
//!   ends, and a later message uses it again. Beyond the limit, a bounded queue waits as if it were full. An
//!   unbounded queue, arguments and tasks return the value with
//!   [`TooManyDescriptors`](mp_core::Error::TooManyDescriptors).
//! - Sender and receiver need at least three spare descriptors, and as many as the message contains. If the
//!   receiver has too few ([`OutOfDescriptors`](mp_core::Error::OutOfDescriptors)), the message returns to
//!   the front of its queue. The error of arguments, tasks and results contains the whole message, to be read
//!   later: [`Unread`](crate::Unread).
//! - Values that leave the memory of this family of processes (by a `Connection` over a socket) can't contain
//!   descriptors. Invite the other program, and send it a queue.
//!
//! # Errors
//! Writing fails if the descriptors can't be stored for a receiver. Reading fails if this process can't open
//! more descriptors. See the limits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mp_core::message::scope;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Wrapper that makes an open file a message, or a field of a message: see [the module](self).
///
/// ```
/// use std::io::{Read, Seek, Write};
///
/// use mp_reduce::{Fd, pack, unpack};
///
/// let path = std::env::temp_dir().join(format!("mp-fd-{}", std::process::id()));
/// let mut file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
/// std::fs::remove_file(&path)?;
/// file.write_all(b"written here")?;
/// let Fd(mut file) = unpack::<Fd<std::fs::File>>(pack(Fd(file)).map_err(|e| e.error)?)?;
/// file.rewind()?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "written here");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("DupFd", "recv_handle", "send_handle", "SCM_RIGHTS"))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "resource_sharer")]
#[doc(alias = "allow_connection_pickling")]
pub struct Fd<T = OwnedFd>(pub T);

impl<T: AsFd> AsFd for Fd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl<T: Into<OwnedFd>> From<Fd<T>> for OwnedFd {
    /// Unwraps the descriptor, whatever type owns it.
    ///
    /// ```
    /// use std::os::fd::OwnedFd;
    ///
    /// use mp_reduce::Fd;
    ///
    /// let (reader, writer) = std::io::pipe()?;
    /// let sent = Fd::from(OwnedFd::from(reader));
    /// let (_reader, _writer) = (OwnedFd::from(sent), OwnedFd::from(Fd(writer)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    fn from(fd: Fd<T>) -> Self {
        fd.0.into()
    }
}

impl<T: AsFd> Serialize for Fd<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        serialize(&self.0, s)
    }
}

impl<'de, T: From<OwnedFd>> Deserialize<'de> for Fd<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        deserialize(d).map(Self)
    }
}

/// Adds the descriptor to the message that is being written.
///
/// # Errors
/// Returns the errors that [the module](self) describes, and the errors of the serializer.
pub fn serialize<T: AsFd, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    scope::outgoing("a descriptor", |out| out.attach_descriptor(value.as_fd()))
        .map_err(S::Error::custom)?
        .serialize(s)
}

/// Takes the descriptor out of the message that is being read.
///
/// # Errors
/// Returns the errors that [the module](self) describes, and the errors of the deserializer.
pub fn deserialize<'de, T: From<OwnedFd>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    let (attachment, number) = <(u32, u32)>::deserialize(d)?;
    let fd = scope::incoming("a descriptor", |inc| inc.take_descriptor(attachment, number));
    fd.map(T::from).map_err(D::Error::custom)
}
