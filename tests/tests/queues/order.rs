//! Queues between live processes: order, waiting, closing, and messages that outlive their senders.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use mp::{FrozenTensor, GetError, PutError, Queue, SpawnOptions, Tensor, start_processes};
use mp_tests::{Outcome, alone, eventually, give, join, next, one_process, send, take, threads_are};

const MOMENT: Duration = Duration::from_millis(20);

type Numbered = (usize, u32);

fn produce(rank: usize, (queue, count): (Queue<Numbered>, u32)) -> Outcome {
    (0..count).try_for_each(|i| send(&queue, (rank, i)))
}

fn consume(_: usize, (queue, results): (Queue<Numbered>, Queue<Vec<Numbered>>)) -> Outcome {
    send(&results, queue.iter().collect::<Result<_, _>>()?)
}

/// Runs two producers and two consumers. Returns the messages of each consumer.
fn two_by_two(capacity: usize, each: u32) -> [Vec<Numbered>; 2] {
    let (queue, results) = (Queue::bounded(capacity).unwrap(), Queue::bounded(2).unwrap());
    let consumers =
        start_processes(consume, (queue.clone(), results.clone()), SpawnOptions::nprocs(2)).unwrap();
    let producers = start_processes(produce, (queue.clone(), each), SpawnOptions::nprocs(2)).unwrap();
    join(&producers).unwrap();
    assert!(queue.close() && !queue.close());
    let got = [take(&results), take(&results)];
    join(&consumers).unwrap();
    got
}

fn check_order(got: &[Vec<Numbered>; 2], each: u32) {
    for (consumer, all) in got.iter().enumerate() {
        for producer in 0..2 {
            let numbers: Vec<u32> = all.iter().filter(|m| m.0 == producer).map(|m| m.1).collect();
            assert!(numbers.is_sorted(), "consumer {consumer} got messages of {producer} out of order");
        }
    }
    let once: HashSet<Numbered> = got.iter().flatten().copied().collect();
    let total = got.iter().map(Vec::len).sum::<usize>();
    assert_eq!((once.len(), total), (2 * each as usize, 2 * each as usize), "each message arrives once");
}

#[test]
fn messages_arrive_once_in_producer_order() {
    let _alone = alone();
    let got = two_by_two(64, 10_000);
    check_order(&got, 10_000);
}

#[test]
fn queue_of_capacity_one_passes_all_messages() {
    let _alone = alone();
    let got = two_by_two(1, 500);
    check_order(&got, 500);
}

#[test]
fn try_and_timeout_forms_of_put_and_get_end_in_time() {
    let _alone = alone();
    let queue = Queue::bounded(2).unwrap();
    assert!(matches!(queue.try_get(), Err(GetError::Empty)));
    let begin = Instant::now();
    assert!(queue.get_timeout(MOMENT).unwrap_err().is_empty());
    assert!(begin.elapsed() >= MOMENT, "returned after {:?}", begin.elapsed());
    assert!(queue.get_timeout(Duration::ZERO).unwrap_err().is_empty());
    queue.try_put('a').unwrap();
    queue.put_timeout('b', Duration::ZERO).unwrap();
    assert!((queue.len(), queue.is_full(), queue.capacity()) == (2, true, 2));
    assert!(matches!(queue.try_put('c'), Err(PutError::Full('c'))));
    let begin = Instant::now();
    let error = queue.put_timeout('c', MOMENT).unwrap_err();
    assert!(error.is_full() && begin.elapsed() >= MOMENT, "{error:?} after {:?}", begin.elapsed());
    assert_eq!((queue.try_get().unwrap(), queue.get_timeout(Duration::MAX).unwrap()), (Some('a'), Some('b')));
    assert!(queue.is_empty());
}

#[test]
fn impossible_queue_capacities_are_errors() {
    let _alone = alone();
    for capacity in [0, (1 << 24) + 1, usize::MAX] {
        let error = Queue::<u8>::bounded(capacity).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{capacity} messages")) && error.contains("16777216"), "{error}");
    }
}

#[test]
fn get_in_another_process_wakes_a_blocked_put() {
    let _alone = alone();
    fn worker(_: usize, (queue, go, results): (Queue<u32>, Queue<()>, Queue<Option<u32>>)) -> Outcome {
        next(&go)?;
        (0..3).try_for_each(|_| send(&results, next(&queue)?))
    }
    let queue = Queue::bounded(1).unwrap();
    let (go, results) = (Queue::bounded(1).unwrap(), Queue::bounded(3).unwrap());
    let args = (queue.clone(), go.clone(), results.clone());
    let context = one_process(worker, args);
    give(&queue, 0);
    assert!(queue.put_timeout(1, MOMENT).unwrap_err().is_full());
    give(&go, ());
    // Only the gets of the other process make room for these.
    give(&queue, 1);
    give(&queue, 2);
    assert_eq!([take(&results), take(&results), take(&results)], [Some(0), Some(1), Some(2)]);
    join(&context).unwrap();
}

