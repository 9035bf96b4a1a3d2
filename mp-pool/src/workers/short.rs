//! Tasks that have no message, since as many are on their way as the arena has: they wait for room, as a put into a queue does.
//!
//! They are in `returned`, with their arguments, and are packed when it is time and a worker wants tasks. A process that takes messages of
//! others wakes no pool by that: so there is a time.

use std::time::{Duration, Instant};

use crate::workers::state::State;

/// The first pause; doubled each time.
const FIRST: Duration = Duration::from_millis(1);
/// The longest one.
const LONGEST: Duration = Duration::from_millis(100);
/// How long no task finds room before that is reported, if none is being done whose end would make some.
const REPORTED: Duration = Duration::from_secs(10);

/// There is no room for tasks.
#[derive(Debug)]
pub(crate) struct Short {
    since: Instant,
    pause: Duration,
    due: Instant,
    reported: bool,
}

impl State {
    /// There was no room for a task, after some for `found`; whether that is to be reported.
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

    /// There was room for all.
    pub(crate) fn has_room(&mut self) {
        self.short = None;
    }

    /// When to look for room again. Where no worker wants tasks, a reply comes first, or a worker that is ready.
    pub(crate) fn next_room(&self) -> Option<Instant> {
        let wanted = !self.returned.is_empty() && self.wanting().is_some();
        let short = self.short.as_ref().filter(|_| wanted)?;
        Some(short.due)
    }

    /// Whether no look for room is due yet.
    pub(crate) fn waits_for_room(&mut self, now: Instant) -> bool {
        if self.returned.is_empty() {
            // Tasks that waited have ended otherwise: they were cancelled, say.
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

    /// A pool whose one worker wants tasks, and one of them has no message.
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
        // Some found room: it begins anew, with short pauses.
        assert!(!state.lacks_room(now, 1));
        assert_eq!(state.next_room(), Some(now + FIRST));
        // While a task runs, its end is what is waited for.
        state.workers[0].outstanding = 1;
        assert!(!state.lacks_room(now + 2 * REPORTED, 0));
        state.has_room();
        state.workers[0].outstanding = 0;
        assert_eq!(state.next_room(), None);
    }
}
