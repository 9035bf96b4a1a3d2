//! Errors of checkpoints.

use std::io;
use std::path::PathBuf;

/// Error returned when a queue was not saved to a file, or not restored from a file.
///
/// ```
/// use mp_queue::{CheckpointError, Queue};
///
/// let path = std::env::temp_dir().join(format!("numbers-{}", std::process::id()));
/// Queue::<u64>::bounded(4)?.checkpoint(&path)?;
/// let error = Queue::<String>::restore(&path).unwrap_err();
/// assert!(matches!(error, CheckpointError::OtherType { .. }));
/// assert!(error.to_string().ends_with("has messages of type u64, and alloc::string::String is expected"));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file can't be created, written, read or renamed, or has more messages than the format allows. If
    /// its directory can't be synchronized, the new file is in place, and may be lost by a crash of the host.
    #[error("{action} {path}: {source}", path = path.display())]
    File {
        /// Attempted operation, for example "can't write".
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operation.
        source: io::Error,
    },
    /// The file system is full, or a limit of file sizes or of a quota is reached (`ENOSPC`, `EFBIG`,
    /// `EDQUOT`). The earlier checkpoint is unchanged.
    #[error(
        "no space to write {path}: {source}; free space, or write to another file system",
        path = path.display()
    )]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Error of the write.
        source: io::Error,
    },
    /// Another thread or process is writing a checkpoint to the same path.
    #[error("another checkpoint is being written to {path}", path = path.display())]
    Written {
        /// Path of the checkpoint.
        path: PathBuf,
    },
    /// A message has contents that can't be written to a file: a shared tensor, a queue, a lock, a file or a
    /// tensor on a device. The queue is unchanged.
    #[error("message {message} of the queue can't be written to a file: {error}")]
    Unsendable {
        /// Number of the message. Message 0 is the oldest message in a slot. Leased messages and returned
        /// messages have higher numbers than all messages in slots. If consumers take messages during the
        /// call, the number is only a hint.
        message: usize,
        /// Reason why the message can't be written.
        error: mp_core::Error,
    },
    /// The consumers took messages faster than they could be written, or a process was stopped while it put
    /// or got a message. The queue is unchanged.
    #[error(
        "messages changed faster than a checkpoint could be written, or a stopped process is in the middle \
         of a put or a get: pause the consumers, and try again"
    )]
    Busy,
    /// The file is not a checkpoint of a queue.
    #[error("{path} is not a checkpoint of a queue", path = path.display())]
    NotACheckpoint {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was written by another version of this library.
    #[error(
        "{path} has version {found}, and {expected} is expected: restore it with the version of mp that \
         wrote it",
        path = path.display()
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u64,
        /// Version of this library.
        expected: u64,
    },
    /// The file was truncated or changed after it was written.
    #[error("{path} was truncated or changed: {what}", path = path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Damaged part of the file, as a sentence.
        what: &'static str,
    },
    /// The messages in the file have another type than the queue to be restored.
    #[error("{path} has messages of type {stored}, and {expected} is expected", path = path.display())]
    OtherType {
        /// Path of the file.
        path: PathBuf,
        /// Type of the messages in the file.
        stored: String,
        /// Type of the messages of the queue to be restored.
        expected: String,
    },
    /// A message in the file exceeds the [bound of bytes](crate::QueueOptions::bytes) that the caller has
    /// set.
    #[error(
        "a message of {bytes} bytes exceeds the bound of {limit}: restore it with a higher bound of bytes"
    )]
    TooLarge {
        /// Size of the message in bytes, as counted for the bound.
        bytes: u64,
        /// Bound of bytes that the caller has set.
        limit: u64,
    },
    /// The file has more messages than fit into a queue with the bounds that the caller has set.
    #[error("{messages} messages don't fit into the queue: restore it with a higher bound")]
    TooMany {
        /// Number of messages in the file.
        messages: usize,
    },
    /// There is not enough shared memory, or this process was forked from a member.
    #[error(transparent)]
    Failed(#[from] mp_reduce::Error),
}

mp_core::readable_debug!(CheckpointError);

impl From<mp_core::Error> for CheckpointError {
    fn from(error: mp_core::Error) -> Self {
        Self::Failed(error.into())
    }
}
