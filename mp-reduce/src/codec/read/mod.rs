//! Reads MessagePack: everything that [`write`](super::write) writes, and the output of `rmp_serde` with the
//! names of fields and in human-readable form.
//!
//! `rmp_serde` reads every value as if it could be of any kind, and checks the name of each field for
//! UTF-8. These checks would take most of the time of receiving a message. Each method of this reader first
//! checks for the encoding of its own kind. All other encodings are read by [`any`](ValueReader::any). The
//! name of the expected next field is not checked for UTF-8, since it is compared with the known name.
//!
//! The bytes may come from any process. A length that exceeds the remaining bytes is an error before memory
//! is allocated for it (each value has at least one byte). A value that is nested too deeply for a thread's
//! stack is an error, too.

mod deserializer;
mod extension;
mod parts;
mod scalar;
mod utf8;

use std::cell::Cell;

use mp_core::message::Buffer;
use mp_core::message::nesting_depth::{self, MAX_NESTING, SHALLOW};
use serde::de::value::SeqDeserializer;
use serde::de::{Error as _, Visitor};

use super::buffer::{self, AttachmentList, BufferKind, NumberKind, NumberRow};
use super::error::{CodecError, too_deep, too_short};
use super::first;
use extension::ExtensionReader;
use parts::{MapReader, SequenceReader};
use scalar::ScalarOrFirst;

/// Reads a value from the beginning of `bytes`.
#[inline]
pub(super) fn from_slice<T: serde::de::DeserializeOwned>(
    bytes: &[u8],
    left: &Cell<u16>,
) -> Result<T, CodecError> {
    let kept = AttachmentList::default();
    T::deserialize(&mut ValueReader { rest: bytes, message: &ReadState { left, kept: Cell::new(&kept) } })
}

/// Returns the map key at the beginning of these bytes as text, for the path in an error. The key may be a
/// text or a number.
#[cold]
fn text_of(bytes: &[u8]) -> String {
    struct KeyVisitor;
    impl Visitor<'_> for KeyVisitor {
        type Value = String;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a text or a number")
        }
        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.escape_debug().take(100).collect())
        }
        fn visit_u64<E>(self, n: u64) -> Result<String, E> {
            Ok(n.to_string())
        }
        fn visit_i64<E>(self, n: i64) -> Result<String, E> {
            Ok(n.to_string())
        }
    }
    let kept = AttachmentList::default();
    let message = ReadState { left: &Cell::new(1), kept: Cell::new(&kept) };
    let mut reader = ValueReader { rest: bytes, message: &message };
    reader.any(KeyVisitor).unwrap_or_else(|_| "(a key that is no text)".into())
}

impl CodecError {
    /// Adds the entry that contains the error to the path. Its key, such as a field's name, is at the
    /// beginning of `key`.
    #[cold]
    pub(super) fn in_entry(self, key: &[u8]) -> Self {
        let name = text_of(key);
        self.in_field(&name)
    }
}

/// Reader of a value: the bytes that were not read yet.
///
/// serde passes a reader by reference, so the reader has to be in memory. To keep the position in a register
/// anyway, each nested value is read by a [copy](Self::with_copy) of the reader. Otherwise, reading a value
/// would wait until the previous position is stored in memory.
#[derive(Clone, Copy)]
struct ValueReader<'de, 'l> {
    rest: &'de [u8],
    message: &'l ReadState<'de, 'l>,
}

/// State that all readers of one message share.
struct ReadState<'de, 'l> {
    /// Number of nesting levels that values may still enter.
    left: &'l Cell<u16>,
    /// End of the list that owns the attached buffers.
    kept: Cell<&'de AttachmentList>,
}

/// Buffer that was read: its kind and its bytes.
struct ReadBuffer<'de> {
    what: BufferKind,
    bytes: &'de [u8],
    /// Memory of an attached buffer, or `None` if the bytes are in the message.
    #[cfg_attr(not(feature = "bytes"), expect(dead_code, reason = "read where memory can be kept"))]
    memory: Option<&'de Buffer>,
}

/// Beginning of a value that is to be read as a sequence.
enum SequenceHead<'de> {
    /// Number of elements, which follow.
    Length(usize),
    /// Byte string, whose bytes are the elements.
    Bytes(&'de [u8]),
    /// Buffer, which was not read yet.
    Buffer,
    /// Value of another kind, which was not read yet.
    Other,
}

