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
//! let envelope = pack(job).map_err(|e| e.error)?; // what a queue's `put` does
//! let job: Job = unpack(envelope)?; // what `get` does, in any process that has the queue
//! std::io::PipeWriter::from(job.answer).write_all(job.name.as_bytes())?;
//!
//! let mut answer = String::new();
//! reader.read_to_string(&mut answer)?; // the sender's end is closed, and the receiver's
//! assert_eq!(answer, "first");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Fd<T>`](Fd) is a message, and a field of one; for a field of a type of its own there is `#[serde(with = "mp_reduce::descriptor")]`.
//! `T` is [`OwnedFd`], or a type that is one: `File`, `TcpListener`, `TcpStream`, `UdpSocket`, `UnixListener`, `UnixStream`,
//! `UnixDatagram`, `PipeReader`, `PipeWriter`, `ChildStdin`, a pidfd or memfd of another crate.
//!
//! A message takes the descriptor along: after `put` the sender's is closed, and the sender may exit. Each receiver gets one of its
//! own for the same open file, close-on-exec; offset and flags such as `O_NONBLOCK` are the open file's, and shared with all
//! others that have it. What no receiver took is closed when its message is dropped, its queue is, or the consumer that got it has died. (A message that
//! is read by several, as of `broadcast` or `watch`, gives a descriptor to each. One that is leased keeps its descriptors open until it is
//! acknowledged.)
//!
//! # Limits
//! - At most 8,192 messages with descriptors are on their way at once; one with more than 256 counts as several.
//! - The kernel counts the descriptors of a user that are in messages, of all programs, and refuses more than the soft limit of open files of
//!   the process that sends (`ulimit -n`) unless that is privileged. Each message with descriptors counts one more than it has; what was
//!   needed at most stays counted until the program ends. A queue with a bound waits then, as if it were full; one
//!   without gives the value back, and so do arguments and tasks: [`TooManyDescriptors`](mp_core::Error::TooManyDescriptors).
//! - Sender and receiver need three descriptors to spare at least, and as many as are in the message. If the receiver has too few
//!   ([`OutOfDescriptors`](mp_core::Error::OutOfDescriptors)), the message goes back to its queue and is the next one. Arguments, tasks and
//!   results are in the error, whole, to be read later: [`Unread`](crate::Unread).
//! - Values that leave the memory of this family of processes (a `Connection` over a socket) can't have descriptors in them: invite the other
//!   program, and send a queue.
//!
//! # Errors
//! Writing fails where the descriptors can't be kept for a receiver, reading where this process may have no more open: see the limits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use mp_core::message::scope;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An open file as a message, or in one: see [the module](self), which says what becomes of it.
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
    /// Returns the descriptor of any type that has one.
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

/// Sends the descriptor along with the message that is being written.
///
/// # Errors
/// The serializer's; see [the module](self).
pub fn serialize<T: AsFd, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    scope::outgoing("a descriptor", |out| out.attach_descriptor(value.as_fd()))
        .map_err(S::Error::custom)?
        .serialize(s)
}

/// Takes the descriptor that came with the message that is being read.
///
/// # Errors
/// The deserializer's; see [the module](self).
pub fn deserialize<'de, T: From<OwnedFd>, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
    let (attachment, number) = <(u32, u32)>::deserialize(d)?;
    let fd = scope::incoming("a descriptor", |inc| inc.take_descriptor(attachment, number));
    fd.map(T::from).map_err(D::Error::custom)
}
