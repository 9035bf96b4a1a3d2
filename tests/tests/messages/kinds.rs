//! Messages other than plain data: tensors of all three modes, views and queues, in any serde type and with
//! `#[derive(Message)]`. Each goes through a queue of this process and through another process.

use std::marker::PhantomData;

use mp::message::Reduce;
use mp::{Bundle, FrozenTensor, Message, Queue, SharedTensor, Tensor};
use mp_tests::{Outcome, give, join, next, one_process, send, take, travels};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn counting(shape: &[usize]) -> Tensor<i32> {
    Tensor::from_fn(shape, |i| i as i32).unwrap()
}

#[derive(Serialize, Deserialize)]
struct Batch {
    name: String,
    images: FrozenTensor<i32>,
    labels: Option<FrozenTensor<u8>>,
    parts: Vec<FrozenTensor<i32>>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(i64),
    Frozen(FrozenTensor<i32>),
    Batch(Box<Batch>),
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Kind {
    Batch(Box<Batch>),
    Part { of: FrozenTensor<i32> },
}

fn batch() -> Batch {
    let images = counting(&[4, 3]).freeze();
    let labels = Tensor::from_slice(&[7_u8, 8, 9], [3]).unwrap().freeze();
    let parts = images.chunk(3, 0).unwrap();
    Batch { name: "b".into(), images, labels: Some(labels), parts }
}

fn check(b: &Batch) {
    assert_eq!((b.name.as_str(), b.images.shape()), ("b", &[4, 3][..]));
    assert_eq!(b.images.to_vec(), (0..12).collect::<Vec<_>>());
    assert_eq!(b.labels.as_ref().unwrap().to_vec(), [7, 8, 9]);
    let parts: Vec<_> = b.parts.iter().map(FrozenTensor::to_vec).collect();
    assert_eq!(parts, [(0..6).collect::<Vec<_>>(), (6..12).collect()]);
    assert!(b.parts.iter().all(|p| p.storage() == b.images.storage()));
}

#[test]
fn frozen_tensors_in_structs_and_enums_round_trip() {
    travels(|| vec![batch()], |_, b| check(&b));
    let either = || {
        vec![Either::Number(-3), Either::Frozen(counting(&[2]).freeze()), Either::Batch(Box::new(batch()))]
    };
    travels(either, |i, e| match (i, e) {
        (0, Either::Number(-3)) => {}
        (1, Either::Frozen(t)) => assert_eq!(t.to_vec(), [0, 1]),
        (2, Either::Batch(b)) => check(&b),
        (i, _) => panic!("value {i} arrived as another variant"),
    });
    let kind =
        || vec![Kind::Batch(Box::new(batch())), Kind::Part { of: batch().images.select(1, 2).unwrap() }];
    travels(kind, |i, k| match (i, k) {
        (0, Kind::Batch(b)) => check(&b),
        (1, Kind::Part { of }) => assert_eq!((of.to_vec(), of.strides()), (vec![2, 5, 8, 11], &[3][..])),
        (i, _) => panic!("value {i} arrived as another variant"),
    });
}

#[test]
fn empty_and_scalar_tensors_round_trip_in_messages() {
    let shapes: [&[usize]; 5] = [&[], &[0], &[3, 0, 2], &[1, 1, 1, 1, 1, 1, 1, 1], &[0, 0]];
    travels(
        || shapes.iter().map(|s| counting(s)).collect(),
        |i, t| {
            assert_eq!((t.shape(), t.len()), (shapes[i], shapes[i].iter().product()));
            assert_eq!(t.to_vec(), counting(shapes[i]).to_vec());
        },
    );
    travels(
        || shapes.iter().map(|s| (counting(s).freeze(), counting(s).share())).collect(),
        |i, (f, s): (FrozenTensor<i32>, SharedTensor<i32>)| {
            assert_eq!((f.shape(), s.shape()), (shapes[i], shapes[i]));
            assert_eq!(f.to_vec(), s.to_vec());
        },
    );
}

#[derive(Message)]
struct Step<T> {
    rank: usize,
    grads: Tensor<f32>,
    extra: T,
}

#[derive(Message)]
enum Work {
    Stop,
    One(Tensor<f32>),
    Both { left: Tensor<f32>, right: FrozenTensor<f32>, note: Option<String> },
    Nested(Step<Bundle<Option<Tensor<u8>>>>),
}

#[test]
fn exclusive_tensors_in_derived_messages_move() {
    let ones = |n| Tensor::<f32>::full([n], 1.0).unwrap();
    let step = || Step { rank: 3, grads: ones(5), extra: vec!["a".to_string()] };
    travels(
        || vec![step()],
        |_, mut s: Step<Vec<String>>| {
            s.grads.as_mut_slice().unwrap()[4] = 2.0;
            assert_eq!((s.rank, s.grads.iter().sum::<f32>(), s.extra), (3, 6.0, vec!["a".to_string()]));
        },
    );
    let works = || {
        let note = Some("n".to_string());
        let bytes = Tensor::full([2], 9).unwrap();
        vec![
            Work::Stop,
            Work::One(ones(2)),
            Work::Both { left: ones(3), right: ones(4).freeze(), note },
            Work::Nested(Step { rank: 1, grads: ones(1), extra: Bundle(Some(bytes)) }),
        ]
    };
    travels(works, |i, work| match (i, work) {
        (0, Work::Stop) => {}
        (1, Work::One(t)) => assert_eq!(t.to_vec(), [1.0; 2]),
        (2, Work::Both { left, right, note }) => {
            assert_eq!((left.len(), right.len(), note.as_deref()), (3, 4, Some("n")));
        }
        (3, Work::Nested(Step { rank: 1, grads, extra: Bundle(Some(bytes)) })) => {
            assert_eq!((grads.len(), bytes.to_vec()), (1, vec![9, 9]));
        }
        (i, _) => panic!("value {i} arrived as another variant"),
    });
}

#[test]
fn bundles_of_exclusive_tensors_move() {
    type All = Bundle<(Tensor<i32>, String, Bundle<Vec<Tensor<i32>>>, Bundle<Option<Tensor<i32>>>)>;
    let make = || {
        let many = (0..5).map(|n| counting(&[n])).collect();
        vec![Bundle((counting(&[2, 2]), "text".to_string(), Bundle(many), Bundle(None)))]
    };
    travels(make, |_, Bundle((t, text, Bundle(many), Bundle(none))): All| {
        assert_eq!((t.to_vec(), text.as_str(), none.is_none()), (vec![0, 1, 2, 3], "text", true));
        assert_eq!(many.iter().map(Tensor::len).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn thousand_tensors_fit_a_message() {
    for n in [100, 1000] {
        let exclusive = || vec![Bundle((0..n).map(|i| Tensor::full([7], i).unwrap()).collect::<Vec<_>>())];
        travels(exclusive, |_, Bundle(all)| {
            assert!(all.iter().enumerate().all(|(i, t)| t.to_vec() == [i as i32; 7]));
            assert_eq!(all.len(), n as usize);
        });
        let frozen = || vec![(0..n).map(|i| Tensor::full([1], i).unwrap().freeze()).collect::<Vec<_>>()];
        travels(frozen, |_, all: Vec<FrozenTensor<i32>>| {
            assert!(all.iter().enumerate().all(|(i, t)| t.to_vec() == [i as i32]));
            assert_eq!(all.len(), n as usize);
        });
    }
}

#[test]
fn payloads_around_the_envelope_size_round_trip() {
    // Sizes around the 216 bytes of an envelope, and much larger sizes.
    let sizes: Vec<usize> = (180..230).chain([4096, 1 << 20, 5 << 20]).collect();
    let make = || sizes.iter().map(|&n| (vec![n as u8; n], counting(&[3]).freeze())).collect::<Vec<_>>();
    travels(make, |i, (bytes, tensor): (Vec<u8>, FrozenTensor<i32>)| {
        assert!(bytes.len() == sizes[i] && bytes.iter().all(|&b| b == sizes[i] as u8), "{}", sizes[i]);
        assert_eq!(tensor.to_vec(), [0, 1, 2]);
    });
}

#[test]
fn queues_round_trip_in_messages() {
    fn worker(_: usize, calls: Queue<(u64, Queue<u64>)>) -> Outcome {
        while let Some((n, answers)) = next(&calls)? {
            send(&answers, n * n)?;
        }
        Ok(())
    }
    let calls = Queue::bounded(4).unwrap();
    let context = one_process(worker, calls.clone());
    for n in 0..20 {
        // There is a separate queue for each answer.
        let answers = Queue::bounded(1).unwrap();
        give(&calls, (n, answers.clone()));
        assert_eq!(take(&answers), n * n);
    }
    calls.close();
    join(&context).unwrap();
}

struct Celsius(f64);
impl Reduce for Celsius {
    type Handle = (f64, FrozenTensor<i32>);
    fn reduce(&self) -> Result<Self::Handle, Box<dyn std::error::Error + Send + Sync>> {
        if self.0 < -273.15 {
            return Err("below absolute zero".into());
        }
        Ok((self.0 + 273.15, counting(&[2]).freeze()))
    }
    fn rebuild((kelvin, tensor): Self::Handle) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        if tensor.to_vec() != [0, 1] || kelvin > 1e6 {
            return Err("hotter than anything".into());
        }
        Ok(Celsius(kelvin - 273.15))
    }
}

#[derive(Serialize, Deserialize)]
struct Weather {
    #[serde(with = "mp::message::reduced")]
    high: Celsius,
}

#[test]
fn foreign_types_round_trip_by_conversion() {
    let weather = |high| Weather { high: Celsius(high) };
    travels(|| vec![weather(21.5)], |_, w| assert!((w.high.0 - 21.5).abs() < 1e-9));
    let queue = Queue::bounded(1).unwrap();
    let error = queue.put(weather(-300.0)).unwrap_err();
    assert!(error.to_string().contains("below absolute zero"), "{error}");
    assert!(error.into_value().high.0 == -300.0, "the value is returned");
    give(&queue, weather(1e9));
    let error = queue.get().map(drop).unwrap_err();
    assert!(error.to_string().contains("hotter than anything"), "{error}");
}

/// Value that is written as one type, and read as another.
struct Misread<A, B>(Option<A>, PhantomData<fn() -> B>);
impl<A: Serialize, B> Serialize for Misread<A, B> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().expect("only values that were made here are sent").serialize(s)
    }
}
impl<'de, A, B: Deserialize<'de>> Deserialize<'de> for Misread<A, B> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        B::deserialize(d).map(|_| Misread(None, PhantomData))
    }
}

