//! Time from a failure until the parent has received the error, and until all processes have ended.

use std::time::Duration;

use mp::{Queue, SpawnError, SpawnOptions, start_processes};
use serde::{Deserialize, Serialize};

use crate::process::DEADLINE;
use crate::work::{Outcome, Plan, now};
use crate::{Result, stats};

/// Arguments of the ranks: a queue to report that they are ready, and a queue without messages.
#[derive(Serialize, Deserialize)]
struct Meeting {
    there: Queue<usize>,
    never: Queue<usize>,
    others: usize,
}

/// Rank 0 fails as soon as all other ranks are ready, and reports the time. The other ranks wait until they
/// are ended.
fn worker(rank: usize, meeting: Meeting) -> Result<()> {
    if rank > 0 {
        meeting.there.put(rank)?;
        meeting.never.get_timeout(DEADLINE)?;
        return Err("this rank was not ended".into());
    }
    for _ in 0..meeting.others {
        meeting.there.get_timeout(DEADLINE)?;
    }
    // The others are asleep afterwards, like processes that wait for long.
    std::thread::sleep(Duration::from_millis(2));
    Err(now().to_string().into())
}

/// Returns the median time in ns from the failure of rank 0 until `join` has returned the error and all ranks
/// have ended.
fn gone(plan: &Plan, others: usize) -> Outcome {
    let mut times = Vec::new();
    for number in 0..plan.repetitions(40) + 5 {
        let meeting = Meeting { there: Queue::bounded(4)?, never: Queue::bounded(4)?, others };
        let reported =
            start_processes(worker, meeting, SpawnOptions::nprocs(1 + others))?.join_timeout(DEADLINE);
        let then = now();
        let at: u64 = match reported {
            Err(SpawnError::ProcessRaised(raised)) if raised.who.rank == Some(0) => raised.message.parse()?,
            other => return Err(format!("wrong result: {other:?}").into()),
        };
        // The first few warm up.
        if number >= 5 {
            times.push(then.saturating_sub(at) as f64);
        }
    }
    Ok(Some(stats::median(&times)))
}

/// Runs a round of the row `first_failure`: one rank.
pub(crate) fn first_failure(plan: &Plan) -> Outcome {
    gone(plan, 0)
}

/// Runs a round of the row `siblings_gone`: four ranks.
pub(crate) fn siblings_gone(plan: &Plan) -> Outcome {
    gone(plan, 3)
}
