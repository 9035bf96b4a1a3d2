//! Cost, in shared accesses, of operations on a queue that has many messages.

use mp::queue::QueueOptions;
use mp::{AnyResult, Queue};
use mp_core::inject;
use mp_tests::{Outcome, alone, join, one_process};

/// Number of puts that are counted together. It is many times the number of envelopes that a thread keeps.
const PART: u64 = 2048;
const FEW: u64 = 1 << 10;
const MANY: u64 = 200 << 10;

/// Returns a message that needs an envelope.
fn message(number: u64) -> (u64, String) {
    (number, "m".repeat(100))
}

/// Returns the shared accesses of some puts, with `waiting` messages in the queue.
fn accesses(queue: &Queue<(u64, String)>, waiting: u64) -> AnyResult<u64> {
    while (queue.len() as u64) < waiting {
        queue.put(message(queue.len() as u64))?;
    }
    let before = inject::seen();
    for number in 0..PART {
        queue.put(message(waiting + number))?;
    }
    Ok(inject::seen() - before)
}

fn measures(_: usize, queue: Queue<(u64, String)>) -> Outcome {
    // Starts the count of accesses, and sends no signal.
    inject::arm(u64::MAX, 0);
    let few = accesses(&queue, FEW)?;
    let many = accesses(&queue, MANY)?;
    // The first puts need fewer accesses if they find memory that earlier tests of this program have freed.
    if many > 2 * few {
        return Err(format!("{many} accesses with {MANY} messages waiting, {few} with {FEW}").into());
    }
    // The envelopes are freed in the order of the puts, so that they are reused in that order.
    for number in 0..queue.len() as u64 {
        if queue.try_get()?.ok_or("closed")?.0 != number {
            return Err("out of order".into());
        }
    }
    let again = accesses(&queue, FEW)?;
    if again > 2 * few {
        return Err(format!("{again} accesses after all were received, {few} at first").into());
    }
    Ok(())
}

#[test]
fn put_costs_the_same_with_many_messages_waiting() {
    let _alone = alone();
    let queue = Queue::unbounded().unwrap();
    join(&one_process(measures, queue)).unwrap();
}

/// Returns three numbers of shared accesses: of getting this number of messages, of taking them as dead
/// letters, and of dropping them with their queue. All messages were leased and given back before.
fn accesses_of_returned(messages: u64) -> [u64; 3] {
    let returned = |deliveries| {
        let queue = QueueOptions::new().deliveries(deliveries).create().unwrap();
        (0..messages).for_each(|number| queue.put(message(number)).unwrap());
        drop((0..messages).map(|_| queue.get_lease().unwrap().unwrap()).collect::<Vec<_>>());
        queue
    };
    let (again, letters, dropped) = (returned(0), returned(1), returned(1));
    let accesses = |work: &mut dyn FnMut()| {
        let before = inject::seen();
        work();
        inject::seen() - before
    };
    let (mut received, mut dropped) = (Vec::new(), Some(dropped));
    let of_get = accesses(&mut || received.extend((0..messages).map(|_| again.get().unwrap().unwrap().0)));
    received.sort_unstable();
    assert!(received.into_iter().eq(0..messages));
    let of_letters = accesses(&mut || while letters.dead_letter().unwrap().is_some() {});
    [of_get, of_letters, accesses(&mut || drop(dropped.take()))]
}

#[test]
fn returned_messages_cost_a_linear_number_of_accesses() {
    let _alone = alone();
    let (few, many) = (accesses_of_returned(FEW), accesses_of_returned(8 * FEW));
    assert!(
        few.iter().zip(many).all(|(few, many)| many < 12 * few),
        "{few:?}, with 8 times as many {many:?}"
    );
}
