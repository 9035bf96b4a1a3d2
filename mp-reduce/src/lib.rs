//! Codec layer of `mp`: encodes values into messages between processes.
//!
//! ```
//! use mp_tensor::Tensor;
//! use mp_reduce::{pack, unpack};
//!
//! // A serde value with a tensor in it: its bytes are copied, the tensor's memory is attached.
//! let images = Tensor::<u8>::zeros(&[100, 28, 28])?.freeze();
//! let envelope = pack(("batch 7".to_string(), images.select(0, 3)?)).map_err(|e| e.error)?;
//! // … sent to another process …
//! let (name, image) = unpack::<(String, mp_tensor::FrozenTensor<u8>)>(envelope)?;
//! assert_eq!((name.as_str(), image.shape()), ("batch 7", &[28, 28][..]));
//! assert_eq!(image.storage(), images.storage());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with three items: [`Message`] is the trait of types that can be sent, and its derive macro.
//! [`Bundle`] is a tuple or `Vec` of types that are not serde types. [`Reduce`] is a trait for other types.
//!
//! Values are encoded in [MessagePack](https://msgpack.org), see [`struct@MessagePack`]. Storages and queues
//! must not be copied: they are *attachments*, to which the bytes refer by number. (Python's pickle protocol
//! 5 has similar out-of-band buffers, without types.)
//!
//! Long vectors and slices of numbers, texts and byte strings are attached as well: they are copied once on
//! each side. The feature `bytes` saves the receiver's copy into a `bytes::Bytes`.
//!
//! - Types that implement `Serialize + DeserializeOwned` are messages. These include frozen and shared
//!   tensors and queues, but only inside of a message: serializing them elsewhere is an error, since their
//!   bytes would mean nothing.
//! - Types with an exclusive `Tensor` become messages by `#[derive(Message)]`, and tuples of them by
//!   [`Bundle`].
//! - Types that are not serde types are sent by [`Reduce`]: in structs with `#[serde(with =
//!   "mp_reduce::reduced")]`, alone as [`Reduced`]. The standard library's non-UTF-8 paths, instants,
//!   `io::Error` and any `dyn Error` implement `Reduce`.
//! - Types of other crates, for which you can't implement a trait of this crate, are registered
//!   ([`register()`], [`register!`]). They are sent with `#[serde(with = "mp_reduce::registered")]`, as
//!   [`Registered`], or as [`AnyValue`], which holds a value of any registered type.
//! - An `Arc` or `Rc` that occurs twice in a message is one object at the receiver, with `#[serde(with =
//!   "mp_reduce::shared")]`.
//!
//! # Limits
//! - Values are nested at most 1,024 levels deep ([`MAX_NESTING`](message::MAX_NESTING)): each struct,
//!   sequence, tuple, map, newtype, enum variant with content, and `Some` counts. So 500 nested structs
//!   arrive, each in an `Option<Box<_>>` or a `Vec` of the outer one. The limit is 128 levels in messages by
//!   `derive(Message)`, in [`Bundle`]s, in captures of closures, in untagged and internally tagged enums, and
//!   in flattened fields.
//! - `put` refuses a deeper value and returns it. The same applies to a value for which this thread's stack
//!   has no room. A value of more than 128 levels is read once when it is put, and refused if that takes more
//!   than 1.375 MiB of stack. So each thread with 2 MiB, the default of the standard library, can read every
//!   value that was put. A receiver whose stack has no room gets an error with the message's bytes.
//!   (Recursion inside of serde is not counted: a variant of an untagged enum that holds only the enum in a
//!   `Box`, and tuple variants within internally tagged enums and flattened fields.)
//! - Numbers of 128 bits can't be in untagged or internally tagged enums, nor in flattened fields: serde
//!   can't store them where it buffers values. `put` refuses such a value. (To detect this, a value with
//!   numbers of 128 bits is read once when it is put.)
//! - A message that can't be read is not lost: the error contains its type, the position of the failure, and
//!   its bytes ([`Error::bytes`]).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builtin;
mod bundle;
mod codec;
pub mod descriptor;
mod error;
mod invite;
mod pack;
mod reduce;
mod registry;
mod share;
mod unread;

pub use builtin::ErrorChain;
#[doc(hidden)]
pub use builtin::{ByteString, IoError, MonotonicTime, SinceEpoch};
pub use bundle::Bundle;
pub use codec::{MessagePack, from_part, to_part};
pub use descriptor::Fd;
pub use error::{AnyResult, Error, Result};
pub use invite::accept_invitation;
#[doc(hidden)]
pub use invite::{hand_over, read_accepted};
pub use mp_core::message::{self, Message};
pub use mp_macros::Message;
pub use pack::{
    Encoded, LoanedParts, PackError, TypeFingerprint, from_bytes, name_of, pack, pack_as, pack_unless,
    to_bytes, unpack, unpack_as, unpack_plain, unpack_with,
};
#[doc(hidden)]
pub use pack::{decode_relayed, encode_for_relay, restore_unsent, to_bytes_after, unpack_into};
pub use reduce::{Reduce, Reduced, reduced};
#[doc(hidden)]
pub use registry::registered_at_start;
pub use registry::{AnyValue, Registered, register, register_as, register_local, register_serde, registered};
pub use share::{SharedPointer, shared};
pub use unread::Unread;
#[doc(hidden)]
pub use unread::unpack_or_keep;

/// Doc test of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Doc test of the derive macro's README, which can't run in its own crate: building it would need this crate
// and its dependencies once more for the compiler's host.
#[cfg(doctest)]
#[doc = include_str!("../../mp-macros/README.md")]
struct ReadmeOfMessage;
