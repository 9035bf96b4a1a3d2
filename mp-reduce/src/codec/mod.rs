//! The codec: MessagePack with attachments.

mod buffer;
mod error;
mod first;
mod inline;
mod number;
mod read;
pub(crate) mod shared_parts;
mod write;

use std::cell::Cell;

use mp_core::message::nesting_depth::{MAX_NESTING, SHALLOW};
use mp_core::message::{
    Codec, Incoming, Outgoing, PlainNumber, SmallBytes, Undecodable, nesting_depth, scope, taken,
};
use mp_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use error::Cause;
pub(crate) use error::CodecError;
use write::ValueProperties;

/// Writes each value as its length and its MessagePack bytes. A length below 255 is one byte. A longer one is
/// a byte 255 followed by four bytes, little-endian.
///
/// Structs are written with the names of their fields. So omitted fields (`skip_serializing_if`) and enums
/// that are distinguished by their fields are read correctly. Types with a human-readable form
/// (`is_human_readable`, such as addresses and times) are written in that form, since serde expects that form
/// wherever it buffers values, in all formats.
///
/// Differs from MessagePack in `c1`, which MessagePack leaves unused. That byte marks `Some` of an empty
/// value (`Some(None)`, `Some(())`), or a buffer. A buffer contains the numbers of a long `Vec` or slice in
/// their memory representation, written by one `memcpy`. In a message that stays in the arena, rows of
/// numbers, texts and byte strings of 16 KiB or more are copied into separate blocks, which are attached to
/// the message.
#[derive(Clone, Copy, Debug)]
pub struct MessagePack;

/// Value of the first byte of a length that takes five bytes.
const MORE: u8 = 255;
/// Number of bytes of a length that does not fit into one byte.
const LONG: usize = 5;
/// Number of bytes between the length of a value and the contents of a short byte string: its kind and its
/// own length.
const BYTES_HEAD: usize = 2;

/// Value that is serialized as a byte string.
struct ByteStringValue<'a>(&'a [u8]);

impl Serialize for ByteStringValue<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_bytes(self.0)
    }
}

thread_local! {
    /// `true` if this thread's last value had a length of five bytes. Room for such a length is then reserved
    /// before the next value. Without the reserved room, the bytes of a long value are moved after they are
    /// written.
    static LAST_WAS_LONG: Cell<bool> = const { Cell::new(false) };
}

impl Codec for MessagePack {
    #[inline]
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()> {
        write(out, value, MAX_NESTING - SHALLOW, |_, _| Ok(()))
    }

    #[inline]
    fn write_whole<T: Serialize + DeserializeOwned>(out: &mut Outgoing, value: &T) -> Result<()> {
        write(out, value, 0, verify_readable::<T>)
    }

    // The kind of the number is known at compile time.
    #[inline(always)]
    fn write_number(out: &mut Outgoing, number: PlainNumber) -> Result<()> {
        number::append(out.bytes(), number);
        Ok(())
    }

    #[inline(always)]
    fn number_to_small_bytes(number: PlainNumber) -> Option<SmallBytes> {
        let mut few = SmallBytes::default();
        number::append(&mut few, number);
        Some(few)
    }

    #[inline(always)]
    fn write_wide_number(out: &mut Outgoing, number: PlainNumber, size: usize) -> Result<()> {
        number::append_wide(out.bytes(), number, size);
        Ok(())
    }

    #[inline]
    fn write_bytes(out: &mut Outgoing, bytes: &[u8]) -> Result<()> {
        match u8::try_from(bytes.len() + BYTES_HEAD) {
            Ok(len) if len < MORE => {
                let to = out.bytes();
                to.extend_from_slice(&[len, first::BIN_8, bytes.len() as u8]);
                to.extend_from_slice(bytes);
                Ok(())
            }
            _ => Self::write(out, &ByteStringValue(bytes)),
        }
    }

