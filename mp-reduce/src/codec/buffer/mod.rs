//! Buffers: rows of numbers, which are stored in their memory representation, and long texts and byte
//! strings.
//!
//! serde writes and reads a `Vec<f32>` element by element, and does not report to a serializer that the
//! sequence is a slice of numbers. But the serializer and the deserializer can recognize the types
//! ([`cast`]). To write a slice or `Vec`, serde calls [`collect_seq`](serde::Serializer::collect_seq) with a
//! reference to it. To read a `Vec`, serde passes a visitor whose type belongs to `Vec`. A recognized slice
//! or `Vec` is copied by one `memcpy`. All other sequences are written element by element. If all elements
//! are numbers of one kind and there are many, the sequence becomes a row, too.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | [`JUST`](super::first::JUST) |
//! | 1 | code: a [kind of number](NumberKind), [`TEXT`] or [`BYTES`]; with the flag [`ATTACHED`] for an attachment |
//! | 8 | number of bytes |
//! | 4, for an attachment | number of the attachment |
//! | number of bytes, for a row that is not attached | the numbers. A text or byte string that is not attached is written as plain MessagePack |
//!
//! All numbers, including those in a row, are in little-endian order, which is the native order of all
//! processes.

mod cast;
mod element;

use std::any::TypeId;
use std::cell::{Cell, OnceCell};

use bytemuck::Pod;
use mp_core::message::{Buffer, scope};
use serde::de::{DeserializeOwned, Visitor};

use super::error::CodecError;
#[cfg(feature = "bytes")]
pub(super) use cast::cast_value;
pub(super) use cast::id;
use cast::{CastSlot, NumberType, StaticType};
pub(super) use element::{NumberRow, RowNumber, visitor_of};

/// Smallest number of bytes of a row. Shorter sequences are written element by element, since small numbers
/// then take fewer bytes.
pub(super) const ROW: usize = 256;
/// Largest number of bytes of one number in a row.
pub(super) const WIDEST: usize = size_of::<u128>();
/// Smallest number of bytes of an attached buffer. Shorter buffers are stored in the message.
pub(super) const LONG: usize = 16 << 10;

/// Flag in the code of a buffer: the bytes of the buffer are in an attachment.
pub(super) const ATTACHED: u8 = 0x10;
/// Code of a text, which is always in an attachment.
const TEXT: u8 = 0x0e;
/// Code of a byte string, which is always in an attachment.
const BYTES: u8 = 0x0f;

/// Kind of the contents of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BufferKind {
    Row(NumberKind),
    Text,
    Bytes,
}

