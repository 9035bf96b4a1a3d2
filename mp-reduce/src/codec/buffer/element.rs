//! Deserializers of rows of numbers, for types that read the numbers one by one.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;

use mp_core::message::nesting_depth;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{NumberKind, id};
use crate::codec::error::{CodecError, too_deep};

/// Number in a row, as the widest type of its kind.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::codec) enum RowNumber {
    Unsigned(u64),
    Signed(i64),
    WideUnsigned(u128),
    WideSigned(i128),
    F32(f32),
    F64(f64),
}

macro_rules! numbers {
    ($($variant:ident: $($t:ty)*;)*) => {$($(
        impl From<$t> for RowNumber {
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

/// Part of a row that was not read yet.
pub(in crate::codec) struct NumberRow<'b, 'l> {
    kind: NumberKind,
    rest: &'b [u8],
    len: usize,
    left: &'l Cell<u16>,
}

impl<'b, 'l> NumberRow<'b, 'l> {
    pub(in crate::codec) fn new(kind: NumberKind, bytes: &'b [u8], left: &'l Cell<u16>) -> Self {
        Self { kind, rest: bytes, len: bytes.len() / kind.size(), left }
    }

    fn count(&self) -> usize {
        self.rest.len() / self.kind.size()
    }

    /// Returns an error if numbers of the row were not read.
    pub(in crate::codec) fn end(self) -> Result<(), CodecError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(CodecError::invalid_length(self.len, &"fewer elements"))
        }
    }
}

impl<'de> SeqAccess<'de> for &mut NumberRow<'_, '_> {
    type Error = CodecError;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, CodecError> {
        let Some((first, rest)) = self.rest.split_at_checked(self.kind.size()) else { return Ok(None) };
        let Some(number) = self.kind.number(first) else { return Ok(None) };
        self.rest = rest;
        match seed.deserialize(RowElement { number, left: self.left }) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(e.in_element(self.len - self.count() - 1)),
        }
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.count())
    }
}

/// Deserializer of one number in a row. The number is read like a value outside of a row.
struct RowElement<'l> {
    number: RowNumber,
    /// Number of nesting levels that the value may still enter.
    left: &'l Cell<u16>,
}

impl RowElement<'_> {
    /// Reads a value that has no bytes of its own, such as a newtype, and counts a nesting level for it.
    #[inline]
    fn wrapped<T>(self, read: impl FnOnce(Self) -> Result<T, CodecError>) -> Result<T, CodecError> {
        let left = self.left;
        if !nesting_depth::try_enter(left) {
            return Err(too_deep(left, 0));
        }
        let value = read(self);
        left.set(left.get() + 1);
        value
    }
}

impl<'de> Deserializer<'de> for RowElement<'_> {
    type Error = CodecError;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        match self.number {
            RowNumber::Unsigned(n) => visitor.visit_u64(n),
            // As in MessagePack, where nonnegative numbers have one form.
            RowNumber::Signed(n @ 0..) => visitor.visit_u64(n as u64),
            RowNumber::Signed(n) => visitor.visit_i64(n),
            RowNumber::WideUnsigned(n) => visitor.visit_u128(n),
            RowNumber::WideSigned(n) => visitor.visit_i128(n),
            RowNumber::F32(n) => visitor.visit_f32(n),
            RowNumber::F64(n) => visitor.visit_f64(n),
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, CodecError> {
        self.wrapped(|this| visitor.visit_some(this))
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        self.wrapped(|this| visitor.visit_newtype_struct(this))
    }

    /// Reads the number as the index of an enum variant, like an enum outside of a row.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        let small = if let RowNumber::Unsigned(n) = self.number { u32::try_from(n).ok() } else { None };
        match small {
            Some(n) => visitor.visit_enum(n.into_deserializer()),
            None => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }

    fn is_human_readable(&self) -> bool {
        true
    }
}

/// Returns the id of the visitor type that reads a `T`: the first visitor that the `Deserialize` of `T`
/// passes to its deserializer.
#[inline]
pub(in crate::codec) fn visitor_of<'de, T: Deserialize<'de>>() -> Option<TypeId> {
    match T::deserialize(VisitorProbe) {
        Ok(_) => None,
        Err(ProbedVisitor(id)) => id,
    }
}

struct VisitorProbe;

#[derive(Debug)]
struct ProbedVisitor(Option<TypeId>);

impl fmt::Display for ProbedVisitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for ProbedVisitor {}

impl serde::de::Error for ProbedVisitor {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for VisitorProbe {
    type Error = ProbedVisitor;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbedVisitor> {
        Err(ProbedVisitor(Some(id::<V>())))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
