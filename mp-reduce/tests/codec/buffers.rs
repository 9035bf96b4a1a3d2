//! Round trips of rows of numbers, long texts and byte strings, inside any type. Long buffers are attached to
//! the message.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::num::{NonZeroU8, Wrapping};

use mp_core::message::{Codec, Incoming, Message, Outgoing};
use mp_reduce::{MessagePack, from_bytes, pack, to_bytes, unpack};
use mp_reduce::{TypeFingerprint, unpack_with};
use proptest::prelude::*;
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Smallest number of bytes of an attached buffer.
const LONG: usize = 16 << 10;
/// Smallest number of bytes of a row.
const ROW: usize = 256;

/// Encodes a value. Returns the number of attachments and the number of bytes of its message.
fn message_of<T: Message>(mut value: T) -> (usize, usize) {
    let mut out = Outgoing::default();
    value.encode::<MessagePack>(&mut out).unwrap();
    let inc = out.into_incoming();
    (inc.blocks().count(), inc.rest().len())
}

/// Vector that is serialized as a byte string.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Blob(pub(crate) Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(bytes))
            }
        }
        d.deserialize_byte_buf(Bytes)
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
struct Record {
    bytes: Vec<u8>,
    floats: Vec<f32>,
    boxed: Box<[i64]>,
    maybe: Option<Vec<u16>>,
    text: String,
    blob: Blob,
    rows: Vec<Vec<u32>>,
    by_name: BTreeMap<String, Vec<f64>>,
    numbers: BTreeSet<u64>,
    deque: VecDeque<i16>,
    cow: Cow<'static, [i8]>,
    sizes: Vec<usize>,
    offsets: Vec<isize>,
    flags: Vec<bool>,
    letters: Vec<char>,
    wrapped: Vec<Wrapping<u32>>,
    pairs: Vec<(u8, u8)>,
    array: [u64; 32],
    short: [u8; 3],
    behind: String,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Record(Box<Record>),
    Floats(Vec<f32>),
    Blob(Blob),
    Text(String),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Record(Box<Record>),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Flat {
    name: String,
    #[serde(flatten)]
    record: Record,
}

/// Returns different numbers with `bytes` bytes in total, including extreme numbers.
fn many<T>(bytes: usize, of: impl Fn(u64) -> T) -> Vec<T> {
    (0..(bytes / size_of::<T>()) as u64)
        .map(|i| of(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 64)))
        .collect()
}

/// Returns a record that has `bytes` bytes in the field with number `part`, and few bytes in all other
/// fields.
fn record(part: usize, bytes: usize) -> Record {
    let mut r = Record {
        floats: vec![0.5, f32::NEG_INFINITY],
        by_name: BTreeMap::from([("none".into(), vec![])]),
        behind: "end".into(),
        ..Record::default()
    };
    match part {
        0 => r.bytes = many(bytes, |n| n as u8),
        1 => r.floats = many(bytes, |n| n as f32),
        2 => r.boxed = many(bytes, |n| n as i64).into(),
        3 => r.maybe = Some(many(bytes, |n| n as u16)),
        4 => r.text = "ä".repeat(bytes / 2) + &"b".repeat(bytes % 2),
        5 => r.blob = Blob(many(bytes, |n| n as u8)),
        6 => r.rows = vec![many(bytes, |n| n as u32), vec![], many(bytes / 2, |n| n as u32), vec![7]],
        7 => {
            r.by_name =
                BTreeMap::from([("a".into(), many(bytes, |n| n as f64)), ("b".repeat(bytes), vec![0.0])])
        }
        8 => r.numbers = many(bytes, |n| n).into_iter().collect(),
        9 => r.deque = many(bytes, |n| n as i16).into(),
        10 => r.cow = many(bytes, |n| n as i8).into(),
        11 => r.sizes = many(bytes, |n| n as usize),
        12 => r.offsets = many(bytes, |n| n as isize),
        13 => r.flags = many(bytes, |n| n % 2 == 0),
        14 => r.letters = many(bytes, |n| char::from(n as u8)),
        15 => r.wrapped = many(bytes, |n| Wrapping(n as u32)),
        16 => r.pairs = many(bytes, |n| (n as u8, (n >> 8) as u8)),
        _ => r.array = std::array::from_fn(|i| u64::MAX >> i),
    }
    r
}