/// Writes `a`, and returns the error of reading it as a `B`.
fn misread<A: Serialize + 'static, B: DeserializeOwned + 'static>(a: A) -> String {
    let queue = Queue::<Misread<A, B>>::bounded(1).unwrap();
    queue.put(Misread(Some(a), PhantomData)).unwrap();
    queue.get().map(drop).unwrap_err().to_string()
}

#[test]
fn message_type_mismatch_error_names_both_types() {
    let error = misread::<_, Queue<Vec<f32>>>(Queue::<i16>::bounded(1).unwrap());
    assert!(error.contains("a queue of i16") && error.contains("one of alloc::vec::Vec<f32>"), "{error}");
    let frozen = || counting(&[8]).freeze();
    for error in [
        misread::<_, FrozenTensor<u32>>(frozen()),
        misread::<_, FrozenTensor<u8>>(frozen()),
        misread::<_, SharedTensor<i32>>(frozen()),
        misread::<_, FrozenTensor<i32>>(counting(&[8]).share()),
        misread::<_, Queue<u8>>((frozen(), 0).0),
    ] {
        assert!(error.contains("was sent as") || error.contains("can't be decoded"), "{error}");
    }
    let error = mp::message::unpack::<String>(mp::message::pack(7_u8).unwrap()).unwrap_err().to_string();
    assert!(error.contains("alloc::string::String is expected"), "{error}");
}
