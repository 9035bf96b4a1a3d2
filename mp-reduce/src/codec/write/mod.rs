//! Writer of MessagePack with the names of fields. The output is that of `rmp_serde`, with these differences:
//!
//! - `None`, `Some(None)` and `Some(())` are distinct ([`first::JUST`](super::first::JUST)). A unit struct is
//!   nil, like `()`. All of these values can be read where serde buffers values.
//! - Levels of nesting are counted, in the same way as in [`read`](super::read).
//! - Types with a human-readable form are written in that form. Where serde buffers values, it reads them in
//!   that form, whatever the format reports.
//! - The length of a sequence or map is the number of elements written, even if the type has announced
//!   another number.

mod output;
mod parts;

use std::cell::Cell;

use serde::ser::{Error as _, Serialize, Serializer};

use super::buffer::{self, BufferKind, NumberKind};
use super::error::CodecError;
use super::first;
use super::number::NumberSink;
use output::OutputBuffer;
pub(super) use output::ValueProperties;
use parts::{MapWriter, SequenceWriter, StructWriter};

/// Appends a value to `to`. The value may use nesting levels until `last` levels are left. Returns the
/// properties of the value that some readers can't represent.
///
/// # Errors
/// Returns the error of the value's `Serialize`, or an error if the value is nested too deeply. In both
/// cases, nothing is appended.
#[inline]
pub(super) fn append<T: Serialize + ?Sized>(
    to: &mut Vec<u8>,
    (left, last): (&Cell<u16>, u16),
    value: &T,
) -> Result<ValueProperties, CodecError> {
    let start = to.len();
    let mut output = OutputBuffer::new(to, left, last);
    let written = value.serialize(Writer { to: &mut output, at: start });
    let what = output.written;
    output.end(*written.as_ref().unwrap_or(&start));
    written.map(|_| what)
}

/// Appends the bytes of a buffer to a message, in place of a reference to an attachment.
pub(super) fn append_here(to: &mut Vec<u8>, what: BufferKind, bytes: &[u8]) -> Option<()> {
    let (start, left) = (to.len(), Cell::new(0));
    let mut output = OutputBuffer::new(to, &left, 0);
    let writer = Writer { to: &mut output, at: start };
    let at = match what {
        BufferKind::Row(kind) => Ok(writer.put(&buffer::head(kind, bytes.len()))),
        BufferKind::Text => writer.long(first::STR_8 + 1, bytes.len()),
        BufferKind::Bytes => writer.long(first::BIN_8 + 1, bytes.len()),
    };
    let end = at.ok().map(|at| output.put(at, bytes));
    output.end(end.unwrap_or(start));
    end.map(drop)
}

/// Writer of one value at a position in the output. Each method returns the position after the value.
///
/// The writer is passed by value, so that the position stays in a register. If the position were in memory,
/// each value would wait until the previous position is stored. That would dominate the time for a struct of
/// short fields.
struct Writer<'w, 'a> {
    to: &'w mut OutputBuffer<'a>,
    at: usize,
}

