//! Errors of operations across hosts.

use std::fmt;
use std::time::Duration;

use mp_sync::BarrierError;
use serde::{Deserialize, Serialize};

use crate::member::ClusterMember;
use crate::type_and_build::BUILD;

/// Error returned when a member of the cluster was killed or can't be reached.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerLost {
    /// Rank of the lost member.
    pub rank: usize,
    /// Host and process id, according to the member.
    pub host: String,
    /// Time that this process has waited for bytes from the member. Zero if the connection was closed because
    /// the member's process has ended.
    pub silent: Duration,
    /// `true` if the call was sent and its outcome is unknown, so that it may have had its effect.
    pub in_doubt: bool,
    /// Cause, such as an error of the connection.
    pub cause: String,
}

impl fmt::Display for PeerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, silent, in_doubt, cause } = self;
        write!(
            f,
            "rank {rank} ({host}) was lost after {:.1} s without a sign of life: {cause}",
            silent.as_secs_f64()
        )?;
        if *in_doubt {
            f.write_str("; the call may have had its effect")?;
        }
        Ok(())
    }
}

impl std::error::Error for PeerLost {}

/// Returns the text of a remedy if two types differ only by their builds. Otherwise returns an empty text.
fn build_hint(theirs: &str, ours: &str) -> &'static str {
    let same = |(theirs, _): (&str, _)| ours.rsplit_once(BUILD).is_some_and(|(ours, _)| ours == theirs);
    match theirs.rsplit_once(BUILD).is_some_and(same) {
        true => {
            ": the programs are different builds, whose types may differ. Run one build on all hosts, or \
             name the messages of a queue with #[message(name = \"…\")]"
        }
        false => "",
    }
}

/// Error of an operation on a cluster or on an object of another host.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The member was lost.
    #[error(transparent)]
    PeerLost(#[from] PeerLost),
    /// No member could be reached at an address within the time limit.
    #[error(
        "no member of the cluster answers at {address} within {waited:?}: {cause}. Check that it is started, \
         and that the address, the port and the firewall allow connections"
    )]
    Unreachable {
        /// Address to which this process tried to connect.
        address: String,
        /// Time that the call waited.
        waited: Duration,
        /// Error of the last attempt to connect.
        cause: String,
    },
    /// The member at the address refused this process.
    #[error("{address} refused this process: {why}")]
    Refused {
        /// Address to which this process tried to connect.
        address: String,
        /// Reason for the refusal.
        why: Refusal,
    },
    /// No object was published under the name within the time limit.
    #[error("no member published {name:?} within {waited:?}; published are: {published}")]
    NotPublished {
        /// Name of the object.
        name: String,
        /// Time that the call waited.
        waited: Duration,
        /// Names that are published, as a text for the error.
        published: String,
    },
    /// The name is taken by another object.
    #[error("the name {name:?} is taken by {by}: choose another name, or withdraw it there first")]
    NameTaken {
        /// Name of the object.
        name: String,
        /// Member that published the name.
        by: String,
    },
    /// The object has another type, or a type whose definition may differ in another build of the program.
    #[error("{name:?} is {theirs}, and it was opened as {ours}{}", build_hint(theirs, ours))]
    WrongType {
        /// Name of the object.
        name: String,
        /// Kind of the object and type of its messages, such as `a queue of u64`.
        theirs: String,
        /// Kind and type that the caller expected.
        ours: String,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Configuration(String),
    /// The message exceeds the limit of the member that has the object.
    #[error(
        "{bytes} bytes in a message are above the limit of its home, {limit} (ClusterConfig::largest_message)"
    )]
    TooLarge {
        /// Size of the message in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// The value could not be encoded or decoded, or this process has too little memory.
    #[error(transparent)]
    Value(#[from] mp_reduce::Error),
    /// The member that has the object (its home) returned an error.
    #[error("rank {rank} ({host}): {text}")]
    Home {
        /// Rank of the member that has the object.
        rank: usize,
        /// Host and process id of the member that has the object.
        host: String,
        /// Text of the error.
        text: String,
    },
    /// The process was interrupted while it waited.
    #[error("interrupted")]
    Interrupted,
}

impl From<mp_core::Error> for NetError {
    fn from(error: mp_core::Error) -> Self {
        match error {
            mp_core::Error::Interrupted => Self::Interrupted,
            error => Self::Value(error.into()),
        }
    }
}

/// Reason why a member refused a connection.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The keys differ, or only one side has a key.
    #[error("{0}")]
    Key(String),
    /// A certificate was refused, or only one side uses TLS.
    #[error("{0}")]
    Certificate(String),
    /// The peer uses another version of the protocol.
    #[error("the protocols differ: theirs is {theirs}, ours is {ours}; run one version on all hosts")]
    Version {
        /// Version of the other side.
        theirs: u32,
        /// Version of this process.
        ours: u32,
    },
    /// Another cluster listens at the address.
    #[error("{0}")]
    Cluster(String),
    /// The peer is not a member of a cluster.
    #[error("{0}")]
    Other(String),
}

/// Error returned when a value was not put into a queue of another host. It contains the value.
#[non_exhaustive]
pub enum RemotePutError<T> {
    /// The queue was full during the whole wait.
    Full(T),
    /// The queue is closed.
    Closed(T),
    /// The member that has the queue was lost. If the loss is [in doubt](PeerLost::in_doubt), the value may
    /// have been put.
    PeerLost {
        /// Value of the put.
        value: T,
        /// Lost member.
        lost: PeerLost,
    },
    /// The value could not be encoded or is too large, or the member that has the queue returned an error.
    Failed {
        /// Value that was not put.
        value: T,
        /// Cause of the failure.
        error: NetError,
    },
}

