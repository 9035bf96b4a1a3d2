//! Errors of messages that can't be decoded or encoded. A decoding error contains the type, the position of
//! the failure and the bytes, so that the message is not lost.

use std::collections::BTreeMap;

use mp_core::message::Undecodable;
use mp_reduce::{Bundle, Error, Message, TypeFingerprint, from_bytes, pack, to_bytes, unpack};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Value that can be written in any format but never read.
#[derive(Debug, Clone, PartialEq)]
struct WriteOnly(u8);

impl Serialize for WriteOnly {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for WriteOnly {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u8::deserialize(d)?;
        Err(serde::de::Error::custom("it can't be read"))
    }
}

#[derive(Serialize, Deserialize)]
struct Batch {
    name: String,
    jobs: Vec<Job>,
}

#[derive(Serialize, Deserialize)]
enum Job {
    Stop,
    Run { by: BTreeMap<u16, Option<(u8, WriteOnly)>> },
    Wrapped(WriteOnly),
}

#[derive(Message)]
#[message(crate = mp_reduce)]
struct Outer {
    id: u64,
    batches: Bundle<Vec<Batch>>,
}

#[track_caller]
fn undecodable<T: Message>(mut value: T) -> (String, String, Vec<u8>) {
    let sent = to_bytes(&mut value).unwrap();
    let error = unpack::<T>(pack(value).unwrap()).err().unwrap();
    let details: &Undecodable = error.undecodable().unwrap();
    assert_eq!(details.type_name(), std::any::type_name::<T>());
    assert_eq!((details.bytes(), error.bytes()), (&sent[..], Some(&sent[..])));
    let text = error.to_string();
    assert!(text.contains(details.path()) && text.contains(details.type_name()), "{text}");
    (details.path().to_string(), text, sent)
}

fn batch(job: Job) -> Batch {
    Batch { name: "a name".into(), jobs: vec![Job::Stop, job] }
}

#[test]
fn decode_error_names_the_path_of_the_failed_value() {
    let run = || Job::Run { by: BTreeMap::from([(3, None), (700, Some((1, WriteOnly(2))))]) };
    let (path, text, _) = undecodable(batch(run()));
    assert_eq!(path, "jobs[1].Run.by.700[1]");
    assert!(text.contains("it can't be read") && text.contains("bytes, which are in this error: "), "{text}");
    assert_eq!(undecodable(batch(Job::Wrapped(WriteOnly(1)))).0, "jobs[1].Wrapped");
    assert_eq!(undecodable(vec![WriteOnly(1)]).0, "[0]");
    assert_eq!(undecodable(WriteOnly(1)).0, "");
    let outer = Outer { id: 7, batches: Bundle(vec![batch(Job::Stop), batch(run())]) };
    assert_eq!(undecodable(outer).0, "batches[1].jobs[1].Run.by.700[1]");
}

/// The message has more bytes than an envelope.
#[test]
fn decode_error_contains_all_bytes_of_the_message() {
    let bytes = undecodable(("x".repeat(100_000), WriteOnly(1))).2;
    assert!(bytes.len() > 100_000);
    #[derive(Deserialize)]
    struct Readable(String, u8);
    // The length has five bytes.
    let Readable(text, n) = rmp_serde::from_slice(&bytes[5..]).unwrap();
    assert_eq!((text.len(), n), (100_000, 1));
}

/// The message has attached buffers of all kinds, in several orders and depths, also together with a tensor.
#[test]
fn decode_error_contains_attached_bytes() {
    let long =
        || (vec![1_u16; 50_000], Some("x".repeat(70_000)), vec![vec![0.5_f64; 10_000]; 3], vec![7_u8; 300]);
    let few =
        (-7_i64, 0.5_f32, [Some(1_u64 << 40), None], vec![i32::MIN; 30], "y".repeat(300), Some(Some(())));
    undecodable((long(), few, long(), WriteOnly(1)));
    type Long = (Vec<u16>, Option<String>, Vec<Vec<f64>>, Vec<u8>);
    let error = unpack::<Bundle<(Long, u8, Long, WriteOnly)>>(
        pack(Bundle((long(), 7, long(), WriteOnly(1)))).unwrap(),
    );
    let bytes = error.err().unwrap().bytes().unwrap().to_vec();
    let readable = TypeFingerprint::<Bundle<(Long, u8, Long, u8)>>::new().get();
    let Bundle(read) = from_bytes::<Bundle<(Long, u8, Long, u8)>>(bytes, readable).unwrap();
    assert!(read == (long(), 7, long(), 1));
    let tensor = mp_tensor::Tensor::<u8>::zeros([10]).unwrap().freeze();
    let error = unpack::<(Vec<u8>, mp_tensor::FrozenTensor<u8>, WriteOnly)>(
        pack((vec![5_u8; 20_000], tensor, WriteOnly(1))).unwrap(),
    )
    .err()
    .unwrap();
    assert!(error.bytes().unwrap().windows(20_000).any(|bytes| bytes == [5; 20_000]));
}

#[test]
fn type_mismatch_error_contains_the_message_bytes() {
    let bytes = to_bytes(&mut 7_u64).unwrap();
    let there = TypeFingerprint::<u64>::new().get();
    match from_bytes::<String>(bytes.clone(), there) {
        Err(error @ Error::TypeMismatch { .. }) => {
            assert_eq!(error.bytes(), Some(&bytes[..]));
            let text = error.to_string();
            assert!(text.contains("alloc::string::String") && text.contains("does not contain"), "{text}");
            // The fingerprint would not be useful to the reader.
            assert!(!text.contains(&format!("{there:x}")), "{text}");
        }
        other => panic!("{other:?}"),
    }
    // Also for a message that could be read as this type.
    match unpack::<i64>(pack(7_u64).unwrap()) {
        Err(error @ Error::TypeMismatch { .. }) => assert_eq!(error.bytes(), Some(&bytes[..])),
        other => panic!("{other:?}"),
    }
}

/// The error of a value that can't be written contains the position and the value.
#[test]
fn encode_error_names_the_path_of_the_failed_value() {
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Unwritable {
        #[serde(serialize_with = "refuse")]
        inner: u8,
    }
    fn refuse<S: Serializer>(_: &u8, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it can't be written"))
    }
    let value = BTreeMap::from([("key".to_string(), vec![Ok(1_u8), Err(Unwritable { inner: 3 })])]);
    let error = pack(value.clone()).unwrap_err();
    assert!(error.to_string().contains("at key[1].Err.inner: it can't be written"), "{error}");
    assert_eq!(error.value, value);
}