impl<'a> Writer<'_, 'a> {
    /// Returns a writer at position `at` of the same output.
    #[inline]
    fn on(&mut self, at: usize) -> Writer<'_, 'a> {
        Writer { to: self.to, at }
    }

    #[inline]
    fn put(self, bytes: &[u8]) -> usize {
        self.to.put(self.at, bytes)
    }

    #[inline]
    fn byte(self, byte: u8) -> usize {
        self.to.put_few(self.at, byte, [])
    }

    /// Writes a first byte and a length of two or four bytes. `sixteen` is the first byte for a length of two
    /// bytes. The first byte for four bytes is one higher.
    #[inline]
    fn long(self, sixteen: u8, len: usize) -> Result<usize, CodecError> {
        match (u16::try_from(len), u32::try_from(len)) {
            (Ok(len), _) => Ok(self.after(sixteen, len.to_be_bytes())),
            (_, Ok(len)) => Ok(self.after(sixteen + 1, len.to_be_bytes())),
            _ => Err(too_long()),
        }
    }

    #[inline]
    fn text(mut self, text: &str) -> Result<usize, CodecError> {
        let here = self.on(self.at);
        let at = match text.len() {
            len @ 0..32 => {
                return Ok(self.to.put_headed(self.at, first::SHORT_STR | len as u8, text.as_bytes()));
            }
            len @ 32..256 => here.after(first::STR_8, [len as u8]),
            len => match buffer::attach(BufferKind::Text, text.as_bytes()) {
                Some(head) => return Ok(here.put(&head)),
                None => here.long(first::STR_8 + 1, len)?,
            },
        };
        Ok(self.to.put(at, text.as_bytes()))
    }

    /// Writes the name of a field or variant. The name is known at compile time, so its bytes are written as
    /// constants.
    #[inline]
    fn name(self, name: &'static str) -> Result<usize, CodecError> {
        if name.len() >= 32 {
            return self.text(name);
        }
        Ok(self.to.put_headed(self.at, first::SHORT_STR | name.len() as u8, name.as_bytes()))
    }

    #[inline]
    fn bytes(mut self, bytes: &[u8]) -> Result<usize, CodecError> {
        let here = self.on(self.at);
        let at = match u8::try_from(bytes.len()) {
            Ok(len) => here.after(first::BIN_8, [len]),
            Err(_) => match buffer::attach(BufferKind::Bytes, bytes) {
                Some(head) => return Ok(here.put(&head)),
                None => here.long(first::BIN_8 + 1, bytes.len())?,
            },
        };
        Ok(self.to.put(at, bytes))
    }

    /// Writes a row of numbers.
    fn row(mut self, kind: NumberKind, bytes: &[u8]) -> Result<usize, CodecError> {
        self.to.enter()?;
        self.to.leave();
        self.to.written.wide |= kind.is_wide();
        if let Some(head) = buffer::attach(BufferKind::Row(kind), bytes) {
            return Ok(self.put(&head));
        }
        let at = self.on(self.at).put(&buffer::head(kind, bytes.len()));
        Ok(self.to.put(at, bytes))
    }

    /// Writes the head of a sequence with `len` elements, or of a map with `len` entries.
    #[inline]
    fn head(self, kind: ContainerKind, len: usize) -> Result<usize, CodecError> {
        match len {
            0..16 => Ok(self.byte(kind.short() | len as u8)),
            _ => self.long(kind.sixteen(), len),
        }
    }

    /// Begins a sequence or map: enters a nesting level and writes the head for `len` elements or entries. If
    /// the length is wrong, [`end`](Self::end) corrects it.
    #[inline]
    fn begin(self, kind: ContainerKind, len: usize) -> Result<usize, CodecError> {
        self.to.enter()?;
        self.head(kind, len)
    }

    /// Ends a sequence or map that began at `start`, with a head for `len` elements or entries. `count` is
    /// their actual number.
    #[inline]
    fn end(self, kind: ContainerKind, start: usize, len: usize, count: usize) -> Result<usize, CodecError> {
        self.to.leave();
        if count == len { Ok(self.at) } else { self.amend(kind, start, len, count) }
    }

    /// Replaces the head at `start` for `len` elements or entries by the head for `count`.
    #[inline(never)]
    fn amend(self, kind: ContainerKind, start: usize, len: usize, count: usize) -> Result<usize, CodecError> {
        let size = |len| {
            if len < 16 {
                1
            } else if len <= usize::from(u16::MAX) {
                3
            } else {
                5
            }
        };
        let (from, to) = (start + size(len), start + size(count));
        let end = if from == to { self.at } else { self.to.shift(self.at, from, to) };
        Writer { to: self.to, at: start }.head(kind, count)?;
        Ok(end)
    }

    /// Begins an enum variant with content: writes the head of a map with one entry, and the variant's name
    /// as the key. Returns the position at which the content is to be written.
    #[inline]
    fn variant(mut self, name: &'static str) -> Result<usize, CodecError> {
        self.to.enter()?;
        let at = self.on(self.at).byte(first::SHORT_MAP | 1);
        self.on(at).name(name)
    }

    /// Writes an extension value, by `rmp_serde`.
    #[cold]
    fn extension<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<usize, CodecError> {
        self.to.append(self.at, |to| {
            rmp_serde::Serializer::new(to).serialize_newtype_struct(name, value).map_err(CodecError::custom)
        })
    }
}

impl NumberSink for Writer<'_, '_> {
    type Written = usize;

    #[inline]
    fn after<const N: usize>(self, first: u8, bytes: [u8; N]) -> usize {
        self.to.put_few(self.at, first, bytes)
    }
}

/// Kind of a value with elements: a sequence or a map.
#[derive(Clone, Copy)]
enum ContainerKind {
    Array,
    Map,
}

impl ContainerKind {
    #[inline]
    fn short(self) -> u8 {
        match self {
            ContainerKind::Array => first::SHORT_ARRAY,
            ContainerKind::Map => first::SHORT_MAP,
        }
    }

    #[inline]
    fn sixteen(self) -> u8 {
        match self {
            ContainerKind::Array => first::ARRAY_16,
            ContainerKind::Map => first::MAP_16,
        }
    }
}

#[cold]
fn too_long() -> CodecError {
    CodecError::custom("something with more than 4,294,967,295 bytes or elements: put it in a tensor")
}

/// Implements methods that write a number as the widest type of its kind.
macro_rules! numbers {
    ($($method:ident: $t:ty, $as:ident;)*) => {$(
        #[inline]
        fn $method(self, n: $t) -> Result<usize, CodecError> {
            Ok(self.$as(n.into()))
        }
    )*};
}