impl<T> RemotePutError<T> {
    /// Returns the value that was not put.
    pub fn into_value(self) -> T {
        match self {
            Self::Full(value)
            | Self::Closed(value)
            | Self::PeerLost { value, .. }
            | Self::Failed { value, .. } => value,
        }
    }

    /// Returns `true` if the value was not put only because the queue is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns `true` if the queue was closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// Returns the lost member, if the value was not put because a member was lost.
    pub fn peer_lost(&self) -> Option<&PeerLost> {
        match self {
            Self::PeerLost { lost, .. } => Some(lost),
            _ => None,
        }
    }

    /// Drops the value in this error, and returns the error without a value.
    pub fn forget(self) -> RemotePutError<()> {
        self.with(())
    }

    /// Replaces the value in this error.
    pub(crate) fn with<U>(self, value: U) -> RemotePutError<U> {
        match self {
            Self::Full(_) => RemotePutError::Full(value),
            Self::Closed(_) => RemotePutError::Closed(value),
            Self::PeerLost { lost, .. } => RemotePutError::PeerLost { value, lost },
            Self::Failed { error, .. } => RemotePutError::Failed { value, error },
        }
    }
}

impl<T> fmt::Display for RemotePutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the queue is full: wait longer for consumers"),
            Self::Closed(_) => f.write_str("the queue is closed"),
            Self::PeerLost { lost, .. } => lost.fmt(f),
            Self::Failed { error, .. } => error.fmt(f),
        }
    }
}

/// `Debug` prints the same text as `Display`, because `unwrap` and `main` print the `Debug` output.
impl<T> fmt::Debug for RemotePutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> std::error::Error for RemotePutError<T> {}

/// Error returned when no message was taken from a queue of another host.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RemoteGetError {
    /// The queue was empty during the whole wait.
    #[error("the queue is empty")]
    Empty,
    /// The member that has the object was lost.
    #[error(transparent)]
    PeerLost(#[from] PeerLost),
    /// The message can't be decoded, this process has too little memory, or the member that has the queue
    /// returned an error.
    #[error(transparent)]
    Failed(NetError),
}

impl RemoteGetError {
    /// Returns `true` if the queue was empty during the whole wait.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// Error returned when no permit was taken from a semaphore of another host.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RemoteAcquireError {
    /// All permits were taken during the whole wait.
    #[error("all permits are taken: wait longer for their holders")]
    Held,
    /// The member that has the object was lost.
    #[error(transparent)]
    PeerLost(#[from] PeerLost),
    /// The member that has the object returned an error, or this process was interrupted.
    #[error(transparent)]
    Failed(NetError),
}

/// Error returned when a barrier of another host was not passed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RemoteBarrierError {
    /// The barrier is broken, or was reset. Process ids in the error are valid on the host of the barrier.
    #[error(transparent)]
    Barrier(BarrierError),
    /// The wait of this process timed out. The barrier is broken for all parties.
    #[error("{error}{}", missing_text(missing))]
    TimedOut {
        /// Number of parties that had arrived, and the missing processes on the host of the barrier.
        error: BarrierError,
        /// Missing processes on other hosts: they had [enrolled](crate::RemoteBarrier::enroll) by a
        /// `RemoteBarrier` and had not arrived.
        missing: Vec<ClusterMember>,
    },
    /// The member that has the barrier was lost, and the barrier with it.
    #[error(transparent)]
    PeerLost(#[from] PeerLost),
    /// The member that has the object returned an error, or this process was interrupted.
    #[error(transparent)]
    Failed(NetError),
}

fn missing_text(missing: &[ClusterMember]) -> String {
    let missing: Vec<_> = missing.iter().map(ClusterMember::to_string).collect();
    if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) }
}

impl RemoteBarrierError {
    /// Returns `true` if the barrier is broken. It stays broken until a process resets it.
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Barrier(error) | Self::TimedOut { error, .. } if error.is_broken())
    }
}

/// Error returned when nothing was received from a channel of another host.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RemoteRecvError {
    /// The receiver was too slow. The number is the exact count of messages that were replaced before this
    /// receiver read them. The next call returns the oldest message that the channel still has.
    #[error(
        "the receiver was too slow and has missed {}: receive faster, or keep more messages",
        mp_core::quantity(.0, "message")
    )]
    Lagged(u64),
    /// The channel has no senders, and all messages were received.
    #[error("the channel has no sender any more")]
    Closed,
    /// Nothing arrived during the wait.
    #[error("nothing arrived in the time given")]
    Empty,
    /// The member that has the channel was lost. Messages that had already arrived are received before this
    /// error.
    #[error(transparent)]
    PeerLost(#[from] PeerLost),
    /// The message can't be decoded or can't leave its host, the channel was withdrawn, or this process was
    /// interrupted.
    #[error(transparent)]
    Failed(NetError),
}

impl RemoteRecvError {
    /// Returns `true` if nothing arrived during the wait.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// Implements `From<NetError>` for error types with a variant `PeerLost`.
macro_rules! from_net_error {
    ($($error:ident),*) => {$(
        impl From<NetError> for $error {
            fn from(error: NetError) -> Self {
                match error {
                    NetError::PeerLost(lost) => Self::PeerLost(lost),
                    error => Self::Failed(error),
                }
            }
        }
    )*};
}

from_net_error!(RemoteGetError, RemoteAcquireError, RemoteBarrierError, RemoteRecvError);

impl From<mp_reduce::Error> for RemoteRecvError {
    fn from(error: mp_reduce::Error) -> Self {
        Self::Failed(error.into())
    }
}

mp_core::readable_debug!(
    PeerLost,
    NetError,
    Refusal,
    RemoteGetError,
    RemoteAcquireError,
    RemoteBarrierError,
    RemoteRecvError
);
