//! Error types of shared memory.

mod denied_syscall;
mod dtype;
mod messages_in_flight;
#[doc(hidden)]
pub mod serde_with;
mod undecodable;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::words::{DType, Member};
#[doc(hidden)]
pub use denied_syscall::{denied_syscall, is_seccomp_filtered};
pub use messages_in_flight::{MessagesInFlight, QueuedMessages};
pub use serde_with::ErrorChain;
pub use undecodable::{Undecodable, in_field};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation on shared memory. The message names the request, the state found and, where the
/// caller can act, the remedy.
///
/// | cause | variants |
/// |---|---|
/// | the call is invalid: every repetition fails | [`InvalidArgument`](Self::InvalidArgument), [`LimitExceeded`](Self::LimitExceeded), [`Unsupported`](Self::Unsupported), [`Shape`](Self::Shape), [`OutOfBounds`](Self::OutOfBounds), [`DType`](Self::DType), [`Strategy`](Self::Strategy) |
/// | the value can't be sent | [`Unsendable`](Self::Unsendable), [`NonLeaf`](Self::NonLeaf), [`OutsideMessage`](Self::OutsideMessage), [`Local`](Self::Local) |
/// | received data is invalid or missing | [`Malformed`](Self::Malformed), [`Undecodable`](Self::Undecodable), [`Stale`](Self::Stale), [`NotShareable`](Self::NotShareable), [`NotAnArena`](Self::NotAnArena), [`Version`](Self::Version), [`NoInvitation`](Self::NoInvitation) |
/// | a resource is exhausted or busy: a later call may succeed | [`OutOfMemory`](Self::OutOfMemory), [`ArenaFull`](Self::ArenaFull), [`TooManyMessages`](Self::TooManyMessages), [`OutOfDescriptors`](Self::OutOfDescriptors), [`TooManyDescriptors`](Self::TooManyDescriptors), [`Held`](Self::Held), [`NotPut`](Self::NotPut) |
/// | state of this process | [`Forked`](Self::Forked), [`ArenaExists`](Self::ArenaExists), [`Interrupted`](Self::Interrupted) |
/// | the system | [`Os`](Self::Os), [`Directory`](Self::Directory) |
///
/// Errors can be sent, also in a `Result`. The receiver gets the same variant with the same message and
/// sources. Sources of other crates' types arrive as an [`ErrorChain`].
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    Os {
        /// Operation that failed.
        // The full path is needed: serde would borrow from its input if the type were written `str`. The same
        // holds below.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Error returned by the kernel.
        #[serde(with = "serde_with::io")]
        source: io::Error,
    },
    /// The directory for named shared memory can't be used.
    Directory {
        /// Path of the directory.
        #[serde(with = "serde_with::path")]
        path: std::path::PathBuf,
        /// Problem with the directory.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Error returned by the kernel.
        #[serde(with = "serde_with::io")]
        source: io::Error,
    },
    /// There is not enough memory for the request. Nothing was changed. The call can succeed after memory was
    /// freed, unless the request exceeds the limit itself.
    OutOfMemory {
        /// Requested size in bytes.
        asked: u64,
        /// Bytes left under the limit.
        left: u64,
        /// Limit that was reached.
        limit: String,
    },
    /// A table of the arena, or its address range, is full.
    ArenaFull {
        /// Requested kind of object.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Requested amount.
        asked: u64,
        /// Amount available in the arena.
        limit: u64,
    },
    /// A message could not be put into a queue that never waits, because the limit of messages in flight is
    /// reached. The error lists the queues with most of these messages.
    TooManyMessages(Box<MessagesInFlight>),
    /// This process sends or receives a message with descriptors, and has reached its limit of open
    /// descriptors. The text names the limit and the remedy.
    OutOfDescriptors(String),
    /// The limit of descriptors in messages in flight is reached. The text names the limit and the remedy.
    TooManyDescriptors(String),
    /// The file to attach is not an arena.
    NotAnArena(String),
    /// This process already has an arena, which stays unchanged. The text names the remedy.
    ArenaExists(#[serde(with = "serde_with::text")] &'static std::primitive::str),
    /// The arena was created by another version of this library.
    Version {
        /// Property that differs.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Value in the arena.
        theirs: u64,
        /// Value in this build.
        ours: u64,
    },
    /// The arena of this process is private memory, which no other process can reach.
    Local,
    /// This process was forked from a member and is not a member itself. It must not access shared objects.
    Forked,
    /// A lock of the arena is held by a process that makes no progress (stopped, or very slow).
    Held {
        /// Locked resource.
        #[serde(with = "serde_with::text")]
        what: &'static std::primitive::str,
        /// Holder of the lock.
        holder: Member,
        /// Process id of the holder.
        pid: u32,
    },
    /// An argument, option, name or environment variable is invalid.
    InvalidArgument(String),
    /// The request exceeds a limit of this library, or a limit set by an option.
    LimitExceeded(String),
    /// The object does not support the operation: for example, sending through the receiving end of a one-way
    /// pipe.
    Unsupported(String),
    /// A shape, strides or a number of elements do not match.
    Shape(String),
    /// An index, range or dimension is out of bounds.
    OutOfBounds(String),
    /// The element type of a tensor differs from the requested type.
    DType {
        /// Requested type.
        expected: DType,
        /// Type of the tensor.
        found: DType,
    },
    /// A tensor computed from tensors that require gradients can't be sent.
    NonLeaf,
    /// A handle was serialized or deserialized outside of a message.
    OutsideMessage(#[serde(with = "serde_with::text")] &'static std::primitive::str),
    /// A value can't be sent: its `Serialize` failed or panicked, or it contains a part that can't be sent to
    /// the destination.
    Unsendable(String),
    /// Received bytes, or words in shared memory, are invalid.
    Malformed(String),
    /// The referenced object no longer exists. For example, a message was already received, or withdrawn
    /// by its sender.
    Stale(String),
    /// There is no invitation that this process can accept. The text names the cause and the remedy.
    NoInvitation(String),
    /// A message can't be decoded as its type. The error contains the bytes of the message.
    Undecodable(Box<Undecodable>),
    /// A message was not put into a queue; the text names the cause. This error does not contain the message.
    /// The error type of the queue contains it, and converting that error to this type, for example by `?`,
    /// drops the message.
    NotPut(String),
    /// A wait was ended by SIGINT (Ctrl-C) or SIGTERM, in a process that asked to be notified of these
    /// signals ([`interrupted`](crate::interrupted)).
    Interrupted,
    /// A file can't be shared.
    NotShareable(String),
    /// The requested sharing strategy is not supported.
    Strategy {
        /// Requested name of a strategy.
        asked: String,
        /// Names of the supported strategies.
        #[serde(with = "serde_with::texts")]
        supported: Vec<&'static str>,
    },
}

/// Message of an interrupted wait.
#[doc(hidden)]
pub const INTERRUPTED: &str = "interrupted by SIGINT (Ctrl-C) or SIGTERM while it waited: finish the \
    current work and return, or call take_interrupt() to continue";

/// Name of envelopes in [`Error::ArenaFull`].
pub(crate) const ENVELOPES: &str = "messages in flight";
/// Settings that enlarge the arena, for error messages.
pub(crate) const SIZE_SETTINGS: &str = "Arena::configure with ArenaOptions::size, MP_ARENA_SIZE";

impl Error {
    /// Returns `true` if the limit of messages in flight is reached.
    pub fn is_out_of_envelopes(&self) -> bool {
        matches!(self, Error::ArenaFull { what: ENVELOPES, .. })
    }

    /// Returns `true` if the message can be sent after other messages in flight have arrived.
    pub fn is_out_of_space(&self) -> bool {
        self.is_out_of_envelopes() || matches!(self, Error::TooManyDescriptors(_))
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }

    /// Returns a copy of the error if a message was refused because of its descriptors.
    pub(crate) fn as_refusal(&self) -> Option<Self> {
        match self {
            Error::TooManyDescriptors(why) => Some(Error::TooManyDescriptors(why.clone())),
            Error::OutOfDescriptors(why) => Some(Error::OutOfDescriptors(why.clone())),
            _ => None,
        }
    }

    /// Creates the error for a number that is out of bounds: above the maximum if `above`, else below the
    /// minimum.
    #[doc(hidden)]
    pub fn out_of_range(above: bool, why: String) -> Self {
        if above { Error::LimitExceeded(why) } else { Error::InvalidArgument(why) }
    }

    /// Returns the text of an error that concerns the contents of a message. Returns other errors unchanged.
    pub(crate) fn into_reason(self) -> Result<String> {
        match self {
            Error::Malformed(why)
            | Error::LimitExceeded(why)
            | Error::Unsupported(why)
            | Error::Shape(why)
            | Error::OutOfBounds(why) => Ok(why),
            other => Err(other),
        }
    }
}

/// Number of bytes, displayed with a binary unit.
#[doc(hidden)]
#[derive(Debug)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut v = self.0 as f64;
        let mut unit = 0;
        while v >= 1024.0 && unit + 1 < UNITS.len() {
            v /= 1024.0;
            unit += 1;
        }
        if unit == 0 || v.fract() == 0.0 {
            write!(f, "{v} {}", UNITS[unit])
        } else {
            write!(f, "{v:.1} {} ({} bytes)", UNITS[unit], self.0)
        }
    }
}

