//! Python objects as messages: pickled bytes, arrays in shared memory, and handles.
//!
//! | part of an object | sent as |
//! |---|---|
//! | tensors of torch, arrays of numpy, memory views | [`Memory`](crate::memory::Memory): one copy, or none if they are already in such memory |
//! | out-of-band buffers of other objects (pickle's protocol 5) | [`Memory`](crate::memory::Memory), as for arrays |
//! | queues, locks, events, … of this package | handles ([`Handle`](handle::Handle)) |
//! | everything else | pickled bytes; if they are many, the sender copies them into a separate [`Memory`](crate::memory::Memory), and the receiver reads them in place |
//!
//! The pickled bytes name arrays and handles by index, so a message is read only together with its parts.

pub mod array;
pub mod handle;
pub mod pickle;
pub mod torch;
pub mod view;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use handle::Handle;
use mp_tensor::{AnyTensor, Shared};
use view::View;

/// A Python object as a message to another process.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct Object {
    /// The pickled object. Empty if the last view contains the pickled object.
    #[serde(with = "bytes")]
    pub pickle: Vec<u8>,
    /// Arrays, in the order of their indices in the pickled bytes. If there are many pickled bytes, the last
    /// view contains them.
    pub views: Vec<View>,
    /// Indices of the views that are pickle's own out-of-band buffers.
    pub buffers: Vec<u32>,
    /// Memory of the views.
    pub memory: Vec<AnyTensor<Shared>>,
    /// Index of the memory with copies of arrays that each receiver changes privately. `None` if all
    /// receivers and the sender see each other's changes.
    pub private: Option<u32>,
    /// Handles, in the order of their indices in the pickled bytes.
    pub handles: Vec<Handle>,
}

pub(crate) mod bytes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("pickled bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = seq.next_element()? {
                    bytes.push(byte);
                }
                Ok(bytes)
            }
        }
        d.deserialize_byte_buf(Bytes)
    }
}
