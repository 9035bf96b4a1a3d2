//! The parts of sequences, maps, structs and variants.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};

use super::super::error::Bad;
use super::{Kind, Writer};

/// The elements of a sequence.
pub(super) struct Elements<'w, 'a> {
    writer: &'w mut Writer<'a>,
    at: usize,
    len: usize,
    count: usize,
    variant: Option<&'static str>,
}

impl<'w, 'a> Elements<'w, 'a> {
    #[inline]
    pub(super) fn begin(
        writer: &'w mut Writer<'a>,
        len: usize,
        variant: Option<&'static str>,
    ) -> Result<Self, Bad> {
        let at = writer.begin(Kind::Array, len)?;
        Ok(Self { writer, at, len, count: 0, variant })
    }

    #[inline]
    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Bad> {
        match value.serialize(&mut *self.writer) {
            Ok(()) => {
                self.count += 1;
                Ok(())
            }
            Err(e) => Err(in_variant(e.in_element(self.count), self.variant)),
        }
    }

    #[inline]
    fn finish(self) -> Result<(), Bad> {
        if self.variant.is_some() {
            self.writer.leave();
        }
        self.writer.end(Kind::Array, self.at, self.len, self.count)
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
