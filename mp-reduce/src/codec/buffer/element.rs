//! Rows of numbers, for types that read them one by one.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;

use mp_core::message::level;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Plain, id};
use crate::codec::error::{Bad, too_deep};

/// Number of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::codec) enum Number {
    Unsigned(u64),
    Signed(i64),
    WideUnsigned(u128),
    WideSigned(i128),
    F32(f32),
    F64(f64),
}

macro_rules! numbers {
    ($($variant:ident: $($t:ty)*;)*) => {$($(
        impl From<$t> for Number {
            #[inline]
            fn from(n: $t) -> Self {
                Self::$variant(n.into())
            }
        }
    )*)*};
}

numbers! {
    Unsigned: u8 u16 u32 u64;
    Signed: i8 i16 i32 i64;
    WideUnsigned: u128;
    WideSigned: i128;
    F32: f32;
    F64: f64;
}

/// Unread rest of a row.
pub(in crate::codec) struct Row<'b, 'l> {
    kind: Plain,
    rest: &'b [u8],
    len: usize,
    left: &'l Cell<u16>,
}

impl<'b, 'l> Row<'b, 'l> {
    pub(in crate::codec) fn new(kind: Plain, bytes: &'b [u8], left: &'l Cell<u16>) -> Self {
        Self { kind, rest: bytes, len: bytes.len() / kind.size(), left }
    }

    fn count(&self) -> usize {
        self.rest.len() / self.kind.size()
    }

    /// Returns an error if numbers of the row are left.
    pub(in crate::codec) fn end(self) -> Result<(), Bad> {
        if self.rest.is_empty() { Ok(()) } else { Err(Bad::invalid_length(self.len, &"fewer elements")) }
    }
}

impl<'de> SeqAccess<'de> for &mut Row<'_, '_> {
    type Error = Bad;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Bad> {
        let Some((first, rest)) = self.rest.split_at_checked(self.kind.size()) else { return Ok(None) };
        let Some(number) = self.kind.number(first) else { return Ok(None) };
        self.rest = rest;
        match seed.deserialize(Element { number, left: self.left }) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(e.in_element(self.len - self.count() - 1)),
        }
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.count())
    }
}

/// Number of a row, read like a separate value.
struct Element<'l> {
    number: Number,
    /// Number of levels that may still be entered.
    left: &'l Cell<u16>,
}

impl Element<'_> {
    /// Counts a level for a value that has no bytes of its own.
    #[inline]
    fn wrapped<T>(self, read: impl FnOnce(Self) -> Result<T, Bad>) -> Result<T, Bad> {
        let left = self.left;
        if !level::down(left) {
            return Err(too_deep(left, 0));
        }
        let value = read(self);
        left.set(left.get() + 1);
        value
    }
}

impl<'de> Deserializer<'de> for Element<'_> {
    type Error = Bad;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        match self.number {
            Number::Unsigned(n) => visitor.visit_u64(n),
            // As in MessagePack, where nonnegative numbers have one form.
            Number::Signed(n @ 0..) => visitor.visit_u64(n as u64),
            Number::Signed(n) => visitor.visit_i64(n),
            Number::WideUnsigned(n) => visitor.visit_u128(n),
            Number::WideSigned(n) => visitor.visit_i128(n),
            Number::F32(n) => visitor.visit_f32(n),
            Number::F64(n) => visitor.visit_f64(n),
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        self.wrapped(|this| visitor.visit_some(this))
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Bad> {
        self.wrapped(|this| visitor.visit_newtype_struct(this))
    }

    /// Reads the variant of this number, like a separate value.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        let small = if let Number::Unsigned(n) = self.number { u32::try_from(n).ok() } else { None };
        match small {
            Some(n) => visitor.visit_enum(n.into_deserializer()),
            None => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }

    fn is_human_readable(&self) -> bool {
        true
    }
}

/// Returns the type of the visitor that reads `T`. Calls the `Deserialize` of `T`, whose first visitor is the
/// answer.
#[inline]
pub(in crate::codec) fn visitor_of<'de, T: Deserialize<'de>>() -> Option<TypeId> {
    match T::deserialize(Ask) {
        Ok(_) => None,
        Err(Answer(id)) => id,
    }
}

struct Ask;

#[derive(Debug)]
struct Answer(Option<TypeId>);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Answer {}

impl serde::de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for Ask {
    type Error = Answer;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer(Some(id::<V>())))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
