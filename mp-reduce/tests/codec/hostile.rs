//! Decoding of bytes that no sender of this library writes. Every decoder returns a value or an error. It
//! does not panic, overflow the stack, or access memory outside of the message.

use mp_core::message::{Incoming, Outgoing};
use mp_reduce::{Bundle, Message, MessagePack, TypeFingerprint, from_bytes};
use mp_tensor::{FrozenTensor, SharedTensor, SparseCoo, Tensor};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::{Deserialize, Serialize};

use crate::buffers::Blob;

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Row(Vec<f32>),
    Fields { x: Option<Box<Untagged>>, y: Vec<Untagged> },
    Text(String),
}

/// Message with a value for each decoder: serde values of all kinds, numbers, buffers, tensors of each mode,
/// and messages.
#[derive(Message)]
#[message(crate = mp_reduce)]
struct Parcel {
    id: u64,
    rows: Vec<Vec<u32>>,
    blob: Blob,
    text: String,
    untagged: Untagged,
    own: Tensor<u8>,
    shared: SharedTensor<u16>,
    frozen: Bundle<Vec<FrozenTensor<f32>>>,
    children: Bundle<Vec<Parcel>>,
    end: Option<(i8, char, [u8; 3])>,
}

fn parcel(children: usize) -> Parcel {
    let frozen = Tensor::from_fn(&[4, 5], |i| i as f32).unwrap().freeze();
    let y = vec![Untagged::Number(7), Untagged::Row(vec![0.5; 100]), Untagged::Text("text".into())];
    Parcel {
        id: 1 << 40,
        rows: vec![vec![1; 5000], vec![], vec![2; 70]],
        blob: Blob(vec![3; 300]),
        text: "x".repeat(20_000),
        untagged: Untagged::Fields { x: Some(Box::new(Untagged::Number(1))), y },
        own: Tensor::full([9], 7).unwrap(),
        shared: Tensor::full([6], 3).unwrap().share(),
        frozen: Bundle(vec![frozen.select(0, 1).unwrap(), frozen.transpose(0, 1).unwrap(), frozen]),
        children: Bundle((0..children).map(|_| parcel(0)).collect()),
        end: Some((-3, 'ä', [1, 2, 3])),
    }
}

/// Reads the memory to which the value refers.
fn look(parcel: &Parcel) {
    /// Largest number of elements that are read of a tensor. A view may contain one element any number of
    /// times.
    const MOST: usize = 1 << 16;
    let mut sum =
        parcel.own.as_slice().map_or(0, |all| all.iter().take(MOST).map(|x| usize::from(*x)).sum::<usize>());
    if parcel.shared.len() < MOST {
        sum += parcel.shared.to_vec().len();
    }
    for frozen in parcel.frozen.0.iter().filter(|frozen| frozen.len() < MOST) {
        sum += frozen.to_vec().iter().filter(|x| **x > 1.0).count();
    }
    std::hint::black_box(sum);
    parcel.children.0.iter().for_each(look);
}

/// Random change to the bytes of a message.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Number(Index, u64),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Again(Index, usize, usize),
    Cut(Index),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        let part = |at: &Index, count: usize| at.index(len)..(at.index(len) + count).min(len);
        match self {
            Change::Set(at, byte) => bytes[at.index(len)] = *byte,
            Change::Number(at, number) => {
                let place = part(at, 8);
                let new = &number.to_le_bytes()[..place.len()];
                bytes[place].copy_from_slice(new);
            }
            Change::Remove(at, count) => drop(bytes.drain(part(at, *count))),
            Change::Insert(at, new) => drop(bytes.splice(part(at, 0), new.iter().copied())),
            Change::Again(at, count, times) => {
                let again = bytes[part(at, *count)].repeat(*times);
                drop(bytes.splice(part(at, 0), again));
            }
            Change::Cut(at) => bytes.truncate(at.index(len)),
        }
    }
}

/// Strategy for bytes, which prefers bytes with a meaning in some encoding.
fn byte() -> impl Strategy<Value = u8> {
    let known =
        vec![0, 1, 0x0b, 0x0e, 0x10, 0x1a, 0x1f, 0x7f, 0x80, 0x81, 0x90, 0x91, 0xa1, 0xc0, 0xc1, 0xc4];
    prop_oneof![prop::sample::select(known), 0xc0..=0xe0_u8, any::<u8>()]
}

fn change() -> impl Strategy<Value = Change> {
    let edges = vec![0, 1, 255, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 63, u64::MAX];
    let number = prop_oneof![prop::sample::select(edges), any::<u64>()];
    let bytes = prop::collection::vec(byte(), 1..20);
    prop_oneof![
        5 => (any::<Index>(), byte()).prop_map(|(at, byte)| Change::Set(at, byte)),
        2 => (any::<Index>(), number).prop_map(|(at, number)| Change::Number(at, number)),
        1 => (any::<Index>(), 1..20_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (any::<Index>(), bytes).prop_map(|(at, new)| Change::Insert(at, new)),
        1 => (any::<Index>(), 1..40_usize, 1..200_usize)
            .prop_map(|(at, count, times)| Change::Again(at, count, times)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// The message has attachments, to which the changed bytes may refer.
    #[test]
    fn mutated_message_with_attachments_decodes_or_fails(
        children in 0..2_usize,
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let (mut value, mut out) = (parcel(children), Outgoing::default());
        value.encode::<MessagePack>(&mut out).unwrap();
        changes.iter().for_each(|change| change.make(out.bytes()));
        if let Ok(parcel) = Parcel::decode::<MessagePack>(&mut out.into_incoming()) {
            look(&parcel);
        }
    }

    /// The bytes may come from another program, or from another version of this library.
    #[test]
    fn arbitrary_message_bytes_decode_or_fail(bytes in prop::collection::vec(byte(), 0..300)) {
        fn read<T: Message>(bytes: &[u8]) {
            // The bytes have the right type, or the error reports another one.
            drop(from_bytes::<T>(bytes.to_vec(), TypeFingerprint::<T>::new().get()));
            drop(T::decode::<MessagePack>(&mut Incoming::from_plain(bytes.to_vec())));
            drop(T::decode_plain::<MessagePack>(bytes));
        }
        let of_value = [&[255], &(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
        for bytes in [&bytes, &of_value] {
            read::<Parcel>(bytes);
            read::<Untagged>(bytes);
            read::<(Vec<u64>, Option<Box<[f32]>>, String, Blob)>(bytes);
            read::<Vec<FrozenTensor<u8>>>(bytes);
            read::<SparseCoo<f32>>(bytes);
        }
    }
}
