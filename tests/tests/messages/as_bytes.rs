//! Plain data that is sent as its bytes: as a message, in a field, and in a wrapper.

use bytemuck::{Pod, Zeroable};
use mp::message::{AsBytes, MessageError, PlainOutcome, pack, unpack};
use mp::{Bundle, FrozenTensor, Message, Pool, Queue, Tensor};
use mp_reduce::{from_part, to_part};
use mp_tests::{Outcome, give, join, one_process, take};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable, Message)]
#[repr(C)]
#[message(as_bytes)]
struct Reading {
    time: f64,
    values: [f32; 48],
    number: u64,
}

impl PlainOutcome for Reading {}

/// Plain data of `N` bytes.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable, Message)]
#[repr(transparent)]
#[message(as_bytes)]
struct Bytes<const N: usize>([u8; N])
where
    [u8; N]: Pod;

fn bytes<const N: usize>() -> Bytes<N>
where
    [u8; N]: Pod,
{
    Bytes(std::array::from_fn(|i| (i % 251) as u8))
}

fn reading(number: u64) -> Reading {
    Reading { time: f64::NAN, values: [number as f32; 48], number }
}

fn bits(reading: &Reading) -> &[u8] {
    bytemuck::bytes_of(reading)
}

fn gives_back(_: usize, (to, back): (Queue<Reading>, Queue<Reading>)) -> Outcome {
    while let Some(reading) = to.get()? {
        back.put(reading).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn plain_data_as_bytes_round_trips_bit_by_bit() {
    let (to, back) = (Queue::bounded(8).unwrap(), Queue::bounded(8).unwrap());
    let process = one_process(gives_back, (to.clone(), back.clone()));
    for number in 0..100 {
        give(&to, reading(number));
        assert_eq!(bits(&take(&back)), bits(&reading(number)), "all bits arrive");
    }
    to.close();
    join(&process).unwrap();
}

/// The arrays fit an envelope, exceed a one-byte length, or need a separate block.
#[test]
fn byte_arrays_of_any_length_round_trip() {
    fn same<const N: usize>()
    where
        [u8; N]: Pod,
    {
        let queue = Queue::unbounded().unwrap();
        give(&queue, bytes::<N>());
        assert_eq!(take(&queue), bytes::<N>(), "{N}");
        give(&queue, bytes::<N>());
        assert_eq!(take(&queue), bytes::<N>(), "{N}: after another message");
    }
    same::<0>();
    same::<1>();
    same::<8>();
    same::<15>();
    same::<32>();
    same::<64>();
    same::<256>();
    same::<512>();
    same::<1024>();
    same::<4096>();
}

/// The bytes are between other parts of a message, and not aligned.
#[test]
fn as_bytes_fields_round_trip_among_other_fields() {
    #[derive(Serialize, Deserialize)]
    struct Frame {
        name: String,
        #[serde(with = "mp::message::as_bytes")]
        matrix: [[f32; 4]; 4],
        values: Vec<AsBytes<[u64; 2]>>,
        tensor: FrozenTensor<u8>,
    }
    for name in ["", "a", "ab", "abc"] {
        let matrix = std::array::from_fn(|i| [i as f32; 4]);
        let values = (0..3).map(|n| AsBytes([n, u64::MAX - n])).collect();
        let tensor = Tensor::full([4], 7).unwrap().freeze();
        let frame = Frame { name: name.into(), matrix, values, tensor };
        let envelope = pack(Bundle((frame, reading(3)))).map_err(|e| e.error).unwrap();
        let Bundle((frame, third)) = unpack::<Bundle<(Frame, Reading)>>(envelope).unwrap();
        assert_eq!((frame.name.as_str(), frame.matrix), (name, matrix));
        assert!(frame.values.iter().enumerate().all(|(n, AsBytes(pair))| pair[1] == u64::MAX - n as u64));
        assert_eq!((frame.tensor.get(&[3]).unwrap(), third.number), (7, 3));
    }
}

#[test]
fn plain_data_passes_through_a_pool() {
    let pool = Pool::new(2).unwrap();
    let double = |mut reading: Reading| {
        reading.number *= 2;
        reading
    };
    let all = pool.map(double, (0..1000).map(reading)).unwrap();
    assert!(all.iter().enumerate().all(|(i, reading)| reading.number == 2 * i as u64));
    assert_eq!(pool.apply(double, reading(4)).unwrap().number, 8);
    assert_eq!(pool.apply(|n: u32| AsBytes([n; 3]), 4).unwrap().0, [4; 3]);
    assert_eq!(pool.apply(|n: u16| [n; 3], 4).unwrap(), [4; 3]);
    pool.join().unwrap();
}

fn refused<T: Serialize + serde::de::DeserializeOwned, U>(value: &T) -> String
where
    U: serde::de::DeserializeOwned + std::fmt::Debug,
{
    let error: MessageError = from_part::<U>(&to_part(value).unwrap()).unwrap_err().into();
    error.to_string()
}

#[test]
fn wrong_as_bytes_length_error_names_both_lengths() {
    let text = refused::<_, AsBytes<[u8; 16]>>(&AsBytes([0_u8; 8]));
    assert!(text.contains("invalid length 8, expected the 16 bytes of a [u8; 16]"), "{text}");
    let text = refused::<_, AsBytes<u32>>(&"a text".to_string());
    assert!(text.contains("expected the 4 bytes of a u32"), "{text}");
    // The values are read from formats that have no type for bytes.
    assert_eq!(
        from_part::<AsBytes<[u8; 3]>>(&to_part(&[1_u8, 2, 3].to_vec()).unwrap()).unwrap().0,
        [1, 2, 3]
    );
    let text = refused::<_, AsBytes<[u8; 4]>>(&[1_u8, 2, 3].to_vec());
    assert!(text.contains("invalid length 3, expected the 4 bytes"), "{text}");
    let text = refused::<_, AsBytes<[u8; 2]>>(&[1_u8, 2, 3].to_vec());
    assert!(text.contains("invalid length 3, expected the 2 bytes"), "{text}");
}

proptest! {
    #[test]
    fn arbitrary_as_bytes_data_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(AsBytes(value)) = from_part::<AsBytes<[u16; 4]>>(&bytes) {
            prop_assert!(bytes.len() >= size_of_val(&value));
        }
    }
}
