//! Long vectors, texts and byte strings in messages to other processes: in queues, as arguments and results,
//! in tasks, repeated and leased.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use mp::Message;
use mp::message::{Codec, Outgoing};
use mp::tensor::FrozenBytes;
use mp::{JoinableQueue, Pool, Queue, Tensor, spawn};
use mp_reduce::MessagePack;
use mp_tests::{Outcome, give, join, next, one_process, same, take, travels};
use ndarray::Array2;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Frame {
    name: String,
    pixels: Vec<u8>,
    depth: Option<Box<[f32]>>,
    tracks: Vec<Vec<i32>>,
    by_name: BTreeMap<String, Vec<u64>>,
    cow: Cow<'static, [u16]>,
    shared: Bytes,
    behind: u8,
}

impl mp::message::PlainOutcome for Frame {}

/// Returns a frame whose parts have about `bytes` bytes each.
fn frame(bytes: usize) -> Frame {
    let count = |size: usize| (0..bytes / size).map(|i| i.wrapping_mul(0x9e37_79b9));
    Frame {
        name: "n".repeat(bytes),
        pixels: count(1).map(|n| n as u8).collect(),
        depth: Some(count(4).map(|n| n as f32).collect()),
        tracks: vec![count(4).map(|n| n as i32).collect(); 3],
        by_name: BTreeMap::from([("a".into(), count(8).map(|n| n as u64).collect())]),
        cow: count(2).map(|n| n as u16).collect(),
        shared: count(1).map(|n| n as u8).collect(),
        behind: 7,
    }
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    Frame(Box<Frame>),
    Row(Vec<f64>),
}

#[test]
fn message_buffers_round_trip_in_any_container() {
    let sizes = [0, 300, 16 << 10, 100_000, 3 << 20];
    let frames: Vec<Frame> = sizes.into_iter().map(frame).collect();
    same(&frames);
    same(&frames.iter().cloned().map(|f| Untagged::Frame(f.into())).collect::<Vec<_>>());
    same(&[Untagged::Row(vec![0.5; 100_000]), Untagged::Number(3)]);
    same(&[vec![u8::MAX; 1 << 20], vec![]]);
    same(&[Some(Some("x".repeat(1 << 20))), Some(None), None]);
}

/// Arrays of `ndarray` serialize their elements one by one.
#[test]
fn ndarrays_arrive_as_one_block() {
    let array = Array2::from_shape_fn((100, 120), |(i, j)| i as f32 - j as f32);
    same(&[array.clone(), array.t().to_owned(), Array2::zeros((2, 0))]);
    let mut out = Outgoing::default();
    MessagePack::write(&mut out, &array.t()).unwrap();
    assert_eq!(out.into_incoming().blocks().count(), 1);
}

fn returns(_: usize, frame: Frame) -> Frame {
    frame
}

#[test]
fn message_buffers_pass_as_arguments_and_results() {
    let sent = frame(200_000);
    assert_eq!(spawn(returns, sent.clone(), 2).unwrap(), [sent.clone(), sent]);
}

#[test]
fn message_buffers_pass_through_a_pool() {
    let pool = Pool::new(2).unwrap();
    let frames: Vec<Frame> = [100, 20_000, 200_000, 5].into_iter().cycle().take(40).map(frame).collect();
    assert_eq!(pool.map(|frame: Frame| frame, frames.clone()).unwrap(), frames);
}

/// Buffers stay with the message while it is leased, so it can be delivered again.
#[test]
fn buffers_of_leased_messages_are_redelivered() {
    let queue: Queue<Frame> = Queue::bounded(2).unwrap();
    let sent = frame(50_000);
    give(&queue, sent.clone());
    for _ in 0..3 {
        let lease = queue.get_lease().unwrap().unwrap();
        assert_eq!(*lease, sent);
        drop(lease);
    }
    let tasks: JoinableQueue<Frame> = JoinableQueue::bounded(2).unwrap();
    tasks.put(sent.clone()).unwrap();
    let lease = tasks.get().unwrap().unwrap();
    assert_eq!(*lease, sent);
    lease.ack();
}

