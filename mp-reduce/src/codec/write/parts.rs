//! Writers of sequences, maps, structs and variants.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};

use super::super::buffer::{self, BufferKind, HEAD, NumberKind, ROW, RowNumber};
use super::super::error::CodecError;
use super::super::first;
use super::super::number::NumberSink;
use super::{ContainerKind, OutputBuffer, Writer};

/// Writer of the elements of a sequence.
pub(super) struct SequenceWriter<'w, 'a> {
    to: &'w mut OutputBuffer<'a>,
    /// Position of the next element in the output.
    at: usize,
    /// Position of the sequence in the output.
    start: usize,
    len: usize,
    count: usize,
    variant: Option<&'static str>,
    row: RowState,
}

/// State of a sequence that may become a row of numbers. The state is a single word, because the processor
/// stalls when a word is read just after one of its bytes was written.
#[derive(Clone, Copy, PartialEq)]
struct RowState(usize);

impl RowState {
    /// The sequence is not a row.
    const NO: Self = Self(0);
    /// No element was written. If the first element is one of many numbers, the sequence becomes a row.
    const MAY_BEGIN: Self = Self(1);

    /// Returns the state of a row: all elements so far are numbers of this kind, and follow the head of a row
    /// at the start of the sequence.
    #[inline]
    fn of(kind: NumberKind) -> Self {
        Self(kind as usize + 2)
    }

    #[inline]
    fn kind(self) -> Option<NumberKind> {
        if self.0 < 2 { None } else { NumberKind::ALL.iter().copied().find(|kind| Self::of(*kind) == self) }
    }
}

impl<'w, 'a> SequenceWriter<'w, 'a> {
    #[inline]
    pub(super) fn begin(
        mut writer: Writer<'w, 'a>,
        len: usize,
        variant: Option<&'static str>,
    ) -> Result<Self, CodecError> {
        let (start, at) = (writer.at, writer.on(writer.at).begin(ContainerKind::Array, len)?);
        let row = if len.saturating_mul(buffer::WIDEST) < ROW { RowState::NO } else { RowState::MAY_BEGIN };
        Ok(Self { to: writer.to, at, start, len, count: 0, variant, row })
    }

    #[inline]
    pub(super) fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CodecError> {
        if self.row != RowState::NO {
            // It is known at compile time whether the value is a number, and of which kind.
            if let Some((kind, bytes)) = buffer::number_of(value)
                && (self.row == RowState::of(kind) || self.begins_row(kind))
            {
                self.at = self.to.put(self.at, bytes);
                self.count += 1;
                return Ok(());
            }
            self.no_row()?;
        }
        match value.serialize(Writer { to: self.to, at: self.at }) {
            Ok(end) => {
                (self.at, self.count) = (end, self.count + 1);
                Ok(())
            }
            Err(e) => Err(in_variant(e.in_element(self.count), self.variant)),
        }
    }

    #[inline]
    pub(super) fn finish(self) -> Result<usize, CodecError> {
        if self.variant.is_some() {
            self.to.leave();
        }
        if let Some(kind) = self.row.kind() {
            return Ok(self.end_row(kind));
        }
        Writer { to: self.to, at: self.at }.end(ContainerKind::Array, self.start, self.len, self.count)
    }

    /// Begins a row if the first element is a number of this kind and there are enough elements. Returns
    /// `true` if a row was begun.
    #[inline]
    fn begins_row(&mut self, kind: NumberKind) -> bool {
        let begins = self.row == RowState::MAY_BEGIN && self.len.saturating_mul(kind.size()) >= ROW;
        if begins {
            self.begin_row(kind);
        }
        begins
    }

    #[cold]
    fn begin_row(&mut self, kind: NumberKind) {
        /// Largest number of bytes that are reserved because of an announced length, which may be wrong.
        const BELIEVED: usize = 1 << 20;
        self.to.reserve(self.len.saturating_mul(kind.size()).min(BELIEVED));
        self.at = self.to.put(self.start, &buffer::head(kind, 0));
        self.to.written.wide |= kind.is_wide();
        self.row = RowState::of(kind);
    }

    /// Ends a sequence that is a row of this kind. Returns the position after the row.
    #[cold]
    fn end_row(self, kind: NumberKind) -> usize {
        self.to.leave();
        let row = self.to.written(self.start + HEAD..self.at);
        match buffer::attach(BufferKind::Row(kind), row) {
            Some(head) => self.to.put(self.start, &head),
            None => {
                let head = buffer::head(kind, row.len());
                self.to.put(self.start, &head);
                self.at
            }
        }
    }

    /// Converts a row into a sequence, because the next element is not a number of the row's kind. Writes the
    /// numbers of the row again, as separate elements.
    #[cold]
    fn no_row(&mut self) -> Result<(), CodecError> {
        let Some(kind) = std::mem::replace(&mut self.row, RowState::NO).kind() else { return Ok(()) };
        let row = self.to.written(self.start + HEAD..self.at).to_vec();
        self.at = Writer { to: self.to, at: self.start }.head(ContainerKind::Array, self.len)?;
        for number in kind.numbers(&row) {
            self.at = Writer { to: self.to, at: self.at }.number(number);
        }
        Ok(())
    }
}

