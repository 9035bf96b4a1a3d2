//! Back-off for tasks whose message can't be allocated, because all messages of the arena are in use.
//!
//! Such tasks keep their arguments. When a worker needs tasks, messages for them are created after a pause.
//! The pause ends after a fixed time, because other processes that free messages do not wake this pool.

use std::time::{Duration, Instant};

/// First pause between two attempts to create messages. Each further pause is twice as long.
const FIRST: Duration = Duration::from_millis(1);
/// Longest pause between two attempts to create messages.
const LONGEST: Duration = Duration::from_millis(100);
/// Duration of a shortage after which it is reported, if the pool has no running task that would free
/// messages.
const REPORTED: Duration = Duration::from_secs(10);

/// Shortage of messages.
#[derive(Debug)]
struct Shortage {
    since: Instant,
    pause: Duration,
    due: Instant,
    reported: bool,
}

/// Pauses between attempts to pack tasks. Inactive while there is room.
#[derive(Debug, Default)]
pub(crate) struct Backpressure(Option<Shortage>);

impl Backpressure {
    /// Returns `true` if there was no room at the last attempt.
    pub(crate) fn is_active(&self) -> bool {
        self.0.is_some()
    }

    /// Records that there was no room for the message of a task, after `found` messages were allocated.
    /// Returns `true` if the shortage must be reported. A shortage is reported once, after [`REPORTED`], if
    /// the pool is `idle`, so that no running task would free messages.
    pub(crate) fn lacks_room(&mut self, now: Instant, found: usize, idle: bool) -> bool {
        let begins = Shortage { since: now, pause: FIRST / 2, due: now, reported: false };
        let mut shortage = self.0.take().filter(|_| found == 0).unwrap_or(begins);
        shortage.pause = (2 * shortage.pause).min(LONGEST);
        shortage.due = now + shortage.pause;
        let stuck = idle && now.saturating_duration_since(shortage.since) >= REPORTED;
        let report = stuck && !shortage.reported;
        shortage.reported |= report;
        self.0 = Some(shortage);
        report
    }

    /// Ends the shortage: there was room for all tasks, or no task waits for room.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Returns the time of the next attempt to create messages, or `None` while there is room.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.as_ref().map(|shortage| shortage.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::slot::tests::worker;
    use crate::slots::state::PoolState;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;
    use crate::tasks::chunk::{Chunk, ReadyChunk};
    use crate::tasks::source::SavedArgs;

    /// Returns the state of a pool that has a worker without tasks, and a task without a message.
    fn waiting() -> PoolState {
        let mut state = PoolState::new(vec![worker()]);
        let (job, saved) = (job(1, CallOptions::default()), SavedArgs::None);
        state.tasks.ready.push_back(ReadyChunk::unpacked(Chunk::new(job, 0, saved)));
        state
    }

    #[test]
    fn packing_retry_needs_a_ready_task_and_a_worker() {
        let now = Instant::now();
        let mut state = waiting();
        state.lacks_room(now, 0);
        assert_eq!(state.next_room(), Some(now + FIRST));
        state.workers[0].ready = false;
        assert_eq!(state.next_room(), None, "no worker is ready");
        state.workers[0].ready = true;
        assert!(state.waits_for_room(now));
        state.tasks.ready.clear();
        assert_eq!(state.next_room(), None, "no task waits");
        assert!(!state.waits_for_room(now) && !state.backpressure.is_active());
    }

    #[test]
    fn backpressure_pauses_grow_and_are_reported_once() {
        let mut state = waiting();
        let begin = Instant::now();
        let mut now = begin;
        let mut notified = Vec::new();
        while now < begin + 3 * REPORTED {
            if state.lacks_room(now, 0) {
                notified.push(now - begin);
            }
            let due = state.next_room().unwrap();
            assert!(
                due > now && due <= now + LONGEST && state.waits_for_room(now) && !state.waits_for_room(due)
            );
            now = due;
        }
        assert!(matches!(notified[..], [at] if at >= REPORTED && at < REPORTED + LONGEST), "{notified:?}");
        // Some tasks found room, so pauses start over.
        assert!(!state.lacks_room(now, 1));
        assert_eq!(state.next_room(), Some(now + FIRST));
        // While a task runs, its end frees messages.
        state.workers[0].outstanding = 1;
        assert!(!state.lacks_room(now + 2 * REPORTED, 0));
        state.backpressure.clear();
        state.workers[0].outstanding = 0;
        assert_eq!(state.next_room(), None);
    }
}
