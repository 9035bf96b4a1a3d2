//! Puts while many messages wait in another queue.

use mp::Queue;

use crate::Result;
use crate::work::{Outcome, Plan, now};

/// Number of messages that are put in a row, and then received.
const BURST: u64 = 512;

/// A message that needs an envelope.
type Message = (u64, [u64; 4]);

/// Returns the nanoseconds of each put into a queue, while `waiting` messages wait in another one.
fn put(plan: &Plan, waiting: u64) -> Outcome {
    let (others, queue) = (Queue::<Message>::unbounded()?, Queue::<Message>::bounded(BURST as usize)?);
    for number in 0..waiting {
        others.put((number, [number; 4]))?;
    }
    let bursts = plan.repetitions(2_000_000) / BURST;
    let mut took = 0;
    for burst in 0..bursts {
        let start = now();
        for number in 0..BURST {
            queue.put((burst, [number; 4]))?;
        }
        took += now() - start;
        for number in 0..BURST {
            if queue.get()? != Some((burst, [number; 4])) {
                return Err("wrong result: another message was put".into());
            }
        }
    }
    received(&others, waiting)?;
    Ok(Some(took as f64 / (bursts * BURST) as f64))
}

/// Receives all waiting messages, so that the arena is the same for the next contender.
fn received(queue: &Queue<Message>, waiting: u64) -> Result<()> {
    for number in 0..waiting {
        if queue.try_get()? != Some((number, [number; 4])) {
            return Err("wrong result: a message that waited is another one".into());
        }
    }
    Ok(())
}

/// Measures the limit: puts while no message waits.
pub(crate) fn at_none(plan: &Plan) -> Outcome {
    put(plan, 0)
}

/// Runs a round of the row `put_at_65k_queued`.
pub(crate) fn at_65k(plan: &Plan) -> Outcome {
    put(plan, 1 << 16)
}

/// Runs a round of the row `put_at_900k_queued`. An arena has 917,504 messages for all queues.
pub(crate) fn at_900k(plan: &Plan) -> Outcome {
    put(plan, 900_000)
}