/// While the queue is full, the value belongs to its sender, and exactly this value is returned.
#[test]
fn refused_buffer_is_returned_without_a_copy() {
    let queue: Queue<Vec<f32>> = Queue::bounded(1).unwrap();
    queue.put(vec![0.0]).unwrap();
    let row = vec![1.5_f32; 100_000];
    let at = row.as_ptr();
    let back = queue.try_put(row).unwrap_err().into_value();
    assert_eq!((back.as_ptr(), back.len()), (at, 100_000));
}

/// `Bytes` that arrive use the attached memory. `Bytes` of a tensor use the tensor's memory in each process.
#[test]
fn shared_bytes_are_not_copied() {
    let tensor = Tensor::<u8>::from_fn([1 << 20], |i| i as u8).unwrap().freeze();
    let storage = tensor.storage().clone();
    travels(
        || vec![tensor.clone().into_bytes().unwrap()],
        |_, bytes: FrozenBytes| {
            assert_eq!(bytes.len(), 1 << 20);
            assert!(bytes.iter().enumerate().all(|(i, byte)| *byte == i as u8));
            // Both addresses are in the same mapping of the same memory.
            assert_eq!(bytes.as_ptr(), storage.as_ptr());
        },
    );
    let queue: Queue<Bytes> = Queue::bounded(1).unwrap();
    let sent = Bytes::from(vec![7_u8; 1 << 20]);
    give(&queue, sent.clone());
    let got = take(&queue);
    assert_eq!(got, sent);
    // Attached blocks have this alignment, and vectors of this length never do.
    assert_eq!(got.as_ptr() as usize % 4096, 0, "the bytes were copied");
    drop(queue);
    assert_eq!(got.slice(1 << 19..).len(), 1 << 19);
}

fn sender(_: usize, queue: Queue<Vec<u32>>) -> Outcome {
    for i in 0..20_u32 {
        queue.put((i..i + 30_000).collect()).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The memory of a buffer belongs to its message.
#[test]
fn message_buffers_outlive_their_sender() {
    let queue = Queue::bounded(20).unwrap();
    join(&one_process(sender, queue.clone())).unwrap();
    for i in 0..20 {
        assert!(take(&queue).iter().copied().eq(i..i + 30_000));
    }
}

fn echo_one(_: usize, (there, back): (Queue<Vec<u8>>, Queue<u64>)) -> Outcome {
    while let Some(bytes) = next(&there)? {
        back.put(bytes.iter().map(|b| u64::from(*b)).sum()).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The buffers need more memory than all messages in flight may have: each buffer is freed after it was read.
#[test]
fn memory_of_a_message_buffer_is_reused() {
    let (there, back) = (Queue::bounded(4).unwrap(), Queue::bounded(4).unwrap());
    let context = one_process(echo_one, (there.clone(), back.clone()));
    for i in 0..200_u64 {
        give(&there, vec![i as u8; 1 << 20]);
        assert_eq!(take(&back), u64::from(i as u8) << 20);
    }
    there.close();
    join(&context).unwrap();
}

/// An attachment stores its own length, which the bytes of the message repeat. Both lengths are compared with
/// each other, and with the size of the elements.
#[test]
fn forged_length_of_a_message_buffer_is_refused() {
    let read = |len: u64| {
        let (mut row, mut out) = (vec![3_u32; 5000], Outgoing::default());
        row.encode::<MessagePack>(&mut out).unwrap();
        out.bytes()[3..11].copy_from_slice(&len.to_le_bytes());
        Vec::<u32>::decode::<MessagePack>(&mut out.into_incoming()).map_err(|e| e.to_string())
    };
    assert_eq!(read(20_000).unwrap(), vec![3; 5000]);
    assert_eq!(read(8).unwrap(), [3; 2]);
    for (len, says) in [
        (19_999, "are not a whole number of numbers of 4 bytes"),
        (1 << 20, "a buffer of 1048576 is read there"),
    ] {
        let why = read(len).unwrap_err();
        assert!(why.contains(says), "{why}");
    }
}
