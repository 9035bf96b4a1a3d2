//! MessagePack, with attachments beside it.

mod number;
mod read;

use std::cell::Cell;

use mp_core::message::{Codec, Incoming, Number, Outgoing, scope};
use mp_core::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Each value as its length and its MessagePack bytes. The length is one byte; from 255 on it is a byte 255, and four bytes,
/// little-endian.
///
/// Structs are written with the names of their fields, so that fields that are left out (`skip_serializing_if`) and enums
/// that are told apart by their fields arrive as they were.
#[derive(Clone, Copy, Debug)]
pub struct MessagePack;

/// In place of a length: the length follows.
const MORE: u8 = 255;
/// Bytes of a length that follows, and of what says so.
const LONG: usize = 5;

thread_local! {
    /// Whether this thread's last value had such a length: the next one gets the room for it at once. Else its bytes are moved
    /// once they are there.
    static LAST_WAS_LONG: Cell<bool> = const { Cell::new(false) };
}

impl Codec for MessagePack {
    #[inline]
    fn write<T: Serialize + ?Sized>(out: &mut Outgoing, value: &T) -> Result<()> {
        scope::with_outgoing(out, |bytes| {
            let start = bytes.len();
            let was_long = LAST_WAS_LONG.get();
            let head = if was_long {
                bytes.extend_from_slice(&[MORE, 0, 0, 0, 0]);
                LONG
            } else {
                bytes.push(MORE);
                1
            };
            value
                .serialize(&mut rmp_serde::Serializer::new(&mut *bytes).with_struct_map())
                .map_err(|e| Error::Malformed(format!("a value can't be encoded: {e}")))?;
            let len = u32::try_from(bytes.len() - start - head)
                .map_err(|_| Error::Malformed("a value of more than 4 GiB: put it in a tensor".into()))?;
            if was_long != (len >= MORE.into()) {
                LAST_WAS_LONG.set(!was_long);
            }
            match u8::try_from(len) {
                _ if head == LONG => bytes[start + 1..start + LONG].copy_from_slice(&len.to_le_bytes()),
                Ok(short) if short != MORE => bytes[start] = short,
                _ => drop(bytes.splice(start + 1..start + 1, len.to_le_bytes())),
            }
            Ok(())
        })
    }

    #[inline]
    fn write_number(out: &mut Outgoing, number: Number) -> Result<()> {
        number::append(out.bytes(), number);
        Ok(())
    }

    #[inline]
    fn read<T: DeserializeOwned>(inc: &mut Incoming) -> Result<T> {
        let (head, len) = parts(inc.rest())?;
        inc.advance(head);
        let value = scope::with_incoming(inc, |rest| read::from_slice(&rest[..len]));
        inc.advance(len);
        value.map_err(|e| undecodable::<T>(&e))
    }

    #[inline]
    fn read_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
        let (head, len) = parts(bytes)?;
        let value = scope::with_nothing(|| read::from_slice(&bytes[head..head + len]));
        value.map_err(|e| undecodable::<T>(&e))
    }
}

/// How long the length of the first value is, and how long the value, which follows.
#[inline]
fn parts(bytes: &[u8]) -> Result<(usize, usize)> {
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
fn undecodable<T>(error: &read::Bad) -> Error {
    Error::Malformed(format!("a message can't be decoded as {}: {error}", std::any::type_name::<T>()))
}

#[cfg(test)]
mod tests {
    use crate::{TypeFingerprint, from_bytes, to_bytes};

    /// Each length after a short and after a long one, cut at each place, and with another length.
    #[test]
    fn lengths_around_one_byte() {
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
