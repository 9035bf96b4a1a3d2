//! The clock of a timed task, in its worker: what runs, and since when, for the pool to see.
//!
//! A task is *timed* if it may take only so long. Then the worker's words say since when (by the system's monotonic clock, written
//! before the chunk word names the task), and which task of its chunk that is ([`steps::chunk`](crate::steps::chunk)).
//!
//! One compare-and-swap decides whether the task was done in time, so that no other task dies with the worker; and one,
//! whether it was begun at all by a worker that was stopped, and may go on in any moment.
//!
//! The clock stands still while a panic is described, in whatever thread of the worker: the hooks read the symbols of a backtrace and
//! print it, which takes longer than many a task, and is not what the task was given its time for. So the task ends with its
//! panic, or has what was left of its time if it catches that. A hook that comes to no end stops the clock for [`LONGEST_HOOK`]
//! at most.
//!
//! | the clock | word `since` | changed by |
//! |---|---|---|
//! | runs | when the task began, and the time that hooks took more | the worker, before the chunk word names the task |
//! | stands still | that + [`LONGEST_HOOK`]: in the future, so that no time is over | a thread that panics, as the first; it goes back when the last is through |
//!
//! A worker that dies in between leaves both words to the pool, which begins with the worker's next process by clearing the chunk
//! word: what `since` says counts only for the task that the chunk word names, and was written before that. One that is stopped
//! in between keeps its task for as long as the time and [`LONGEST_HOOK`] say.

use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::{Mutex, MutexGuard};

use crate::watch::Watch;

/// Nanoseconds on a clock that all processes read alike.
pub(crate) fn now() -> u64 {
    mp_core::monotonic().as_nanos() as u64
}

/// For how long a panic stops the clock at most, in nanoseconds.
pub(crate) const LONGEST_HOOK: u64 = 10_000_000_000;

/// The clock of this process's pool, in a worker. A copy of a worker has none, and does not write into the words of its
/// original.
static CLOCK: PerProcess<OnceLock<TaskClock>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// Whether a timed task runs, and since when.
#[derive(Clone, Copy, Default, Debug)]
struct Running {
    /// When the task began, and what hooks took more: as the word says while the clock runs.
    began: Option<u64>,
    /// Threads in the hooks.
    hooks: u32,
    /// Since when the first of them is.
    stopped: u64,
}

#[derive(Debug)]
pub(crate) struct TaskClock {
    watch: Watch,
    running: Mutex<Running>,
}

impl TaskClock {
    fn new(watch: Watch) -> TaskClock {
        TaskClock { watch, running: Mutex::default() }
    }

    /// That of this worker, which panics stop from now on; once in the life of a process.
    pub(crate) fn of_worker(watch: Watch) -> &'static TaskClock {
        let clock = CLOCK.get_or_init(|| TaskClock::new(watch));
        mp_spawn::around_panics(
            || _ = CLOCK.get().map(TaskClock::stop),
            || _ = CLOCK.get().map(TaskClock::resume),
        );
        clock
    }

    /// A task begins, once the worker has claimed it.
    pub(crate) fn start(&self) {
        let mut running = self.running.lock();
        let began = now();
        (running.began, running.stopped) = (Some(began), began);
        self.show(&running);
    }

    /// It is done.
    pub(crate) fn finish(&self) {
        self.running.lock().began = None;
    }

    /// It stands still as long as what this returns is kept.
    pub(crate) fn pause() -> impl Drop {
        struct Paused(Option<&'static TaskClock>);
        impl Drop for Paused {
            fn drop(&mut self) {
                _ = self.0.map(TaskClock::resume);
            }
        }
        let clock = CLOCK.get();
        clock.iter().for_each(|clock| clock.stop());
        Paused(clock)
    }

    fn stop(&self) {
        let mut running = self.running.lock();
        running.hooks += 1;
        if running.hooks == 1 {
            running.stopped = now();
            self.show(&running);
        }
    }

    fn resume(&self) {
        let mut running = self.running.lock();
        running.hooks = running.hooks.saturating_sub(1);
        if running.hooks == 0 {
            let took = now().saturating_sub(running.stopped).min(LONGEST_HOOK);
            running.began = running.began.map(|began| began + took);
            self.show(&running);
        }
    }

    /// Writes the word. The lock is held, so that it is the latest.
    fn show(&self, running: &MutexGuard<'_, Running>) {
        if let Some(began) = running.began {
            let ahead = if running.hooks > 0 { LONGEST_HOOK } else { 0 };
            self.watch.runs_since(began + ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_as_long_as_a_thread_panics() {
        let clock = TaskClock::new(Watch::new().unwrap());
        let shows = || clock.watch.since();
        let before = now();
        clock.start();
        let began = shows();
        assert!((before..=now()).contains(&began));
        clock.stop();
        clock.stop();
        assert_eq!(shows(), began + LONGEST_HOOK, "no time is over before that");
        clock.resume();
        assert_eq!(shows(), began + LONGEST_HOOK, "the other thread still panics");
        clock.resume();
        let since = shows();
        assert!(since > began && since <= now(), "{began} {since}");
        clock.finish();
        // Between two tasks it shows nothing, and the next one may begin while a thread panics.
        clock.stop();
        assert_eq!(shows(), since);
        clock.start();
        assert!(shows() > now());
        clock.resume();
        assert!((since..=now()).contains(&shows()));
    }
}
