//! Errors of put and get. A put error contains the value that was not put.

use std::fmt;

use mp_core::words::Member;
use mp_core::{INTERRUPTED, children};
use serde::{Deserialize, Serialize};

/// Error returned when a value was not put. It contains the value, unchanged: see
/// [`into_value`](Self::into_value).
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum PutError<T> {
    /// The queue was full during the whole wait, or the queue had used its share of the
    /// [envelopes](crate::Queue#how-much-fits) and no other envelope was free.
    Full(T),
    /// The queue is closed.
    Closed(T),
    /// The queue is full, no other process has it, and this process has no further handle that could take a
    /// message out of it ([`DesertedWhen`](crate::DesertedWhen)).
    Deserted {
        /// Value that was not put.
        value: T,
        /// Last process that had the queue, or `None` if the queue was sent to a process that never received
        /// it.
        last: Option<Member>,
        /// Process id of the last process, or 0 if it is unknown.
        pid: u32,
    },
    /// The channel has no receivers: they were dropped, or their processes died.
    Disconnected(T),
    /// No process receives values of this [`watch`](crate::watch) channel.
    /// [`send_replace`](crate::watch::Sender::send_replace) replaces the value without receivers.
    NoReceivers {
        /// Value that was not sent.
        value: T,
        /// Name of the channel, empty if it has none.
        channel: String,
    },
    /// The other side of a socket connection is closed. It refused an earlier message because it expected
    /// another type.
    TypeRefused {
        /// Value that was not sent.
        value: T,
        /// Types of the refused message.
        refusal: Box<TypeRefusal>,
    },
    /// This process was interrupted (`SIGINT`, `SIGTERM`) while the call waited for room
    /// ([`interrupted`](mp_core::interrupted)).
    Interrupted(T),
    /// The message alone exceeds the queue's bound of bytes: see
    /// [`QueueOptions::bytes`](crate::QueueOptions::bytes).
    TooLarge {
        /// Value that was not put.
        value: T,
        /// Size of the message in bytes, as counted for the bound.
        bytes: u64,
        /// Bound of bytes of the queue.
        limit: u64,
    },
    /// The value could not be encoded, or there is not enough memory.
    Failed {
        /// Value that was not put.
        value: T,
        /// Cause of the failure.
        error: mp_reduce::Error,
    },
}

impl PutError<()> {
    /// Adds the value that was not put to the error.
    pub(crate) fn with<T>(self, value: T) -> PutError<T> {
        self.map(|()| value)
    }
}

impl<T> PutError<T> {
    /// Returns the value that was not put, including fields that are not encoded.
    pub fn into_value(self) -> T {
        match self {
            PutError::Full(v)
            | PutError::Closed(v)
            | PutError::Disconnected(v)
            | PutError::Interrupted(v)
            | PutError::NoReceivers { value: v, .. }
            | PutError::TooLarge { value: v, .. }
            | PutError::Deserted { value: v, .. }
            | PutError::TypeRefused { value: v, .. }
            | PutError::Failed { value: v, .. } => v,
        }
    }

    /// Returns the same error with `f` applied to the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> PutError<U> {
        match self {
            PutError::Full(v) => PutError::Full(f(v)),
            PutError::Closed(v) => PutError::Closed(f(v)),
            PutError::Disconnected(v) => PutError::Disconnected(f(v)),
            PutError::Interrupted(v) => PutError::Interrupted(f(v)),
            PutError::NoReceivers { value, channel } => PutError::NoReceivers { value: f(value), channel },
            PutError::TooLarge { value, bytes, limit } => {
                PutError::TooLarge { value: f(value), bytes, limit }
            }
            PutError::Deserted { value, last, pid } => PutError::Deserted { value: f(value), last, pid },
            PutError::TypeRefused { value, refusal } => PutError::TypeRefused { value: f(value), refusal },
            PutError::Failed { value, error } => PutError::Failed { value: f(value), error },
        }
    }

    /// Drops the value and returns the error without it. The result can be sent to other threads whatever the
    /// type of the value, as `Box<dyn Error + Send + Sync>` requires. In generic code:
    ///
    /// ```
    /// use mp_queue::{PutError, Queue};
    ///
    /// fn twice<T: mp_core::Message + Clone>(
    ///     queue: &Queue<T>,
    ///     value: T,
    /// ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     queue.put(value.clone()).map_err(PutError::forget)?;
    ///     queue.put(value).map_err(PutError::forget)?;
    ///     Ok(())
    /// }
    ///
    /// let queue = Queue::bounded(4)?;
    /// twice(&queue, 7_u8)?;
    /// assert_eq!(queue.len(), 2);
    /// queue.close();
    /// assert!(twice(&queue, 7_u8).unwrap_err().to_string().contains("closed"));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// If the function's error is `Box<dyn Error>`, `?` alone is enough.
    pub fn forget(self) -> PutError<()> {
        self.map(drop)
    }

    /// Returns `true` if the queue was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, PutError::Closed(_))
    }

    /// Returns `true` if the channel has no receivers or the other side of the connection is closed.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            PutError::Disconnected(_) | PutError::NoReceivers { .. } | PutError::TypeRefused { .. }
        )
    }

    /// Returns `true` if the value was not put only because the queue is full.
    #[doc(alias = "Full")]
    pub fn is_full(&self) -> bool {
        matches!(self, PutError::Full(_))
    }
}

