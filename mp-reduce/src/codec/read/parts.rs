//! The parts of sequences, maps, structs and enums.

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::{Bad, Reader};

/// The elements of a sequence.
pub(super) struct Sequence<'r, 'de> {
    pub(super) reader: &'r mut Reader<'de>,
    pub(super) left: usize,
}

impl<'de> SeqAccess<'de> for Sequence<'_, 'de> {
    type Error = Bad;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The entries of a map, or the fields of a struct.
pub(super) struct Map<'r, 'de> {
    pub(super) reader: &'r mut Reader<'de>,
    pub(super) left: usize,
    /// Which fields may follow, in the order in which they are written.
    pub(super) names: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Map<'_, 'de> {
    type Error = Bad;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        // Fields may have been left out, or come in another order.
        for (i, name) in self.names.iter().enumerate() {
            if self.reader.passes(name) {
                self.names = &self.names[i + 1..];
                return seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Bad> {
        seed.deserialize(&mut *self.reader)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant of an enum: its name, and what is in it.
pub(super) struct Variant<'r, 'de> {
    pub(super) reader: &'r mut Reader<'de>,
    pub(super) full: bool,
}

impl<'r, 'de> Variant<'r, 'de> {
    /// To read what is in it.
    #[inline]
    fn content(self, expected: &'static str) -> Result<&'r mut Reader<'de>, Bad> {
        if self.full { Ok(self.reader) } else { Err(Bad::invalid_type(Unexpected::UnitVariant, &expected)) }
    }
}

impl<'de> EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Bad;
    type Variant = Self;

    #[inline]
    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Bad> {
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Bad;

    #[inline]
    fn unit_variant(self) -> Result<(), Bad> {
        if self.full { serde::Deserialize::deserialize(self.reader) } else { Ok(()) }
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Bad> {
        seed.deserialize(self.content("newtype variant")?)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Bad> {
        self.content("tuple variant")?.any_sequence(visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        self.content("struct variant")?.any_map(fields, visitor)
    }
}