/// Returns a number with a noun, which is in the singular for 1.
///
/// ```
/// use mp_core::quantity;
///
/// assert_eq!([0, 1, 2].map(|n| quantity(n, "task")), ["0 tasks", "1 task", "2 tasks"]);
/// assert_eq!(["process", "batch"].map(|noun| quantity(2, noun)), ["2 processes", "2 batches"]);
/// ```
#[doc(hidden)]
pub fn quantity(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    if number == "1" {
        return format!("1 {noun}");
    }
    let end = if noun.ends_with(['s', 'x']) || noun.ends_with("ch") { "es" } else { "s" };
    format!("{number} {noun}{end}")
}

/// Writes the `Debug` output of an error, which `unwrap` and a failed `main` print: the error's `Display`,
/// followed by the sources that this text does not contain yet.
#[doc(hidden)]
pub fn fmt_debug(f: &mut fmt::Formatter<'_>, error: &(dyn std::error::Error + 'static)) -> fmt::Result {
    let mut shown = error.to_string();
    f.write_str(&shown)?;
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !shown.contains(&text) {
            write!(f, "\n  caused by: {text}")?;
            shown.push_str(&text);
        }
        next = source.source();
    }
    Ok(())
}

/// Implements `Debug` for error types by [`fmt_debug`].
#[doc(hidden)]
#[macro_export]
macro_rules! readable_debug {
    ($($error:ty),+) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::fmt_debug(f, self)
            }
        }
    )+};
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Interrupted => f.write_str(INTERRUPTED),
            Error::NotPut(why) => write!(f, "a message was not put, and was dropped: {why}"),
            Error::Os { what, source } => {
                write!(f, "{what}: {source}")?;
                denied_syscall(what, source).map_or(Ok(()), |why| write!(f, ". {why}"))
            }
            Error::Directory { path, what, source } => {
                write!(f, "the directory {} can't keep shared memory: {what}: {source}; ", path.display())?;
                match denied_syscall(what, source) {
                    Some(why) => f.write_str(&why),
                    None => f.write_str("repair it, or choose another with set_sharing_directory()"),
                }
            }
            Error::OutOfMemory { asked, left, limit } => write!(
                f,
                "out of shared memory: {} asked, {} left under {limit}; drop tensors, call empty_cache(), \
                or raise that limit",
                ByteSize(*asked),
                ByteSize(*left)
            ),
            Error::ArenaFull { what, asked, limit } => {
                write!(f, "the arena is full: {asked} {what} asked, it has {limit} in all; ")?;
                match *what {
                    ENVELOPES => f.write_str(
                        "take messages out of queues, bound these, or have room for more (Arena::configure \
                        with \
                         ArenaOptions::messages, MP_ARENA_MESSAGES)",
                    ),
                    "blocks" | "slabs" => write!(f, "drop tensors, or make a larger arena ({SIZE_SETTINGS})"),
                    _ => f.write_str("the number is fixed: drop some"),
                }
            }
            Error::TooManyMessages(who) => write!(
                f,
                "the message was not put, since too many are in flight: {who}; take messages out of \
                these queues, bound \
                 them, or have room for more (Arena::configure with ArenaOptions::messages, \
                 MP_ARENA_MESSAGES)"
            ),
            Error::NotAnArena(why) => write!(f, "not an arena of this library: {why}"),
            Error::ArenaExists(what_to_do) => write!(f, "this process has an arena already: {what_to_do}"),
            Error::Version { what, theirs, ours } => write!(
                f,
                "the arena was created by another version: {what} is {theirs}, this build has {ours}; \
                 run all processes from the same build"
            ),
            Error::Local => f.write_str(
                "the arena of this process is its own memory (Arena::local), which no other process can \
                reach; \
                 to start processes, don't call that",
            ),
            Error::Forked => f.write_str(
                "this process was forked from one that uses shared memory, and is not a member of it, or \
                this handle was copied along; start workers with spawn or by another start method, and pass \
                handles as \
                 arguments. A program that \
                 becomes a daemon (daemon(3), daemonize) must do so before its first use of mp",
            ),
            Error::Held { what, holder, pid } => {
                write!(
                    f,
                    "{what} is locked by {}, which makes no progress; is it stopped?",
                    holder.process(*pid)
                )
            }
            Error::InvalidArgument(why)
            | Error::LimitExceeded(why)
            | Error::Unsupported(why)
            | Error::Shape(why)
            | Error::OutOfBounds(why)
            | Error::Unsendable(why)
            | Error::Malformed(why)
            | Error::OutOfDescriptors(why)
            | Error::TooManyDescriptors(why)
            | Error::Stale(why) => f.write_str(why),
            Error::NoInvitation(why) => write!(f, "no invitation that this process can accept: {why}"),
            Error::Undecodable(e) => e.fmt(f),
            Error::NotShareable(why) => write!(f, "not usable as shared memory: {why}"),
            Error::DType { expected, found } => {
                write!(f, "a tensor of {found} where one of {expected} is expected; ask its dtype() first")
            }
            Error::NonLeaf => f.write_str(
                "a tensor that is not a leaf and requires gradients (requires_grad) can't be sent: its \
                history does not cross \
                 processes; to send the data alone, call detach() first",
            ),
            Error::OutsideMessage(what) => write!(
                f,
                "{what} can only be serialised inside of a message (a queue's put, or the arguments of a \
                process): \
                 its bytes mean nothing elsewhere"
            ),
            Error::Strategy { asked, supported } => write!(
                f,
                "unknown or unsupported sharing strategy {asked:?}; this build supports {}",
                if supported.is_empty() {
                    "none: enable a feature of that name".into()
                } else {
                    supported.join(", ")
                }
            ),
        }
    }
}

crate::readable_debug!(Error);

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } | Error::Directory { source, .. } => Some(source),
            Error::Undecodable(e) => e.source(),
            _ => None,
        }
    }
}

/// Returns a text in which control characters, and characters that change the direction of writing, are
/// replaced. For texts of other processes, which are printed to terminals.
pub fn printable(text: &str) -> String {
    let is_harmful =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