    #[inline]
    fn read_bytes<T: DeserializeOwned>(
        inc: &mut Incoming,
        read: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let (head, len) = split_length(inc.rest())?;
        let value = match &inc.rest()[head..head + len] {
            [first::BIN_8, n, bytes @ ..] if usize::from(*n) == bytes.len() => read(bytes)?,
            _ => return Self::read(inc),
        };
        inc.advance(head + len);
        Ok(value)
    }

    #[inline]
    fn read_small_bytes(inc: &mut Incoming, read: impl FnOnce(&[u8]) -> Result<()>) -> Result<bool> {
        let (head, len) = split_length(inc.rest())?;
        match &inc.rest()[head..head + len] {
            [first::BIN_8, n, bytes @ ..] if usize::from(*n) == bytes.len() => read(bytes)?,
            _ => return Ok(false),
        }
        inc.advance(head + len);
        Ok(true)
    }

    #[inline]
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T> {
        let mut slot = None;
        Self::read_into(inc, &mut slot)?;
        taken(slot)
    }

    #[inline]
    fn read_into<T: DeserializeOwned>(inc: &mut Incoming, slot: &mut Option<T>) -> Result<()> {
        let (head, len) = split_length(inc.rest())?;
        inc.advance(head);
        let read = |bytes: &[u8]| {
            nesting_depth::with_message(|left| {
                match read::from_slice(shared_parts::record_parts(&bytes[..len])?, left) {
                    Ok(value) => {
                        *slot = Some(value);
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            })
        };
        let read: std::result::Result<(), CodecError> = scope::with_incoming(inc, read)?;
        inc.advance(len);
        read.map_err(|e| undecodable::<T>(&e, inc.whole()))
    }

    #[inline]
    fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
        let (head, len) = split_length(bytes)?;
        let value = &bytes[head..head + len];
        let read =
            || nesting_depth::with_message(|left| read::from_slice(shared_parts::record_parts(value)?, left));
        scope::with_nothing(read).map_err(|e| undecodable::<T>(&e, bytes))
    }

    #[inline]
    fn read_plain_number<T: DeserializeOwned + 'static>(bytes: &[u8]) -> Result<T> {
        // Most numbers were written by this codec in the short form.
        if let Some(value) = Self::read_quickly(bytes) {
            return Ok(value);
        }
        let (head, len) = split_length(bytes)?;
        let number = &bytes[head..head + len];
        if number.first() == Some(&first::JUST) {
            return Self::read_plain(bytes);
        }
        // A number has one level at most, and reading it calls no code that could enter others.
        let left = Cell::new(nesting_depth::MAX_NESTING);
        read::from_slice(number, &left).map_err(|e| undecodable::<T>(&e, bytes))
    }

    #[inline(always)]
    fn read_quickly<T: 'static>(bytes: &[u8]) -> Option<T> {
        match bytes {
            [len, number @ ..] if usize::from(*len) == number.len() => number::read(number),
            _ => None,
        }
    }
}

/// Appends a value after its length. The value may use nesting levels until `last` levels are left. Calls
/// `verify_readable` with the bytes if the value has properties that some readers can't represent.
#[inline]
fn write<T: Serialize + ?Sized>(
    out: &mut Outgoing,
    value: &T,
    last: u16,
    verify_readable: impl FnOnce(&[u8], ValueProperties) -> Result<()>,
) -> Result<()> {
    // The result is one word, also for an error: each caller would have to copy a larger result.
    let written = scope::with_outgoing(out, |bytes| append(bytes, value, last, verify_readable))?;
    written.map_err(|error| *error)
}

#[inline]
fn append<T: Serialize + ?Sized>(
    bytes: &mut Vec<u8>,
    value: &T,
    last: u16,
    verify_readable: impl FnOnce(&[u8], ValueProperties) -> Result<()>,
) -> std::result::Result<(), Box<Error>> {
    let (start, head) = begin(bytes);
    nesting_depth::with_message(|left| {
        let written = write::append(bytes, (left, last), value).map_err(|e| Box::new(unencodable(&e)))?;
        if written.wide || written.deep {
            verify_readable(&bytes[start + head..], written).map_err(Box::new)?;
        }
        shared_parts::insert_parts(bytes, start + head)
    })?;
    end(bytes, start, head)
}

