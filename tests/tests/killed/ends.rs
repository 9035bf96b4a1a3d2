//! Processes that are killed at their n-th access to shared memory, for every n of a script: at the end of a
//! queue, of a segment, or of a message's deliveries.

use std::thread;

use mp::{Arena, FrozenTensor, GetError, PutError, Queue, QueueOptions, SharedTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access, killed};
use mp_tests::{DEADLINE, Outcome, join, one_process};

/// Number of the message that the closing process puts.
const ITS: u64 = 1_000_000;
/// Padding in bytes that is too long for a slot.
const SIZE: usize = 30;

/// Number of a message, and padding of repeated bytes.
type Padded = (u64, Vec<u8>);

fn padded(number: u64, padding: usize) -> Padded {
    (number, vec![number as u8; padding])
}

/// Returns the number of a message. Panics if the message is torn.
fn number((number, padding): Padded) -> u64 {
    assert!(padding.iter().all(|&b| b == number as u8), "message {number} is torn: {padding:?}");
    number
}

fn close(_: usize, (queue, at): (Queue<Padded>, u64)) -> Outcome {
    let its = padded(ITS, SIZE);
    inject::arm(at, KILL);
    _ = queue.try_put(its);
    queue.close();
    drop(queue);
    // Makes more accesses, so that the process can also die after it has closed the queue.
    drop(Queue::<u64>::bounded(1)?);
    Ok(())
}

/// Closes the queue, unless the killed process has closed it. Checks that a put then returns `Closed`.
fn closed_in_any_case(queue: &Queue<Padded>, killed: bool, at: u64) {
    assert!(!queue.close() || killed, "neither closed the queue, nor was killed at access {at}");
    match queue.put_timeout(padded(0, SIZE), DEADLINE) {
        Err(PutError::Closed(back)) => assert_eq!(number(back), 0),
        other => panic!("{other:?} put into a closed queue, killed at access {at}"),
    }
}

/// Takes all messages in order until the end of the queue. Counts them, and the message [`ITS`] of the
/// closing process.
fn consume(_: usize, (queue, came): (Queue<Padded>, SharedTensor<u64>)) -> Outcome {
    while let Some(message) = queue.get_timeout(DEADLINE)? {
        match number(message) {
            ITS => came.fetch_add(1, 1),
            n => {
                assert_eq!(n, came.load(0));
                came.fetch_add(0, 1)
            }
        };
    }
    Ok(())
}

/// Puts messages until the queue is closed, and returns their number.
fn produce(queue: &Queue<Padded>, at: u64) -> u64 {
    let ended = (0..).find(|&n| match queue.put_timeout(padded(n, SIZE), DEADLINE) {
        Ok(()) => false,
        Err(PutError::Closed(back)) => number(back) == n,
        Err(error) => panic!("{error}, killed at access {at}"),
    });
    ended.expect("the queue is closed")
}

#[test]
fn queue_closer_killed_anywhere_loses_no_message() {
    for_every_access(|at| {
        let (queue, came) = (Queue::bounded(2).unwrap(), Tensor::zeros([2]).unwrap().share());
        let consumer = one_process(consume, (queue.clone(), came.clone()));
        let puts = queue.clone();
        let producer = thread::spawn(move || produce(&puts, at));
        let context = one_process(close, (queue.clone(), at));
        let killed = killed(&context);
        closed_in_any_case(&queue, killed, at);
        let put = producer.join().unwrap();
        join(&consumer).unwrap();
        assert_eq!(came.load(0), put, "messages received, killed at access {at}");
        assert!(came.load(1) <= 1, "the message of the closing process arrived {} times", came.load(1));
        killed
    });
}

#[test]
fn killed_closer_of_a_full_queue_loses_no_message() {
    let bounded: fn() -> _ = || Queue::bounded(2);
    // The first segment is full, and is the only one.
    let growing: fn() -> _ = || Queue::growing(1000);
    for (make, full) in [(bounded, 2), (growing, FIRST)] {
        for_every_access(|at| {
            let queue = make().unwrap();
            (0..full).for_each(|n| queue.put(padded(n, SIZE)).unwrap());
            let context = one_process(close, (queue.clone(), at));
            let killed = killed(&context);
            closed_in_any_case(&queue, killed, at);
            let rest = std::iter::from_fn(|| queue.get_timeout(DEADLINE).unwrap());
            let mut got: Vec<u64> = rest.map(number).collect();
            got.retain(|&n| n != ITS);
            assert!(got.iter().copied().eq(0..full), "killed at access {at}: {got:?}");
            killed
        });
    }
}

/// Number of all messages. The next constant is the number of messages in the first segment.
const MESSAGES: u64 = 257;
const FIRST: u64 = 254;

