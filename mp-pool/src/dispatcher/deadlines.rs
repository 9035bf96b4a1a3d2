//! Deadlines that the pool's thread enforces for workers and for itself, excluding pauses in which it did not
//! run.

use std::time::{Duration, Instant};

use crate::child::clock;
use crate::dispatcher::shutdown::Shutdown;
use crate::dispatcher::thread::Dispatcher;

/// Time between two sleeps of the pool's thread above which the program may have been stopped.
const LONG_WORK: Duration = Duration::from_millis(20);
/// Maximum number of pauses that are recorded. Few tasks run through more pauses.
const MOST_PAUSES: usize = 64;

impl Dispatcher {
    /// Returns the next time at which the pool's thread must act even without a reply, and the shortest time
    /// limit that the thread watches. Each is `None` if it does not exist.
    pub(super) fn next_deadline(&self) -> (Option<Instant>, Option<Duration>) {
        let state = self.shared.state.lock();
        let (ending, grace) = match self.shutdown {
            Shutdown::Finishing(until) => (Some(until), Some(self.shared.settings.finish)),
            Shutdown::Terminated(until) => (Some(until), Some(self.shared.settings.grace())),
            Shutdown::Killed(until) => (Some(until), None),
            Shutdown::NotStarted | Shutdown::QueuesClosed => (None, None),
        };
        let restarts = state.workers.iter().take(state.wanted);
        let restarts = restarts.filter(|w| state.is_serving() && w.process.is_none());
        let restarts = restarts.filter_map(|worker| worker.restart_at);
        let tasks = state.workers.iter().filter_map(|worker| worker.deadline());
        let tasks = tasks.map(|(_, at, timeout)| (at, timeout));
        let start_timeout = self.shared.settings.start_timeout;
        let starts =
            state.workers.iter().filter_map(|worker| worker.ready_until(start_timeout).zip(start_timeout));
        let (mut next, mut shortest) = (ending, grace);
        for (at, time) in tasks.chain(starts) {
            next = next.into_iter().chain([at]).min();
            shortest = shortest.into_iter().chain([time]).min();
        }
        let next = restarts
            .chain(next)
            .chain(state.tasks.next_retry().into_iter().chain(state.next_room()))
            .chain(state.next_slow_check())
            .chain(state.next_journal_read())
            .chain(state.next_dismissal(Instant::now()))
            .min();
        (next, shortest)
    }

    /// Begins the next piece of a sleep that ends at `until`, and returns the end of the piece. Afterwards
    /// the deadlines of all running tasks are watched.
    pub(super) fn begin_watch(&mut self, until: Instant, shortest: Duration) -> Instant {
        let now = Instant::now();
        self.excuse_work(now, shortest);
        self.shared.state.lock().workers.iter_mut().for_each(|worker| worker.watch(LONG_WORK, now));
        self.pauses.piece(now, until, shortest)
    }

    /// Moves the deadlines of watched tasks by the time since this thread last slept, if that time is long:
    /// the program may have been stopped. The thread may instead have run user code, such as callbacks, so
    /// the deadline of a task moves at most by its time limit.
    pub(super) fn excuse_work(&mut self, now: Instant, shortest: Duration) {
        let worked = now.saturating_duration_since(std::mem::replace(&mut self.awake_since, now));
        if worked > (shortest / 8).max(LONG_WORK) {
            self.shared.state.lock().workers.iter_mut().for_each(|worker| worker.excuse(worked, now));
        }
    }

    /// Moves the deadlines by the time for which the program was stopped during this thread's last sleep, if
    /// any.
    pub(super) fn note_pause(&mut self) {
        let now = Instant::now();
        self.awake_since = now;
        let pause = self.pauses.pause(now);
        if pause.is_zero() {
            return;
        }
        if self.paused.len() == MOST_PAUSES {
            self.paused.pop_front();
        }
        self.paused.push_back((clock::now(), pause));
        for worker in &mut self.shared.state.lock().workers {
            for since in [&mut worker.since].into_iter().chain(&mut worker.starts_since) {
                *since += pause.min(now.saturating_duration_since(*since));
            }
        }
        if let Shutdown::Finishing(until) | Shutdown::Terminated(until) = &mut self.shutdown {
            *until += pause;
        }
    }
}
