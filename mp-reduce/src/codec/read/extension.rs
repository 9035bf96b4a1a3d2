//! Reader of extension values. The values have the form of `rmp_serde`: a sequence of the extension's number
//! and its data. The reader of `rmp_serde` is not used, since it would be compiled again for every type in a
//! message.

use serde::de::value::BorrowedBytesDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::super::error::CodecError;

/// Part of an extension value that was not read yet.
pub(super) struct ExtensionReader<'de> {
    number: Option<i8>,
    data: Option<&'de [u8]>,
}

impl<'de> ExtensionReader<'de> {
    pub(super) fn new(number: i8, data: &'de [u8]) -> Self {
        Self { number: Some(number), data: Some(data) }
    }
}

impl<'de> Deserializer<'de> for ExtensionReader<'de> {
    type Error = CodecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        visitor.visit_seq(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> SeqAccess<'de> for ExtensionReader<'de> {
    type Error = CodecError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, CodecError> {
        if let Some(number) = self.number.take() {
            let number: serde::de::value::I8Deserializer<CodecError> = number.into_deserializer();
            return seed.deserialize(number).map(Some);
        }
        let Some(data) = self.data.take() else { return Ok(None) };
        seed.deserialize(BorrowedBytesDeserializer::new(data)).map(Some)
    }
}
