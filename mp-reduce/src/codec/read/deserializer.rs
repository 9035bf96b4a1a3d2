//! Implementation of `Deserializer`. Each method first tries the encoding of the requested type.

use serde::de::{Deserializer, Visitor};

use super::parts::VariantReader;
use super::{CodecError, ValueReader, first};

/// Implements methods of `Deserializer` by calling a method of [`ValueReader`].
macro_rules! read_as {
    ($($as:ident: $($method:ident)*;)*) => {$($(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
            self.$as(visitor)
        }
    )*)*};
}

/// Implements methods of `Deserializer` for floating-point numbers.
macro_rules! read_float {
    ($($method:ident: $first:ident $float:ident $visit:ident;)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
            // A single check of the remaining length for all bytes.
            match self.rest.split_first_chunk::<{ 1 + size_of::<$float>() }>() {
                Some(([first::$first, number @ ..], rest)) => {
                    self.rest = rest;
                    visitor.$visit($float::from_be_bytes(*number))
                }
                _ => self.fallback(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut ValueReader<'de, '_> {
    type Error = CodecError;

    read_as! {
        any: deserialize_any deserialize_unit deserialize_ignored_any;
        signed: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64;
        unsigned: deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64;
        any_text: deserialize_char deserialize_str deserialize_string deserialize_identifier;
        any_sequence: deserialize_seq;
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.first()? {
            first @ (first::FALSE | first::TRUE) => {
                self.skip_byte();
                visitor.visit_bool(first == first::TRUE)
            }
            _ => self.fallback(visitor),
        }
    }

    read_float! {
        deserialize_f32: F32 f32 visit_f32;
        deserialize_f64: F64 f64 visit_f64;
    }

    #[inline]
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match *self.rest {
            [first::BIN_8, len, ..] => {
                self.rest = &self.rest[2..];
                visitor.visit_borrowed_bytes(self.bytes(len.into())?)
            }
            _ => self.fallback(visitor),
        }
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        #[cfg(feature = "bytes")]
        if self.at_buffer() {
            return self.shared_bytes(visitor);
        }
        self.deserialize_bytes(visitor)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.rest {
            [first::BIN_8, 16, ..] => {
                self.bytes(2)?;
                visitor.visit_i128(i128::from_be_bytes(self.array()?))
            }
            _ => self.fallback(visitor),
        }
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.rest {
            [first::BIN_8, 16, ..] => {
                self.bytes(2)?;
                visitor.visit_u128(u128::from_be_bytes(self.array()?))
            }
            _ => self.fallback(visitor),
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.first()? {
            first::NIL => {
                self.skip_byte();
                return visitor.visit_none();
            }
            first::JUST if !self.at_buffer() => self.skip_byte(),
            _ => {}
        }
        self.wrapped(|reader| visitor.visit_some(reader))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        match self.first()? {
            first::NIL | first::SHORT_ARRAY => {
                self.skip_byte();
                visitor.visit_unit()
            }
            _ => self.fallback(visitor),
        }
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        if name == rmp_serde::MSGPACK_EXT_STRUCT_NAME {
            return self.any(visitor);
        }
        self.wrapped(|reader| visitor.visit_newtype_struct(reader))
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, CodecError> {
        self.any_sequence(visitor)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        self.any_sequence(visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        self.any_map(&[], visitor)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        self.any_map(fields, visitor)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        if self.first()? != first::SHORT_MAP | 1 {
            return self.with_copy(|reader| {
                visitor.visit_enum(VariantReader { name: reader.rest, reader, names, full: false })
            });
        }
        // A variant with content: a map from its name to the content.
        self.skip_byte();
        self.wrapped(|reader| {
            visitor.visit_enum(VariantReader { name: reader.rest, reader, names, full: true })
        })
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        true
    }
}
