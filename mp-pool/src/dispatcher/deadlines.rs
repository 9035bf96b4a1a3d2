//! Deadlines that the pool's thread enforces for workers and for itself. Pauses in which the thread did not
//! run are not counted.

use std::time::{Duration, Instant};

use crate::child::clock;
use crate::dispatcher::shutdown::Shutdown;
use crate::dispatcher::thread::Dispatcher;
use crate::steps::chunk::ItemPosition;

/// Longest time between two sleeps of the pool's thread that is normal. After a longer time, the program may
/// have been stopped.
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

    /// Prepares a sleep that ends at `until`, and returns the end of its first piece. Marks the deadlines of
    /// all running tasks as watched. `shortest` is the shortest time limit of these tasks.
    pub(super) fn begin_watch(&mut self, until: Instant, shortest: Duration) -> Instant {
        let now = Instant::now();
        self.excuse_work(now, shortest);
        self.shared.state.lock().workers.iter_mut().for_each(|worker| worker.watch(LONG_WORK, now));
        self.pauses.piece(now, until, shortest)
    }

    /// Moves the deadlines of watched tasks by the time since this thread last slept. Does nothing if this
    /// time is short. If it is long, the program may have been stopped, or the thread has run user code, such
    /// as callbacks. Therefore the deadline of a task moves at most by its time limit.
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

    /// Condemns tasks that have exceeded their time limit, and kills their workers. Kills workers that are
    /// not ready in time.
    pub(super) fn enforce_time_limits(&mut self, now: Instant) {
        let start_timeout = self.shared.settings.start_timeout;
        let state = &mut *self.shared.state.lock();
        for found in &mut state.workers {
            if found.ready_until(start_timeout).is_some_and(|until| until <= now) {
                (found.start_timed_out, found.starts_since) = (true, None);
                found.kill();
            }
            let watched = found.watched;
            let Some((chunk, _, timeout)) = found.deadline().filter(|(_, at, _)| watched && *at <= now)
            else {
                continue;
            };
            let (id, reported, end) = (chunk.id, chunk.reported, chunk.end);
            let word = found.shared_words.word();
            let over = match word.place(id, reported) {
                ItemPosition::Running(item) => {
                    // The worker may have been stopped, or busy with reading a function, before it began.
                    let since = found.shared_words.since();
                    let within = |end: u64| Duration::from_nanos(end.saturating_sub(since));
                    let paused = self.paused.iter().map(|(end, time)| within(*end).min(*time)).sum();
                    let elapsed = Duration::from_nanos(clock::now().saturating_sub(since));
                    let run_time = found.counted(elapsed.saturating_sub(paused), now);
                    if run_time < timeout {
                        found.since = now.checked_sub(run_time + found.moved()).unwrap_or(now);
                        continue;
                    }
                    Some(item)
                }
                // The worker is about to begin, or is done and its reply is about to arrive.
                ItemPosition::Next(_) if !mp_spawn::is_stopped(found.pid) => None,
                // The worker is done, and was stopped before or after it could answer. Its sent replies are
                // handled before its death.
                ItemPosition::Next(item) if item >= end => {
                    found.kill();
                    None
                }
                ItemPosition::Next(item) => Some(item),
            };
            // A stopped worker may resume at this moment: either it begins the task, or it is condemned,
            // never both.
            if let Some(item) = over.filter(|_| found.shared_words.condemn(word)) {
                found.condemned = Some((id, item));
                found.kill();
            } else {
                let later = now + (timeout / 8).max(Duration::from_millis(1));
                found.since = later.checked_sub(timeout + found.moved()).unwrap_or(now);
            }
        }
    }
}
