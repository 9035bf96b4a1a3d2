//! Writing MessagePack, with the names of fields: as `rmp_serde` does, but that
//!
//! - `None`, `Some(None)` and `Some(())` are told apart ([`first::JUST`](super::first::JUST)), and a unit struct is nil as `()` is:
//!   both can be read from where serde buffers values;
//! - levels are counted, by the same count as in [`read`](super::read);
//! - types that have a form for people are written in it. Where serde buffers values, it reads them in that form, whatever the
//!   format says;
//! - lengths are those of what came, also where a type has announced another number of elements.

mod parts;

use std::cell::Cell;

use mp_core::message::level;
use serde::ser::{Error as _, Serialize, Serializer};

use super::buffer::{self, Plain, What};
use super::error::{Bad, too_deep};
use super::first;
use parts::{Elements, Entries, Fields};

/// Appends a value to `to`; whether it has a number of 128 bits in it, which can't be read where serde
/// buffers values.
#[inline]
pub(super) fn append<T: Serialize + ?Sized>(
    to: &mut Vec<u8>,
    left: &Cell<u16>,
    value: &T,
) -> Result<bool, Bad> {
    let mut writer = Writer { to, left, wide: false };
    value.serialize(&mut writer)?;
    Ok(writer.wide)
}

/// Appends a buffer where its attachment was.
pub(super) fn append_here(to: &mut Vec<u8>, what: What, bytes: &[u8]) -> Option<()> {
    let mut writer = Writer { to, left: &Cell::new(0), wide: false };
    match what {
        What::Row(kind) => writer.to.extend_from_slice(&buffer::head(kind, bytes.len())),
        What::Text => writer.long(first::STR_8 + 1, bytes.len()).ok()?,
        What::Bytes => writer.long(first::BIN_8 + 1, bytes.len()).ok()?,
    }
    writer.to.extend_from_slice(bytes);
    Some(())
}

struct Writer<'a> {
    to: &'a mut Vec<u8>,
    /// How many more levels may be entered.
    left: &'a Cell<u16>,
    /// Whether there was a number of 128 bits.
    wide: bool,
}

