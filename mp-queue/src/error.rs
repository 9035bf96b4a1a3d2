//! How putting and getting fail. Whatever could not be put is given back.

use std::fmt;

use mp_core::words::Member;
use mp_core::{INTERRUPTED, children};
use serde::{Deserialize, Serialize};

/// Why a value was not put. It is in here, as it was, to be taken out with [`into_value`](Self::into_value).
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum PutError<T> {
    /// The queue is full, or has its share of [what fits](crate::Queue#how-much-fits) while others have all the rest, and that
    /// stays so as long as this call was willing to wait.
    Full(T),
    /// The queue is closed.
    Closed(T),
    /// The queue is full, no other process has it any more, and this one has no further handle that could
    /// take anything out of it ([`DesertedWhen`](crate::DesertedWhen)).
    Deserted {
        /// The value.
        value: T,
        /// The last process that had it; `None` if the process was sent the queue and never received it.
        last: Option<Member>,
        /// Its process id.
        pid: u32,
    },
    /// The other side of the channel has no receiver any more: they were dropped, or their processes are dead.
    Disconnected(T),
    /// No process receives values of this [`watch`](crate::watch) channel. [`send_replace`](crate::watch::Sender::send_replace)
    /// replaces the value without receivers.
    NoReceivers {
        /// The value.
        value: T,
        /// Name of the channel, empty if it has none.
        channel: String,
    },
    /// The other side of a connection over a socket is gone, and has refused what was sent before: it expected another type.
    TypeRefused {
        /// The value.
        value: T,
        /// What was refused.
        refusal: Box<TypeRefusal>,
    },
    /// This process was interrupted (SIGINT, SIGTERM) while the call waited for room ([`interrupted`](mp_core::interrupted)).
    Interrupted(T),
    /// The message alone is more than may be in the queue, see [`QueueOptions::bytes`](crate::QueueOptions::bytes).
    TooLarge {
        /// The value.
        value: T,
        /// How many bytes the message has.
        bytes: u64,
        /// How many may be in the queue.
        limit: u64,
    },
    /// It could not be encoded, or there is no memory for it.
    Failed {
        /// The value.
        value: T,
        /// Why.
        error: mp_reduce::Error,
    },
}

impl<T> PutError<T> {
    /// The value that was not put: the very value, fields that are not encoded included.
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

    /// The same, with something else made of the value.
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

    /// The same without the value, which is dropped: an error that can be sent to other threads whatever the value is, as
    /// `Box<dyn Error + Send + Sync>` asks for. In generic code:
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
    /// Where the error is `Box<dyn Error>`, `?` alone does.
    pub fn forget(self) -> PutError<()> {
        self.map(drop)
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, PutError::Closed(_))
    }

    /// Whether the channel has no receiver any more, or the other side of the connection is gone.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            PutError::Disconnected(_) | PutError::NoReceivers { .. } | PutError::TypeRefused { .. }
        )
    }

    /// Whether it was only that the queue is full.
    #[doc(alias = "Full")]
    pub fn is_full(&self) -> bool {
        matches!(self, PutError::Full(_))
    }
}

/// For `?` in functions whose error is that of tensors and arenas. The value is dropped: where it is to be kept, look at the error
/// first ([`into_value`](PutError::into_value)).
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
/// // Kept instead: it may go elsewhere.
/// let kept = queue.put(Tensor::zeros(&[1])?).unwrap_err().into_value();
/// assert_eq!(kept.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In functions that return `Box<dyn Error + Send + Sync>`, as `mp::AnyResult` does, `?` alone does where the value is `Send`,
/// `Sync` and `'static`, and keeps the value in the box; else [`forget`](PutError::forget) is there for it.
impl<T> From<PutError<T>> for mp_core::Error {
    fn from(error: PutError<T>) -> Self {
        match error {
            PutError::Failed { error: mp_reduce::Error::Memory(error), .. } => error,
            PutError::Interrupted(_) => mp_core::Error::Interrupted,
            other => mp_core::Error::NotPut(other.to_string()),
        }
    }
}

/// Its `Display`: what `unwrap` and a `main` that returns it show.
impl<T> fmt::Debug for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> fmt::Display for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutError::Full(_) => f.write_str(
                "the queue is full, or too many messages are on their way in all, and there was no room in the time given: wait (longer) \
                 for consumers, or make it with more room",
            ),
            PutError::Closed(_) => f.write_str("the queue was closed: nothing more can be put; call close() after the last put of all producers"),
            PutError::Disconnected(_) => f.write_str(
                "the other side is gone, so that no process would receive it: all handles there were dropped, or their processes \
                 ended",
            ),
            PutError::NoReceivers { channel, .. } => {
                let name = if channel.is_empty() { String::new() } else { format!(" {channel:?}") };
                write!(
                    f,
                    "the watch channel{name} of {} has no receivers: all were dropped, or their processes ended. `send_replace` \
                     replaces the value without receivers",
                    std::any::type_name::<T>()
                )
            }
            PutError::TypeRefused { refusal, .. } => refusal.fmt(f),
            PutError::Interrupted(_) => f.write_str(INTERRUPTED),
            PutError::TooLarge { bytes, limit, .. } => write!(
                f,
                "the message has {bytes} bytes, and no more than {limit} may be in the queue: make it smaller, or the \
                 queue with a higher bound (QueueOptions::bytes)"
            ),
            PutError::Deserted { last, pid, .. } => write!(
                f,
                "the queue is full and no other process has it any more: {}",
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

/// The process because of which a queue is deserted, and its failure if this process is its parent.
struct LastProcess(Option<Member>, u32);

impl fmt::Display for LastProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(last, pid) = *self;
        match (last, pid) {
            (Some(member), pid) => write!(f, "the last one, {}, is gone", member.process(pid))?,
            (None, 0) => f.write_str("the process to which it was sent is gone, and never received it")?,
            (None, pid) => write!(f, "process {pid}, to which it was sent, is gone, and never received it")?,
        }
        match children::failure_of(pid) {
            Some(failure) => write!(f, ": {failure}"),
            None => Ok(()),
        }
    }
}

