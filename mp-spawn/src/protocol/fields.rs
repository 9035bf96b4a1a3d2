//! Encoding of numbers and texts in sequence, for data that a child reads before it calls its function.
//!
//! Parts of a program that are used for the first time are loaded from its file, page by page. This loading
//! takes longer than all other work of a child before it is a worker. So this encoding is short and is placed
//! with the rest of the child's code (`#[inline]`). Like the decoder of frames, the decoder of fields trusts
//! no input.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Value with an encoding. [`fields!`] and [`field_enum!`] implement it for structs and enums.
pub(crate) trait Field: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value. Returns `None` if the data is too short or invalid.
    fn read(fields: &mut FieldReader<'_>) -> Option<Self>;
}

/// Encodes a payload.
pub(crate) fn to_bytes(value: &impl Field) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    value.put(&mut out);
    out
}

/// Decodes a payload. Returns `None` if it is malformed.
#[inline]
pub(crate) fn from_bytes<T: Field>(bytes: &[u8]) -> Option<T> {
    let mut fields = FieldReader(bytes);
    T::read(&mut fields).filter(|_| fields.0.is_empty())
}

/// Data that has not been read.
#[derive(Debug)]
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl FieldReader<'_> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}

/// Implements [`Field`] for a struct that consists of these fields.
macro_rules! fields {
    ($type:ident { $($(#[$attribute:meta])* $field:ident),+ $(,)? }) => {
        impl $crate::protocol::fields::Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($(#[$attribute])* $crate::protocol::fields::Field::put(&self.$field, out);)+
            }

            #[inline]
            fn read(fields: &mut $crate::protocol::fields::FieldReader<'_>) -> Option<Self> {
                Some($type {
                    $($(#[$attribute])* $field: $crate::protocol::fields::Field::read(fields)?,)+
                })
            }
        }
    };
}
pub(crate) use fields;

/// Implements [`Field`] for an enum whose variants have no fields. The encoding is one byte.
macro_rules! field_enum {
    ($type:ident { $($variant:ident),+ $(,)? }) => {
        impl $crate::protocol::fields::Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }

            #[inline]
            fn read(fields: &mut $crate::protocol::fields::FieldReader<'_>) -> Option<Self> {
                let byte = u8::read(fields)?;
                [$($type::$variant),+].into_iter().find(|variant| *variant as u8 == byte)
            }
        }
    };
}
pub(crate) use field_enum;

impl Field for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<u8> {
        fields.array().map(|[byte]| byte)
    }
}

impl Field for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<u64> {
        fields.array().map(u64::from_le_bytes)
    }
}

/// Implements [`Field`] for a type by conversions to and from another type that implements [`Field`].
macro_rules! converted_fields {
    ($($(#[$attribute:meta])* $type:ty as $other:ty: $to:expr, $from:expr;)+) => {$(
        $(#[$attribute])*
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let to: fn(&$type) -> $other = $to;
                to(self).put(out);
            }

            #[inline]
            fn read(fields: &mut FieldReader<'_>) -> Option<$type> {
                let from: fn($other) -> Option<$type> = $from;
                from(<$other>::read(fields)?)
            }
        }
    )+};
}

converted_fields! {
    u32 as u64: |number| (*number).into(), |number| number.try_into().ok();
    usize as u64: |number| *number as u64, |number| number.try_into().ok();
    i64 as u64: |number| number.cast_unsigned(), |number| Some(number.cast_signed());
    bool as u8: |flag| (*flag).into(), |byte| (byte <= 1).then_some(byte == 1);
    String as Vec<u8>: |text| text.as_bytes().to_vec(), |bytes| String::from_utf8(bytes).ok();
    OsString as Vec<u8>: |text| text.as_bytes().to_vec(), |bytes| Some(OsString::from_vec(bytes));
    PathBuf as OsString: |path| path.clone().into(), |path| Some(path.into());
    #[cfg(feature = "authkey")]
    mp_core::AuthKey as Vec<u8>: |key| key.as_ref().to_vec(), |bytes| Some(bytes.as_slice().into());
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<Option<T>> {
        if bool::read(fields)? { T::read(fields).map(Some) } else { Some(None) }
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<Vec<T>> {
        let mut all = Vec::new();
        // Read one by one: the count in the message is not trusted for an allocation.
        for _ in 0..usize::read(fields)? {
            all.push(T::read(fields)?);
        }
        Some(all)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<(A, B)> {
        Some((A::read(fields)?, B::read(fields)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spawn_message_fields_round_trip() {
        let value = (7_usize, ("ä".to_string(), (Some(8_u64), (None::<u64>, vec![-1_i64]))));
        assert_eq!(from_bytes(&to_bytes(&value)), Some(value));
        assert_eq!(from_bytes::<u64>(&[0; 9]), None);
    }

    #[test]
    fn spawn_messages_of_wrong_length_are_refused() {
        let mut out = to_bytes(&"abc".to_string());
        for end in 0..out.len() {
            assert_eq!(from_bytes::<String>(&out[..end]), None);
        }
        u64::MAX.put(&mut out);
        let mut fields = FieldReader(&out);
        assert!(String::read(&mut fields).is_some() && Vec::<u8>::read(&mut fields).is_none());
        assert_eq!(from_bytes::<bool>(&[2]), None);
    }
}