impl Writer<'_> {
    #[inline]
    fn enter(&mut self) -> Result<(), Bad> {
        if level::down(self.left) { Ok(()) } else { Err(too_deep(self.left)) }
    }

    #[inline]
    fn leave(&mut self) {
        self.left.set(self.left.get() + 1);
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.to.push(byte);
    }

    /// A first byte, and what follows it.
    #[inline]
    fn after<const N: usize>(&mut self, first: u8, bytes: [u8; N]) {
        let mut all = [first; 9];
        all[1..=N].copy_from_slice(&bytes);
        // At once, so that there is one look at the room that is left.
        self.to.extend_from_slice(&all[..=N]);
    }

    #[inline]
    fn unsigned(&mut self, n: u64) {
        match n {
            0..=0x7f => self.byte(n as u8),
            0x80..=0xff => self.after(first::U8, [n as u8]),
            0x100..=0xffff => self.after(first::U16, (n as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.after(first::U32, (n as u32).to_be_bytes()),
            _ => self.after(first::U64, n.to_be_bytes()),
        }
    }

    #[inline]
    fn signed(&mut self, n: i64) {
        match n {
            0.. => self.unsigned(n as u64),
            -0x20.. => self.byte(n as u8),
            -0x80.. => self.after(first::I8, [n as u8]),
            -0x8000.. => self.after(first::I16, (n as i16).to_be_bytes()),
            -0x8000_0000.. => self.after(first::I32, (n as i32).to_be_bytes()),
            _ => self.after(first::I64, n.to_be_bytes()),
        }
    }

    /// A length that does not fit into one byte with the kind; `sixteen` is the kind with two bytes for it,
    /// and the next one that with four.
    #[inline]
    fn long(&mut self, sixteen: u8, len: usize) -> Result<(), Bad> {
        match (u16::try_from(len), u32::try_from(len)) {
            (Ok(len), _) => self.after(sixteen, len.to_be_bytes()),
            (_, Ok(len)) => self.after(sixteen + 1, len.to_be_bytes()),
            _ => return Err(too_long()),
        }
        Ok(())
    }

    #[inline]
    fn text(&mut self, text: &str) -> Result<(), Bad> {
        match text.len() {
            len @ 0..32 => {
                // So that there is one look at the room for both.
                self.to.reserve(1 + len);
                self.byte(first::SHORT_STR | len as u8);
            }
            len @ 32..256 => self.after(first::STR_8, [len as u8]),
            _ if self.attaches(What::Text, text.as_bytes()) => return Ok(()),
            len => self.long(first::STR_8 + 1, len)?,
        }
        self.to.extend_from_slice(text.as_bytes());
        Ok(())
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Bad> {
        match u8::try_from(bytes.len()) {
            Ok(len) => self.after(first::BIN_8, [len]),
            _ if self.attaches(What::Bytes, bytes) => return Ok(()),
            _ => self.long(first::BIN_8 + 1, bytes.len())?,
        }
        self.to.extend_from_slice(bytes);
        Ok(())
    }

    /// Copies bytes beside the message, if they are long and it has room for them there: whether it did.
    #[inline]
    fn attaches(&mut self, what: What, bytes: &[u8]) -> bool {
        let Some(head) = buffer::attach(what, bytes) else { return false };
        self.to.extend_from_slice(&head);
        true
    }

    /// A row of numbers, all at once.
    fn row(&mut self, kind: Plain, bytes: &[u8]) -> Result<(), Bad> {
        self.enter()?;
        self.leave();
        self.wide |= kind.is_wide();
        if !self.attaches(What::Row(kind), bytes) {
            self.to.reserve(buffer::HEAD + bytes.len());
            self.to.extend_from_slice(&buffer::head(kind, bytes.len()));
            self.to.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Says that `len` elements, or entries of a map, follow.
    #[inline]
    fn head(&mut self, kind: Kind, len: usize) -> Result<(), Bad> {
        match len {
            0..16 => self.byte(kind.short() | len as u8),
            _ => self.long(kind.sixteen(), len)?,
        }
        Ok(())
    }

    /// A sequence or map begins: a level, announced with `len` elements or entries, which its end corrects.
    #[inline]
    fn begin(&mut self, kind: Kind, len: usize) -> Result<usize, Bad> {
        self.enter()?;
        let at = self.to.len();
        self.head(kind, len)?;
        Ok(at)
    }

    /// A sequence or map ends with `count` elements or entries. It began at `at`, with `len`.
    #[inline]
    fn end(&mut self, kind: Kind, at: usize, len: usize, count: usize) -> Result<(), Bad> {
        self.leave();
        if count == len { Ok(()) } else { self.amend(kind, at, len, count) }
    }

    /// There were more or fewer than were announced: corrects the length.
    #[inline(never)]
    fn amend(&mut self, kind: Kind, at: usize, len: usize, count: usize) -> Result<(), Bad> {
        if len < 16 && count < 16 {
            self.to[at] = kind.short() | count as u8;
            return Ok(());
        }
        let size = |len| {
            if len < 16 {
                1
            } else if len <= usize::from(u16::MAX) {
                3
            } else {
                5
            }
        };
        let mut head = Vec::with_capacity(5);
        let mut writer = Writer { to: &mut head, left: self.left, wide: false };
        writer.head(kind, count)?;
        self.to.splice(at..at + size(len), head);
        Ok(())
    }

    /// A variant with content: a map from its name to that.
    #[inline]
    fn variant(&mut self, name: &'static str) -> Result<(), Bad> {
        self.enter()?;
        self.byte(first::SHORT_MAP | 1);
        self.text(name)
    }

    /// Values that only `rmp_serde` knows how to write.
    #[cold]
    fn extension<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Bad> {
        let mut other = rmp_serde::Serializer::new(&mut *self.to);
        other.serialize_newtype_struct(name, value).map_err(Bad::custom)
    }
}

/// The kinds with elements.
#[derive(Clone, Copy)]
enum Kind {
    Array,
    Map,
}

impl Kind {
    #[inline]
    fn short(self) -> u8 {
        match self {
            Kind::Array => first::SHORT_ARRAY,
            Kind::Map => first::SHORT_MAP,
        }
    }

    #[inline]
    fn sixteen(self) -> u8 {
        match self {
            Kind::Array => first::ARRAY_16,
            Kind::Map => first::MAP_16,
        }
    }
}

#[cold]
fn too_long() -> Bad {
    Bad::custom("something with more than 4,294,967,295 bytes or elements: put it in a tensor")
}

/// Numbers, as the widest of their kind.
macro_rules! numbers {
    ($($method:ident: $t:ty, $as:ident;)*) => {$(
        #[inline]
        fn $method(self, n: $t) -> Result<(), Bad> {
            self.$as(n.into());
            Ok(())
        }
    )*};
}

impl<'w, 'a> Serializer for &'w mut Writer<'a> {
    type Ok = ();
    type Error = Bad;
    type SerializeSeq = Elements<'w, 'a>;
    type SerializeTuple = Elements<'w, 'a>;
    type SerializeTupleStruct = Elements<'w, 'a>;
    type SerializeTupleVariant = Elements<'w, 'a>;
    type SerializeMap = Entries<'w, 'a>;
    type SerializeStruct = Fields<'w, 'a>;
    type SerializeStructVariant = Fields<'w, 'a>;

    numbers! {
        serialize_u8: u8, unsigned; serialize_u16: u16, unsigned; serialize_u32: u32, unsigned; serialize_u64: u64, unsigned;
        serialize_i8: i8, signed; serialize_i16: i16, signed; serialize_i32: i32, signed; serialize_i64: i64, signed;
    }

    #[inline]
    fn serialize_bool(self, v: bool) -> Result<(), Bad> {
        self.byte(if v { first::TRUE } else { first::FALSE });
        Ok(())
    }

    fn serialize_i128(self, n: i128) -> Result<(), Bad> {
        self.wide = true;
        self.bytes(&n.to_be_bytes())
    }

    fn serialize_u128(self, n: u128) -> Result<(), Bad> {
        self.wide = true;
        self.bytes(&n.to_be_bytes())
    }

    #[inline]
    fn serialize_f32(self, v: f32) -> Result<(), Bad> {
        self.after(first::F32, v.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn serialize_f64(self, v: f64) -> Result<(), Bad> {
        self.after(first::F64, v.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn serialize_char(self, c: char) -> Result<(), Bad> {
        self.text(c.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Bad> {
        self.text(text)
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Bad> {
        Writer::bytes(self, bytes)
    }

    #[inline]
    fn serialize_none(self) -> Result<(), Bad> {
        self.byte(first::NIL);
        Ok(())
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Bad> {
        self.enter()?;
        let at = self.to.len();
        value.serialize(&mut *self)?;
        self.leave();
        // Not before a buffer, which begins with another byte behind that.
        if let [first::NIL, ..] | [first::JUST, first::NIL | first::JUST, ..] = self.to[at..] {
            self.to.insert(at, first::JUST);
        }
        Ok(())
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), Bad> {
        self.serialize_none()
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Bad> {
        self.serialize_none()
    }

    #[inline]
    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Bad> {
        self.text(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Bad> {
        if name == rmp_serde::MSGPACK_EXT_STRUCT_NAME {
            return self.extension(name, value);
        }
        self.enter()?;
        value.serialize(&mut *self)?;
        self.leave();
        Ok(())
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Bad> {
        self.variant(variant)?;
        value.serialize(&mut *self).map_err(|e| e.in_field(variant))?;
        self.leave();
        Ok(())
    }

    /// A slice or `Vec` of numbers goes at once, all others element by element.
    #[inline]
    fn collect_seq<I: IntoIterator<Item: Serialize>>(self, all: I) -> Result<(), Bad> {
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
        let mut to = Elements::begin(self, len, None)?;
        elements.try_for_each(|element| to.element(&element))?;
        to.finish()
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Elements<'w, 'a>, Bad> {
        Elements::begin(self, len.unwrap_or(0), None)
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Elements<'w, 'a>, Bad> {
        Elements::begin(self, len, None)
    }

    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Elements<'w, 'a>, Bad> {
        Elements::begin(self, len, None)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Elements<'w, 'a>, Bad> {
        self.variant(variant)?;
        Elements::begin(self, len, Some(variant))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Entries<'w, 'a>, Bad> {
        Entries::begin(self, len.unwrap_or(0))
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Fields<'w, 'a>, Bad> {
        Fields::begin(self, len, None)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Fields<'w, 'a>, Bad> {
        self.variant(variant)?;
        Fields::begin(self, len, Some(variant))
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        true
    }
}
