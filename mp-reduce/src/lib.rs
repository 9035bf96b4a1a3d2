//! How a value leaves one process and enters another: the codec layer of `mp`.
//!
//! ```
//! use mp_core::Tensor;
//! use mp_reduce::{pack, unpack};
//!
//! // A serde value with a tensor in it: its bytes are copied, the tensor's memory is attached.
//! let images = Tensor::<u8>::zeros(&[100, 28, 28])?.freeze();
//! let envelope = pack(("batch 7".to_string(), images.select(0, 3)?)).map_err(|e| e.error)?;
//! // … travels …
//! let (name, image) = unpack::<(String, mp_core::FrozenTensor<u8>)>(envelope)?;
//! assert_eq!((name.as_str(), image.shape()), ("batch 7", &[28, 28][..]));
//! assert_eq!(image.storage(), images.storage());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Values are written with [MessagePack](https://msgpack.org) (`rmp-serde`). What must not be copied (storages, queues)
//! travels beside the bytes as *attachments*, to which the bytes refer by number: the out-of-band buffers of
//! Python's pickle protocol 5, typed.
//!
//! - Types that are `Serialize + DeserializeOwned` are messages as they are. Frozen and shared tensors and queues
//!   are such types, but only inside of a message: elsewhere their bytes would mean nothing, and serialising them is
//!   an error.
//! - Types with an exclusive [`Tensor`](mp_core::Tensor) in them are messages by `#[derive(Message)]`; tuples of them by
//!   [`Bundle`].
//! - Foreign types that are no serde types travel by [`Reduce`], inside of structs by
//!   `#[serde(with = "mp_reduce::reduced")]`.
//!
//! # Limits
//! MessagePack has one "nothing": `Some(None)` arrives as `None`, and so does `Some(())`. An `Option` directly inside of
//! an `Option` needs an enum of one's own.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bundle;
mod codec;
mod error;
mod pack;
mod reduce;

pub use bundle::Bundle;
pub use codec::MessagePack;
pub use error::{Error, Result};
pub use mp_core::message::{self, Message};
pub use mp_macros::Message;
pub use pack::{
    Encoded, Kept, PackError, TypeFingerprint, Written, from_bytes, pack, pack_as, pack_unless, to_bytes,
    unpack, unpack_as, unpack_plain, unpack_with,
};
pub use reduce::{Reduce, reduced};
