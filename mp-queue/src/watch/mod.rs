//! A cell of the newest value, for many readers in many processes.
//!
//! ```
//! use mp_queue::watch;
//! use mp_tensor::{FrozenTensor, Tensor};
//!
//! let first = Tensor::<f32>::zeros(&[1000])?.freeze();
//! let (weights, actor) = watch::channel(first)?;
//! assert_eq!(actor.borrow()?[[7]], 0.0);
//!
//! weights.send(Tensor::full(&[1000], 0.5)?.freeze())?; // replaces: no reader holds a sender up
//! assert!(actor.has_changed()?);
//! let newest = actor.borrow_and_update()?; // the very memory that the sender filled
//! assert!(newest.iter().all(|w| w == 0.5));
//! assert!(!actor.has_changed()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three to know: [`channel`], which makes one; [`Sender`], whose `send` replaces the value; and [`Receiver`], which reads the
//! newest one and [waits](Receiver::wait_changed) for a newer one. Both can be cloned, and sent to other processes in arguments
//! or messages. Names and meaning are those of `tokio::sync::watch`; calls that block are named `wait_…` and have their usual
//! forms, and `changed` and `closed` are futures, as there.
//!
//! # What a reader sees
//! Whole values, in the order in which they were sent, and never an older one than it has seen. A value that is replaced before a reader
//! looks is never seen by it. All senders' values have one order, the same for all readers.
//!
//! # What a value may be
//! Whatever serde can read and write, with tensors in it that several processes may hold: frozen ones and shared ones, queues,
//! locks. An exclusive [`Tensor`](https://docs.rs/mp-tensor) is refused by the compiler: it can't be in many processes at once.
//!
//! ```compile_fail,E0277
//! let weights = mp_tensor::Tensor::<f32>::zeros(&[4]).unwrap();
//! mp_queue::watch::channel(weights).unwrap(); // `freeze()` it
//! ```
//!
//! # Memory
//! The cell has the newest value, and each receiver what it read last. Tensors of older values are freed when the last reader that had
//! them has read another value, or is gone. The cell itself takes some 8 KiB.
//!
//! # When a process dies
//! A sender that is killed while it sends has sent the whole value, or nothing. A reader that is killed keeps nothing. A process
//! that is stopped while it reads holds up no sender and no reader; it keeps the value that it was reading.

mod receiver;
mod sender;

use mp_core::message::Message;
use mp_reduce::{Error, TypeFingerprint};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use receiver::Receiver;
pub use sender::Sender;

use crate::error::PutError;
use crate::queue::kept::{KeptEnd, Sent};

/// Makes a cell with a first value, which the receiver counts as seen.
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
/// [`PutError::Failed`] when there is no shared memory for it, or the value can't be encoded. The value is given back.
pub fn channel<T: Serialize + DeserializeOwned + 'static>(
    first: T,
) -> Result<(Sender<T>, Receiver<T>), PutError<T>> {
    let (sender, receiver) = match KeptEnd::ends(1, type_of::<T>()) {
        Ok(ends) => ends,
        Err(error) => return Err(PutError::Failed { value: first, error }),
    };
    let fingerprint = TypeFingerprint::new();
    match sender.send(fingerprint, first, None)? {
        Sent::Done(ticket) => Ok((Sender::of(sender), Receiver::of(receiver, ticket))),
        Sent::Overtaken(value) => Err(PutError::Full(value)),
    }
}

/// The ring of a cell is another type than a queue of its values.
fn type_of<T: 'static>() -> (u64, &'static str) {
    (TypeFingerprint::<Sender<T>>::new().get(), std::any::type_name::<T>())
}

/// The newest value, read anew.
fn read_newest<T: Message>(
    end: &KeptEnd,
    fingerprint: TypeFingerprint<T>,
) -> Result<(T, crate::ring::Ticket), Error> {
    loop {
        let at = end.kept()?.newest().ok_or_else(empty)?;
        if let Some(value) = end.read(fingerprint, at, || {})? {
            return Ok((value, at.1));
        }
    }
}

/// There is a value from the beginning on.
#[cold]
fn empty() -> Error {
    mp_core::Error::Malformed(
        "the cell has no value: some process wrote into memory that is not its own".into(),
    )
    .into()
}
