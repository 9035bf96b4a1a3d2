//! Byte strings, as opposed to sequences of numbers.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes in the format's own byte strings, if it has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteString(pub Vec<u8>);

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ByteStringVisitor;
        impl<'de> Visitor<'de> for ByteStringVisitor {
            type Value = ByteString;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<ByteString, E> {
                Ok(ByteString(bytes.to_vec()))
            }
            // For formats without byte strings.
            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<ByteString, A::Error> {
                let mut all = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    all.push(byte);
                }
                Ok(ByteString(all))
            }
        }
        d.deserialize_bytes(ByteStringVisitor)
    }
}