impl BufferKind {
    fn code(self) -> u8 {
        match self {
            BufferKind::Row(kind) => kind as u8,
            BufferKind::Text => TEXT,
            BufferKind::Bytes => BYTES,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        match code {
            TEXT => Some(BufferKind::Text),
            BYTES => Some(BufferKind::Bytes),
            code => {
                NumberKind::ALL.iter().find(|kind| **kind as u8 == code).map(|kind| BufferKind::Row(*kind))
            }
        }
    }
}

/// Defines the kinds of numbers. For each number type, every bit pattern is valid.
macro_rules! plain {
    ($($kind:ident = $code:literal: $first:ty $(, $also:ty)?;)*) => {
        /// Kind of the numbers in a row.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(super) enum NumberKind {
            $($kind = $code,)*
        }

        impl NumberKind {
            pub(super) const ALL: &[NumberKind] = &[$(NumberKind::$kind),*];

            /// Returns the number of bytes of one number.
            #[inline]
            pub(super) fn size(self) -> usize {
                match self {
                    $(NumberKind::$kind => const {
                        assert!(size_of::<$first>() <= WIDEST);
                        size_of::<$first>()
                    },)*
                }
            }

            /// Decodes a number. The length of `bytes` must be the [size](Self::size) of the number.
            #[inline]
            fn number(self, bytes: &[u8]) -> Option<RowNumber> {
                match self {
                    $(NumberKind::$kind => {
                        bytes.try_into().ok().map(|bytes| <$first>::from_ne_bytes(bytes).into())
                    })*
                }
            }
        }

        /// Returns the kind and the bytes of `value` if it is a number or a reference to a number. The kind
        /// is known at compile time.
        #[inline(always)]
        pub(super) fn number_of<T: ?Sized>(value: &T) -> Option<(NumberKind, &[u8])> {
            let (kind, number) = number_type(id::<T>())?;
            Some((kind, number.bytes(value)?))
        }

        /// Returns the type with this id if it is that of a number or a reference to one. Not generic, so
        /// that unoptimised programs don't have an instance for each type of an element.
        #[cfg_attr(not(debug_assertions), inline(always))]
        fn number_type(id: TypeId) -> Option<(NumberKind, NumberType)> {
            $(
                if let Some(number) = NumberType::of::<$first>(id) {
                    return Some((NumberKind::$kind, number));
                }
                $(
                    if let Some(number) = NumberType::of::<$also>(id) {
                        return Some((NumberKind::$kind, number));
                    }
                )?
            )*
            None
        }

        /// Returns the kind and the bytes of the numbers if `value` is a reference to a slice or `Vec` of
        /// numbers.
        #[inline(always)]
        pub(super) fn row_of<T: ?Sized>(value: &T) -> Option<(NumberKind, &[u8])> {
            $(
                if let Some(row) = elements::<T, $first>(value) {
                    return Some((NumberKind::$kind, bytemuck::cast_slice(row)));
                }
                $(
                    if let Some(row) = elements::<T, $also>(value) {
                        return Some((NumberKind::$kind, bytemuck::cast_slice(row)));
                    }
                )?
            )*
            None
        }

        /// Stores the row as a `Vec` in `place`, if `visitor` is the id of the visitor that reads a `Vec` of
        /// these numbers.
        fn fill(kind: NumberKind, bytes: &[u8], visitor: TypeId, place: CastSlot<'_>) {
            match kind {
                $(NumberKind::$kind => {
                    $(if place.is_for::<Vec<$also>>() {
                        return fill_with::<$also>(bytes, visitor, place);
                    })?
                    fill_with::<$first>(bytes, visitor, place);
                })*
            }
        }
    };
}

#[cfg(target_pointer_width = "64")]
plain! {
    U8 = 0: u8;
    U16 = 1: u16;
    U32 = 2: u32;
    U64 = 3: u64, usize;
    U128 = 4: u128;
    I8 = 5: i8;
    I16 = 6: i16;
    I32 = 7: i32;
    I64 = 8: i64, isize;
    I128 = 9: i128;
    F32 = 10: f32;
    F64 = 11: f64;
}

impl NumberKind {
    /// Returns `true` if serde can't buffer numbers of this kind.
    #[inline]
    pub(super) fn is_wide(self) -> bool {
        matches!(self, NumberKind::U128 | NumberKind::I128)
    }

    /// Returns an iterator over the numbers of a row.
    pub(super) fn numbers(self, row: &[u8]) -> impl Iterator<Item = RowNumber> {
        row.chunks_exact(self.size()).filter_map(move |bytes| self.number(bytes))
    }
}

/// Returns the elements if `value` is a reference to a `Vec` or slice of `P`.
#[inline(always)]
fn elements<T: ?Sized, P: StaticType>(value: &T) -> Option<&[P]> {
    cast::cast_referent::<T, Vec<P>>(value).map(Vec::as_slice).or_else(|| cast::slice::<T, P>(value))
}

/// Returns the row as a `Vec`, if `V` is the visitor that reads a `Vec` of these numbers.
#[inline]
pub(super) fn whole<'de, V: Visitor<'de>>(kind: NumberKind, bytes: &[u8]) -> Option<V::Value> {
    let mut all = None;
    fill(kind, bytes, id::<V>(), CastSlot::new(&mut all));
    all
}

fn fill_with<P: Pod + StaticType + DeserializeOwned>(bytes: &[u8], visitor: TypeId, place: CastSlot<'_>) {
    if visitor_of::<Vec<P>>() != Some(visitor) || !place.is_for::<Vec<P>>() {
        return;
    }
    let (elements, _) = bytes.split_at(bytes.len() - bytes.len() % size_of::<P>());
    // For many elements, the kernel provides the zeros.
    let mut all = vec![P::zeroed(); elements.len() / size_of::<P>()];
    mp_core::advise_huge_pages(&mut all);
    bytemuck::cast_slice_mut(&mut all).copy_from_slice(elements);
    place.put(all);
}

/// Number of bytes before the numbers of a row that is stored in the message.
pub(super) const HEAD: usize = 10;