/// Appends room for the length of a value. Returns the offset and the size of the room.
#[cfg_attr(not(debug_assertions), inline(always))]
fn begin(bytes: &mut Vec<u8>) -> (usize, usize) {
    let start = bytes.len();
    let head = if LAST_WAS_LONG.get() {
        bytes.extend_from_slice(&[MORE, 0, 0, 0, 0]);
        LONG
    } else {
        bytes.push(MORE);
        1
    };
    (start, head)
}

/// Writes the length of the value that was appended after [`begin`].
#[cfg_attr(not(debug_assertions), inline(always))]
fn end(bytes: &mut Vec<u8>, start: usize, head: usize) -> std::result::Result<(), Box<Error>> {
    let len = u32::try_from(bytes.len() - start - head).map_err(|_| too_long())?;
    if (head == LONG) != (len >= MORE.into()) {
        LAST_WAS_LONG.set(head != LONG);
    }
    match u8::try_from(len) {
        _ if head == LONG => bytes[start + 1..start + LONG].copy_from_slice(&len.to_le_bytes()),
        Ok(short) if short != MORE => bytes[start] = short,
        _ => drop(bytes.splice(start + 1..start + 1, len.to_le_bytes())),
    }
    Ok(())
}

#[cold]
fn too_long() -> Box<Error> {
    Box::new(Error::LimitExceeded("a value has more than 4 GiB: put it into a tensor".into()))
}

/// Checks by a decoding attempt that these bytes can be decoded as `T`. There are two reasons for the check.
/// Wherever serde buffers values, it can't read numbers of 128 bits, in any format. And a deeply nested value
/// may need more stack than a reader has, depending on its types. Neither can be seen in the bytes.
#[cold]
fn verify_readable<T: DeserializeOwned>(bytes: &[u8], written: ValueProperties) -> Result<()> {
    verify(std::any::type_name::<T>(), written, &|left| read::from_slice::<T>(bytes, left).map(drop))
}

/// Function that decodes a value and drops it. Its argument is the number of nesting levels that are left.
type Trial<'a> = &'a dyn Fn(&Cell<u16>) -> std::result::Result<(), CodecError>;

fn verify(name: &str, written: ValueProperties, read: Trial<'_>) -> Result<()> {
    let read = || nesting_depth::with_depth(read);
    let tried = shared_parts::with_written(|| {
        scope::with_written(|| {
            if written.deep {
                nesting_depth::with_reader_stack(read).unwrap_or_else(|| Err(unmeasured()))
            } else {
                read()
            }
        })
    });
    tried.or_else(|e| {
        if e.is_too_deep() {
            return Err(unencodable(&e));
        }
        // The receiver gets the same error, with the bytes.
        if !written.wide {
            return Ok(());
        }
        let why = e.located();
        Err(Error::Unsendable(format!(
            "a value of type {name} contains a number of 128 bits and can't be decoded: {why}; serde does \
             not support such numbers in untagged and internally tagged enums and in flattened fields: use \
             two numbers of 64 bits there, or a text"
        )))
    })
}

#[cold]
fn unmeasured() -> CodecError {
    CodecError::new(Cause::TooDeep(format!(
        "values are nested more than {SHALLOW} deep, and the stack that a receiver needs can't be measured, \
         since this code does not run on the stack of its thread: send them from another thread"
    )))
}

/// Encodes a value as bytes that become part of the message that is being written. The value's attachments
/// are attached to that message, and its nesting levels are added to the current depth of that message.
///
/// # Errors
/// Returns an error if the value's `Serialize` returns an error, or the value is nested too deeply.
pub fn to_part<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>> {
    let mut bytes = write_part::<T, T>(value).map_err(|e| unencodable(&e))?;
    bytes.shrink_to_fit();
    Ok(bytes)
}

