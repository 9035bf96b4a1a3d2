//! Tasks without a message, because all messages of the arena are in use. They wait for room, like a put into
//! a full queue.
//!
//! They are in `returned`, with their arguments, and are packed after a pause when a worker wants tasks. The
//! pause is timed because other processes that free messages do not wake the pool.

use std::time::{Duration, Instant};

use crate::workers::state::State;

/// First pause. Doubled each time.
const FIRST: Duration = Duration::from_millis(1);
/// Longest pause.
const LONGEST: Duration = Duration::from_millis(100);
/// Time without room after which the lack is reported, if no running task would free messages.
const REPORTED: Duration = Duration::from_secs(10);

/// State of a lack of messages.
#[derive(Debug)]
pub(crate) struct Short {
    since: Instant,
    pause: Duration,
    due: Instant,
    reported: bool,
}

impl State {
    /// Records that there was no room for a task, after room for `found`. Returns `true` if that must be
    /// reported.
    pub(crate) fn lacks_room(&mut self, now: Instant, found: usize) -> bool {
        let begins = Short { since: now, pause: FIRST / 2, due: now, reported: false };
        let mut short = self.short.take().filter(|_| found == 0).unwrap_or(begins);
        short.pause = (2 * short.pause).min(LONGEST);
        short.due = now + short.pause;
        let stuck = now.saturating_duration_since(short.since) >= REPORTED
            && self.workers.iter().all(|worker| worker.outstanding == 0);
        let tell = stuck && !short.reported;
        short.reported |= tell;
        self.short = Some(short);
        tell
    }

    /// Records that there was room for all tasks.
    pub(crate) fn has_room(&mut self) {
        self.short = None;
    }

    /// Returns the time of the next attempt. Returns `None` if no worker wants tasks: then a reply or a ready
    /// worker comes first.
    pub(crate) fn next_room(&self) -> Option<Instant> {
        let wanted = !self.returned.is_empty() && self.wanting().is_some();
        let short = self.short.as_ref().filter(|_| wanted)?;
        Some(short.due)
    }

    /// Returns `true` if the next attempt is not due.
    pub(crate) fn waits_for_room(&mut self, now: Instant) -> bool {
        if self.returned.is_empty() {
            // The waiting tasks have ended, for example because they were cancelled.
            self.short = None;
        }
        self.short.as_ref().is_some_and(|short| now < short.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::chunk::{Chunk, Kept, Ready};
    use crate::calls::job::Terms;
    use crate::calls::job::tests::job;
    use crate::workers::state::next_chunk;
    use crate::workers::state::tests::worker;

    /// Returns the state of a pool whose only worker wants tasks, and with a task without a message.
    fn waiting() -> State {
        let mut state = State::new(vec![worker()]);
        let (job, kept) = (job(1, Terms::default()), Kept::Not);
        let chunk = Chunk { id: next_chunk(), job, first: 0, reported: 0, end: 1, tries: 0, kept };
        state.returned.push_back(Ready::rest(chunk));
        state
    }

    #[test]
    fn it_is_awaited_while_tasks_wait_and_a_worker_wants_them() {
        let now = Instant::now();
        let mut state = waiting();
        state.lacks_room(now, 0);
        assert_eq!(state.next_room(), Some(now + FIRST));
        state.workers[0].ready = false;
        assert_eq!(state.next_room(), None, "a dead worker is awaited, and no room");
        state.workers[0].ready = true;
        assert!(state.waits_for_room(now));
        state.returned.clear();
        assert_eq!(state.next_room(), None, "it was cancelled");
        assert!(!state.waits_for_room(now) && state.short.is_none());
    }

    #[test]
    fn pauses_grow_and_a_lasting_lack_is_reported_once() {
        let mut state = waiting();
        let begin = Instant::now();
        let mut now = begin;
        let mut told = Vec::new();
        while now < begin + 3 * REPORTED {
            if state.lacks_room(now, 0) {
                told.push(now - begin);
            }
            let due = state.next_room().unwrap();
            assert!(
                due > now && due <= now + LONGEST && state.waits_for_room(now) && !state.waits_for_room(due)
            );
            now = due;
        }
        assert!(matches!(told[..], [at] if at >= REPORTED && at < REPORTED + LONGEST), "{told:?}");
        // Some tasks found room, so pauses start over.
        assert!(!state.lacks_room(now, 1));
        assert_eq!(state.next_room(), Some(now + FIRST));
        // While a task runs, its end frees messages.
        state.workers[0].outstanding = 1;
        assert!(!state.lacks_room(now + 2 * REPORTED, 0));
        state.has_room();
        state.workers[0].outstanding = 0;
        assert_eq!(state.next_room(), None);
    }
}