/// Returns the head of a row of numbers with `len` bytes.
#[inline]
pub(super) fn head(kind: NumberKind, len: usize) -> [u8; HEAD] {
    let mut head = [super::first::JUST, BufferKind::Row(kind).code(), 0, 0, 0, 0, 0, 0, 0, 0];
    head[2..].copy_from_slice(&(len as u64).to_le_bytes());
    head
}

/// Attaches long bytes to the message that is being written. Returns the reference that is written instead of
/// the bytes. Returns `None` if the bytes must be written into the message.
#[inline]
pub(super) fn attach(what: BufferKind, bytes: &[u8]) -> Option<[u8; HEAD + 4]> {
    if bytes.len() < LONG { None } else { attach_long(what, bytes) }
}

#[cold]
fn attach_long(what: BufferKind, bytes: &[u8]) -> Option<[u8; HEAD + 4]> {
    let attached = scope::outgoing("a long buffer", |attached| Ok(attached.attach_buffer(bytes)));
    let number = attached.ok().flatten()?;
    let mut head = [0; HEAD + 4];
    head[..2].copy_from_slice(&[super::first::JUST, what.code() | ATTACHED]);
    head[2..HEAD].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head[HEAD..].copy_from_slice(&number.to_le_bytes());
    Some(head)
}

/// Decodes the code of a buffer, the byte after [`JUST`](super::first::JUST). Returns the kind of the
/// contents, and `true` if they are in an attachment.
pub(super) fn decode_kind(code: u8) -> Result<(BufferKind, bool), CodecError> {
    let known = BufferKind::of_code(code & !ATTACHED)
        .filter(|what| code & ATTACHED != 0 || matches!(what, BufferKind::Row(_)));
    known
        .map(|what| (what, code & ATTACHED != 0))
        .ok_or_else(|| CodecError::message(format!("a buffer of the unknown kind {code:#04x}")))
}

/// Takes an attached buffer of `len` bytes out of the message that is being read.
pub(super) fn take_attachment(attachment: u32, len: u64) -> Result<Buffer, CodecError> {
    scope::incoming("a long buffer", |arrived| arrived.buffer(attachment, len)).map_err(CodecError::message)
}

/// List that owns the attached buffers of a value while the value is read and borrows from them.
#[derive(Default)]
pub(super) struct AttachmentList(OnceCell<(Buffer, Box<AttachmentList>)>);

impl AttachmentList {
    /// Appends a buffer at `end`, the end of the list, and updates `end`. Returns a reference to the buffer.
    pub(super) fn push<'a>(end: &Cell<&'a AttachmentList>, buffer: Buffer) -> &'a Buffer {
        let (buffer, next) = end.get().0.get_or_init(|| (buffer, Box::default()));
        end.set(next);
        buffer
    }
}

impl Drop for AttachmentList {
    #[inline]
    fn drop(&mut self) {
        if self.0.get().is_some() {
            self.drop_all();
        }
    }
}

impl AttachmentList {
    /// Drops the list without recursion, for which the list may be too long.
    #[cold]
    fn drop_all(&mut self) {
        let mut next = self.0.take();
        while let Some((_, mut kept)) = next {
            next = kept.0.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mp_core::message::Outgoing;

    #[test]
    fn buffer_kinds_round_trip_through_codes() {
        for what in NumberKind::ALL
            .iter()
            .map(|kind| BufferKind::Row(*kind))
            .chain([BufferKind::Text, BufferKind::Bytes])
        {
            assert_eq!(super::decode_kind(what.code() | ATTACHED).unwrap(), (what, true));
            assert_eq!(
                super::decode_kind(what.code()).is_ok(),
                matches!(what, BufferKind::Row(_)),
                "{what:?}"
            );
        }
    }

    /// The list is longer than a recursive drop could handle.
    #[test]
    fn long_list_of_buffers_is_dropped_without_recursion() {
        let mut out = Outgoing::default();
        let number = out.attached().attach_buffer(b"bytes").unwrap();
        let buffer = out.into_incoming().arrived().buffer(number, 5).unwrap();
        let kept = AttachmentList::default();
        let end = Cell::new(&kept);
        let all: Vec<&Buffer> = (0..200_000).map(|_| AttachmentList::push(&end, buffer.clone())).collect();
        assert!(all.iter().all(|buffer| buffer.as_ref() == b"bytes"));
    }
}