impl<'de> ValueReader<'de, '_> {
    /// Calls `read` with a copy of this reader. This reader then continues at the position of the copy.
    #[inline(always)]
    fn with_copy<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let mut copy = *self;
        let value = read(&mut copy);
        self.rest = copy.rest;
        value
    }

    #[inline]
    fn enter(&mut self) -> Result<(), CodecError> {
        if nesting_depth::try_enter(self.message.left) { Ok(()) } else { Err(too_deep(self.message.left, 0)) }
    }

    #[inline]
    fn leave(&mut self) {
        let left = self.message.left;
        left.set(left.get() + 1);
    }

    #[inline]
    fn first(&self) -> Result<u8, CodecError> {
        self.rest.first().copied().ok_or_else(too_short)
    }

    /// Skips the first byte, which was already checked.
    #[inline]
    fn skip_byte(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or_else(too_short)?;
        self.rest = rest;
        Ok(*array)
    }

    /// Skips the first byte and returns the `N` bytes after it.
    #[inline]
    fn after_first<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.skip_byte();
        self.array()
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'de [u8], CodecError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(too_short)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Skips the first byte and reads the length after it. The length has one byte for `size` 0, two bytes
    /// for 1, and four bytes for any larger `size`.
    fn length(&mut self, size: u8) -> Result<usize, CodecError> {
        Ok(match size {
            0 => self.after_first::<1>()?[0].into(),
            1 => u16::from_be_bytes(self.after_first()?).into(),
            _ => u32::from_be_bytes(self.after_first()?) as usize,
        })
    }

    /// Reads the bytes of a text or byte string, whose length is encoded with this `size`: see
    /// [`length`](Self::length).
    fn long(&mut self, size: u8) -> Result<&'de [u8], CodecError> {
        let len = self.length(size)?;
        self.bytes(len)
    }

    #[inline]
    fn text<V: Visitor<'de>>(&mut self, bytes: &'de [u8], visitor: V) -> Result<V::Value, CodecError> {
        visitor.visit_borrowed_str(utf8::text(bytes).map_err(CodecError::custom)?)
    }

    #[inline]
    fn sequence<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, CodecError> {
        if len > self.rest.len() {
            return Err(too_short());
        }
        self.enter()?;
        let mut all = SequenceReader { reader: *self, left: len, len };
        let value = visitor.visit_seq(&mut all);
        let left = all.left;
        self.rest = all.reader.rest;
        self.leave();
        if left == 0 {
            value
        } else {
            value.and_then(|_| Err(CodecError::invalid_length(len, &"fewer elements")))
        }
    }

    #[inline]
    fn map<V: Visitor<'de>>(
        &mut self,
        len: usize,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        if len > self.rest.len() / 2 {
            return Err(too_short());
        }
        self.enter()?;
        let mut all = MapReader { key: self.rest, reader: *self, left: len, names };
        let value = visitor.visit_map(&mut all);
        let left = all.left;
        self.rest = all.reader.rest;
        self.leave();
        if left == 0 {
            value
        } else {
            value.and_then(|_| Err(CodecError::invalid_length(len, &"fewer entries")))
        }
    }

    /// Returns `true` if the next value is a buffer.
    #[inline]
    fn at_buffer(&self) -> bool {
        match *self.rest {
            [first::JUST, second, ..] => !matches!(second, first::NIL | first::JUST),
            _ => false,
        }
    }

    /// Reads the next value, which is a buffer.
    fn buffer(&mut self) -> Result<ReadBuffer<'de>, CodecError> {
        let [code] = self.after_first()?;
        let (what, is_attached) = buffer::decode_kind(code)?;
        let len = u64::from_le_bytes(self.array()?);
        let memory = if is_attached {
            let arrived = buffer::take_attachment(u32::from_le_bytes(self.array()?), len)?;
            Some(AttachmentList::push(&self.message.kept, arrived))
        } else {
            None
        };
        let bytes = match memory {
            Some(memory) => memory.as_ref(),
            None => self.bytes(usize::try_from(len).map_err(|_| too_short())?)?,
        };
        if let BufferKind::Row(kind) = what
            && !bytes.len().is_multiple_of(kind.size())
        {
            return Err(CodecError::message(format!(
                "{} bytes are not a whole number of numbers of {} bytes",
                bytes.len(),
                kind.size()
            )));
        }
        Ok(ReadBuffer { what, bytes, memory })
    }

    /// Reads a buffer where the type does not request a kind.
    #[cold]
    fn any_buffer<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        let ReadBuffer { what, bytes, .. } = self.buffer()?;
        match what {
            BufferKind::Row(kind) => self.row(kind, bytes, visitor),
            BufferKind::Text => self.text(bytes, visitor),
            BufferKind::Bytes => visitor.visit_borrowed_bytes(bytes),
        }
    }

    /// Reads a buffer where the type requests a sequence.
    fn buffer_sequence<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        let ReadBuffer { what, bytes, .. } = self.buffer()?;
        match what {
            BufferKind::Row(kind) => match buffer::whole::<V>(kind, bytes) {
                Some(all) => self.wrapped(|_| Ok(all)),
                None => self.row(kind, bytes, visitor),
            },
            BufferKind::Text => self.text(bytes, visitor),
            BufferKind::Bytes => visitor.visit_seq(SeqDeserializer::new(bytes.iter().copied())),
        }
    }

    /// Reads the numbers of a row one by one.
    #[inline]
    fn row<V: Visitor<'de>>(
        &mut self,
        kind: NumberKind,
        bytes: &[u8],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        self.enter()?;
        let mut row = NumberRow::new(kind, bytes, self.message.left);
        let value = visitor.visit_seq(&mut row);
        self.leave();
        let end = row.end();
        value.and_then(|value| end.map(|()| value))
    }

    /// Reads the content of a value that has no bytes of its own, such as a newtype, and counts a nesting
    /// level for it.
    #[inline]
    fn wrapped<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, CodecError>) -> Result<T, CodecError> {
        self.enter()?;
        let value = self.with_copy(read);
        self.leave();
        value
    }

    /// Reads a value of another kind than the type has requested.
    #[inline(always)]
    fn fallback<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        self.with_copy(|reader| reader.any(visitor))
    }

    /// Reads a value of any kind, as its first byte determines.
    fn any<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        use first::*;
        match self.scalar()? {
            ScalarOrFirst::U8(n) => visitor.visit_u8(n),
            ScalarOrFirst::U16(n) => visitor.visit_u16(n),
            ScalarOrFirst::U32(n) => visitor.visit_u32(n),
            ScalarOrFirst::U64(n) => visitor.visit_u64(n),
            ScalarOrFirst::I8(n) => visitor.visit_i8(n),
            ScalarOrFirst::I16(n) => visitor.visit_i16(n),
            ScalarOrFirst::I32(n) => visitor.visit_i32(n),
            ScalarOrFirst::I64(n) => visitor.visit_i64(n),
            ScalarOrFirst::F32(n) => visitor.visit_f32(n),
            ScalarOrFirst::F64(n) => visitor.visit_f64(n),
            ScalarOrFirst::Unit => visitor.visit_unit(),
            ScalarOrFirst::Bool(value) => visitor.visit_bool(value),
            ScalarOrFirst::Text(bytes) => self.text(bytes, visitor),
            ScalarOrFirst::Bytes(bytes) => visitor.visit_borrowed_bytes(bytes),
            ScalarOrFirst::Extension(number, bytes) => {
                visitor.visit_newtype_struct(ExtensionReader::new(number, bytes))
            }
            ScalarOrFirst::First(JUST) if self.at_buffer() => self.any_buffer(visitor),
            ScalarOrFirst::First(JUST) => {
                self.skip_byte();
                self.check_shallow()?;
                self.wrapped(|reader| visitor.visit_some(reader))
            }
            ScalarOrFirst::First(first) => {
                self.check_shallow()?;
                match first {
                    SHORT_MAP..SHORT_ARRAY | MAP_16 | MAP_32 => self.any_map(&[], visitor),
                    _ => self.any_sequence(visitor),
                }
            }
        }
    }

    /// Returns an error if [`SHALLOW`] nesting levels are already in use. Called before a sequence, map or
    /// `Some` of unknown type: serde may buffer it, and the recursion in buffered values is not counted.
    #[inline]
    fn check_shallow(&self) -> Result<(), CodecError> {
        const LAST: u16 = MAX_NESTING - SHALLOW;
        let left = self.message.left;
        if left.get() > LAST { Ok(()) } else { Err(too_deep(left, LAST)) }
    }

    /// Reads a sequence, a byte string or a buffer as a sequence. Reads a value of another kind by
    /// [`fallback`](Self::fallback).
    #[inline]
    fn any_sequence<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        match self.sequence_head()? {
            SequenceHead::Length(len) => self.sequence(len, visitor),
            SequenceHead::Bytes(bytes) => visitor.visit_seq(SeqDeserializer::new(bytes.iter().copied())),
            SequenceHead::Buffer => self.with_copy(|reader| reader.buffer_sequence(visitor)),
            SequenceHead::Other => self.fallback(visitor),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sequence_head(&mut self) -> Result<SequenceHead<'de>, CodecError> {
        use first::*;
        Ok(match self.first()? {
            first @ SHORT_ARRAY..SHORT_STR => {
                self.skip_byte();
                SequenceHead::Length((first - SHORT_ARRAY).into())
            }
            first @ ARRAY_16..=ARRAY_32 => {
                SequenceHead::Length(self.with_copy(|reader| reader.length(first - ARRAY_16 + 1))?)
            }
            first @ BIN_8..=BIN_32 => {
                SequenceHead::Bytes(self.with_copy(|reader| reader.long(first - BIN_8))?)
            }
            JUST if self.at_buffer() => SequenceHead::Buffer,
            _ => SequenceHead::Other,
        })
    }

    /// Reads a map, whose keys are probably `names` in this order. Reads a value of another kind by
    /// [`fallback`](Self::fallback).
    #[inline]
    fn any_map<V: Visitor<'de>>(
        &mut self,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, CodecError> {
        match self.map_length()? {
            Some(len) => self.map(len, names, visitor),
            None => self.fallback(visitor),
        }
    }

    /// Reads the number of entries of a map. If the value is not a map, returns `None` and reads nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn map_length(&mut self) -> Result<Option<usize>, CodecError> {
        use first::*;
        Ok(match self.first()? {
            first @ SHORT_MAP..SHORT_ARRAY => {
                self.skip_byte();
                Some((first - SHORT_MAP).into())
            }
            first @ MAP_16..=MAP_32 => Some(self.with_copy(|reader| reader.length(first - MAP_16 + 1))?),
            _ => None,
        })
    }

    /// Reads a signed number. Reads a value of another kind by [`fallback`](Self::fallback).
    #[inline]
    fn signed<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        use first::*;
        let value = match self.first()? {
            first @ SMALL_NEGATIVE.. => {
                self.skip_byte();
                (first as i8).into()
            }
            I8 => i8::from_be_bytes(self.after_first()?).into(),
            I16 => i16::from_be_bytes(self.after_first()?).into(),
            I32 => i32::from_be_bytes(self.after_first()?).into(),
            I64 => i64::from_be_bytes(self.after_first()?),
            // Numbers that are not negative are written as unsigned numbers.
            _ => return self.unsigned(visitor),
        };
        visitor.visit_i64(value)
    }

    /// Reads an unsigned number. Reads a value of another kind by [`fallback`](Self::fallback).
    #[inline]
    fn unsigned<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        use first::*;
        let value = match self.first()? {
            first @ SMALL..SHORT_MAP => {
                self.skip_byte();
                first.into()
            }
            U8 => self.after_first::<1>()?[0].into(),
            U16 => u16::from_be_bytes(self.after_first()?).into(),
            U32 => u32::from_be_bytes(self.after_first()?).into(),
            U64 => u64::from_be_bytes(self.after_first()?),
            _ => return self.fallback(visitor),
        };
        visitor.visit_u64(value)
    }

    /// Reads a text. Reads a value of another kind by [`fallback`](Self::fallback).
    #[inline]
    fn any_text<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        use first::*;
        match self.first()? {
            first @ SHORT_STR..NIL => {
                self.skip_byte();
                let bytes = self.bytes((first - SHORT_STR).into())?;
                self.text(bytes, visitor)
            }
            _ => self.fallback(visitor),
        }
    }

    /// Skips the next value if it is the text `text` of less than 32 bytes. Returns `true` if it was skipped.
    #[inline]
    fn skip_text(&mut self, text: &str) -> bool {
        let Some((first, rest)) = self.rest.split_first() else { return false };
        // Checked before the texts are compared: most have another length.
        if text.len() >= 32 || *first != first::SHORT_STR | text.len() as u8 {
            return false;
        }
        match rest.split_at_checked(text.len()) {
            Some((found, rest)) if equal_bytes(found, text.as_bytes()) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
}

/// Returns `true` if two slices of the same length are equal. Names are too short for a call of `memcmp` to
/// be worthwhile.
#[inline]
fn equal_bytes(a: &[u8], b: &[u8]) -> bool {
    #[inline(always)]
    fn ends<const N: usize>(a: &[u8], b: &[u8]) -> bool {
        match (a.first_chunk::<N>(), b.first_chunk(), a.last_chunk::<N>(), b.last_chunk()) {
            (Some(a), Some(b), Some(end_of_a), Some(end_of_b)) => a == b && end_of_a == end_of_b,
            _ => a == b,
        }
    }
    match a.len() {
        8..=16 => ends::<8>(a, b),
        4..8 => ends::<4>(a, b),
        2..4 => ends::<2>(a, b),
        _ => a == b,
    }
}

#[cfg(feature = "bytes")]
impl<'de> ValueReader<'de, '_> {
    /// Reads a buffer as bytes that own their memory. An attached buffer that is read as `bytes::Bytes` keeps
    /// the shared memory in which it arrived, without a copy.
    fn shared_bytes<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, CodecError> {
        use buffer::{cast_value, id, visitor_of};
        let before = self.rest;
        if let ReadBuffer { what: BufferKind::Bytes, memory: Some(memory), .. } = self.buffer()?
            && visitor_of::<bytes::Bytes>() == Some(id::<V>())
            && let Some(shared) = cast_value(bytes::Bytes::from_owner(memory.clone()))
        {
            return Ok(shared);
        }
        self.rest = before;
        self.any(visitor)
    }
}

#[cfg(test)]
mod tests;
