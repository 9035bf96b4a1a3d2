//! Messages that can't be sent or read: the value is returned or an error gives the reason, and attachments
//! are released. Each test counts usage of shared memory before and after, so they run one at a time.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mp::{Bundle, FrozenTensor, Message, PutError, Queue, Tensor};
use mp_tests::{alone, give, in_use};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn frozen() -> FrozenTensor<u8> {
    Tensor::full([5000], 3).unwrap().freeze()
}

/// Runs `f` alone, and checks that it leaves nothing in shared memory.
fn leaves_nothing(f: impl Fn()) {
    let _alone = alone();
    // The first round allocates envelopes and lanes, which stay.
    f();
    let before = in_use();
    (0..3).for_each(|_| f());
    assert_eq!(in_use(), before, "live blocks, queued messages, members");
}

/// Behaviour of a [`Moody`] value while it is sent and received.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
enum Mood {
    Fine,
    FailsToLeave,
    PanicsLeaving,
    FailsToArrive,
    PanicsArriving,
}

/// Field that fails or panics as its mood specifies.
#[derive(Clone, Copy, Debug)]
struct Moody(Mood);

impl Serialize for Moody {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Mood::FailsToLeave => Err(serde::ser::Error::custom("it would not leave")),
            Mood::PanicsLeaving => panic!("it panics leaving"),
            mood => mood.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Moody {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Mood::deserialize(d)? {
            Mood::FailsToArrive => Err(serde::de::Error::custom("it would not arrive")),
            Mood::PanicsArriving => panic!("it panics arriving"),
            mood => Ok(Moody(mood)),
        }
    }
}

/// Message with tensors before and after the field that may fail, of which one is exclusive, and with numbers
/// in a separate block.
#[derive(Message)]
struct Parcel {
    own: Tensor<u32>,
    before: FrozenTensor<u8>,
    row: Vec<u64>,
    moody: Moody,
    text: String,
    after: Bundle<Vec<Tensor<f64>>>,
}

fn parcel(mood: Mood) -> Parcel {
    let after = (0..40).map(|_| Tensor::zeros([100]).unwrap()).collect();
    Parcel {
        own: Tensor::full([9], 7).unwrap(),
        before: frozen(),
        row: vec![5; 5000],
        moody: Moody(mood),
        text: "x".repeat(20_000),
        after: Bundle(after),
    }
}

#[test]
fn failing_serialize_of_a_message_returns_the_value() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        let error = queue.put(parcel(Mood::FailsToLeave)).unwrap_err();
        assert!(matches!(&error, PutError::Failed { .. }), "{error:?}");
        assert!(error.to_string().contains("it would not leave"), "{error}");
        let mut back = error.into_value();
        back.own.as_mut_slice().unwrap()[0] = 8;
        assert_eq!((back.own.len(), back.before.get(&[4999]).unwrap(), back.after.0.len()), (9, 3, 40));
        // The failed attempt has left no traces: the value can be sent.
        back.moody = Moody(Mood::Fine);
        give(&queue, back);
        assert_eq!(queue.get().unwrap().unwrap().own.to_vec(), [8, 7, 7, 7, 7, 7, 7, 7, 7]);
    });
}

#[test]
fn panicking_serialize_leaks_nothing() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        let put = || queue.put(parcel(Mood::PanicsLeaving)).is_ok();
        assert!(catch_unwind(AssertUnwindSafe(put)).is_err());
        // The thread's scope is unchanged: a frozen tensor outside of a message is still an error.
        assert!(rmp_serde::to_vec(&frozen()).is_err());
        give(&queue, parcel(Mood::Fine));
        assert!(queue.get().unwrap().is_some());
    });
}

#[test]
fn failing_deserialize_loses_only_its_message() {
    leaves_nothing(|| {
        let queue = Queue::bounded(2).unwrap();
        give(&queue, parcel(Mood::FailsToArrive));
        give(&queue, parcel(Mood::Fine));
        let error = queue.get().map(drop).unwrap_err();
        assert!(error.to_string().contains("it would not arrive"), "{error}");
        assert_eq!(queue.get().unwrap().unwrap().own.to_vec(), [7; 9]);
    });
}

#[test]
fn panicking_deserialize_leaks_nothing() {
    leaves_nothing(|| {
        let queue = Queue::bounded(2).unwrap();
        give(&queue, parcel(Mood::PanicsArriving));
        give(&queue, parcel(Mood::Fine));
        assert!(catch_unwind(AssertUnwindSafe(|| queue.get().map(drop))).is_err());
        assert!(rmp_serde::from_slice::<FrozenTensor<u8>>(&[0x92, 0, 0x93, 0, 0x90, 0x90]).is_err());
        assert_eq!(queue.get().unwrap().unwrap().own.to_vec(), [7; 9]);
    });
}

#[test]
fn put_refused_by_a_queue_returns_the_value() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        give(&queue, parcel(Mood::Fine));
        let mut back = match queue.try_put(parcel(Mood::Fine)) {
            Err(PutError::Full(back)) => back,
            other => panic!("unexpected: {other:?}"),
        };
        back.own.as_mut_slice().unwrap().fill(1);
        let moment = std::time::Duration::from_millis(20);
        let Err(PutError::Full(back)) = queue.put_timeout(back, moment) else { panic!("the queue has room") };
        assert!(queue.close());
        let Err(PutError::Closed(back)) = queue.put(back) else { panic!("the queue is not closed") };
        assert_eq!((back.own.to_vec(), back.after.0.len()), (vec![1; 9], 40));
    });
}