/// Number of fields that [`record`] can fill.
const PARTS: usize = 18;

#[test]
fn all_buffer_kinds_round_trip_around_each_threshold() {
    for part in 0..PARTS {
        for edge in [0, 16, ROW, LONG, LONG + (LONG >> 1)] {
            for bytes in edge.saturating_sub(9)..edge + 10 {
                super::same(record(part, bytes));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn buffers_round_trip_in_any_container(
        part in 0..PARTS,
        edge in prop::sample::select(vec![0, ROW, LONG, 2 * LONG]),
        more in 0..40_usize,
    ) {
        let record = record(part, (edge + more).saturating_sub(20));
        super::same(vec![Some(record.clone()), None]);
        super::same(Some(Some(record.bytes.clone())));
        super::same(vec![Some(record.maybe.clone())]);
        super::same(Untagged::Record(record.clone().into()));
        super::same(Some(Untagged::Floats(record.floats.clone())));
        super::same(Untagged::Blob(record.blob.clone()));
        super::same(Untagged::Text(record.text.clone()));
        super::same(Internally::Record(record.clone().into()));
        super::same(Flat { name: "f".into(), record: record.clone() });
        // Outside of this memory, all buffers are stored in the message.
        let bytes = to_bytes(&mut record.clone()).unwrap();
        prop_assert_eq!(from_bytes::<Record>(bytes, TypeFingerprint::<Record>::new().get()).unwrap(), record);
    }
}

#[test]
fn only_long_buffers_are_attached() {
    for (bytes, beside) in [(LONG - 8, 0), (LONG, 1), (10 * LONG, 1)] {
        for part in [0, 1, 2, 3, 4, 5, 9, 10, 11, 12] {
            let (attached, len) = message_of(record(part, bytes));
            assert_eq!(attached, beside, "part {part}, {bytes} bytes");
            assert_eq!(len < 2000, beside == 1, "part {part}, {bytes} bytes: {len}");
        }
    }
    // These parts are checked byte by byte, or consist of more than numbers.
    for part in 13..17 {
        assert_eq!(message_of(record(part, LONG)).0, 0, "part {part}");
    }
    assert_eq!(message_of(vec![record(0, LONG), record(6, 3 * LONG)]).0, 3);
}

#[test]
fn vectors_of_128_bit_numbers_round_trip() {
    for len in [15, 16, 17, LONG / 16, LONG / 16 + 1] {
        super::same(vec![u128::MAX; len]);
        super::same(vec![Some(vec![i128::MIN; len])]);
    }
    let refused = pack(Untagged2::Wide(vec![1; 100])).unwrap_err();
    assert!(refused.error.to_string().contains("128 bits"), "{refused}");
    assert_eq!(refused.value, Untagged2::Wide(vec![1; 100]));
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged2 {
    Wide(Vec<u128>),
}

/// Message that is written as an `A` and read as a `B`. After reading, the second field is the `Debug` output
/// of the `B`.
struct Written<A, B>(A, String, std::marker::PhantomData<fn(B)>);

impl<A, B> Written<A, B> {
    fn new(value: A) -> Self {
        Self(value, String::new(), std::marker::PhantomData)
    }
}

impl<A: Serialize, B> Serialize for Written<A, B> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, A: Default, B: Deserialize<'de> + fmt::Debug> Deserialize<'de> for Written<A, B> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self(A::default(), format!("{:?}", B::deserialize(d)?), std::marker::PhantomData))
    }
}

fn read_as<A, B>(value: A) -> Result<String, String>
where
    A: Serialize + Default + 'static,
    B: for<'de> Deserialize<'de> + fmt::Debug + 'static,
{
    let envelope = pack(Written::<A, B>::new(value)).map_err(|e| e.to_string())?;
    unpack::<Written<A, B>>(envelope).map(|read| read.1).map_err(|e| e.to_string())
}

#[test]
fn buffer_read_as_another_type_converts_or_fails() {
    for len in [40, ROW, LONG] {
        let (ones, bytes) = (vec![1_u16; len], vec![1_u8; len]);
        assert_eq!(read_as::<_, Vec<u8>>(ones.clone()).unwrap(), format!("{bytes:?}"));
        assert_eq!(read_as::<_, Vec<i64>>(ones.clone()).unwrap(), format!("{ones:?}"));
        assert_eq!(
            read_as::<_, Vec<Option<u32>>>(ones.clone()).unwrap(),
            format!("{:?}", vec![Some(1); len])
        );
        assert_eq!(read_as::<_, VecDeque<f64>>(vec![0.5_f32; len]).unwrap(), format!("{:?}", vec![0.5; len]));
        for why in [
            read_as::<_, Vec<u8>>(vec![256_u16; len]),
            read_as::<_, Vec<u64>>(vec![-1_i8; len]),
            read_as::<_, Vec<bool>>(bytes.clone()),
            read_as::<_, Vec<char>>(vec![65_u32; len]),
            read_as::<_, Vec<NonZeroU8>>(vec![0_u8; len]),
            read_as::<_, Vec<u32>>(vec![1.0_f32; len]),
            read_as::<_, Vec<String>>(bytes.clone()),
            read_as::<_, [u8; 3]>(bytes.clone()),
            read_as::<_, String>(bytes.clone()),
            read_as::<_, BTreeMap<u8, u8>>(bytes.clone()),
        ] {
            why.unwrap_err();
        }
        assert_eq!(read_as::<_, Vec<NonZeroU8>>(bytes.clone()).unwrap(), format!("{bytes:?}"));
    }
}

/// Vector that is read in reverse order, by a visitor of its own.
#[derive(Clone, PartialEq, Debug)]
struct Backwards(Vec<u32>);

impl Serialize for Backwards {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Backwards {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct FromBehind;
        impl<'de> Visitor<'de> for FromBehind {
            type Value = Vec<u32>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u32>, A::Error> {
                let mut all = VecDeque::new();
                while let Some(n) = seq.next_element()? {
                    all.push_front(n);
                }
                Ok(all.into())
            }
        }
        d.deserialize_seq(FromBehind).map(Backwards)
    }
}

/// The visitor returns a `Vec`, but is not the visitor of `Vec`.
#[test]
fn custom_visitor_reads_a_buffer() {
    for len in [10, 100, LONG] {
        let backwards = Backwards((0..len as u32).collect());
        let read: Backwards = unpack(pack(backwards).unwrap()).unwrap();
        assert!(read.0.iter().copied().eq((0..len as u32).rev()));
    }
}

/// Sequence with elements of several types, whose announced length is `says`.
#[derive(Clone, Debug, Default)]
struct Lies {
    says: Option<usize>,
    numbers: Vec<u32>,
    then: Option<String>,
    more: Vec<f32>,
}

impl Serialize for Lies {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(self.says)?;
        self.numbers.iter().try_for_each(|n| seq.serialize_element(n))?;
        self.then.iter().try_for_each(|text| seq.serialize_element(text))?;
        self.more.iter().try_for_each(|n| seq.serialize_element(n))?;
        seq.end()
    }
}

