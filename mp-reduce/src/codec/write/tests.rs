//! Tests of writing with too little free space, with wrong announced lengths, and after errors.

use std::cell::Cell;

use serde::ser::{
    Error as _, Serialize, SerializeMap as _, SerializeSeq as _, SerializeStruct as _, Serializer,
};

use super::append;
use crate::codec::error::CodecError;

const LEVELS: u16 = mp_core::message::MAX_NESTING;

fn appended<T: Serialize + ?Sized>(to: &mut Vec<u8>, value: &T) -> Result<(), CodecError> {
    append(to, (&Cell::new(LEVELS), 0), value).map(drop)
}

fn theirs<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_human_readable();
    value.serialize(&mut serializer).unwrap();
    bytes
}

/// Returns a value with many parts and about this many bytes.
fn pieces(bytes: usize) -> Vec<(String, u32, f64)> {
    (0..bytes / 24).map(|i| ("abcdefgh".to_owned(), i as u32, i as f64)).collect()
}

/// For each start position, the free space of the buffer ends within another part of the value.
#[test]
fn encoder_output_grows_at_any_position() {
    let value = pieces(1500);
    let wanted = theirs(&value);
    for start in 0..300 {
        let mut bytes = vec![7; start];
        appended(&mut bytes, &value).unwrap();
        assert!(bytes[..start].iter().all(|byte| *byte == 7));
        assert_eq!(bytes[start..], wanted, "from {start} on");
    }
    for len in [31, 32, 127, 128, 255, 256, 4095, 4096, 4097, 65_535, 65_536, 70_000] {
        let text = "x".repeat(len);
        let mut bytes = Vec::new();
        appended(&mut bytes, &(1_u8, &text, 2_u8)).unwrap();
        assert_eq!(bytes, theirs(&(1_u8, &text, 2_u8)), "{len}");
    }
}

/// A buffer of at most 64 KiB is reused for the thread's next message. Reserving capacity must not enlarge
/// the buffer beyond 64 KiB.
#[test]
fn encode_buffer_of_a_short_message_is_reused() {
    for kib in [1, 8, 30, 31, 32, 33, 48, 60, 63] {
        let (value, mut bytes) = (pieces(kib << 10), vec![255]);
        appended(&mut bytes, &value).unwrap();
        let (len, capacity) = (bytes.len(), bytes.capacity());
        assert!(capacity >= len && capacity <= len.next_power_of_two().max(512), "{capacity} for {len}");
        // The same applies to the next message.
        bytes.clear();
        appended(&mut bytes, &value).unwrap();
        assert_eq!(bytes.capacity(), capacity);
    }
}

/// Sequence or map that announces `says` elements and writes `has` elements.
struct Message {
    says: Option<usize>,
    has: u32,
    map: bool,
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.map {
            let mut map = s.serialize_map(self.says)?;
            (0..self.has).try_for_each(|i| map.serialize_entry(&i, "v"))?;
            return map.end();
        }
        let mut seq = s.serialize_seq(self.says)?;
        (0..self.has).try_for_each(|i| seq.serialize_element(&(i, "v")))?;
        seq.end()
    }
}

#[test]
fn wrong_announced_collection_length_is_corrected() {
    let lengths = [0, 1, 15, 16, 17, 65_535, 65_536];
    for map in [false, true] {
        for has in lengths {
            for says in lengths.map(Some).into_iter().chain([None]) {
                let mut bytes = Vec::new();
                let says = says.map(|says| says as usize);
                appended(&mut bytes, &[Message { says, has, map }, Message { says: None, has: 1, map }])
                    .unwrap();
                let right = Some(has as usize);
                let wanted = [Message { says: right, has, map }, Message { says: Some(1), has: 1, map }];
                assert!(bytes == theirs(&wanted), "{says:?} instead of {has}, a map: {map}");
            }
        }
    }
}

/// Value whose `Serialize` returns an error.
struct No;

impl Serialize for No {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(None)?;
        seq.serialize_element("begun")?;
        Err(S::Error::custom("no"))
    }
}

/// Value whose `Serialize` continues after the error of one of its parts.
enum GoesOn {
    Sequence,
    Struct,
    Key,
    Value,
}

impl Serialize for GoesOn {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            GoesOn::Sequence => {
                let mut seq = s.serialize_seq(Some(3))?;
                seq.serialize_element(&1)?;
                assert!(seq.serialize_element(&No).is_err());
                seq.serialize_element(&3)?;
                seq.end()
            }
            GoesOn::Struct => {
                let mut fields = s.serialize_struct("S", 3)?;
                fields.serialize_field("a", &1)?;
                assert!(fields.serialize_field("b", &No).is_err());
                fields.serialize_field("c", &3)?;
                fields.end()
            }
            GoesOn::Key => {
                let mut map = s.serialize_map(Some(3))?;
                map.serialize_entry(&1, &1)?;
                assert!(map.serialize_key(&No).is_err());
                map.serialize_entry(&3, &3)?;
                map.end()
            }
            GoesOn::Value => {
                let mut map = s.serialize_map(Some(3))?;
                map.serialize_entry(&1, &1)?;
                assert!(map.serialize_entry(&2, &No).is_err());
                map.serialize_entry(&3, &3)?;
                map.end()
            }
        }
    }
}

/// The parts after the failed part are complete, and the failed part is omitted.
#[test]
fn encoder_omits_a_failed_element_and_continues() {
    let maps: &[u8] = &[0x82, 1, 1, 3, 3];
    for (value, wanted) in [
        (GoesOn::Sequence, &[0x92, 1, 3][..]),
        (GoesOn::Struct, &[0x82, 0xa1, b'a', 1, 0xa1, b'c', 3]),
        (GoesOn::Key, maps),
        (GoesOn::Value, maps),
    ] {
        let mut bytes = Vec::new();
        appended(&mut bytes, &value).unwrap();
        assert_eq!(bytes, wanted);
    }
}

#[test]
fn failed_encoding_leaves_the_output_unchanged() {
    let mut bytes = vec![1, 2, 3];
    assert!(appended(&mut bytes, &("some", pieces(500), No)).is_err());
    assert_eq!(bytes, [1, 2, 3]);
}