fn consume_growing(_: usize, (queue, got, at): (Queue<Padded>, SharedTensor<u64>, u64)) -> Outcome {
    for n in 0..FIRST {
        assert_eq!(queue.get_timeout(DEADLINE)?.ok_or("closed")?.0, n);
    }
    inject::arm(at, KILL);
    for _ in FIRST..MESSAGES {
        let n = number(queue.get_timeout(DEADLINE)?.ok_or("closed")?);
        got.store((n - FIRST) as usize, 1);
    }
    Ok(())
}

#[test]
fn killed_consumer_of_growing_queue_loses_at_most_one() {
    // Without padding, messages are in the slots. With padding, they are in envelopes.
    for padding in [0, 100] {
        for_every_access(|at| {
            let queue = Queue::unbounded().unwrap();
            (0..MESSAGES).for_each(|n| queue.put(padded(n, padding)).unwrap());
            let got = Tensor::zeros([(MESSAGES - FIRST) as usize]).unwrap().share();
            let args = (queue.clone(), got.clone(), at);
            let killed = killed(&one_process(consume_growing, args));
            // Other processes continue, at whatever access the consumer died.
            (300..304).for_each(|n| queue.try_put(padded(n, padding)).unwrap());
            queue.close();
            let rest = std::iter::from_fn(|| queue.get_timeout(DEADLINE).unwrap());
            let left: Vec<u64> = rest.map(number).collect();
            let theirs = (FIRST..MESSAGES).filter(|n| got.load((n - FIRST) as usize) != 0);
            let all: Vec<u64> = theirs.chain(left).collect();
            assert!(all.windows(2).all(|two| two[0] < two[1]), "killed at access {at}: {all:?}");
            assert!(all.ends_with(&[300, 301, 302, 303]), "killed at access {at}: {all:?}");
            let lost = (MESSAGES - FIRST) as usize + 4 - all.len();
            assert!(lost <= usize::from(killed), "{lost} lost, killed at access {at}: {all:?}");
            killed
        });
    }
}

type Numbered = (u64, FrozenTensor<u64>);

fn numbered(number: u64) -> Numbered {
    (number, Tensor::full([20], number).unwrap().freeze())
}

/// Returns the number of a message. Panics if the message is torn.
fn whole((number, tensor): Numbered) -> u64 {
    assert!(tensor.iter().all(|v| v == number), "message {number} is torn: {tensor}");
    number
}

/// Number of messages that reach their last delivery.
const FEW: u64 = 2;

/// Returns a queue that delivers each message at most `deliveries` times.
fn few(deliveries: u32) -> Queue<Numbered> {
    let queue = QueueOptions::new().capacity(8).deliveries(deliveries).create().unwrap();
    (0..FEW).for_each(|n| queue.put(numbered(n)).unwrap());
    queue
}

/// Returns all dead letters.
fn dead_letters(queue: &Queue<Numbered>) -> Vec<u64> {
    std::iter::from_fn(|| queue.dead_letter().unwrap()).map(whole).collect()
}

fn take_dead_letters(_: usize, (queue, got, at): (Queue<Numbered>, SharedTensor<u64>, u64)) -> Outcome {
    inject::arm(at, KILL);
    while let Some(letter) = queue.dead_letter()? {
        got.store(whole(letter) as usize, 1);
    }
    Ok(())
}

#[test]
fn killed_dead_letter_taker_loses_at_most_one() {
    for_every_access(|at| {
        let queue = few(1);
        (0..FEW).for_each(|_| drop(queue.try_get_lease().unwrap()));
        let got = Tensor::zeros([FEW as usize]).unwrap().share();
        let args = (queue.clone(), got.clone(), at);
        let killed = killed(&one_process(take_dead_letters, args));
        Arena::current().unwrap().reclaim().unwrap();
        assert!(matches!(queue.try_get_lease(), Err(GetError::Empty)), "delivered again");
        let mut all = dead_letters(&queue);
        all.extend((0..FEW).filter(|&n| got.load(n as usize) != 0));
        let lost = FEW as usize - all.len();
        assert!(lost <= usize::from(killed), "{lost} lost, killed at access {at}");
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]), "killed at access {at}: {all:?}");
        killed
    });
}

fn give_up_twice(_: usize, (queue, at): (Queue<Numbered>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..2 * FEW {
        drop(queue.get_lease_timeout(DEADLINE)?.ok_or("closed")?);
    }
    Ok(())
}

#[test]
fn consumer_killed_in_its_last_nack_loses_no_message() {
    for_every_access(|at| {
        let queue = few(2);
        let context = one_process(give_up_twice, (queue.clone(), at));
        let killed = killed(&context);
        Arena::current().unwrap().reclaim().unwrap();
        queue.close();
        let mut all = Vec::new();
        while let Some(lease) = queue.get_lease_timeout(DEADLINE).unwrap() {
            assert!(lease.deliveries() <= 2, "delivered {} times", lease.deliveries());
            all.push(whole(lease.ack()));
        }
        assert!(killed || all.is_empty(), "delivered more than twice: {all:?}");
        all.extend(dead_letters(&queue));
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..FEW), "killed at access {at}: {all:?}");
        killed
    });
}