#[derive(Deserialize, PartialEq, Debug)]
#[serde(untagged)]
enum Part {
    Number(u32),
    Float(f32),
    Text(String),
}

#[test]
fn mixed_and_mislabelled_sequences_round_trip() {
    let numbers: Vec<u32> = (0..100).map(|i| i << (i % 30)).collect();
    for says in [None, Some(0), Some(1), Some(100), Some(101), Some(64_000), Some(usize::MAX)] {
        for then in [None, Some("then".to_owned())] {
            for more in [vec![], vec![0.5; 3]] {
                // A length of more than 32 bits can't be announced, except for a row.
                let lies = Lies { says, numbers: numbers.clone(), then: then.clone(), more: more.clone() };
                let expected: Vec<Part> = (numbers.iter().map(|n| Part::Number(*n)))
                    .chain(then.clone().map(Part::Text))
                    .chain(more.iter().map(|n| Part::Float(*n)))
                    .collect();
                match read_as::<_, Vec<Part>>(lies) {
                    Ok(read) => assert_eq!(read, format!("{expected:?}")),
                    Err(e) => assert!(says == Some(usize::MAX), "{says:?}: {e}"),
                }
            }
        }
    }
}

/// Iterator with an arbitrary size hint, which may be wrong.
#[derive(Clone)]
struct Says<I>(I, (usize, Option<usize>));

impl<I: Iterator> Iterator for Says<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.1
    }
}