#[test]
fn value_that_misreads_its_own_bytes_is_returned() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        give(&queue, parcel(Mood::Fine));
        let error = queue.try_put(parcel(Mood::FailsToArrive)).unwrap_err();
        assert!(matches!(&error, PutError::Full(_)), "{error:?}");
        assert_eq!(error.into_value().own.to_vec(), [7; 9]);
    });
}

#[test]
fn queues_without_handles_free_their_messages() {
    leaves_nothing(|| {
        let queue = Queue::bounded(8).unwrap();
        (0..5).for_each(|_| give(&queue, parcel(Mood::Fine)));
        let outer = Queue::bounded(2).unwrap();
        // The only handle to the inner queue is in a message of the outer queue.
        give(&outer, queue);
        drop(outer);
    });
}

#[test]
fn serialize_may_use_queues() {
    thread_local! {
        static SIDE: Cell<Option<Queue<FrozenTensor<u8>>>> = const { Cell::new(None) };
    }
    #[derive(Deserialize)]
    struct Chatty(FrozenTensor<u8>);
    impl Serialize for Chatty {
        fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            let side = SIDE.take().expect("set below");
            give(&side, self.0.clone());
            self.0.serialize(s)
        }
    }
    leaves_nothing(|| {
        let (queue, side) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
        SIDE.set(Some(side.clone()));
        give(&queue, Chatty(frozen()));
        let (a, b) = (queue.get().unwrap().unwrap().0, side.get().unwrap().unwrap());
        assert!(a.storage() == b.storage());
        assert_eq!(a.get(&[0]).unwrap(), 3);
    });
}

#[test]
fn storage_keeps_its_memory_after_its_tensor_is_sent() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        let tensor = Tensor::full([9], 7_u32).unwrap();
        // A storage gives no access to elements.
        let storage = tensor.storage().clone();
        queue.put(tensor).unwrap();
        drop(queue);
        let other = Tensor::full([9], 8_u32).unwrap();
        assert!(*other.storage() != storage);
    });
}

/// All `Bytes` of a message share one block, which exists while one of them is alive.
#[test]
fn bytes_retain_the_message_and_vectors_do_not() {
    let _alone = alone();
    let queue: Queue<(Vec<u8>, bytes::Bytes, String)> = Queue::bounded(1).unwrap();
    let value = || (vec![1; 100_000], bytes::Bytes::from(vec![2; 100_000]), "3".repeat(100_000));
    let before = in_use().0;
    give(&queue, value());
    assert_eq!(in_use().0, before + 3, "the queue holds three blocks");
    let (row, bytes, text) = queue.get().unwrap().unwrap();
    assert!((&row, &bytes, &text) == (&value().0, &value().1, &value().2));
    assert_eq!(in_use().0, before + 1);
    let part = bytes.slice(10..20);
    drop(bytes);
    assert_eq!((in_use().0, &part[..]), (before + 1, &[2; 10][..]));
    drop(part);
    assert_eq!(in_use().0, before);
}

static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Value that counts its instances, and refuses or panics while it is written or read.
struct Faulty(u8);

impl Faulty {
    fn new(how: u8) -> Arc<Self> {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Arc::new(Faulty(how))
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Serialize for Faulty {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => Err(serde::ser::Error::custom("it refuses to be written")),
            1 => panic!("while it is written"),
            how => s.serialize_u8(how),
        }
    }
}

impl<'de> Deserialize<'de> for Faulty {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let how = u8::deserialize(d)?;
        ALIVE.fetch_add(1, Ordering::SeqCst);
        let this = Faulty(how); // dropped below, if it is not read
        match how {
            2 => Err(serde::de::Error::custom("it refuses to be read")),
            3 => panic!("while it is read"),
            _ => Ok(this),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Faults {
    #[serde(with = "mp::message::shared")]
    good: Arc<Faulty>,
    tensor: FrozenTensor<u8>,
    #[serde(with = "mp::message::shared")]
    bad: Vec<Arc<Faulty>>,
}

/// Several fields point to a value that fails. The value is before or after a tensor.
#[test]
fn shared_parts_that_fail_or_panic_leak_nothing() {
    leaves_nothing(|| {
        let queue = Queue::bounded(1).unwrap();
        let faults = |how| {
            let bad = Faulty::new(how);
            Faults { good: Faulty::new(9), tensor: frozen(), bad: vec![bad.clone(), bad] }
        };
        let error = queue.put(faults(0)).unwrap_err();
        assert!(error.to_string().contains("at bad[0]: it refuses to be written"), "{error}");
        assert_eq!(error.into_value().bad.len(), 2);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(queue.put(faults(1))))).is_err());
        give(&queue, faults(2));
        let error = queue.get().map(drop).unwrap_err().to_string();
        assert!(error.contains("at bad[0]") && error.contains("Faulty>: it refuses to be read"), "{error}");
        give(&queue, faults(3));
        assert!(catch_unwind(AssertUnwindSafe(|| drop(queue.get()))).is_err());
        give(&queue, faults(4));
        let arrived = queue.get().unwrap().unwrap();
        assert!(Arc::ptr_eq(&arrived.bad[0], &arrived.bad[1]) && arrived.good.0 == 9);
        drop(arrived);
        assert_eq!(ALIVE.load(Ordering::SeqCst), 0, "parts were not dropped");
    });
}
