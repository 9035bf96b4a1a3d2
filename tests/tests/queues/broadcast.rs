//! Broadcast channels: each receiver gets each message.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mp::queue::broadcast::{self, Receiver, RecvError, Sender};
use mp::{FrozenTensor, PutError, Queue, SpawnOptions, Tensor, select, start_processes};
use mp_tests::block_on::woken_by;
use mp_tests::kill::killed;
use mp_tests::{DEADLINE, Outcome, alone, join, one_process, signal};
use rustix::process::Signal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

type Numbered = (u64, FrozenTensor<u64>);

const EACH: u64 = 300;
const RUSH: u64 = 20_000;

fn send(rank: usize, sender: Sender<Numbered>) -> Outcome {
    for n in 0..EACH {
        let number = rank as u64 * EACH + n;
        sender.send((number, Tensor::full([20], number)?.freeze())).map_err(PutError::forget)?;
    }
    Ok(())
}

fn receive(_: usize, (receiver, missed): (Receiver<Numbered>, u64)) -> mp::AnyResult<Vec<u64>> {
    let (mut numbers, mut lagged) = (Vec::new(), 0);
    loop {
        match receiver.recv_timeout(DEADLINE) {
            Ok((number, tensor)) => {
                assert!(tensor.iter().all(|v| v == number), "message {number} is torn: {tensor}");
                numbers.push(number);
            }
            Err(RecvError::Lagged(n)) => lagged += n,
            Err(RecvError::Closed) => break,
            Err(e) => return Err(e.into()),
        }
    }
    assert_eq!(numbers.len() as u64 + lagged, 2 * EACH, "each message is received, or counted as missed");
    assert!(lagged <= missed, "{lagged} missed");
    Ok(numbers)
}

/// Sends messages from two processes to three receiving processes, each of which accepts at most `missed`
/// missed messages. Returns the messages of each receiver. The channel keeps `capacity` messages.
fn through(capacity: usize, missed: u64) -> Vec<Vec<u64>> {
    let (sender, receiver) = broadcast::channel(capacity).unwrap();
    let receivers = start_processes(receive, (receiver, missed), SpawnOptions::nprocs(3)).unwrap();
    let senders = start_processes(send, sender, SpawnOptions::nprocs(2)).unwrap();
    join(&senders).unwrap();
    assert!(receivers.join_timeout(DEADLINE).unwrap());
    receivers.join().unwrap()
}

#[test]
fn each_broadcast_receiver_gets_messages_in_one_order() {
    let _alone = alone();
    let all = through(2 * EACH as usize, 0);
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    let mut sorted = all[0].clone();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..2 * EACH));
}

#[test]
fn missed_broadcast_messages_are_counted() {
    let _alone = alone();
    for one in through(4, 2 * EACH) {
        for rank in 0..2 {
            let of_one = one.iter().filter(|&&n| n / EACH == rank);
            assert!(of_one.is_sorted(), "{one:?}");
        }
    }
}

#[test]
fn lagging_receiver_continues_with_oldest_message() {
    let _alone = alone();
    let (sender, receiver) = broadcast::channel(4).unwrap();
    for round in 0..200_u32 {
        (0..10).for_each(|n| sender.send(round * 10 + n).unwrap());
        assert!(matches!(receiver.try_recv(), Err(RecvError::Lagged(6))), "round {round}");
        let there: Vec<u32> = (0..4).map(|_| receiver.try_recv().unwrap()).collect();
        assert!(there.into_iter().eq(round * 10 + 6..round * 10 + 10));
        assert!(receiver.try_recv().unwrap_err().is_empty());
    }
    let late = receiver.resubscribe().unwrap();
    assert!(late.try_recv().unwrap_err().is_empty());
    drop(receiver);
    sender.send(7).unwrap();
    drop(sender);
    assert_eq!(late.recv().unwrap(), 7);
    assert!(matches!(late.recv(), Err(RecvError::Closed)));
}

/// Sends small messages as fast as it can, so that messages are replaced while receivers read them.
fn rush(_: usize, sender: Sender<u64>) -> Outcome {
    for n in 0..RUSH {
        sender.send(n).map_err(PutError::forget)?;
    }
    Ok(())
}

/// Returns the number of messages received, and the number of messages missed.
fn count(_: usize, receiver: Receiver<u64>) -> mp::AnyResult<(u64, u64)> {
    let (mut received, mut lagged) = (0, 0);
    loop {
        match receiver.recv_timeout(DEADLINE) {
            Ok(_) => received += 1,
            Err(RecvError::Lagged(n)) => lagged += n,
            Err(RecvError::Closed) => return Ok((received, lagged)),
            Err(e) => return Err(e.into()),
        }
    }
}

#[test]
fn received_and_lagged_counts_add_up_to_sent_messages() {
    let _alone = alone();
    // There are more processes than processors, so readers are preempted while they copy, and their slots are
    // skipped.
    for capacity in [1, 2, 7] {
        let (sender, receiver) = broadcast::channel(capacity).unwrap();
        let receivers = start_processes(count, receiver, SpawnOptions::nprocs(4)).unwrap();
        let senders = start_processes(rush, sender, SpawnOptions::nprocs(2)).unwrap();
        join(&senders).unwrap();
        assert!(receivers.join_timeout(DEADLINE).unwrap());
        for (received, lagged) in receivers.join().unwrap() {
            assert_eq!(received + lagged, 2 * RUSH, "{received} received, capacity {capacity}");
        }
    }
}

