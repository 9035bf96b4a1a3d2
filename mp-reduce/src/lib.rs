//! How a value leaves one process and enters another: the codec layer of `mp`.
//!
//! ```
//! use mp_tensor::Tensor;
//! use mp_reduce::{pack, unpack};
//!
//! // A serde value with a tensor in it: its bytes are copied, the tensor's memory is attached.
//! let images = Tensor::<u8>::zeros(&[100, 28, 28])?.freeze();
//! let envelope = pack(("batch 7".to_string(), images.select(0, 3)?)).map_err(|e| e.error)?;
//! // … travels …
//! let (name, image) = unpack::<(String, mp_tensor::FrozenTensor<u8>)>(envelope)?;
//! assert_eq!((name.as_str(), image.shape()), ("batch 7", &[28, 28][..]));
//! assert_eq!(image.storage(), images.storage());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three names to know: [`Message`], what can be sent (and its derive macro); [`Bundle`], a tuple or `Vec` of what is no
//! serde type; and [`Reduce`], for types of other crates.
//!
//! Values are written in [MessagePack](https://msgpack.org), see [`struct@MessagePack`]. What must not be copied (storages, queues)
//! travels beside the bytes as *attachments*, to which the bytes refer by number: the out-of-band buffers of
//! Python's pickle protocol 5, typed.
//!
//! Long vectors and slices of numbers, texts and byte strings travel so, too: they are copied once on each side, and the feature
//! `bytes` spares the receiver its copy into a `bytes::Bytes`.
//!
//! - Types that are `Serialize + DeserializeOwned` are messages as they are. Frozen and shared tensors and queues
//!   are such types, but only inside of a message: elsewhere their bytes would mean nothing, and serialising them is
//!   an error.
//! - Types with an exclusive `Tensor` in them are messages by `#[derive(Message)]`; tuples of them by
//!   [`Bundle`].
//! - Types that are no serde types travel by [`Reduce`], inside of structs by `#[serde(with = "mp_reduce::reduced")]`, as [`Reduced`] by
//!   themselves. Some of the standard library have it: paths that are no UTF-8, instants, `io::Error`, any `dyn Error`.
//! - Types of other crates, which can't implement a trait of ours, are registered ([`register()`], [`register!`]), and travel by
//!   `#[serde(with = "mp_reduce::registered")]`, as [`Registered`], or as [`AnyValue`], which holds a value of any registered type.
//! - An `Arc` or `Rc` that is mentioned twice in a message arrives as one by `#[serde(with = "mp_reduce::shared")]`.
//!
//! # Limits
//! - Values are nested at most [`MAX_NESTING`](message::MAX_NESTING) deep: each struct, sequence, tuple, map, newtype, enum variant
//!   with something in it, and `Some` counts, in messages by `derive(Message)`, in [`Bundle`]s and in what closures capture
//!   as well. What is deeper is refused at `put`, with the value; so is what this thread's stack has no room for. A receiver
//!   whose stack has no room gets an error with the message's bytes.
//!   (Recursion that serde keeps to itself is not seen, and not counted: a variant of an untagged enum that holds the enum
//!   in a `Box` and nothing else, and tuple variants within internally tagged enums and flattened fields.)
//! - Numbers of 128 bits can't be in untagged or internally tagged enums, nor in flattened fields: serde has no place for them
//!   where it buffers values. They are refused at `put`. (To find out, a value with such numbers is read once when it is put.)
//! - A message that can't be read is not lost: the error says its type and the place in it, and has its bytes
//!   ([`Error::bytes`]).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builtin;
mod bundle;
mod codec;
pub mod descriptor;
mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
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
pub use error::{Error, Result};
pub use invite::accept_invitation;
#[doc(hidden)]
pub use invite::{hand_over, read_accepted};
pub use mp_core::message::{self, Message};
pub use mp_macros::Message;
pub use pack::{
    Encoded, Lent, PackError, TypeFingerprint, from_bytes, pack, pack_as, pack_unless, to_bytes, unpack,
    unpack_as, unpack_plain, unpack_with,
};
#[doc(hidden)]
pub use pack::{to_bytes_after, unpack_into};
pub use reduce::{Reduce, Reduced, reduced};
#[doc(hidden)]
pub use registry::registered_at_start;
pub use registry::{AnyValue, Registered, register, register_as, register_local, register_serde, registered};
pub use share::{SharedPointer, shared};
pub use unread::Unread;
#[doc(hidden)]
pub use unread::unpack_or_keep;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// The program in the README of the derive macro, which can't be tested over there: a build of that crate would need this one, and all
// below it once more, for the compiler's own platform.
#[cfg(doctest)]
#[doc = include_str!("../../mp-macros/README.md")]
struct ReadmeOfMessage;
