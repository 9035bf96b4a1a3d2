//! Attempts by safe code to violate memory safety.

use mp::message::{Message, Outgoing};
use mp::{Arena, FrozenTensor, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};
use mp_core::Messages;
use mp_reduce::MessagePack;
use std::cell::RefCell;

/// Encodes a tensor and decodes it in this process. Returns the decoded tensor, and the encoded tensor, which
/// is empty after that.
fn read_back(mut t: Tensor<u64>) -> mp::AnyResult<(Tensor<u64>, Tensor<u64>), mp::Error> {
    let mut out = Outgoing::default();
    t.encode::<MessagePack>(&mut out)?;
    Ok((Tensor::decode::<MessagePack>(&mut out.into_incoming())?, t))
}

#[test]
fn sent_tensor_is_empty_at_its_sender() {
    let (got, left) = read_back(Tensor::full([8], 5).unwrap()).unwrap();
    assert_eq!((got.to_vec(), left.to_vec()), (vec![5; 8], vec![]));
    assert!(got.storage() != left.storage());
    // Tensors made of the remains have no memory.
    let queue = Queue::<FrozenTensor<u64>>::bounded(1).unwrap();
    assert!(queue.put(left.freeze()).is_err());
    let (_, left) = read_back(got).unwrap();
    let queue = Queue::<SharedTensor<u64>>::bounded(1).unwrap();
    assert!(queue.put(left.share()).is_err());
}

#[test]
fn tensor_is_in_one_message_at_a_time() {
    let (mut one, mut other, mut t) =
        (Outgoing::default(), Outgoing::default(), Tensor::<u64>::zeros([8]).unwrap());
    t.encode::<MessagePack>(&mut one).unwrap();
    let error = t.encode::<MessagePack>(&mut other).unwrap_err();
    assert!(error.to_string().contains("was sent already"), "{error}");
    t.take_back(&mut other.returned(None));
    assert!(t.is_empty(), "the other message took no part of it");
    t.take_back(&mut one.returned(None));
    assert_eq!(t.len(), 8);
    t.take_back(&mut one.returned(None));
    assert_eq!(t.len(), 8, "the tensor has its elements again");
}

/// A hand-written `Message` may call `take_back` for a tensor that its message does not contain. The first
/// tensor was emptied by an earlier message, in which its attachment had the same number as the second
/// tensor's attachment has now.
#[test]
fn moved_tensor_takes_nothing_of_another_message() {
    let mut gone = Outgoing::default();
    let mut left = Tensor::full([8], 1_f32).unwrap();
    left.encode::<MessagePack>(&mut gone).unwrap();
    let mut message = Outgoing::default();
    let mut tensor = Tensor::full([4], 2_f32).unwrap();
    tensor.encode::<MessagePack>(&mut message).unwrap();
    let mut back = message.returned(None);
    left.take_back(&mut back);
    tensor.take_back(&mut back);
    assert!(left.is_empty(), "the tensor has elements of another tensor: {left:?}");
    assert_eq!(tensor.to_vec(), [2.0; 4]);
    // The numbers of the other tensor don't make this one require gradients.
    assert!(left.is_leaf() && !left.requires_grad());
    left.set_requires_grad(true).unwrap();
    left.set_non_leaf();
    assert!(!left.is_leaf());
}

/// A hand-written `Message` may call `take_back` with the attachments of another message.
#[test]
fn tensor_taken_back_from_another_message_is_whole() {
    let arena = Arena::current().unwrap();
    for packed in [false, true] {
        let (mut one, mut other) = (Outgoing::default(), Outgoing::default());
        let (mut long, mut short) = (Tensor::full([8], 1_u64).unwrap(), Tensor::full([4], 2_u64).unwrap());
        long.encode::<MessagePack>(&mut one).unwrap();
        short.encode::<MessagePack>(&mut other).unwrap();
        let mut back = if packed {
            let envelope = Messages(arena).pack(&mut other, 0).unwrap();
            one.returned(Some(envelope))
        } else {
            std::mem::swap(one.attached(), other.attached());
            one.returned(None)
        };
        long.take_back(&mut back);
        short.take_back(&mut back);
        // Each tensor has its old memory, or other memory that is large enough, or none.
        for tensor in [long, short] {
            assert_eq!(tensor.len(), tensor.to_vec().len());
            assert!(8 * tensor.len() <= tensor.storage().len(), "{tensor:?}");
        }
    }
}

