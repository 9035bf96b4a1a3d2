//! What can go wrong with shared memory.

mod dtype;
mod messages_in_flight;
mod refused;
#[doc(hidden)]
pub mod sent;
mod undecodable;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::words::{DType, Member};
pub use messages_in_flight::{MessagesInFlight, QueuedMessages};
#[doc(hidden)]
pub use refused::{is_filtered, refused_call};
pub use sent::ErrorChain;
pub use undecodable::{Undecodable, in_field};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with shared memory. Its message says what was asked and what was found, and what to do where that is
/// for the caller to decide.
///
/// | what is wrong | variants |
/// |---|---|
/// | the call: it fails again however often it is repeated | [`InvalidArgument`](Self::InvalidArgument), [`LimitExceeded`](Self::LimitExceeded), [`Unsupported`](Self::Unsupported), [`Shape`](Self::Shape), [`OutOfBounds`](Self::OutOfBounds), [`DType`](Self::DType), [`Strategy`](Self::Strategy) |
/// | the value: it can't be sent | [`Unsendable`](Self::Unsendable), [`NonLeaf`](Self::NonLeaf), [`OutsideMessage`](Self::OutsideMessage), [`Local`](Self::Local) |
/// | what came from elsewhere | [`Malformed`](Self::Malformed), [`Undecodable`](Self::Undecodable), [`Stale`](Self::Stale), [`NotShareable`](Self::NotShareable), [`NotAnArena`](Self::NotAnArena), [`Version`](Self::Version), [`NoInvitation`](Self::NoInvitation) |
/// | what is there is used up; later it may work | [`OutOfMemory`](Self::OutOfMemory), [`ArenaFull`](Self::ArenaFull), [`TooManyMessages`](Self::TooManyMessages), [`OutOfDescriptors`](Self::OutOfDescriptors), [`TooManyDescriptors`](Self::TooManyDescriptors), [`Held`](Self::Held), [`NotPut`](Self::NotPut) |
/// | this process | [`Forked`](Self::Forked), [`ArenaExists`](Self::ArenaExists), [`Interrupted`](Self::Interrupted) |
/// | the system | [`Os`](Self::Os), [`Directory`](Self::Directory) |
///
/// It can be sent, in a `Result` as well: it arrives as the same variant, with what it says and with its sources (those of other
/// crates as an [`ErrorChain`]).
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused something.
    Os {
        /// What was being done.
        // (In full: serde would borrow from what it reads where the type is just `str`. Likewise below.)
        #[serde(with = "sent::text")]
        what: &'static std::primitive::str,
        /// The kernel's reason.
        #[serde(with = "sent::io")]
        source: io::Error,
    },
    /// The directory for shared memory with names can't be used.
    Directory {
        /// Which directory.
        #[serde(with = "sent::path")]
        path: std::path::PathBuf,
        /// What is wrong with it.
        #[serde(with = "sent::text")]
        what: &'static std::primitive::str,
        /// The kernel's reason.
        #[serde(with = "sent::io")]
        source: io::Error,
    },
    /// There is not enough memory for what was asked. Nothing was changed; after memory was freed it works, unless more was
    /// asked than the limit allows at all.
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes left under the limit.
        left: u64,
        /// Which limit was hit.
        limit: String,
    },
    /// A table of the arena, or its address range, is used up.
    ArenaFull {
        /// What was asked for.
        #[serde(with = "sent::text")]
        what: &'static std::primitive::str,
        /// How much of it.
        asked: u64,
        /// How much of it the arena has.
        limit: u64,
    },
    /// A queue that never waits was given a message, and as many are on their way as can be: in which queues, says the error.
    TooManyMessages(Box<MessagesInFlight>),
    /// This process may open no more descriptors, and a message that it sends or receives needs some: which limit, and what to do.
    OutOfDescriptors(String),
    /// As many descriptors are in messages on their way as can be: which limit, and what to do.
    TooManyDescriptors(String),
    /// Something that was to be attached as an arena isn't one.
    NotAnArena(String),
    /// This process has an arena already, which stays as it is; what to do instead.
    ArenaExists(#[serde(with = "sent::text")] &'static std::primitive::str),
    /// The arena was made by another version of this library.
    Version {
        /// What differs.
        #[serde(with = "sent::text")]
        what: &'static std::primitive::str,
        /// The value in the arena.
        theirs: u64,
        /// The value of this build.
        ours: u64,
    },
    /// This process's arena is plain memory, which no other process can reach.
    Local,
    /// This process was forked from a member without becoming one itself; it must not touch shared objects.
    Forked,
    /// A lock of the arena is held by a process that makes no progress (stopped, or very slow).
    Held {
        /// What is locked.
        #[serde(with = "sent::text")]
        what: &'static std::primitive::str,
        /// The holder.
        holder: Member,
        /// Its process id.
        pid: u32,
    },
    /// An argument, an option, a name or a variable of the environment is none that is possible.
    InvalidArgument(String),
    /// More was asked for than this library, or an option that was set, allows.
    LimitExceeded(String),
    /// This object can't do that: to send through the receiving end of a one-way pipe, say.
    Unsupported(String),
    /// A shape, strides or a number of elements do not fit.
    Shape(String),
    /// An index, a range or a dimension lies outside of what there is.
    OutOfBounds(String),
    /// A tensor has another element type than is asked for.
    DType {
        /// The one asked for.
        expected: DType,
        /// The one it has.
        found: DType,
    },
    /// A tensor that is the result of tensors that require gradients can't be sent.
    NonLeaf,
    /// A handle was serialised or deserialised outside of a message.
    OutsideMessage(#[serde(with = "sent::text")] &'static std::primitive::str),
    /// A value can't be sent: its `Serialize` refused or panicked, or it has something in it that can't go there.
    Unsendable(String),
    /// Bytes that arrived, or words in shared memory, make no sense.
    Malformed(String),
    /// What was referred to is gone: it was taken back or given up meanwhile.
    Stale(String),
    /// There is no invitation that this process can accept: why, and what to do.
    NoInvitation(String),
    /// A message can't be read as its type. Its bytes are in here.
    Undecodable(Box<Undecodable>),
    /// A message was not put into a queue; why. It was dropped: the queue's own error, which this was made of by `?`, has it.
    NotPut(String),
    /// A wait was ended by SIGINT (Ctrl-C) or SIGTERM, in a process that asked to be informed of it ([`interrupted`](crate::interrupted)).
    Interrupted,
    /// A file that was to be shared is none that can be.
    NotShareable(String),
    /// The name of a sharing strategy that is not supported.
    Strategy {
        /// What was asked for.
        asked: String,
        /// The supported ones.
        #[serde(with = "sent::texts")]
        supported: Vec<&'static str>,
    },
}

/// What an interrupt makes of a wait.
#[doc(hidden)]
pub const INTERRUPTED: &str = "interrupted by SIGINT (Ctrl-C) or SIGTERM while it waited: finish what is begun and return, or call take_interrupt() to go on";

/// What [`Error::ArenaFull`] calls envelopes.
pub(crate) const ENVELOPES: &str = "messages on their way";
/// How a program makes a larger arena.
pub(crate) const SIZE_SETTINGS: &str = "Arena::configure with ArenaOptions::size, MP_ARENA_SIZE";

impl Error {
    /// Whether as many messages are on their way as can be.
    pub fn is_out_of_envelopes(&self) -> bool {
        matches!(self, Error::ArenaFull { what: ENVELOPES, .. })
    }

    /// Whether a message has to wait until others that are on their way have arrived.
    pub fn is_for_lack_of_room(&self) -> bool {
        self.is_out_of_envelopes() || matches!(self, Error::TooManyDescriptors(_))
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }

    /// A number is not within its bounds: above the highest that is possible, or below the lowest.
    #[doc(hidden)]
    pub fn not_within(above: bool, why: String) -> Self {
        if above { Error::LimitExceeded(why) } else { Error::InvalidArgument(why) }
    }

    /// Why a message can't be read, if this is about what is in it; else the error itself.
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

/// Bytes as people write them.
#[doc(hidden)]
#[derive(Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
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

/// An error's `Debug`, as `unwrap` and a `main` that returns it show it: its `Display`, and below that the sources that don't stand
/// in it.
#[doc(hidden)]
pub fn show(f: &mut fmt::Formatter<'_>, error: &(dyn std::error::Error + 'static)) -> fmt::Result {
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

/// Makes the `Debug` of error types what [`show`] says.
#[doc(hidden)]
#[macro_export]
macro_rules! readable_debug {
    ($($error:ty),+) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::show(f, self)
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
                refused_call(what, source).map_or(Ok(()), |why| write!(f, ". {why}"))
            }
            Error::Directory { path, what, source } => {
                write!(f, "the directory {} can't keep shared memory: {what}: {source}; ", path.display())?;
                match refused_call(what, source) {
                    Some(why) => f.write_str(&why),
                    None => f.write_str("repair it, or choose another with set_sharing_directory()"),
                }
            }
            Error::OutOfMemory { asked, left, limit } => write!(
                f,
                "out of shared memory: {} asked, {} left under {limit}; drop tensors, call empty_cache(), or raise it",
                Bytes(*asked),
                Bytes(*left)
            ),
            Error::ArenaFull { what, asked, limit } => {
                write!(f, "the arena is full: {asked} {what} asked, it has {limit} in all; ")?;
                match *what {
                    ENVELOPES => f.write_str(
                        "take messages out of queues, bound these, or have room for more (Arena::configure with \
                         ArenaOptions::messages, MP_ARENA_MESSAGES)",
                    ),
                    "blocks" | "slabs" => write!(f, "drop tensors, or make a larger arena ({SIZE_SETTINGS})"),
                    _ => f.write_str("there can't be more: drop some"),
                }
            }
            Error::TooManyMessages(who) => write!(
                f,
                "the message was not put, since too many are on their way: {who}; take messages out of these queues, bound \
                 them, or have room for more (Arena::configure with ArenaOptions::messages, MP_ARENA_MESSAGES)"
            ),
            Error::NotAnArena(why) => write!(f, "not an arena of this library: {why}"),
            Error::ArenaExists(what_to_do) => write!(f, "this process has an arena already: {what_to_do}"),
            Error::Version { what, theirs, ours } => write!(
                f,
                "the arena was made by another version: {what} is {theirs}, this build has {ours}; \
                 run all processes from the same build"
            ),
            Error::Local => f.write_str(
                "the arena of this process is its own memory (Arena::local), which no other process can reach; \
                 to start processes, don't call that",
            ),
            Error::Forked => f.write_str(
                "this process was forked from one that uses shared memory, and is no member of it, or this handle was \
                 copied along; start workers with spawn or by another start method, and pass handles as arguments. A program that \
                 becomes a daemon (daemon(3), daemonize) must do so before its first use of mp",
            ),
            Error::Held { what, holder, pid } => {
                write!(f, "{what} is locked by {}, which makes no progress; is it stopped?", holder.process(*pid))
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
                "a tensor that is no leaf and requires gradients (requires_grad) can't be sent: its history does not cross \
                 processes; to send the data alone, call detach() first",
            ),
            Error::OutsideMessage(what) => write!(
                f,
                "{what} can only be serialised inside of a message (a queue's put, or the arguments of a process): \
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