/// What the other side of a connection over a socket said before it went: which message it did not take.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TypeRefusal {
    /// The name of the type that was sent to it; empty if it does not know that.
    pub sent: String,
    /// The name of the type that it expected.
    pub expected: String,
}

impl fmt::Display for TypeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, expected } = self;
        let sent = if sent.is_empty() { "another type" } else { sent };
        write!(
            f,
            "the other side is gone; it had got a message of type {sent} from here, where it expects {expected}; types have to be \
             named alike on both sides: put the type into a crate that both programs use, or send tuples or bytes"
        )
    }
}

/// A process that works on messages, which it has taken with acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Leaseholder {
    /// The process.
    pub member: Member,
    /// Its process id; 0 if it is not known any more.
    pub pid: u32,
    /// How many messages it works on.
    pub messages: usize,
}

impl fmt::Display for Leaseholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, pid, messages } = self;
        write!(f, "{messages} by {}", member.process(*pid))
    }
}

/// "…: 2 by process 42 (member 3.1), 1 by …; are they stopped, or slow?"
pub(crate) fn list(f: &mut fmt::Formatter<'_>, holders: &[Leaseholder]) -> fmt::Result {
    for (i, holder) in holders.iter().enumerate() {
        write!(f, "{}{holder}", if i == 0 { ": " } else { ", " })?;
    }
    f.write_str(if holders.is_empty() { "" } else { "; are they stopped, or slow?" })
}

/// Why nothing was got. (A queue that is closed and drained is no error: then the functions return `None`.)
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum GetError {
    /// The queue is empty, and stays so as long as this call was willing to wait.
    Empty,
    /// The queue is closed, and nothing is in it; but what others work on may come back, and stayed with them as long as this
    /// call was willing to wait. Only of messages that are taken [with acknowledgement](crate::Queue::get_ack).
    Leased {
        /// The processes that work on them, without this one. One that is stopped keeps what it has.
        holders: Vec<Leaseholder>,
    },
    /// The queue is empty, no other process has it any more, and this one has no further handle that could
    /// put anything into it ([`DesertedWhen`](crate::DesertedWhen)).
    Deserted {
        /// The last process that had it; `None` if the process was sent the queue and never received it.
        last: Option<Member>,
        /// Its process id.
        pid: u32,
    },
    /// The channel is empty, and has no sender any more: they were dropped, or their processes are dead.
    Disconnected,
    /// The same, of a connection over a socket whose other side has refused what was sent: it expected another type.
    TypeRefused(Box<TypeRefusal>),
    /// This process was interrupted (SIGINT, SIGTERM) while the call waited for a message ([`interrupted`](mp_core::interrupted)). One that
    /// was there would have been taken.
    Interrupted,
    /// The message could not be decoded: its bytes are in the error ([`bytes`](mp_reduce::Error::bytes)), with the place in it that
    /// could not be read; what was attached to it is released. Or this process was forked from a member.
    Failed(mp_reduce::Error),
}

impl GetError {
    /// Whether the channel has no sender any more, or the other side of the connection is gone.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, GetError::Disconnected | GetError::TypeRefused(_))
    }

    /// Whether it was only that the queue is empty, and that something may come still.
    #[doc(alias = "Empty")]
    pub fn is_empty(&self) -> bool {
        matches!(self, GetError::Empty | GetError::Leased { .. })
    }
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GetError::Empty => f.write_str("the queue is empty, and nothing came in the time given: wait longer, or without a time-out"),
            GetError::Leased { holders } => {
                f.write_str(
                    "the queue is closed and empty, but messages may come back that other processes work on",
                )?;
                list(f, holders)
            }
            GetError::Interrupted => f.write_str(INTERRUPTED),
            GetError::Disconnected => f.write_str(
                "the other side is gone, and no message is left: all handles there were dropped, or their processes ended",
            ),
            GetError::TypeRefused(refusal) => refusal.fmt(f),
            GetError::Deserted { last, pid } => write!(
                f,
                "the queue is empty and no other process has it any more: {}",
                LastProcess(*last, *pid)
            ),
            GetError::Failed(e) => e.fmt(f),
        }
    }
}

mp_core::readable_debug!(GetError);

impl std::error::Error for GetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            GetError::Failed(e) => std::error::Error::source(e),
            _ => None,
        }
    }
}

impl From<mp_reduce::Error> for GetError {
    fn from(e: mp_reduce::Error) -> Self {
        GetError::Failed(e)
    }
}

/// Received bytes that did not fit.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "BufferTooShort")]
pub enum RecvIntoError {
    /// The message is longer than the buffer: here is the message.
    TooShort(Vec<u8>),
    /// Nothing was received.
    Get(GetError),
}

impl fmt::Display for RecvIntoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecvIntoError::TooShort(m) => {
                write!(f, "the message has {} bytes, more than the buffer: it is in this error", m.len())
            }
            RecvIntoError::Get(e) => e.fmt(f),
        }
    }
}

mp_core::readable_debug!(RecvIntoError);

impl std::error::Error for RecvIntoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecvIntoError::TooShort(_) => None,
            RecvIntoError::Get(e) => std::error::Error::source(e),
        }
    }
}

impl From<GetError> for RecvIntoError {
    fn from(e: GetError) -> Self {
        RecvIntoError::Get(e)
    }
}