/// Allows `?` in functions that return `mp_core::Error`. The value is dropped. To keep it, call
/// [`into_value`](PutError::into_value) first.
///
/// ```
/// use mp_core::Error;
/// use mp_tensor::Tensor;
/// use mp_queue::Queue;
///
/// fn produce(queue: &Queue<Tensor<f32>>) -> Result<(), Error> {
///     queue.put(Tensor::zeros(&[2, 3])?)?;
///     Ok(())
/// }
///
/// let queue = Queue::bounded(4)?;
/// produce(&queue)?;
/// queue.close();
/// let Err(Error::NotPut(why)) = produce(&queue) else { panic!("it is closed") };
/// assert!(why.contains("closed"));
/// // The error contains the value.
/// let value = queue.put(Tensor::zeros(&[1])?).unwrap_err().into_value();
/// assert_eq!(value.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In functions that return `Box<dyn Error + Send + Sync>`, such as `mp::AnyResult`, `?` alone is enough if
/// the value is `Send`, `Sync` and `'static`. The box then contains the value. For other values, use
/// [`forget`](PutError::forget).
impl<T> From<PutError<T>> for mp_core::Error {
    fn from(error: PutError<T>) -> Self {
        match error {
            PutError::Failed { error: mp_reduce::Error::Memory(error), .. } => error,
            PutError::Interrupted(_) => mp_core::Error::Interrupted,
            other => mp_core::Error::NotPut(other.to_string()),
        }
    }
}

/// Prints the same text as `Display`, since `unwrap` and `main` print the `Debug` output.
impl<T> fmt::Debug for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> fmt::Display for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutError::Full(_) => f.write_str(
                "the queue is full, or the arena has no room for further messages: wait longer for \
                 consumers, or create the queue or the arena with more room",
            ),
            PutError::Closed(_) => f.write_str(
                "the queue is closed, so no message can be put: call close() after the last put of all \
                 producers",
            ),
            PutError::Disconnected(_) => f.write_str(
                "the other side is gone, so no process can receive the message: all its handles were \
                 dropped, or their processes ended",
            ),
            PutError::NoReceivers { channel, .. } => {
                let name = if channel.is_empty() { String::new() } else { format!(" {channel:?}") };
                write!(
                    f,
                    "the watch channel{name} of {} has no receivers: all were dropped, or their processes \
                     ended. `send_replace` replaces the value without receivers",
                    std::any::type_name::<T>()
                )
            }
            PutError::TypeRefused { refusal, .. } => refusal.fmt(f),
            PutError::Interrupted(_) => f.write_str(INTERRUPTED),
            PutError::TooLarge { bytes, limit, .. } => write!(
                f,
                "the message has {bytes} bytes, and the queue may contain at most {limit}: send a smaller \
                 message, or create the queue with a higher bound (QueueOptions::bytes)"
            ),
            PutError::Deserted { last, pid, .. } => write!(
                f,
                "the queue is full, and no other process has it any more: {}",
                LastProcess(*last, *pid)
            ),
            PutError::Failed { error, .. } => error.fmt(f),
        }
    }
}

impl<T> std::error::Error for PutError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PutError::Failed { error, .. } => std::error::Error::source(error),
            _ => None,
        }
    }
}

/// Last process of a deserted queue: its member and process id. If this process is the parent of that
/// process, the text includes the reason of its failure.
struct LastProcess(Option<Member>, u32);

impl fmt::Display for LastProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(last, pid) = *self;
        match (last, pid) {
            (Some(member), pid) => {
                write!(f, "the last process that had it, {}, is gone", member.process(pid))?
            }
            (None, 0) => f.write_str("the process to which it was sent ended and never received it")?,
            (None, pid) => write!(f, "process {pid}, to which it was sent, ended and never received it")?,
        }
        match children::failure_of(pid) {
            Some(failure) => write!(f, ": {failure}"),
            None => Ok(()),
        }
    }
}

