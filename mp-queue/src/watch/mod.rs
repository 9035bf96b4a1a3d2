//! A cell whose newest value many readers in many processes can read.
//!
//! ```
//! use mp_queue::watch;
//! use mp_tensor::{FrozenTensor, Tensor};
//!
//! let first = Tensor::<f32>::zeros(&[1000])?.freeze();
//! let (weights, actor) = watch::channel(first)?;
//! assert_eq!(actor.borrow()?[[7]], 0.0);
//!
//! weights.send(Tensor::full(&[1000], 0.5)?.freeze())?; // replaces the value, and never waits for a reader
//! assert!(actor.has_changed()?);
//! let newest = actor.borrow_and_update()?; // the same memory that the sender filled
//! assert!(newest.iter().all(|w| w == 0.5));
//! assert!(!actor.has_changed()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`channel`] creates a [`Sender`], whose `send` replaces the value, and a [`Receiver`], which reads the
//! newest value and can [wait](Receiver::wait_changed) for a newer one. Both can be cloned, and sent to other
//! processes in arguments or messages. Names and semantics are the same as in `tokio::sync::watch`. Blocking
//! calls are named `wait_…` and have the usual `_timeout` and `_deadline` forms. `changed` and `closed` are
//! async, as in tokio.
//!
//! # What a reader sees
//! A reader sees whole values, in the order in which they were sent, and never a value older than one it has
//! seen. A reader does not see values that are replaced before it reads. The values of all senders have one
//! order, which is the same for all readers.
//!
//! # What a value may be
//! Any serde type can be a value. Values may contain objects that several processes can hold: frozen and
//! shared tensors, queues, and locks. The compiler refuses an exclusive
//! [`Tensor`](https://docs.rs/mp-tensor), since it can't be in several processes at once.
//!
//! ```compile_fail,E0277
//! let weights = mp_tensor::Tensor::<f32>::zeros(&[4]).unwrap();
//! mp_queue::watch::channel(weights).unwrap(); // `freeze()` it
//! ```
//!
//! # Memory
//! The cell stores the newest value, and each receiver retains the value that it read last. Tensors of an
//! older value are freed when the last reader that retained it has read another value or was dropped. The
//! cell itself takes about 8 KiB.
//!
//! # When a process dies
//! A sender that is killed while it sends has sent the whole value or nothing. After a reader is killed, no
//! value stays allocated for it. A process that is stopped while it reads a value blocks no sender and no
//! reader. That value stays allocated until the process has read it.

mod receiver;
mod sender;

use mp_core::message::Message;
use mp_reduce::{Error, TypeFingerprint};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use receiver::Receiver;
pub use sender::Sender;

use crate::error::PutError;
use crate::queue::retained_end::{FoundMessage, RetainedEnd, SendOutcome};
use crate::raw::memory::pinned_read::TURNS;

/// Creates a cell with a first value, which counts as seen by the receiver.
///
/// ```
/// let (sender, receiver) = mp_queue::watch::channel("first".to_string())?;
/// assert_eq!(*receiver.borrow()?, "first");
/// assert!(!receiver.has_changed()?);
/// # drop(sender);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns [`PutError::Failed`] if there is not enough shared memory or the value can't be encoded. The error
/// contains the value.
pub fn channel<T: Serialize + DeserializeOwned + 'static>(
    first: T,
) -> Result<(Sender<T>, Receiver<T>), PutError<T>> {
    let (sender, receiver) = match RetainedEnd::create(1, type_of::<T>()) {
        Ok(ends) => ends,
        Err(error) => return Err(PutError::Failed { value: first, error }),
    };
    let fingerprint = TypeFingerprint::of_rust_name();
    match sender.send(fingerprint, first, None)? {
        SendOutcome::Done(position) => Ok((Sender::of(sender), Receiver::of(receiver, position))),
        SendOutcome::Superseded(value) => Err(PutError::Full(value)),
    }
}

/// Returns the fingerprint and name of the type of the cell's ring. The fingerprint differs from that of a
/// queue with the same message type.
fn type_of<T: 'static>() -> (u64, &'static str) {
    (TypeFingerprint::<Sender<T>>::of_rust_name().get(), std::any::type_name::<T>())
}

/// Decodes the newest value and returns it with its position.
fn read_newest<T: Message>(
    end: &RetainedEnd,
    fingerprint: TypeFingerprint<T>,
) -> Result<(T, crate::ring::Position), Error> {
    for _ in 0..TURNS {
        let (slot, position) = end.retained()?.newest().ok_or_else(empty)?;
        if let Some(value) = end.read(fingerprint, FoundMessage::InSlot(slot, position), || {})? {
            return Ok((value, position));
        }
    }
    Err(empty())
}

/// Returns the error for a cell without a value. Only garbage in the cell's words can cause this error.
#[cold]
fn empty() -> Error {
    mp_core::Error::Malformed(
        "the watch channel has no value: a process overwrote memory that is not its own".into(),
    )
    .into()
}
