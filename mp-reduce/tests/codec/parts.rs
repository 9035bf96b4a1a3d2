//! Shared parts of a message: their bytes, and the errors of forged parts.

use std::rc::Rc;
use std::sync::Arc;

use mp_reduce::{Message, TypeFingerprint, from_bytes, pack, to_bytes, unpack};
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Mentions<T: Serialize + serde::de::DeserializeOwned + 'static>(
    #[serde(with = "mp_reduce::shared")] pub(crate) Vec<Arc<T>>,
);

#[derive(Serialize, Deserialize, Debug)]
struct Node {
    #[serde(with = "mp_reduce::shared")]
    all: Vec<Rc<Node>>,
}

fn read<T: Message>(bytes: &[u8]) -> mp_reduce::Result<T> {
    from_bytes(bytes.to_vec(), TypeFingerprint::<T>::new().get())
}

/// Returns a message with one value, after the length of the value.
fn message(value: &[&[u8]]) -> Vec<u8> {
    let value = value.concat();
    [&[u8::try_from(value.len()).unwrap()], &value[..]].concat()
}

const ONE_PART: &[u8] = &[0xc1, 0x20, 1, 0, 0, 0];
const FIRST: &[u8] = &[0xc4, 5, 0xff, 0, 0, 0, 0];

#[test]
fn shared_part_is_encoded_before_its_references() {
    let five = Arc::new(5_u8);
    let mut value = Mentions(vec![five.clone(), five]);
    let bytes = to_bytes(&mut value).unwrap();
    assert_eq!(bytes, message(&[ONE_PART, &[1, 5, 0x92], FIRST, FIRST]));
    let arrived: Mentions<u8> = read(&bytes).unwrap();
    assert!(arrived == value && Arc::ptr_eq(&arrived.0[0], &arrived.0[1]));
    // Without references, there are no parts before the value.
    assert_eq!(to_bytes(&mut Mentions::<u8>(vec![])).unwrap(), message(&[&[0x90]]));
}

#[test]
fn cyclic_shared_part_is_a_decode_error() {
    let inner = [&[0x81, 0xa3][..], b"all", &[0x91], FIRST].concat();
    let forged = message(&[ONE_PART, &[inner.len() as u8], &inner, &inner]);
    let error = read::<Node>(&forged).unwrap_err().to_string();
    assert!(error.contains("Node> leads to itself") && error.contains("at all[0]"), "{error}");
}

#[test]
fn forged_shared_parts_are_decode_errors() {
    let cases: [(&[&[u8]], &str); 6] = [
        (&[ONE_PART, &[1, 5, 0x91, 0xc4, 5, 0xff, 7, 0, 0, 0]], "the message has no part 7"),
        (&[&[0xc1, 0x20, 0xff, 0xff, 0xff, 0xff], &[1, 5, 0x90]], "the bytes end within a value"),
        (&[ONE_PART, &[200, 5, 0x90]], "the bytes end within a value"),
        (&[ONE_PART, &[1, 0xc2, 0x91], FIRST], "the shared alloc::sync::Arc<u8>"),
        (&[ONE_PART, &[1, 5, 0x91, 0xc4, 1, 0xff]], "the number of a shared part"),
        (&[ONE_PART, &[1, 5, 0x91], ONE_PART, &[1, 5, 0]], "unknown kind 0x20"),
    ];
    for (forged, says) in cases {
        let error = read::<Mentions<u8>>(&message(forged)).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let text = Arc::new(vec!["text".to_string(); 3]);
    let bytes = to_bytes(&mut Mentions(vec![text.clone(), Arc::new(vec![]), text])).unwrap();
    for at in 0..bytes.len() {
        for byte in [0, 1, 0x7f, 0x91, 0xc0, 0xc1, 0xff, bytes[at].wrapping_add(1)] {
            let mut forged = bytes.clone();
            forged[at] = byte;
            // Any result is allowed, but the call must return.
            drop(read::<Mentions<Vec<String>>>(&forged));
        }
        assert!(read::<Mentions<Vec<String>>>(&bytes[..at]).is_err(), "cut at {at}");
    }
}

/// A part has a long buffer, which is attached to the message.
#[test]
fn undecodable_error_contains_bytes_of_shared_parts() {
    #[derive(Serialize)]
    struct Unreadable;
    impl<'de> Deserialize<'de> for Unreadable {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            <()>::deserialize(d)?;
            Err(serde::de::Error::custom("it can't be read"))
        }
    }
    let long = Arc::new(vec![0x0102_u16; 50_000]);
    let value = Mentions(vec![long.clone(), Arc::new(vec![3]), long.clone()]);
    let error = unpack::<(Mentions<Vec<u16>>, Unreadable)>(pack((value, Unreadable)).unwrap()).err().unwrap();
    let (arrived, ()) = read::<(Mentions<Vec<u16>>, ())>(error.bytes().unwrap()).unwrap();
    assert!(arrived.0[0] == long && Arc::ptr_eq(&arrived.0[0], &arrived.0[2]) && *arrived.0[1] == [3]);
}

/// A part has a number of 128 bits in an untagged enum, where serde can't read it. The sender must detect
/// this.
#[test]
fn unreadable_shared_parts_are_refused_when_sent() {
    #[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
    #[serde(untagged)]
    enum Either {
        Wide { number: u128 },
    }
    let wide = Arc::new(Either::Wide { number: 1 << 100 });
    let error = to_bytes(&mut Mentions(vec![wide])).unwrap_err().to_string();
    assert!(error.contains("128 bits"), "{error}");
    // Elsewhere in the message or in a part, 128-bit numbers can be read.
    let one = Arc::new(1_u128 << 100);
    let mut fine = (7_u128, Mentions(vec![one.clone(), one]));
    let bytes = to_bytes(&mut fine).unwrap();
    assert_eq!(read::<(u128, Mentions<u128>)>(&bytes).unwrap(), fine);
}
