//! Buffers: rows of numbers, stored as their bytes.
//!
//! serde writes and reads a `Vec<f32>` element by element, and no method reports that it is one. But the
//! types show it: a slice or `Vec` is written by [`collect_seq`](serde::Serializer::collect_seq) with a
//! reference to it, and read by a visitor that `Vec`'s own `Deserialize` has created. Both types can be
//! recognized ([`same`]). Recognized values are written by one `memcpy`. All other sequences are written
//! element by element. If there are many elements of one kind of number, they are combined into a row, too.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | [`JUST`](super::first::JUST) |
//! | 1 | code: a [kind of number](Plain), [`TEXT`] or [`BYTES`]; with the flag [`APART`] for an attachment |
//! | 8 | number of bytes |
//! | 4, for an attachment | number of the attachment |
//! | that number, without attachment | the bytes of a row (texts and byte strings are then plain MessagePack) |
//!
//! Numbers are in little-endian order. So are those of a row, since this is the native order of all
//! processes.

mod brought_in;
mod element;
mod same;

use std::any::TypeId;
use std::cell::{Cell, OnceCell};

use bytemuck::Pod;
use mp_core::message::{Buffer, scope};
use serde::de::{DeserializeOwned, Visitor};

use super::error::Bad;
pub(super) use brought_in::brought_in;
pub(super) use element::{Number, Row, visitor_of};
pub(super) use same::id;
#[cfg(feature = "bytes")]
pub(super) use same::into_same;
use same::{Lifeless, Place};

/// Smallest number of bytes of a row. Shorter rows are written element by element, in which small numbers
/// take less space.
pub(super) const ROW: usize = 256;
/// Largest number of bytes of a number in a row.
pub(super) const WIDEST: usize = size_of::<u128>();
/// Smallest number of bytes of an attachment. Shorter buffers are stored in the message.
pub(super) const LONG: usize = 16 << 10;

/// Flag: the bytes are an attachment.
const APART: u8 = 0x10;
/// Code of a text, which is always attached.
const TEXT: u8 = 0x0e;
/// Code of a byte string, which is always attached.
const BYTES: u8 = 0x0f;

/// Contents of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Row(Plain),
    Text,
    Bytes,
}

