//! Encoded captures of a closure.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, encoded as a byte string by formats that have one.
pub(super) struct CaptureBytes(pub(super) Vec<u8>);

impl Serialize for CaptureBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for CaptureBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;

        impl<'de> Visitor<'de> for BytesVisitor {
            type Value = CaptureBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<CaptureBytes, E> {
                Ok(CaptureBytes(bytes.to_vec()))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut bytes: S) -> Result<CaptureBytes, S::Error> {
                let mut all = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    all.push(byte);
                }
                Ok(CaptureBytes(all))
            }
        }

        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}