#[test]
fn close_of_a_queue_wakes_waiting_consumers() {
    let _alone = alone();
    fn worker(_: usize, (queue, results): (Queue<u32>, Queue<Option<u32>>)) -> Outcome {
        // The get has no time-out, so that only the close ends it.
        let got = queue.get()?;
        send(&results, got)
    }
    let (queue, results) = (Queue::bounded(4).unwrap(), Queue::bounded(3).unwrap());
    let args = (queue.clone(), results.clone());
    let context = start_processes(worker, args, SpawnOptions::nprocs(3)).unwrap();
    for pid in context.pids() {
        eventually("the process sleeps", || threads_are(pid, 'S'));
    }
    give(&queue, 5);
    assert!(queue.close());
    let mut got = [take(&results), take(&results), take(&results)];
    got.sort_unstable();
    assert_eq!(got, [None, None, Some(5)], "earlier messages can still be taken");
    join(&context).unwrap();
}

#[test]
fn close_of_queue_returns_values_of_waiting_producers() {
    let _alone = alone();
    fn worker(rank: usize, (queue, back): (Queue<Tensor<u8>>, Queue<Tensor<u8>>)) -> Outcome {
        let value = Tensor::full([100], rank as u8)?;
        match queue.put(value) {
            Err(PutError::Closed(value)) => send(&back, value),
            other => Err(format!("unexpected: {other:?}").into()),
        }
    }
    let (queue, back) = (Queue::bounded(1).unwrap(), Queue::bounded(2).unwrap());
    give(&queue, Tensor::full([1], 9).unwrap());
    let context = start_processes(worker, (queue.clone(), back.clone()), SpawnOptions::nprocs(2)).unwrap();
    for pid in context.pids() {
        eventually("the process sleeps", || threads_are(pid, 'S'));
    }
    assert!(queue.close());
    let mut values = [take(&back).to_vec(), take(&back).to_vec()];
    values.sort_unstable();
    assert_eq!(values, [vec![0; 100], vec![1; 100]]);
    assert!(matches!(queue.try_put(Tensor::zeros([1]).unwrap()), Err(PutError::Closed(_))));
    assert_eq!(take(&queue).to_vec(), [9]);
    assert!(queue.get().unwrap().is_none() && queue.try_get().unwrap().is_none());
    join(&context).unwrap();
}

#[test]
fn sender_may_exit_right_after_the_put() {
    let _alone = alone();
    fn worker(rank: usize, queue: Queue<(usize, Vec<u8>, FrozenTensor<u32>)>) {
        let tensor = Tensor::from_fn(&[1 << 18], |i| (i * (rank + 1)) as u32).unwrap().freeze();
        let sent = queue.try_put((rank, vec![rank as u8; 100_000], tensor));
        // Exits without running destructors.
        std::process::exit(i32::from(sent.is_err()));
    }
    let queue = Queue::bounded(4).unwrap();
    let context = start_processes(worker, queue.clone(), SpawnOptions::nprocs(4)).unwrap();
    join(&context).unwrap();
    for _ in 0..4 {
        let (rank, bytes, tensor) = take(&queue);
        assert_eq!(bytes, vec![rank as u8; 100_000]);
        let expected = (0..1 << 18).map(|i: usize| (i * (rank + 1)) as u32);
        assert!(tensor.iter().eq(expected), "the tensor of rank {rank}");
    }
    assert!(queue.is_empty());
}

#[test]
fn queue_outlives_its_creator() {
    let _alone = alone();
    type Inner = Queue<FrozenTensor<u16>>;
    fn maker(_: usize, out: Queue<Inner>) -> Outcome {
        let inner = Queue::bounded(3)?;
        (0..2).try_for_each(|i| send(&inner, Tensor::full([50], i)?.freeze()))?;
        send(&out, inner)
    }
    fn user(_: usize, inner: Inner) -> Outcome {
        let third = next(&inner)?.ok_or("closed")?;
        assert_eq!(third.to_vec(), [2; 50]);
        send(&inner, third)
    }
    let out = Queue::bounded(1).unwrap();
    join(&one_process(maker, out.clone())).unwrap();
    let inner = take(&out);
    assert_eq!((take(&inner).to_vec(), take(&inner).to_vec()), (vec![0; 50], vec![1; 50]));
    give(&inner, Tensor::full([50], 2).unwrap().freeze());
    join(&one_process(user, inner.clone())).unwrap();
    assert_eq!(take(&inner).to_vec(), [2; 50]);
}