fn stay(_: usize, receiver: Receiver<u32>) -> Outcome {
    assert_eq!(receiver.recv_timeout(DEADLINE)?, 1);
    signal(std::process::id(), Signal::STOP);
    Ok(())
}

#[test]
fn broadcast_without_receivers_returns_the_message() {
    let _alone = alone();
    let (sender, receiver) = broadcast::channel(2).unwrap();
    let context = one_process(stay, receiver);
    sender.send(1).unwrap();
    signal(context.pids()[0], Signal::KILL);
    assert!(killed(&context));
    mp_tests::eventually("the dead receiver counts no more", || sender.is_closed());
    assert!(matches!(sender.send(2), Err(PutError::Disconnected(2))));
}

#[tokio::test]
async fn broadcast_message_completes_a_future() {
    let (sender, receiver) = broadcast::channel(64).unwrap();
    let task = tokio::spawn(async move {
        let mut sum = 0;
        loop {
            match tokio::time::timeout(DEADLINE, receiver.recv_async()).await.expect("in time") {
                Ok(n) => sum += n,
                Err(RecvError::Closed) => return sum,
                Err(e) => panic!("{e}"),
            }
        }
    });
    for n in 1..=50_u32 {
        sender.send(n).unwrap();
        tokio::task::yield_now().await;
    }
    drop(sender);
    assert_eq!(task.await.unwrap(), 1275);
}

#[test]
fn broadcast_clone_keeps_position_new_starts_at_end() {
    let _alone = alone();
    let (sender, receiver) = broadcast::channel(3).unwrap();
    assert_eq!(sender.capacity(), 3);
    (1..=3_u32).for_each(|n| sender.send(n).unwrap());
    assert_eq!(receiver.try_recv().unwrap(), 1);
    let (copy, new) = (receiver.clone(), receiver.resubscribe().unwrap());
    let queue = Queue::bounded(1).unwrap();
    queue.put(receiver.clone()).unwrap();
    let sent = queue.get().unwrap().unwrap();
    for one in [&receiver, &copy, &sent] {
        assert!(one.same_channel(&receiver));
        assert_eq!((one.try_recv().unwrap(), one.try_recv().unwrap()), (2, 3));
        assert!(one.try_recv().unwrap_err().is_empty());
    }
    assert!(new.try_recv().unwrap_err().is_empty());
    sender.send(4).unwrap();
    assert_eq!(new.try_recv().unwrap(), 4);
    assert!(!receiver.same_channel(&broadcast::channel::<u32>(3).unwrap().1));
}

#[test]
fn kept_and_missed_broadcast_messages_add_up() {
    let _alone = alone();
    for capacity in [1, 2, 3, 5, 100] {
        let (sender, receiver) = broadcast::channel(capacity as usize).unwrap();
        let end = 3 * capacity + 1;
        (0..end).for_each(|n| sender.send(n).unwrap());
        drop(sender);
        let lag = receiver.try_recv();
        assert!(matches!(lag, Err(RecvError::Lagged(n)) if n == end - capacity), "{capacity}: {lag:?}");
        assert!((end - capacity..end).all(|n| receiver.try_recv().unwrap() == n));
        assert!(matches!(receiver.try_recv(), Err(RecvError::Closed)));
        assert!(matches!(receiver.recv(), Err(RecvError::Closed)));
        assert_eq!(select(&[&receiver], Some(DEADLINE)).unwrap(), Some(0), "the end counts as ready");
    }
}

/// Number whose decoding panics if it is 0, and is an error if it is 1.
#[derive(Debug, PartialEq)]
struct Picky(u32);

impl Serialize for Picky {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match u32::deserialize(d)? {
            0 => panic!("while it is decoded"),
            1 => Err(serde::de::Error::custom("not this one")),
            n => Ok(Picky(n)),
        }
    }
}

#[test]
fn undecodable_broadcast_message_is_skipped() {
    let _alone = alone();
    let (sender, receiver) = broadcast::channel(8).unwrap();
    (0..3).for_each(|n| sender.send(Picky(n)).unwrap());
    let other = receiver.clone();
    for one in [receiver, other] {
        assert!(catch_unwind(AssertUnwindSafe(|| one.try_recv())).is_err());
        assert!(matches!(one.try_recv(), Err(RecvError::Failed(_))));
        assert_eq!(one.try_recv().unwrap(), Picky(2));
        assert!(one.try_recv().unwrap_err().is_empty());
    }
}

#[test]
fn broadcast_future_ends_when_senders_are_dropped() {
    let _alone = alone();
    let (sender, receiver) = broadcast::channel::<u32>(1).unwrap();
    assert_eq!(woken_by(receiver.recv_async(), || sender.send(1).unwrap()).unwrap(), 1);
    let other = sender.clone();
    drop(sender);
    let end = woken_by(receiver.recv_async(), || drop(other));
    assert!(matches!(end, Err(RecvError::Closed)));
}
