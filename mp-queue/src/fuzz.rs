//! Fuzz targets for this crate's parsers: data that arrives at a socket, hellos, messages with the names of
//! their types, slots of rings, and checkpoint files. They run in `cargo xtask fuzz` and in unit tests.

use mp_core::message::{Incoming, Outgoing};
use mp_core::{Error, Message};
use mp_reduce::{MessagePack, unpack_plain};

use crate::checkpoint::fuzz as checkpoint;
use crate::connection::named::NamedValue;
use crate::connection::socket::fuzz as socket;
use crate::ring::{Slot, SmallMessage};

/// Fuzz targets: name, function that parses an input, and function that returns valid inputs.
#[allow(
    clippy::type_complexity,
    reason = "the harness defines this type, and only tests depend on the harness"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] = &[
    ("sockets", socket::frames, socket::frame_seeds),
    ("hellos", socket::hellos, socket::hello_seeds),
    ("named", named, named_seeds),
    ("slots", slots, slot_seeds),
    ("checkpoints", checkpoint::files, checkpoint::seeds),
];

/// Type of the values in the target `named`.
type FuzzMessage = (u8, String, Vec<u32>);

fn written(bytes: &[u8]) -> Vec<u8> {
    let mut out = Outgoing::in_band();
    let value = (3, String::from_utf8_lossy(bytes).into_owned(), vec![1, 70_000]);
    NamedValue::<FuzzMessage>(value).encode::<MessagePack>(&mut out).unwrap();
    std::mem::take(out.bytes())
}

fn named(bytes: &[u8]) {
    match NamedValue::<FuzzMessage>::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec())) {
        Ok(mut value) => {
            let name = &bytes[2..2 + usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))];
            assert!(name.is_empty() || name == std::any::type_name::<FuzzMessage>().as_bytes(), "{name:?}");
            let mut out = Outgoing::in_band();
            value.encode::<MessagePack>(&mut out).unwrap();
            let again = Incoming::from_plain(std::mem::take(out.bytes()));
            assert_eq!(NamedValue::<FuzzMessage>::decode::<MessagePack>(&mut { again }).unwrap().0, value.0);
        }
        Err(Error::Malformed(_) | Error::Undecodable(_)) => {}
        Err(other) => panic!("hostile bytes caused another kind of error: {other:?}"),
    }
}

fn named_seeds() -> Vec<Vec<u8>> {
    vec![written(b"text"), written(&[b'x'; 300])]
}

/// Parses two words as the slot of a ring.
fn slots(bytes: &[u8]) {
    let Some(&[a, b]) = bytes.as_chunks().0.first_chunk() else { return };
    let [first, rest] = [a, b].map(u64::from_le_bytes);
    assert_eq!(Slot::unpack(first).pack(), first);
    let Some(small) = SmallMessage::in_slot([first, rest]) else { return };
    let few = small.bytes();
    assert!(few.len() <= SmallMessage::MOST, "{small:?}");
    let bytes = few.as_slice();
    assert_eq!(SmallMessage::new(bytes).unwrap().bytes(), few);
    _ = unpack_plain::<(u8, String)>(bytes);
    let number = unpack_plain::<u64>(bytes).ok();
    assert!(u64::from_small_bytes::<MessagePack>(few).is_none_or(|few| Some(few) == number), "{small:?}");
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = |words: [u64; 2]| words.map(u64::to_le_bytes).concat();
    let mut all = socket::samples();
    all.extend([
        ("named", written(b"text")),
        ("slot with nothing", bytes(crate::ring::small_words(None, 5))),
        ("slot with a small message", bytes(crate::ring::small_words(SmallMessage::new(&[1, 2, 3]), 5))),
        (
            "slot with the longest small message",
            bytes(crate::ring::small_words(SmallMessage::new(&[9; 10]), 5)),
        ),
    ]);
    all
}

fn slot_seeds() -> Vec<Vec<u8>> {
    let of = |(name, bytes): (&str, Vec<u8>)| name.starts_with("slot").then_some(bytes);
    samples().into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_frames_slots_and_checkpoints_parse_or_fail() {
        mp_harness::hostile::short(super::TARGETS);
    }

    #[test]
    fn socket_frames_and_ring_slots_match_the_golden_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden.txt");
        mp_harness::hostile::golden(file, "mp-sock version 8, wire version 6", &super::samples());
    }
}
