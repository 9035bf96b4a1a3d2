//! Readers of sequences, maps, structs and enums.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::{Bad, Reader};

/// Reader of the elements of a sequence.
pub(super) struct Sequence<'de, 'l> {
    pub(super) reader: Reader<'de, 'l>,
    pub(super) left: usize,
    pub(super) len: usize,
}

impl<'de> SeqAccess<'de> for Sequence<'de, '_> {
    type Error = Bad;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match self.reader.apart(|reader| seed.deserialize(reader)) {
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
pub(super) struct Map<'de, 'l> {
    pub(super) reader: Reader<'de, 'l>,
    pub(super) left: usize,
    /// Bytes from the last key on.
    pub(super) key: &'de [u8],
    /// Fields that may follow, in the order in which they are written.
    pub(super) names: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Map<'de, '_> {
    type Error = Bad;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.key = self.reader.rest;
        // Fields may have been omitted, or may come in another order.
        for (i, name) in self.names.iter().enumerate() {
            if self.reader.passes(name) {
                self.names = &self.names[i + 1..];
                return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
        match self.reader.apart(|reader| seed.deserialize(reader)) {
            Ok(key) => Ok(Some(key)),
            Err(e) => Err(e.in_field("a key")),
        }
    }

    #[inline]
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Bad> {
        self.reader.apart(|reader| seed.deserialize(reader)).map_err(|e| e.in_entry(self.key))
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Number of names of variants that are compared.
const FEW: usize = 8;

/// Reader of a variant of an enum: its name and its content.
pub(super) struct Variant<'r, 'de, 'l> {
    /// Bytes from the name on.
    pub(super) name: &'de [u8],
    pub(super) reader: &'r mut Reader<'de, 'l>,
    /// Possible names.
    pub(super) names: &'static [&'static str],
    pub(super) full: bool,
}

impl<'r, 'de, 'l> Variant<'r, 'de, 'l> {
    /// Returns the reader of its content.
    #[inline]
    fn content(self, expected: &'static str) -> Result<&'r mut Reader<'de, 'l>, Bad> {
        if self.full { Ok(self.reader) } else { Err(Bad::invalid_type(Unexpected::UnitVariant, &expected)) }
    }
}

impl<'de> EnumAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Bad;
    type Variant = Self;

    #[inline]
    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Bad> {
        // For few names, a comparison is faster than a check for UTF-8.
        for name in self.names.iter().take(FEW) {
            if self.reader.passes(name) {
                return Ok((seed.deserialize(BorrowedStrDeserializer::new(name))?, self));
            }
        }
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Bad;

    #[inline]
    fn unit_variant(self) -> Result<(), Bad> {
        if self.full { serde::Deserialize::deserialize(self.reader) } else { Ok(()) }
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Bad> {
        let name = self.name;
        seed.deserialize(self.content("newtype variant")?).map_err(|e| e.in_entry(name))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Bad> {
        let name = self.name;
        self.content("tuple variant")?.any_sequence(visitor).map_err(|e| e.in_entry(name))
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        let name = self.name;
        self.content("struct variant")?.any_map(fields, visitor).map_err(|e| e.in_entry(name))
    }
}