#[test]
fn moved_object_is_returned_by_its_message_once() {
    let mut object = mp_core::Structure::new("mp_tests::Object", 1).unwrap();
    let mut out = Outgoing::default();
    let number = object.attach_to(out.attached()).unwrap();
    let beside = || std::sync::Arc::new(());
    let mark = out.attached().lends_object(number, beside(), 0).unwrap();
    for wrong in [number, number + 1, u32::MAX] {
        assert!(out.attached().lends_object(wrong, beside(), 0).is_err(), "{wrong}");
    }
    let shared = mp_core::Structure::new("mp_tests::Object", 1).unwrap();
    let number = out.attached().attach_object(shared.hold()).unwrap();
    assert!(out.attached().lends_object(number, beside(), 0).is_err(), "an unmoved object was lent");
    let mut back = out.returned(None);
    assert!(back.take_object(mark).is_some() && back.take_object(mark).is_none());
}

/// Value that is decoded during its encoding, because it is a 128-bit number. The decoding takes all
/// attachments of the message.
struct Thief;

thread_local! {
    static STOLEN: RefCell<Option<mp::message::ReceivedAttachments>> = const { RefCell::new(None) };
}

impl serde::Serialize for Thief {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u128(1)
    }
}

impl<'de> serde::Deserialize<'de> for Thief {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let all = mp::message::scope::incoming("all", |arrived| Ok(std::mem::take(arrived)));
        STOLEN.set(Some(all.map_err(serde::de::Error::custom)?));
        u128::deserialize(d).map(|_| Self)
    }
}

#[test]
fn tensor_stays_in_a_message_being_written() {
    let mut shape = Outgoing::default();
    Tensor::<u64>::zeros([8]).unwrap().encode::<MessagePack>(&mut shape).unwrap();
    let mut out = Outgoing::default();
    mp::Bundle((Tensor::<u64>::full([8], 5).unwrap(), Thief)).encode::<MessagePack>(&mut out).unwrap();
    let stolen = STOLEN.take().expect("the value was read while it was written");
    let mut second = mp::message::Incoming::from_plain(shape.bytes().to_vec());
    *second.arrived() = stolen;
    let error = Tensor::<u64>::decode::<MessagePack>(&mut second).unwrap_err();
    assert!(error.to_string().contains("taken already"), "{error}");
    let mut first = out.into_incoming();
    let tensor = Tensor::<u64>::decode::<MessagePack>(&mut first).unwrap();
    assert_eq!(tensor.to_vec(), [5; 8]);
}

#[test]
fn deeply_nested_queues_are_freed() {
    let blocks = || Arena::current().unwrap().memory_stats().live_blocks;
    // Other tests of this program use only a few blocks, not thousands.
    const DEPTH: u64 = 30_000;
    type Nested = Queue<Inner>;
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Inner(Option<Box<Nested>>);
    let mut queue = Nested::bounded(1).unwrap();
    for _ in 0..DEPTH {
        let outer = Nested::bounded(1).unwrap();
        outer.put(Inner(Some(Box::new(queue)))).unwrap();
        queue = outer;
    }
    assert!(blocks() >= DEPTH);
    drop(queue);
    assert!(blocks() < DEPTH / 2);
}

/// Each process holds both locks that show that it is alive. Parent and child check this, also after another
/// child was started.
#[test]
fn process_holds_both_of_its_liveness_locks() {
    fn locks() -> (bool, bool) {
        let pid = std::process::id().to_string();
        let all = std::fs::read_to_string("/proc/locks").unwrap();
        let posix = all.lines().any(|l| l.contains("POSIX") && l.split_whitespace().any(|w| w == pid));
        // Locks of an open file description show no pid.
        (posix, all.lines().any(|l| l.contains("OFDLCK")))
    }
    // The kernel writes that file in pieces, and may skip locks while others are released. So the test waits
    // until both locks appear. A lock that was really lost would not appear again.
    fn held() {
        mp_tests::eventually("both locks are held", || locks() == (true, true));
    }
    fn child(_: usize, (): ()) -> mp::AnyResult<()> {
        Arena::current()?;
        held();
        Ok(())
    }
    Arena::current().unwrap();
    start_processes(child, (), SpawnOptions::nprocs(2)).unwrap().join().unwrap();
    held();
}