#[test]
fn wrong_size_hint_does_not_change_the_encoding() {
    struct Collected(Says<std::vec::IntoIter<u64>>);
    impl Serialize for Collected {
        fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.collect_seq(self.0.clone())
        }
    }
    let many = u32::MAX as usize;
    for len in [0, 1, 15, 16, 100, LONG] {
        for says in [0, 1, 15, 16, 40, 100, 70_000, many, many + 1, usize::MAX] {
            for most in [None, Some(says), Some(0)] {
                let all = many_numbers(len);
                let mut out = Outgoing::default();
                let value = Collected(Says(all.clone().into_iter(), (says, most)));
                match MessagePack::write(&mut out, &value) {
                    Ok(()) => {
                        let read = Vec::<u64>::decode::<MessagePack>(&mut out.into_incoming()).unwrap();
                        assert!(read == all, "{len}, {says}, {most:?}");
                    }
                    Err(e) => assert!(most == Some(says) && says > many, "{len}, {says}: {e}"),
                }
            }
        }
    }
}

fn many_numbers(len: usize) -> Vec<u64> {
    many(8 * len, |n| n)
}

/// Value that sends and receives another message while it is written and while it is read.
#[derive(Clone, PartialEq, Debug)]
struct Busy(Vec<u64>);

fn another_message() -> usize {
    let all = vec![many_numbers(LONG); 3];
    unpack::<Vec<Vec<u64>>>(pack(all.clone()).unwrap())
        .map(|read| read.len() + usize::from(read == all))
        .unwrap()
}

impl Serialize for Busy {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.0, another_message()).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Busy {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (all, four) = <(Vec<u64>, usize)>::deserialize(d)?;
        assert_eq!((four, another_message()), (4, 4));
        Ok(Busy(all))
    }
}

#[test]
fn nested_messages_have_separate_buffers() {
    let busy = |len| Busy(many_numbers(len));
    super::same((
        vec![1_u8; LONG],
        busy(LONG),
        vec![2_u16; LONG],
        vec![busy(3), busy(2 * LONG)],
        "x".repeat(LONG),
    ));
}

/// Value whose fields are read as texts that borrow from the message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Borrowing {
    #[serde(deserialize_with = "by_str")]
    text: String,
    #[serde(deserialize_with = "by_str")]
    other: String,
}

fn by_str<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    <&str>::deserialize(d).map(str::to_owned)
}

#[test]
fn attached_bytes_can_be_borrowed() {
    for len in [3, LONG - 1, LONG] {
        super::same(vec![Borrowing { text: "a".repeat(len), other: "b".repeat(len) }; 3]);
    }
}

#[test]
fn thousands_of_buffers_fit_a_message() {
    let many: Vec<Vec<u8>> = (0..3000_usize).map(|i| vec![i as u8; LONG]).collect();
    assert_eq!(message_of(many.clone()).0, many.len());
    let arrived: Vec<Vec<u8>> = unpack(pack(many.clone()).unwrap()).unwrap();
    assert!(arrived == many);
}

/// For a changed byte at any position, decoding returns a value or an error.
#[test]
fn mutated_message_with_buffers_decodes_or_fails() {
    let value = (vec![1_u8; LONG], vec![0.5_f64; 40], "x".repeat(LONG), Blob(vec![7; LONG]));
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let (mut value, mut out) = (value.clone(), Outgoing::default());
        value.encode::<MessagePack>(&mut out).unwrap();
        change(out.bytes());
        <(Vec<u8>, Vec<f64>, String, Blob)>::decode::<MessagePack>(&mut out.into_incoming())
    };
    let len = {
        let (mut value, mut out) = (value.clone(), Outgoing::default());
        value.encode::<MessagePack>(&mut out).unwrap();
        out.bytes().len()
    };
    assert_eq!(read(&|_| {}).unwrap(), value);
    for at in 0..len {
        for other in [0, 1, 2, 7, 0x0e, 0x0f, 0x10, 0x1a, 0x1e, 0x1f, 0x7f, 0x80, 0xc0, 0xc1, 0xff] {
            _ = read(&|bytes| bytes[at] = other);
        }
        _ = read(&|bytes| bytes.truncate(at));
    }
}

