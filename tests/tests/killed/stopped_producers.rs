//! A producer that is stopped at the n-th access of its put, and a consumer that is killed at the m-th access
//! of its get, for all n and m. Until the stopped process continues, it may be undecided who owns one
//! message. Everything else of the killed process is recovered at once.

use std::time::Duration;

use mp::{Arena, GetError, Queue, Receiver, Sender, channel};
use mp_core::inject;
use mp_tests::kill::stopped;
use mp_tests::{DEADLINE, Outcome, alone, in_use, join, one_process, signal};
use rustix::process::Signal;

/// Message too large for a slot.
type Message = [u64; 5];

fn puts(_: usize, (queue, at): (Queue<Message>, u64)) -> Outcome {
    // The first message is put before the stop is armed, because it takes more accesses.
    queue.put([1; 5])?;
    inject::arm(at, Signal::STOP.as_raw());
    queue.put([2; 5])?;
    Ok(())
}

type Had = (Queue<Message>, Queue<u64>, Sender<u64>);

fn gets(_: usize, ((queue, own, sender), at): (Had, u64)) -> Outcome {
    let first = queue.get_timeout(DEADLINE)?;
    assert_eq!(first, Some([1; 5]));
    inject::arm(at, Signal::KILL.as_raw());
    _ = queue.try_get();
    inject::arm(u64::MAX, Signal::KILL.as_raw());
    drop((own, sender));
    Ok(())
}

/// Runs the test for one n and one m. Returns `true` if the producer was stopped, and `true` if the consumer
/// was killed.
fn both(n: u64, m: u64) -> (bool, bool) {
    let queue = Queue::bounded(4).unwrap();
    let own = Queue::bounded(4).unwrap();
    let (sender, receiver): (Sender<u64>, Receiver<u64>) = channel().unwrap();
    let producer = one_process(puts, (queue.clone(), n));
    let was_stopped = stopped(&producer);
    let had = (queue.clone(), own.clone(), sender);
    let consumer = one_process(gets, (had, m));
    let was_killed = join(&consumer).is_err();
    // Only the killed process had other handles of these.
    assert!(
        matches!(own.get_timeout(DEADLINE), Err(GetError::Deserted { .. })),
        "stopped at {n}, killed at {m}"
    );
    assert!(receiver.recv_timeout(DEADLINE).is_err_and(|e| matches!(e, GetError::Disconnected)));
    if was_stopped {
        signal(producer.pids()[0], Signal::CONT);
    }
    join(&producer).unwrap();
    // The message is in the queue, or was lost with the killed process. It never exists twice.
    let left = std::iter::from_fn(|| queue.get_timeout(Duration::ZERO).ok().flatten()).count();
    assert!(left <= 1, "{left} left");
    (was_stopped, was_killed)
}

#[test]
fn stopped_producer_delays_only_its_own_message() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let before = in_use();
    let mut pairs = 0;
    for n in 1..200 {
        let mut was_stopped = false;
        for m in 1..200 {
            let (stopped, killed) = both(n, m);
            was_stopped |= stopped;
            if !killed {
                break;
            }
            pairs += u32::from(stopped);
        }
        if !was_stopped {
            break;
        }
    }
    arena.reclaim().unwrap();
    assert_eq!(in_use(), before);
    assert!(pairs > 100, "{pairs} pairs");
    println!("{pairs} pairs of a stop and a kill");
}