/// Encodes a value like [`to_part`], for a reader that decodes a `B`.
pub(crate) fn write_part<T: Serialize + ?Sized, B: DeserializeOwned>(
    value: &T,
) -> std::result::Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::new();
    let written =
        nesting_depth::with_depth(|left| write::append(&mut bytes, (left, MAX_NESTING - SHALLOW), value))?;
    if written.wide {
        verify_readable::<B>(&bytes, written).map_err(CodecError::message)?;
    }
    Ok(bytes)
}

/// Decodes the output of [`write_part`] while the message that contains it is read.
pub(crate) fn read_part<B: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<B, CodecError> {
    nesting_depth::with_depth(|left| read::from_slice(bytes, left))
}

/// Decodes the output of [`to_part`] while the message that contains it is read.
///
/// # Errors
/// Returns [`Error::Undecodable`](mp_core::Error::Undecodable) if the bytes can't be decoded.
pub fn from_part<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    read_part(bytes).map_err(|e| undecodable::<T>(&e, bytes))
}

/// Returns all bytes of a message, including the bytes of attached buffers.
#[cold]
pub(crate) fn all_bytes(inc: &mut Incoming) -> Vec<u8> {
    let mut arrived = std::mem::take(inc.arrived());
    let all = inline::inline_attachments(inc.whole(), &mut arrived).unwrap_or_else(|| inc.whole().to_vec());
    *inc.arrived() = arrived;
    all
}

/// Writes the length that precedes a value.
fn write_length(to: &mut Vec<u8>, len: usize) -> Option<()> {
    match u8::try_from(len) {
        Ok(short) if short != MORE => to.push(short),
        _ => {
            to.push(MORE);
            to.extend_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
        }
    }
    Some(())
}

/// Reads the length of the first value. Returns the number of bytes of the length itself, and the number of
/// bytes of the value that follows.
#[inline]
fn split_length(bytes: &[u8]) -> Result<(usize, usize)> {
    let (head, len) = match *bytes {
        [MORE, a, b, c, d, ..] => (LONG, u32::from_le_bytes([a, b, c, d]) as usize),
        [MORE, ..] | [] => return Err(too_short()),
        [len, ..] => (1, usize::from(len)),
    };
    if bytes.len() - head < len { Err(too_short()) } else { Ok((head, len)) }
}

#[cold]
fn too_short() -> Error {
    Error::Malformed("a message is shorter than its type".into())
}

#[cold]
fn undecodable<T>(error: &CodecError, bytes: &[u8]) -> Error {
    Undecodable::of_value::<T>(error.path(), error.to_string(), bytes)
}

#[cold]
fn unencodable(error: &CodecError) -> Error {
    let why = format!("a value can't be encoded: {}", error.located());
    if error.is_too_deep() { Error::LimitExceeded(why) } else { Error::Unsendable(why) }
}

#[cfg(test)]
mod tests {
    use crate::{TypeFingerprint, from_bytes, to_bytes};

    /// Values whose lengths take one and five bytes, each written after a short and after a long value.
    /// Truncated messages, and lengths beyond the end of the message, are errors.
    #[test]
    fn messages_with_lengths_around_one_byte_round_trip() {
        let type_of = TypeFingerprint::<String>::new().get();
        let lengths = [0, 1, 100, 251, 252, 253, 254, 255, 256, 257, 70_000];
        for (before, now) in lengths.iter().flat_map(|&before| lengths.map(|now| (before, now))) {
            to_bytes(&mut "a".repeat(before)).unwrap();
            let value = "b".repeat(now);
            let bytes = to_bytes(&mut value.clone()).unwrap();
            assert_eq!(from_bytes::<String>(bytes.clone(), type_of).unwrap(), value, "{now} after {before}");
            for cut in (0..bytes.len()).filter(|cut| *cut < 10 || bytes.len() - cut < 3) {
                assert!(from_bytes::<String>(bytes[..cut].to_vec(), type_of).is_err(), "{cut} of {now}");
            }
        }
        assert!(from_bytes::<String>(vec![255, 255, 255, 255, 255, 1], type_of).is_err());
    }
}
