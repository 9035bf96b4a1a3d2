//! Checkpoints of queues that other processes use at the same time.

use std::collections::{HashMap, HashSet};

use mp::process::start_processes;
use mp::queue::CheckpointError;
use mp::{FrozenTensor, GetError, Queue, SpawnOptions, Tensor};
use mp_core::inject;
use mp_tests::kill::STOP;
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, alive, eventually, join, one_process, send, signal, threads_are};
use rustix::process::Signal;

use crate::{Numbered, numbered, numbers_in};

/// Number of checkpoints.
const ROUNDS: usize = 60;

fn counts_up(_: usize, queue: Queue<Numbered>) -> Outcome {
    for number in 0.. {
        let len = if number % 7 == 0 { 100_000 } else { 40 };
        if send(&queue, numbered(number, len)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Takes messages, and leaves a few of them in the queue. Ends when the queue `end` is closed.
fn takes_most(_: usize, (queue, end): (Queue<Numbered>, Queue<()>)) -> Outcome {
    while end.try_get().is_err() {
        match queue.len() {
            0..20 => std::thread::yield_now(),
            _ => drop(queue.get_timeout(DEADLINE)?),
        }
    }
    Ok(())
}

#[test]
fn checkpoint_of_a_stream_is_a_part_without_gaps() {
    let scratch = Scratch::new("stream");
    let path = scratch.0.join("queue");
    for queue in [Queue::bounded(40).unwrap(), Queue::growing(2000).unwrap()] {
        let end = Queue::bounded(1).unwrap();
        let producer = one_process(counts_up, queue.clone());
        let consumers =
            start_processes(takes_most, (queue.clone(), end.clone()), SpawnOptions::nprocs(2)).unwrap();
        eventually("enough messages", || queue.len() >= 20);
        let mut last = 0;
        for _ in 0..ROUNDS {
            let saved = queue.checkpoint(&path).unwrap();
            let found = numbers_in(&path);
            assert_eq!(found.len(), saved);
            assert!(saved <= queue.capacity(), "{saved} messages");
            assert!(found.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{found:?}");
            let newest = *found.last().expect("some messages stay in the queue");
            assert!(newest >= last, "{newest} after {last}");
            last = newest;
        }
        end.close();
        queue.close();
        join(&producer).unwrap();
        join(&consumers).unwrap();
        assert!(last > 1000, "{last}");
    }
}

/// Name of a token, its step, and some memory.
type Token = (u8, u64, FrozenTensor<u8>);

/// Advances tokens: puts the next step of a token, and then acknowledges its previous step.
fn moves_on(_: usize, queue: Queue<Token>) -> Outcome {
    loop {
        match queue.get_lease_timeout(DEADLINE) {
            Ok(Some(lease)) => {
                let (name, step, memory) = &*lease;
                if send(&queue, (*name, step + 1, memory.clone())).is_err() {
                    return Ok(());
                }
                lease.ack();
            }
            Ok(None) | Err(GetError::Leased { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tokens are moved by consumers with leases. So the newest step of each token is in the queue at every
/// instant, also in a checkpoint.
#[test]
fn checkpoint_with_leases_has_each_unfinished_message() {
    const TOKENS: u8 = 5;
    let scratch = Scratch::new("tokens");
    let path = scratch.0.join("queue");
    // Makes the scan for leases longer.
    let others = Queue::<String>::bounded(500).unwrap();
    others.put_many((0..500).map(|n| "x".repeat(20 + n))).unwrap();
    let queue = Queue::<Token>::bounded(20).unwrap();
    for name in 0..TOKENS {
        queue.put((name, 0, Tensor::full([5000], name).unwrap().freeze())).unwrap();
    }
    let workers = start_processes(moves_on, queue.clone(), SpawnOptions::nprocs(2)).unwrap();
    let mut newest: HashMap<u8, Option<u64>> = HashMap::new();
    for round in 0..15 * ROUNDS {
        let saved = queue.checkpoint(&path).unwrap();
        let again = Queue::<Token>::restore(&path).unwrap();
        let mut found = HashSet::new();
        while let Ok(Some((name, step, memory))) = again.try_get() {
            assert_eq!(memory.as_slice().unwrap(), [name; 5000]);
            assert!(found.insert((name, step)), "round {round}: {name} at {step} is there twice");
        }
        assert_eq!(found.len(), saved);
        // A worker may be late to acknowledge, so only the newest step counts.
        for name in 0..TOKENS {
            let step = found.iter().filter(|(n, _)| *n == name).map(|(_, step)| *step).max();
            let before = newest.insert(name, step);
            assert!(step.is_some() && step >= before.flatten(), "round {round}: {name} is lost: {found:?}");
        }
    }
    assert!(newest.values().all(|step| *step > Some(0)), "{newest:?}");
    queue.close();
    join(&workers).unwrap();
}

fn leases(_: usize, (queue, at): (Queue<String>, u64)) -> Outcome {
    inject::arm(at, STOP);
    let lease = queue.get_lease()?;
    inject::arm(u64::MAX, 0);
    drop(lease);
    Ok(())
}

/// The consumer is stopped after it has taken a message out of its slot, and before the message has a holder.
#[test]
fn stopped_consumer_makes_a_checkpoint_busy() {
    let scratch = Scratch::new("stopped");
    let path = scratch.0.join("queue");
    let is_busy = |at: u64| {
        let queue = Queue::bounded(2).unwrap();
        (0..2).for_each(|n| queue.put(format!("{n}").repeat(1000)).unwrap());
        assert_eq!(queue.checkpoint(&path).unwrap(), 2);
        let earlier = std::fs::read(&path).unwrap();
        let consumer = one_process(leases, (queue.clone(), at));
        let pid = consumer.pids()[0];
        eventually("the consumer is stopped or has ended", || threads_are(pid, 'T') || !alive(pid));
        assert!(alive(pid), "no access is between slot and holder");
        let end = queue.checkpoint(&path);
        let file = std::fs::read(&path).unwrap();
        signal(pid, Signal::CONT);
        join(&consumer).unwrap();
        let is_busy = match end {
            Ok(saved) => {
                assert_eq!(saved, 2);
                false
            }
            Err(CheckpointError::Busy) => true,
            Err(error) => panic!("{error}"),
        };
        assert!(!is_busy || file == earlier);
        assert_eq!(queue.checkpoint(&path).unwrap(), 2, "the consumer has given the message back");
        is_busy
    };
    assert!((1..).any(is_busy));
}