impl What {
    fn code(self) -> u8 {
        match self {
            What::Row(kind) => kind as u8,
            What::Text => TEXT,
            What::Bytes => BYTES,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        match code {
            TEXT => Some(What::Text),
            BYTES => Some(What::Bytes),
            code => Plain::ALL.iter().find(|kind| **kind as u8 == code).map(|kind| What::Row(*kind)),
        }
    }
}

/// Defines number types for which every bit pattern is valid.
macro_rules! plain {
    ($($kind:ident = $code:literal: $first:ty $(, $also:ty)?;)*) => {
        /// Kind of number.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(super) enum Plain {
            $($kind = $code,)*
        }

        impl Plain {
            pub(super) const ALL: &[Plain] = &[$(Plain::$kind),*];

            /// Returns the number of bytes of each number.
            #[inline]
            pub(super) fn size(self) -> usize {
                match self {
                    $(Plain::$kind => const {
                        assert!(size_of::<$first>() <= WIDEST);
                        size_of::<$first>()
                    },)*
                }
            }

            /// Returns the number with these bytes, whose length must be its [size](Self::size).
            #[inline]
            fn number(self, bytes: &[u8]) -> Option<Number> {
                match self {
                    $(Plain::$kind => bytes.try_into().ok().map(|bytes| <$first>::from_ne_bytes(bytes).into()),)*
                }
            }
        }

        /// Returns the kind and the bytes of a value that is a number or a reference to one. The compiler
        /// knows the kind.
        #[inline(always)]
        pub(super) fn number_of<T: ?Sized>(value: &T) -> Option<(Plain, &[u8])> {
            $(
                if let Some(n) = same::as_same::<T, $first>(value).or_else(|| same::referred::<T, $first>(value)) {
                    return Some((Plain::$kind, bytemuck::bytes_of(n)));
                }
                $(
                    if let Some(n) = same::as_same::<T, $also>(value).or_else(|| same::referred::<T, $also>(value)) {
                        return Some((Plain::$kind, bytemuck::bytes_of(n)));
                    }
                )?
            )*
            None
        }

        /// Returns the kind and the bytes of the numbers, if `value` is a reference to a slice or `Vec` of
        /// numbers.
        #[inline(always)]
        pub(super) fn row_of<T: ?Sized>(value: &T) -> Option<(Plain, &[u8])> {
            $(
                if let Some(row) = elements::<T, $first>(value) {
                    return Some((Plain::$kind, bytemuck::cast_slice(row)));
                }
                $(
                    if let Some(row) = elements::<T, $also>(value) {
                        return Some((Plain::$kind, bytemuck::cast_slice(row)));
                    }
                )?
            )*
            None
        }

        /// Stores a complete row in `place`, if the visitor with this id is that of a `Vec` of these numbers.
        fn fill(kind: Plain, bytes: &[u8], visitor: TypeId, place: Place<'_>) {
            match kind {
                $(Plain::$kind => {
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

impl Plain {
    /// Returns `true` if serde can't buffer numbers of this kind.
    #[inline]
    pub(super) fn is_wide(self) -> bool {
        matches!(self, Plain::U128 | Plain::I128)
    }

    /// Returns the numbers of a row.
    pub(super) fn numbers(self, row: &[u8]) -> impl Iterator<Item = Number> {
        row.chunks_exact(self.size()).filter_map(move |bytes| self.number(bytes))
    }
}

#[inline(always)]
fn elements<T: ?Sized, P: Lifeless>(value: &T) -> Option<&[P]> {
    same::referred::<T, Vec<P>>(value).map(Vec::as_slice).or_else(|| same::slice::<T, P>(value))
}

/// Returns a complete row, if `V` is the visitor of a `Vec` of these numbers.
#[inline]
pub(super) fn whole<'de, V: Visitor<'de>>(kind: Plain, bytes: &[u8]) -> Option<V::Value> {
    let mut all = None;
    fill(kind, bytes, id::<V>(), Place::new(&mut all));
    all
}

fn fill_with<P: Pod + Lifeless + DeserializeOwned>(bytes: &[u8], visitor: TypeId, place: Place<'_>) {
    if visitor_of::<Vec<P>>() != Some(visitor) || !place.is_for::<Vec<P>>() {
        return;
    }
    let (elements, _) = bytes.split_at(bytes.len() - bytes.len() % size_of::<P>());
    // For many elements, the kernel provides the zeros.
    let mut all = vec![P::zeroed(); elements.len() / size_of::<P>()];
    let to = bytemuck::cast_slice_mut(&mut all);
    mp_core::will_fill(to);
    to.copy_from_slice(elements);
    place.put(all);
}

/// Number of bytes before the numbers of a row that is stored in the message.
pub(super) const HEAD: usize = 10;

/// Returns the head of a row of `len` bytes.
#[inline]
pub(super) fn head(kind: Plain, len: usize) -> [u8; HEAD] {
    let mut head = [super::first::JUST, What::Row(kind).code(), 0, 0, 0, 0, 0, 0, 0, 0];
    head[2..].copy_from_slice(&(len as u64).to_le_bytes());
    head
}

/// Attaches long bytes to the message that is being written. Returns the bytes that replace them, or `None`
/// if they stay in the message.
#[inline]
pub(super) fn attach(what: What, bytes: &[u8]) -> Option<[u8; HEAD + 4]> {
    if bytes.len() < LONG { None } else { attach_long(what, bytes) }
}

#[cold]
fn attach_long(what: What, bytes: &[u8]) -> Option<[u8; HEAD + 4]> {
    let attached = scope::outgoing("a long buffer", |attached| Ok(attached.attach_buffer(bytes)));
    let number = attached.ok().flatten()?;
    let mut head = [0; HEAD + 4];
    head[..2].copy_from_slice(&[super::first::JUST, what.code() | APART]);
    head[2..HEAD].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head[HEAD..].copy_from_slice(&number.to_le_bytes());
    Some(head)
}

/// Decodes the byte after [`JUST`](super::first::JUST): the contents, and `true` if they are attached.
pub(super) fn what(code: u8) -> Result<(What, bool), Bad> {
    let known = What::of_code(code & !APART).filter(|what| code & APART != 0 || matches!(what, What::Row(_)));
    known
        .map(|what| (what, code & APART != 0))
        .ok_or_else(|| Bad::says(format!("a buffer of the unknown kind {code:#04x}")))
}

/// Takes an attachment out of the message that is being read.
pub(super) fn arrived(attachment: u32, len: u64) -> Result<Buffer, Bad> {
    scope::incoming("a long buffer", |arrived| arrived.buffer(attachment, len)).map_err(Bad::says)
}

/// List of attachments of a value, which lend it their bytes while it is read.
#[derive(Default)]
pub(super) struct Kept(OnceCell<(Buffer, Box<Kept>)>);

impl Kept {
    /// Adds a buffer at the end of the list, which is `end`.
    pub(super) fn keep<'a>(end: &Cell<&'a Kept>, buffer: Buffer) -> &'a Buffer {
        let (buffer, next) = end.get().0.get_or_init(|| (buffer, Box::default()));
        end.set(next);
        buffer
    }
}

impl Drop for Kept {
    #[inline]
    fn drop(&mut self) {
        if self.0.get().is_some() {
            self.drop_all();
        }
    }
}

impl Kept {
    /// Drops the list iteratively: it may be too long for recursion.
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
    fn each_kind_has_its_code() {
        for what in Plain::ALL.iter().map(|kind| What::Row(*kind)).chain([What::Text, What::Bytes]) {
            assert_eq!(super::what(what.code() | APART).unwrap(), (what, true));
            assert_eq!(super::what(what.code()).is_ok(), matches!(what, What::Row(_)), "{what:?}");
        }
    }

    /// More buffers than a recursive drop could handle.
    #[test]
    fn any_number_is_kept_and_dropped() {
        let mut out = Outgoing::default();
        let number = out.attached().attach_buffer(b"bytes").unwrap();
        let buffer = out.into_incoming().arrived().buffer(number, 5).unwrap();
        let kept = Kept::default();
        let end = Cell::new(&kept);
        let all: Vec<&Buffer> = (0..200_000).map(|_| Kept::keep(&end, buffer.clone())).collect();
        assert!(all.iter().all(|buffer| buffer.as_ref() == b"bytes"));
    }
}
