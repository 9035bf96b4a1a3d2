//! The parts of sequences, maps, structs and variants.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};

use super::super::buffer::{self, HEAD, Number, Plain, ROW, What};
use super::super::error::Bad;
use super::super::first;
use super::{Kind, Writer};

/// The elements of a sequence.
pub(super) struct Elements<'w, 'a> {
    writer: &'w mut Writer<'a>,
    at: usize,
    len: usize,
    count: usize,
    variant: Option<&'static str>,
    /// As what kind of numbers they are being put together, all so far: behind the head of a row, which begins at `at`.
    row: Option<Plain>,
}

impl<'w, 'a> Elements<'w, 'a> {
    #[inline]
    pub(super) fn begin(
        writer: &'w mut Writer<'a>,
        len: usize,
        variant: Option<&'static str>,
    ) -> Result<Self, Bad> {
        let at = writer.begin(Kind::Array, len)?;
        Ok(Self { writer, at, len, count: 0, variant, row: None })
    }

    #[inline]
    pub(super) fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Bad> {
        // Whether it is a number, and of which kind, is known where this is compiled.
        if let Some((kind, bytes)) = buffer::number_of(value)
            && (self.row == Some(kind) || self.begins_row(kind))
        {
            self.writer.to.extend_from_slice(bytes);
            self.count += 1;
            return Ok(());
        }
        if self.row.is_some() {
            self.give_up_row()?;
        }
        match value.serialize(&mut *self.writer) {
            Ok(()) => {
                self.count += 1;
                Ok(())
            }
            Err(e) => Err(in_variant(e.in_element(self.count), self.variant)),
        }
    }

    #[inline]
    pub(super) fn finish(self) -> Result<(), Bad> {
        if self.variant.is_some() {
            self.writer.leave();
        }
        if let Some(kind) = self.row {
            self.end_row(kind);
            return Ok(());
        }
        self.writer.end(Kind::Array, self.at, self.len, self.count)
    }

    /// Begins to put numbers together, if this is the first of many.
    #[inline]
    fn begins_row(&mut self, kind: Plain) -> bool {
        let begins = self.count == 0 && self.row.is_none() && self.len.saturating_mul(kind.size()) >= ROW;
        if begins {
            self.begin_row(kind);
        }
        begins
    }

    #[cold]
    fn begin_row(&mut self, kind: Plain) {
        /// What a type says of its length may be wrong.
        const BELIEVED: usize = 1 << 20;
        let Writer { to, wide, .. } = &mut *self.writer;
        to.truncate(self.at);
        to.extend_from_slice(&buffer::head(kind, 0));
        to.reserve(self.len.saturating_mul(kind.size()).min(BELIEVED));
        *wide |= kind.is_wide();
        self.row = Some(kind);
    }

    /// All were numbers of one kind.
    #[cold]
    fn end_row(self, kind: Plain) {
        self.writer.leave();
        let to = &mut self.writer.to;
        let row = &to[self.at + HEAD..];
        match buffer::attach(What::Row(kind), row) {
            Some(head) => {
                to.truncate(self.at);
                to.extend_from_slice(&head);
            }
            None => {
                let head = buffer::head(kind, row.len());
                to[self.at..self.at + HEAD].copy_from_slice(&head);
            }
        }
    }

    /// Something else comes after numbers: they are written as they are where others are among them.
    #[cold]
    fn give_up_row(&mut self) -> Result<(), Bad> {
        let Some(kind) = self.row.take() else { return Ok(()) };
        let row = self.writer.to.split_off(self.at + HEAD);
        self.writer.to.truncate(self.at);
        self.writer.head(Kind::Array, self.len)?;
        kind.numbers(&row).for_each(|number| self.writer.number(number));
        Ok(())
    }
}

impl Writer<'_> {
    fn number(&mut self, number: Number) {
        match number {
            Number::Unsigned(n) => self.unsigned(n),
            Number::Signed(n) => self.signed(n),
            Number::WideUnsigned(n) => self.few_bytes(&n.to_be_bytes()),
            Number::WideSigned(n) => self.few_bytes(&n.to_be_bytes()),
            Number::F32(n) => self.after(first::F32, n.to_be_bytes()),
            Number::F64(n) => self.after(first::F64, n.to_be_bytes()),
        }
    }

    fn few_bytes(&mut self, bytes: &[u8; 16]) {
        self.after(first::BIN_8, [16]);
        self.to.extend_from_slice(bytes);
    }
}

#[cold]
fn in_variant(e: Bad, variant: Option<&'static str>) -> Bad {
    match variant {
        Some(variant) => e.in_field(variant),
        None => e,
    }
}

macro_rules! elements {
    ($($t:ident: $method:ident;)*) => {$(
        impl $t for Elements<'_, '_> {
            type Ok = ();
            type Error = Bad;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Bad> {
                self.element(value)
            }

            #[inline]
            fn end(self) -> Result<(), Bad> {
                self.finish()
            }
        }
    )*};
}

elements! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

/// The entries of a map.
pub(super) struct Entries<'w, 'a> {
    writer: &'w mut Writer<'a>,
    at: usize,
    len: usize,
    /// How many keys were written.
    count: usize,
    /// Where the last key is.
    key: usize,
}

impl<'w, 'a> Entries<'w, 'a> {
    #[inline]
    pub(super) fn begin(writer: &'w mut Writer<'a>, len: usize) -> Result<Self, Bad> {
        let at = writer.begin(Kind::Map, len)?;
        Ok(Self { writer, at, len, count: 0, key: at })
    }
}

impl SerializeMap for Entries<'_, '_> {
    type Ok = ();
    type Error = Bad;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Bad> {
        self.key = self.writer.to.len();
        self.count += 1;
        key.serialize(&mut *self.writer).map_err(|e| e.in_field("a key"))
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Bad> {
        value
            .serialize(&mut *self.writer)
            .map_err(|e| e.in_entry(self.writer.to.get(self.key..).unwrap_or_default()))
    }

    #[inline]
    fn end(self) -> Result<(), Bad> {
        self.writer.end(Kind::Map, self.at, self.len, self.count)
    }
}

/// The fields of a struct, by their names.
pub(super) struct Fields<'w, 'a> {
    writer: &'w mut Writer<'a>,
    at: usize,
    len: usize,
    count: usize,
    variant: Option<&'static str>,
}

impl<'w, 'a> Fields<'w, 'a> {
    #[inline]
    pub(super) fn begin(
        writer: &'w mut Writer<'a>,
        len: usize,
        variant: Option<&'static str>,
    ) -> Result<Self, Bad> {
        let at = writer.begin(Kind::Map, len)?;
        Ok(Self { writer, at, len, count: 0, variant })
    }

    #[inline]
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Bad> {
        self.count += 1;
        self.writer.text(name)?;
        value.serialize(&mut *self.writer).map_err(|e| in_variant(e.in_field(name), self.variant))
    }

    #[inline]
    fn finish(self) -> Result<(), Bad> {
        if self.variant.is_some() {
            self.writer.leave();
        }
        self.writer.end(Kind::Map, self.at, self.len, self.count)
    }
}

macro_rules! fields {
    ($($t:ident)*) => {$(
        impl $t for Fields<'_, '_> {
            type Ok = ();
            type Error = Bad;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Bad> {
                self.field(name, value)
            }

            #[inline]
            fn end(self) -> Result<(), Bad> {
                self.finish()
            }
        }
    )*};
}

fields! { SerializeStruct SerializeStructVariant }