impl<'w, 'a> Serializer for Writer<'w, 'a> {
    type Ok = usize;
    type Error = CodecError;
    type SerializeSeq = SequenceWriter<'w, 'a>;
    type SerializeTuple = SequenceWriter<'w, 'a>;
    type SerializeTupleStruct = SequenceWriter<'w, 'a>;
    type SerializeTupleVariant = SequenceWriter<'w, 'a>;
    type SerializeMap = MapWriter<'w, 'a>;
    type SerializeStruct = StructWriter<'w, 'a>;
    type SerializeStructVariant = StructWriter<'w, 'a>;

    numbers! {
        serialize_u8: u8, unsigned; serialize_u16: u16, unsigned;
        serialize_u32: u32, unsigned; serialize_u64: u64, unsigned;
        serialize_i8: i8, signed; serialize_i16: i16, signed;
        serialize_i32: i32, signed; serialize_i64: i64, signed;
    }

    #[inline]
    fn serialize_bool(self, v: bool) -> Result<usize, CodecError> {
        Ok(self.byte(if v { first::TRUE } else { first::FALSE }))
    }

    fn serialize_i128(self, n: i128) -> Result<usize, CodecError> {
        self.to.written.wide = true;
        self.bytes(&n.to_be_bytes())
    }

    fn serialize_u128(self, n: u128) -> Result<usize, CodecError> {
        self.to.written.wide = true;
        self.bytes(&n.to_be_bytes())
    }

    #[inline]
    fn serialize_f32(self, v: f32) -> Result<usize, CodecError> {
        Ok(self.after(first::F32, v.to_be_bytes()))
    }

    #[inline]
    fn serialize_f64(self, v: f64) -> Result<usize, CodecError> {
        Ok(self.after(first::F64, v.to_be_bytes()))
    }

    #[inline]
    fn serialize_char(self, c: char) -> Result<usize, CodecError> {
        self.text(c.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<usize, CodecError> {
        self.text(text)
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<usize, CodecError> {
        self.bytes(bytes)
    }

    #[inline]
    fn serialize_none(self) -> Result<usize, CodecError> {
        Ok(self.byte(first::NIL))
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Result<usize, CodecError> {
        self.to.enter()?;
        let (start, end) = (self.at, value.serialize(self.on(self.at))?);
        self.to.leave();
        // A buffer gets no prefix, because its second byte is another byte.
        match self.to.written(start..end) {
            [first::NIL, ..] | [first::JUST, first::NIL | first::JUST, ..] => {
                let end = self.to.shift(end, start, start + 1);
                self.to.put_few(start, first::JUST, []);
                Ok(end)
            }
            _ => Ok(end),
        }
    }

    #[inline]
    fn serialize_unit(self) -> Result<usize, CodecError> {
        self.serialize_none()
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<usize, CodecError> {
        self.serialize_none()
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<usize, CodecError> {
        self.name(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        mut self,
        name: &'static str,
        value: &T,
    ) -> Result<usize, CodecError> {
        if name == rmp_serde::MSGPACK_EXT_STRUCT_NAME {
            return self.extension(name, value);
        }
        self.to.enter()?;
        let end = value.serialize(self.on(self.at))?;
        self.to.leave();
        Ok(end)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<usize, CodecError> {
        let at = self.on(self.at).variant(variant)?;
        let end = value.serialize(self.on(at)).map_err(|e| e.in_field(variant))?;
        self.to.leave();
        Ok(end)
    }

    /// Writes a slice or `Vec` of numbers at once, and other sequences element by element.
    #[inline]
    fn collect_seq<I: IntoIterator<Item: Serialize>>(self, all: I) -> Result<usize, CodecError> {
        if let Some((kind, bytes)) = buffer::row_of(&all)
            && bytes.len() >= buffer::ROW
        {
            return self.row(kind, bytes);
        }
        let mut elements = all.into_iter();
        let len = match elements.size_hint() {
            (least, Some(most)) if least == most => least,
            _ => 0,
        };
        let mut to = SequenceWriter::begin(self, len, None)?;
        elements.try_for_each(|element| to.element(&element))?;
        to.finish()
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<SequenceWriter<'w, 'a>, CodecError> {
        SequenceWriter::begin(self, len.unwrap_or(0), None)
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<SequenceWriter<'w, 'a>, CodecError> {
        SequenceWriter::begin(self, len, None)
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        len: usize,
    ) -> Result<SequenceWriter<'w, 'a>, CodecError> {
        SequenceWriter::begin(self, len, None)
    }

    #[inline]
    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<SequenceWriter<'w, 'a>, CodecError> {
        let at = self.on(self.at).variant(variant)?;
        SequenceWriter::begin(Writer { to: self.to, at }, len, Some(variant))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<MapWriter<'w, 'a>, CodecError> {
        MapWriter::begin(self, len.unwrap_or(0))
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<StructWriter<'w, 'a>, CodecError> {
        StructWriter::begin(self, len, None)
    }

    #[inline]
    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<StructWriter<'w, 'a>, CodecError> {
        let at = self.on(self.at).variant(variant)?;
        StructWriter::begin(Writer { to: self.to, at }, len, Some(variant))
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
