//! Clock of a timed task in its worker: which task runs and since when, readable by the pool.
//!
//! A task is *timed* if it has a time limit. The worker's shared words then contain the task's start time and
//! its position in its chunk ([`steps::chunk`](crate::steps::chunk)). The start time is on the system's
//! monotonic clock, and is written before the chunk word names the task.
//!
//! When the time limit has passed, the worker's compare-and-swap that finishes the task competes with the
//! pool's compare-and-swap that condemns the worker. If the task finishes first, the worker is not killed, so
//! the pool never kills a worker that already runs another task. In the same way, a stopped worker, which may
//! resume at any moment, either claims its next task or is condemned.
//!
//! The clock stops while a panic hook runs in any thread of the worker: hooks read the symbols of a backtrace
//! and print it, which takes longer than many tasks and is not part of the task's time. The task then ends
//! with its panic. A task that catches the panic keeps the rest of its time. A hook that never ends stops the
//! clock for at most [`LONGEST_HOOK`].
//!
//! | clock | word `since` | changed by |
//! |---|---|---|
//! | runs | start of the task plus the time taken by hooks | the worker, before the chunk word names the task |
//! | stopped | the same plus [`LONGEST_HOOK`]: in the future, so that no time limit has passed | the first thread that panics; restored when the last one has finished |
//!
//! If a worker dies while its clock is stopped, `since` and the chunk word remain unchanged. The pool clears
//! the chunk word before it starts the worker's next process. `since` is valid only for the task that the
//! chunk word names, and is written before the chunk word. A worker that receives a SIGSTOP while its clock
//! is stopped keeps its task until the time limit plus [`LONGEST_HOOK`].

use std::sync::OnceLock;
use std::time::Instant;

use mp_core::fork::PerProcess;
use mp_core::mutex::{Mutex, MutexGuard};

use crate::child::journal_words::WorkerWords;

/// Returns the time of the system's monotonic clock, in nanoseconds. All processes read the same clock.
pub(crate) fn now() -> u64 {
    mp_core::monotonic().as_nanos() as u64
}

/// Converts an instant to the time scale of [`now`], in milliseconds.
pub(crate) fn monotonic_ms(at: Instant) -> u64 {
    // fork: both clocks are the same in a child.
    static BASE: OnceLock<(Instant, u64)> = OnceLock::new();
    let (base, ns) = *BASE.get_or_init(|| (Instant::now(), now()));
    let after = at.saturating_duration_since(base).as_nanos() as u64;
    let before = base.saturating_duration_since(at).as_nanos() as u64;
    (ns.saturating_add(after).saturating_sub(before)) / 1_000_000
}

/// Maximum time for which a panic stops the clock, in nanoseconds.
pub(crate) const LONGEST_HOOK: u64 = 10_000_000_000;

/// Clock of this worker process. A fork of a worker has no clock, and does not write into the words of its
/// parent.
static CLOCK: PerProcess<OnceLock<TaskClock>> = mp_core::per_process!(OnceLock::new());

/// State of the clock.
#[derive(Clone, Copy, Default, Debug)]
struct TaskClockState {
    /// Start of the running timed task plus the time taken by hooks: the value of the word `since` while the
    /// clock runs.
    began: Option<u64>,
    /// Number of threads in which panic hooks run.
    hooks: u32,
    /// Time from which the pause of the clock counts: when `hooks` last became 1, or when the task began
    /// during a hook. In nanoseconds of the monotonic clock.
    stopped: u64,
}

#[derive(Debug)]
pub(crate) struct TaskClock {
    shared_words: WorkerWords,
    running: Mutex<TaskClockState>,
}

impl TaskClock {
    fn new(shared_words: WorkerWords) -> TaskClock {
        TaskClock { shared_words, running: Mutex::default() }
    }

    /// Creates the clock of this worker, once in the life of a process. From then on, panics stop the clock.
    pub(crate) fn install(shared_words: WorkerWords) -> &'static TaskClock {
        let clock = CLOCK.get_or_init(|| TaskClock::new(shared_words));
        mp_spawn::set_panic_callbacks(
            || _ = CLOCK.get().map(TaskClock::stop),
            || _ = CLOCK.get().map(TaskClock::resume),
        );
        clock
    }

    /// Starts the clock for a task that the worker has claimed.
    pub(crate) fn start(&self) {
        let mut running = self.running.lock();
        let began = now();
        (running.began, running.stopped) = (Some(began), began);
        self.show(&running);
    }

    /// Ends the timed task.
    pub(crate) fn finish(&self) {
        self.running.lock().began = None;
    }

    /// Stops the clock until the returned guard is dropped.
    pub(crate) fn pause() -> impl Drop {
        struct PauseGuard(Option<&'static TaskClock>);
        impl Drop for PauseGuard {
            fn drop(&mut self) {
                _ = self.0.map(TaskClock::resume);
            }
        }
        let clock = CLOCK.get();
        clock.iter().for_each(|clock| clock.stop());
        PauseGuard(clock)
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

    /// Writes the word `since`. The caller holds the lock, so the values are written in the order of the
    /// changes.
    fn show(&self, running: &MutexGuard<'_, TaskClockState>) {
        if let Some(began) = running.began {
            let ahead = if running.hooks > 0 { LONGEST_HOOK } else { 0 };
            self.shared_words.set_since(began + ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_clock_stops_while_a_thread_panics() {
        let clock = TaskClock::new(WorkerWords::new().unwrap());
        let shows = || clock.shared_words.since();
        let before = now();
        clock.start();
        let began = shows();
        assert!((before..=now()).contains(&began));
        clock.stop();
        clock.stop();
        assert_eq!(shows(), began + LONGEST_HOOK, "a stopped clock is ahead");
        clock.resume();
        assert_eq!(shows(), began + LONGEST_HOOK, "the other thread still panics");
        clock.resume();
        let since = shows();
        assert!(since > began && since <= now(), "{began} {since}");
        clock.finish();
        // Between two tasks the word does not change, and the next task may begin while a thread panics.
        clock.stop();
        assert_eq!(shows(), since);
        clock.start();
        assert!(shows() > now());
        clock.resume();
        assert!((since..=now()).contains(&shows()));
    }
}
