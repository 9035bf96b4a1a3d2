//! `watch` and `broadcast`, with the reader in another process.

use mp::queue::{broadcast, watch};
use mp::{Event, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};

use crate::Result;
use crate::process::DEADLINE;
use crate::work::retained::{SequenceCheck, Value, WINDOW, value, version};
use crate::work::{Outcome, Plan, now};

/// Arguments of the reader: receiver, event that is set when the reader is ready, and number of the last
/// version.
type Look = (watch::Receiver<Value>, Event, u64);

/// Reads as often as it can, until it has the last version.
fn look(_: usize, (receiver, there, last): Look) -> Result<()> {
    there.set()?;
    let mut seen = 0;
    while seen < last {
        seen = version(&*receiver.borrow_and_update()?, seen)?;
    }
    Ok(())
}

/// Runs a round of the row `watch_send`: nanoseconds for each version that is sent while a reader reads
/// continuously.
pub(crate) fn watch_send(plan: &Plan) -> Outcome {
    let last = plan.repetitions(1_000_000);
    let (sender, receiver) = watch::channel(value(0))?;
    let there = Event::new()?;
    let reader = start_processes(look, (receiver.clone(), there.clone(), last), SpawnOptions::nprocs(1))?;
    there.wait()?;
    let start = now();
    for number in 1..=last {
        sender.send(value(number))?;
    }
    let took = now() - start;
    if !reader.join_timeout(DEADLINE)? {
        return Err("the reader has not seen the last version".into());
    }
    Ok(Some(took as f64 / last as f64))
}

/// Arguments of the receiving process: receiver, queue to report that it is ready, its progress, and number
/// of messages.
type Hear = (broadcast::Receiver<u64>, Queue<()>, SharedTensor<u64>, u64);

fn hear(_: usize, (receiver, there, far, count): Hear) -> Result<()> {
    there.put(())?;
    let mut counted = SequenceCheck(0);
    while counted.0 < count {
        counted.next(receiver.recv()?)?;
        if counted.0.is_multiple_of(WINDOW / 2) {
            far.store(0, counted.0);
        }
    }
    Ok(())
}

/// Runs a round of the row `broadcast_1p1c`: messages per second to one receiver that misses none.
pub(crate) fn broadcast(plan: &Plan) -> Outcome {
    let count = plan.repetitions(2_000_000).next_multiple_of(WINDOW);
    let (sender, receiver) = broadcast::channel(WINDOW as usize)?;
    let (there, far) = (Queue::bounded(1)?, Tensor::zeros([1])?.share());
    let args = (receiver.clone(), there.clone(), far.clone(), count);
    let other = start_processes(hear, args, SpawnOptions::nprocs(1))?;
    drop(receiver);
    there.get()?;
    let start = now();
    for number in 0..count {
        // Ensures that the receiver misses no message.
        while number - far.load(0) >= WINDOW {
            std::hint::spin_loop();
        }
        sender.send(number)?;
    }
    if !other.join_timeout(DEADLINE)? {
        return Err("the receiver has not got all messages".into());
    }
    other.join()?;
    Ok(Some(count as f64 * 1e9 / (now() - start) as f64))
}