/// Types of a message that the other side of a socket connection refused before it closed the connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TypeRefusal {
    /// Name of the type that was sent. Empty if the other side did not receive the name.
    pub sent: String,
    /// Name of the type that the other side expected.
    pub expected: String,
}

impl fmt::Display for TypeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, expected } = self;
        let sent = if sent.is_empty() { "another type" } else { sent };
        write!(
            f,
            "the other side is gone: it refused a message of type {sent} from this side, because it \
             expected {expected}; both programs must use the same type name: define the type in a crate \
             that both programs use, or send tuples or bytes"
        )
    }
}

/// Process that has leased messages and not yet acknowledged them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Leaseholder {
    /// Member of the program that is the leaseholder.
    pub member: Member,
    /// Process id of the leaseholder, or 0 if it is unknown.
    pub pid: u32,
    /// Number of messages that the process has leased.
    pub messages: usize,
}

impl fmt::Display for Leaseholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, pid, messages } = self;
        write!(f, "{messages} by {}", member.process(*pid))
    }
}

/// List of leaseholders, printed as ": 2 by process 42 (member 3.1), 1 by …; are they stopped, or slow?"
pub(crate) struct HolderList<'a>(pub(crate) &'a [Leaseholder]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, holder) in self.0.iter().enumerate() {
            write!(f, "{}{holder}", if i == 0 { ": " } else { ", " })?;
        }
        f.write_str(if self.0.is_empty() { "" } else { "; are they stopped, or slow?" })
    }
}

/// Error returned when no message was taken. A queue that is closed and drained is not an error: the
/// functions then return `None`.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GetError {
    /// The queue is empty and stayed empty during the wait.
    #[error("the queue is empty, and no message arrived in time: wait longer, or without a time-out")]
    Empty,
    /// The queue is closed and empty, but at the end of the wait other processes still had leases of messages
    /// that may be given back. Returned only for messages taken [with
    /// acknowledgement](crate::Queue::get_lease).
    #[error(
        "the queue is closed and empty, but other processes have leases of messages, which may be given \
         back{}",
        HolderList(holders)
    )]
    Leased {
        /// Other processes with leases of messages in this queue. A stopped process keeps its leases.
        holders: Vec<Leaseholder>,
    },
    /// The queue is empty, no other process has it, and this process has no further handle that could put a
    /// message into it ([`DesertedWhen`](crate::DesertedWhen)).
    #[error("the queue is empty, and no other process has it any more: {}", LastProcess(*last, *pid))]
    Deserted {
        /// Last process that had the queue, or `None` if the queue was sent to a process that never received
        /// it.
        last: Option<Member>,
        /// Process id of the last process, or 0 if it is unknown.
        pid: u32,
    },
    /// The channel is empty and has no senders: they were dropped, or their processes died.
    #[error(
        "the other side is gone, and no message is left: all its handles were dropped, or their processes \
         ended"
    )]
    Disconnected,
    /// The other side of a socket connection is closed. It refused an earlier message because it expected
    /// another type.
    #[error("{0}")]
    TypeRefused(Box<TypeRefusal>),
    /// This process was interrupted (`SIGINT`, `SIGTERM`) while the call waited for a message
    /// ([`interrupted`](mp_core::interrupted)). No message was available at that time.
    #[error("{INTERRUPTED}")]
    Interrupted,
    /// The message could not be decoded. The error contains its bytes ([`bytes`](mp_reduce::Error::bytes))
    /// and the position of the failure. The objects attached to the message are released. Also returned if
    /// this process was forked from a member.
    #[error(transparent)]
    Failed(#[from] mp_reduce::Error),
}

mp_core::readable_debug!(GetError, RecvIntoError);

impl GetError {
    /// Returns `true` if the channel has no senders or the other side of the connection is closed.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, GetError::Disconnected | GetError::TypeRefused(_))
    }

    /// Returns `true` if no message was taken only because the queue is empty, and messages may still arrive.
    #[doc(alias = "Empty")]
    pub fn is_empty(&self) -> bool {
        matches!(self, GetError::Empty | GetError::Leased { .. })
    }
}

/// Error returned when a message was not received into a caller's buffer.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "BufferTooShort")]
pub enum RecvIntoError {
    /// The message is longer than the buffer. Contains the bytes of the message.
    #[error(
        "the message has {}, more than the buffer; this error contains the message",
        mp_core::quantity(.0.len(), "byte")
    )]
    TooShort(Vec<u8>),
    /// No message was received. Contains the reason.
    #[error(transparent)]
    Get(#[from] GetError),
}
