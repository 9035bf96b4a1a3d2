//! Retries of failed tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::tasks::chunk::{Chunk, ReadyChunk};
use crate::tasks::source::SavedArgs;

/// Delay that stands for infinity: a century.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the time `delay` after `now`, or a far time if the clock can't represent it.
pub(super) fn after(now: Instant, delay: Duration) -> Instant {
    now.checked_add(delay).unwrap_or_else(|| now + NEVER)
}

/// Task that has failed after a worker had begun it, before the decision about a retry. The chunk contains
/// only this task.
pub(crate) struct FailedTask {
    pub(crate) chunk: Chunk,
    pub(crate) error: TaskError,
    pub(crate) run_time: Option<Duration>,
}

impl PoolShared {
    /// Schedules a retry of a failed task. Returns the task if it is not retried. The caller must hold no
    /// lock.
    pub(super) fn retry(&self, mut failed: FailedTask) -> Option<FailedTask> {
        let FailedTask { chunk, error, .. } = &mut failed;
        let (job, index) = (Arc::clone(&chunk.job), chunk.first);
        chunk.tries += 1;
        let attempts = error.record_attempt(job.outcomes().failed.remove(&index));
        if matches!(chunk.saved, SavedArgs::None) {
            return Some(failed);
        }
        let Some(delay) = job.options.retry.wait(chunk.tries, error) else { return Some(failed) };
        let mut state = self.state.lock();
        if state.phase.error().is_some() || job.is_cancelled() || self.is_interrupted() {
            return Some(failed);
        }
        state.retried += 1;
        state.publish();
        job.outcomes().failed.insert(index, attempts);
        if delay.is_zero() && matches!(failed.error, TaskError::WorkerLost(_)) {
            // The task was begun before the tasks in its worker's queue, so callers wait for it.
            state.tasks.put_first([ReadyChunk::unpacked(failed.chunk)].into_iter());
        } else if delay.is_zero() {
            state.tasks.ready.push_back(ReadyChunk::unpacked(failed.chunk));
        } else {
            state.tasks.schedule(after(Instant::now(), delay), failed.chunk);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_retry_delay_ends_in_the_far_future() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::from_secs(3)), now + Duration::from_secs(3));
        assert!(after(now, Duration::MAX) >= now + NEVER);
    }
}