/// Encodes a message with one attached row, overwrites the reference to the row, and decodes the message.
fn forged(kind: u8, len: u64, attachment: u32) -> Result<Vec<u32>, String> {
    let (mut value, mut out) = (vec![3_u32; LONG / 4], Outgoing::default());
    value.encode::<MessagePack>(&mut out).unwrap();
    let bytes = out.bytes();
    assert_eq!(bytes[..3], [14, 0xc1, 0x12]);
    bytes[2] = kind;
    bytes[3..11].copy_from_slice(&len.to_le_bytes());
    bytes[11..].copy_from_slice(&attachment.to_le_bytes());
    Vec::<u32>::decode::<MessagePack>(&mut out.into_incoming()).map_err(|e| e.to_string())
}

#[test]
fn forged_row_of_numbers_is_an_error_with_its_cause() {
    let long = LONG as u64;
    assert_eq!(forged(0x12, long, 0).unwrap(), vec![3; LONG / 4]);
    assert_eq!(forged(0x12, 8, 0).unwrap(), [3, 3], "fewer numbers than attached");
    assert_eq!(forged(0x10, 8, 0).unwrap(), [3, 0, 0, 0, 3, 0, 0, 0], "as bytes");
    for (kind, len, attachment, says) in [
        (0x12, 1 << 40, 0, "a buffer of 1099511627776 is read there"),
        (0x12, u64::MAX, 0, "a buffer of 18446744073709551615 is read there"),
        (0x12, long - 1, 0, "are not a whole number of numbers of 4 bytes"),
        (0x12, long, 1, "attachment 1 of the message does not exist"),
        (0x12, long, u32::MAX, "does not exist"),
        (0x1d, long, 0, "a buffer of the unknown kind 0x1d"),
        (0x32, long, 0, "a buffer of the unknown kind 0x32"),
        (0x02, long, 0, "the bytes end within a value"),
        (0x0e, 4, 0, "a buffer of the unknown kind 0x0e"),
        (0x1e, long, 0, "expected a sequence"),
    ] {
        let why = forged(kind, len, attachment).unwrap_err();
        assert!(why.contains(says), "{kind:#x}, {len}, {attachment}: {why}");
    }
}

/// The forged reference names the memory of a shared tensor, which other processes may write.
#[test]
fn writable_memory_is_not_read_as_a_buffer() {
    let shared = mp_tensor::Tensor::<u8>::zeros([LONG]).unwrap().share();
    let mut out = Outgoing::default();
    (shared, vec![3_u32; LONG / 4]).encode::<MessagePack>(&mut out).unwrap();
    let bytes = out.bytes();
    let at = bytes.len() - 4;
    assert_eq!(bytes[at..], [1, 0, 0, 0]);
    bytes[at] = 0;
    let read = <(mp_tensor::SharedTensor<u8>, Vec<u32>)>::decode::<MessagePack>(&mut out.into_incoming());
    let why = read.unwrap_err().to_string();
    assert!(why.contains("was sent as") && why.contains("is read as"), "{why}");
}

/// A row counts as one level of nesting, like any other sequence.
#[test]
fn row_of_numbers_counts_as_a_nesting_level() {
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    enum Chain {
        End(Vec<u64>),
        More(Box<Chain>),
    }
    let chain = |levels: usize, len: usize| {
        (0..levels).fold(Chain::End(vec![1; len]), |inner, _| Chain::More(Box::new(inner)))
    };
    for len in [1, 100, LONG] {
        super::same(chain(126, len));
        let why = pack(chain(1023, len)).unwrap_err();
        assert!(why.to_string().contains("nested more than"), "{len}: {why}");
    }
}

/// The bytes refer to an attachment, but are decoded without attachments.
#[test]
fn missing_attached_buffer_is_an_error() {
    let (mut value, mut out) = ("x".repeat(LONG), Outgoing::default());
    value.encode::<MessagePack>(&mut out).unwrap();
    let bytes = out.bytes().clone();
    assert!(String::decode::<MessagePack>(&mut Incoming::from_plain(bytes.clone())).is_err());
    assert!(String::decode_plain::<MessagePack>(&bytes).is_err());
    let fingerprint = TypeFingerprint::<String>::new();
    let nothing = |inc: &mut Incoming| {
        *inc = Incoming::from_plain(bytes.clone());
        Ok(())
    };
    assert!(unpack_with(fingerprint, nothing).is_err());
}