impl Writer<'_, '_> {
    fn number(self, number: RowNumber) -> usize {
        match number {
            RowNumber::Unsigned(n) => self.unsigned(n),
            RowNumber::Signed(n) => self.signed(n),
            RowNumber::WideUnsigned(n) => self.few_bytes(&n.to_be_bytes()),
            RowNumber::WideSigned(n) => self.few_bytes(&n.to_be_bytes()),
            RowNumber::F32(n) => self.after(first::F32, n.to_be_bytes()),
            RowNumber::F64(n) => self.after(first::F64, n.to_be_bytes()),
        }
    }

    fn few_bytes(mut self, bytes: &[u8; 16]) -> usize {
        let at = self.on(self.at).after(first::BIN_8, [16]);
        self.to.put(at, bytes)
    }
}

#[cold]
fn in_variant(e: CodecError, variant: Option<&'static str>) -> CodecError {
    match variant {
        Some(variant) => e.in_field(variant),
        None => e,
    }
}

macro_rules! elements {
    ($($t:ident: $method:ident;)*) => {$(
        impl $t for SequenceWriter<'_, '_> {
            type Ok = usize;
            type Error = CodecError;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CodecError> {
                self.element(value)
            }

            #[inline]
            fn end(self) -> Result<usize, CodecError> {
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

/// Writer of the entries of a map.
pub(super) struct MapWriter<'w, 'a> {
    to: &'w mut OutputBuffer<'a>,
    /// Position of the next entry in the output.
    at: usize,
    /// Position of the map in the output.
    start: usize,
    len: usize,
    /// Number of keys that were written.
    count: usize,
    /// Position of the last key in the output.
    key: usize,
}

impl<'w, 'a> MapWriter<'w, 'a> {
    #[inline]
    pub(super) fn begin(mut writer: Writer<'w, 'a>, len: usize) -> Result<Self, CodecError> {
        let (start, at) = (writer.at, writer.on(writer.at).begin(ContainerKind::Map, len)?);
        Ok(Self { to: writer.to, at, start, len, count: 0, key: at })
    }
}

impl SerializeMap for MapWriter<'_, '_> {
    type Ok = usize;
    type Error = CodecError;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), CodecError> {
        let written = key.serialize(Writer { to: self.to, at: self.at });
        let end = written.map_err(|e| e.in_field("a key"))?;
        (self.key, self.at, self.count) = (self.at, end, self.count + 1);
        Ok(())
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CodecError> {
        match value.serialize(Writer { to: self.to, at: self.at }) {
            Ok(end) => {
                self.at = end;
                Ok(())
            }
            Err(e) => {
                let e = e.in_entry(self.to.written(self.key..self.at));
                // Removes the key of the failed value, in case the type continues after the error.
                (self.at, self.count) = (self.key, self.count.saturating_sub(1));
                Err(e)
            }
        }
    }

    #[inline]
    fn end(self) -> Result<usize, CodecError> {
        Writer { to: self.to, at: self.at }.end(ContainerKind::Map, self.start, self.len, self.count)
    }
}

/// Writer of the fields of a struct, with their names.
pub(super) struct StructWriter<'w, 'a> {
    to: &'w mut OutputBuffer<'a>,
    /// Position of the next field in the output.
    at: usize,
    /// Position of the struct in the output.
    start: usize,
    len: usize,
    count: usize,
    variant: Option<&'static str>,
}

impl<'w, 'a> StructWriter<'w, 'a> {
    #[inline]
    pub(super) fn begin(
        mut writer: Writer<'w, 'a>,
        len: usize,
        variant: Option<&'static str>,
    ) -> Result<Self, CodecError> {
        let (start, at) = (writer.at, writer.on(writer.at).begin(ContainerKind::Map, len)?);
        Ok(Self { to: writer.to, at, start, len, count: 0, variant })
    }

    #[inline]
    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), CodecError> {
        let at = Writer { to: self.to, at: self.at }.name(name)?;
        let written = value.serialize(Writer { to: self.to, at });
        self.at = written.map_err(|e| in_variant(e.in_field(name), self.variant))?;
        self.count += 1;
        Ok(())
    }

    #[inline]
    fn finish(self) -> Result<usize, CodecError> {
        if self.variant.is_some() {
            self.to.leave();
        }
        Writer { to: self.to, at: self.at }.end(ContainerKind::Map, self.start, self.len, self.count)
    }
}

macro_rules! fields {
    ($($t:ident)*) => {$(
        impl $t for StructWriter<'_, '_> {
            type Ok = usize;
            type Error = CodecError;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), CodecError> {
                self.field(name, value)
            }

            #[inline]
            fn end(self) -> Result<usize, CodecError> {
                self.finish()
            }
        }
    )*};
}

fields! { SerializeStruct SerializeStructVariant }
