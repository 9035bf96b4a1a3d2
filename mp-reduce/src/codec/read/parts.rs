//! Readers of sequences, maps, structs and enums.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::{CodecError, ValueReader};

/// Reader of the elements of a sequence.
pub(super) struct SequenceReader<'de, 'l> {
    pub(super) reader: ValueReader<'de, 'l>,
    pub(super) left: usize,
    pub(super) len: usize,
}

impl<'de> SeqAccess<'de> for SequenceReader<'de, '_> {
    type Error = CodecError;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, CodecError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match self.reader.with_copy(|reader| seed.deserialize(reader)) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(e.in_element(self.len - self.left - 1)),
        }
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Reader of the entries of a map, or of the fields of a struct.
pub(super) struct MapReader<'de, 'l> {
    pub(super) reader: ValueReader<'de, 'l>,
    pub(super) left: usize,
    /// Bytes of the message from the current entry's key on.
    pub(super) key: &'de [u8],
    /// Names of the fields that may follow, in the order in which they are written.
    pub(super) names: &'static [&'static str],
}

impl<'de> MapAccess<'de> for MapReader<'de, '_> {
    type Error = CodecError;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, CodecError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.key = self.reader.rest;
        // Fields may have been omitted, or may come in another order.
        for (i, name) in self.names.iter().enumerate() {
            if self.reader.skip_text(name) {
                self.names = &self.names[i + 1..];
                return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
        match self.reader.with_copy(|reader| seed.deserialize(reader)) {
            Ok(key) => Ok(Some(key)),
            Err(e) => Err(e.in_field("a key")),
        }
    }

    #[inline]
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, CodecError> {
        self.reader.with_copy(|reader| seed.deserialize(reader)).map_err(|e| e.in_entry(self.key))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Largest number of variant names that are compared with the name in the message.
const FEW: usize = 8;

/// Reader of an enum: the name of its variant and the variant's content.
pub(super) struct VariantReader<'r, 'de, 'l> {
    /// Bytes of the message from the variant's name on.
    pub(super) name: &'de [u8],
    pub(super) reader: &'r mut ValueReader<'de, 'l>,
    /// Names of all variants of the enum.
    pub(super) names: &'static [&'static str],
    pub(super) full: bool,
}

impl<'r, 'de, 'l> VariantReader<'r, 'de, 'l> {
    /// Returns the reader of the variant's content, or an error if the variant has no content.
    #[inline]
    fn content(self, expected: &'static str) -> Result<&'r mut ValueReader<'de, 'l>, CodecError> {
        if self.full {
            Ok(self.reader)
        } else {
            Err(CodecError::invalid_type(Unexpected::UnitVariant, &expected))
        }
    }
}

impl<'de> EnumAccess<'de> for VariantReader<'_, 'de, '_> {
    type Error = CodecError;
    type Variant = Self;

    #[inline]
    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), CodecError> {
        // For few names, a comparison is faster than a check for UTF-8.
        for name in self.names.iter().take(FEW) {
            if self.reader.skip_text(name) {
                return Ok((seed.deserialize(BorrowedStrDeserializer::new(name))?, self));
            }
        }
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> VariantAccess<'de> for VariantReader<'_, 'de, '_> {
    type Error = CodecError;

    #[inline]
    fn unit_variant(self) -> Result<(), CodecError> {
        if self.full { serde::Deserialize::deserialize(self.reader) } else { Ok(()) }
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, CodecError> {
        let name = self.name;
        seed.deserialize(self.content("newtype variant")?).map_err(|e| e.in_entry(name))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, CodecError> {
        let name = self.name;
        self.content("tuple variant")?.any_sequence(visitor).map_err(|e| e.in_entry(name))
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        let name = self.name;
        self.content("struct variant")?.any_map(fields, visitor).map_err(|e| e.in_entry(name))
    }
}
