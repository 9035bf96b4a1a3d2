//! Queues whose capacity is also limited in bytes.

use std::time::Duration;

use mp::{FrozenTensor, Message, PutError, Queue, QueueOptions, SpawnOptions, Tensor, start_processes};
use mp_core::inject;
use mp_tests::kill::{for_every_access, killed};
use mp_tests::{Outcome, alone, give, join, one_process, send, take};

const KIB: usize = 1 << 10;

fn bounded<T: Message>(bytes: u64) -> Queue<T> {
    QueueOptions::new().capacity(100).bytes(bytes).create().unwrap()
}

fn tensor(number: u64, bytes: usize) -> FrozenTensor<u64> {
    Tensor::full([bytes / 8], number).unwrap().freeze()
}

#[test]
fn queue_accepts_bytes_up_to_its_bound() {
    let _alone = alone();
    // Larger than free blocks of other tests, because a somewhat larger free block would be used whole.
    const LARGE: usize = 512 * KIB;
    let queue = bounded(6 * LARGE as u64 + 4 * KIB as u64);
    let mut put = 0;
    let back = loop {
        match queue.try_put(tensor(put, LARGE)) {
            Ok(()) => put += 1,
            Err(PutError::Full(back)) => break back,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(put, 6, "each message has 512 KiB and a few bytes");
    assert!(back.iter().all(|v| v == 6) && !queue.is_full());
    // A small message still fits.
    queue.try_put(tensor(7, 8)).unwrap();
    assert!(queue.put_timeout(back, Duration::from_millis(1)).unwrap_err().is_full());
    for number in [0, 1, 2, 3, 4, 5, 7] {
        assert_eq!(take(&queue).get(&[0]).unwrap(), number);
    }
    // The queue was empty, so all of its bytes are available again.
    (0..6).for_each(|n| queue.try_put(tensor(n, LARGE)).unwrap());
    assert!(queue.try_put(tensor(6, LARGE)).unwrap_err().is_full());
}

#[test]
fn too_large_message_error_names_both_sizes() {
    let _alone = alone();
    let queue = bounded(100);
    let error = queue.put(vec![7_u8; 101]).unwrap_err();
    let said = error.to_string();
    let PutError::TooLarge { value, bytes, limit: 100 } = error else { panic!("{said}") };
    assert!(said.contains(&format!("{bytes} bytes")) && said.contains("at most 100"), "{said}");
    assert_eq!(value, [7; 101]);
    // Messages around the size that fills the queue to the last byte.
    let around = bytes as usize - 101;
    queue.put(vec![7_u8; 100 - around]).unwrap();
    assert!(queue.try_put(Vec::new()).unwrap_err().is_full());
    let error = QueueOptions::new().bytes(100).create::<u8>().unwrap_err();
    assert!(error.to_string().contains("capacity"), "{error}");
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let _alone = alone();
    let bytes = |n: usize| (0..n).map(|i| (i * 7 + n) as u8).collect::<Vec<_>>();
    let (bound, plain) = (bounded(4000), Queue::bounded(4).unwrap());
    for n in 0..600 {
        for queue in [&bound, &plain] {
            give(queue, bytes(n));
            give(queue, bytes(n));
            assert_eq!([take(queue), take(queue)], [bytes(n), bytes(n)]);
        }
    }
    // With tensors in addition to the bytes: as many as an envelope can list, and more.
    let bound = bounded(1 << 30);
    for n in 0..40 {
        let tensors: Vec<_> = (0..n).map(|i| tensor(i as u64, 8)).collect();
        give(&bound, (bytes(n * 5), tensors));
        let (got, tensors): (Vec<u8>, Vec<FrozenTensor<u64>>) = take(&bound);
        assert!(got == bytes(n * 5) && tensors.len() == n);
        assert!(tensors.iter().enumerate().all(|(i, t)| t.get(&[0]).unwrap() == i as u64));
    }
}

type Sized = Queue<(u64, FrozenTensor<u64>)>;

fn produce(rank: usize, (queue, count): (Sized, u64)) -> Outcome {
    for n in 0..count {
        // The sizes alternate.
        let size = [8, 20 * KIB, 3 * KIB][(n % 3) as usize];
        send(&queue, (rank as u64 * count + n, tensor(n, size)))?;
    }
    Ok(())
}

#[test]
fn producers_of_all_sizes_wait_for_room_in_bytes() {
    let _alone = alone();
    const EACH: u64 = 300;
    let queue: Sized = bounded(64 * KIB as u64);
    let context = start_processes(produce, (queue.clone(), EACH), SpawnOptions::nprocs(3)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 * EACH {
        let (n, tensor) = take(&queue);
        assert!(seen.insert(n) && tensor.iter().all(|v| v == n % EACH), "message {n}");
    }
    join(&context).unwrap();
}

fn put_three(_: usize, (queue, at): (Sized, u64)) -> Outcome {
    inject::arm(at, 9);
    for n in 0..3 {
        send(&queue, (n, tensor(n, 2 * KIB)))?;
    }
    Ok(())
}

#[test]
fn killed_producer_returns_its_bytes_to_the_bound() {
    for_every_access(|at| {
        let queue: Sized = bounded(8 * KIB as u64);
        let killed = killed(&one_process(put_three, (queue.clone(), at)));
        let mut theirs = 0;
        while let Ok(Some((n, _))) = queue.try_get() {
            assert_eq!(n, theirs, "killed at access {at}");
            theirs += 1;
        }
        assert!(killed || theirs == 3);
        // The whole capacity is free again.
        (0..3).for_each(|n| queue.try_put((n, tensor(n, 2 * KIB))).unwrap());
        assert!(queue.try_put((3, tensor(3, 2 * KIB))).unwrap_err().is_full());
        killed
    });
}

fn take_two(_: usize, (queue, at): (Sized, u64)) -> Outcome {
    inject::arm(at, 9);
    (0..2).for_each(|_| drop(take(&queue)));
    Ok(())
}

#[test]
fn killed_consumer_returns_its_bytes_to_the_bound() {
    for_every_access(|at| {
        let queue: Sized = bounded(8 * KIB as u64);
        (0..3).for_each(|n| queue.try_put((n, tensor(n, 2 * KIB))).unwrap());
        let killed = killed(&one_process(take_two, (queue.clone(), at)));
        let left = queue.len() as u64;
        // As many messages fit as both processes have taken.
        let mut more = 0;
        while queue.try_put((more, tensor(more, 2 * KIB))).is_ok() {
            more += 1;
        }
        let all = std::iter::from_fn(|| queue.try_get().ok().flatten()).count() as u64;
        assert_eq!(all, 3, "killed at access {at}: {left} left, {more} more");
        killed
    });
}
