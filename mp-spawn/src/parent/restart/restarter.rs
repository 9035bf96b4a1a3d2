//! Thread that restarts supervised processes after their delays, and calls the program's listeners.
//!
//! This thread is separate from the supervisor thread, because a start by a fork server may wait for the
//! supervisor, or for a stopped server. The program's callbacks also run here. The thread starts no process
//! itself, since the kernel would end a process with the thread that started it. Like any other thread, it
//! sends requests to the supervisor. A single thread does all this work. So a process that starts slowly
//! delays the restarts of other processes, but neither their ends nor starts that the program requests.

use std::collections::VecDeque;
use std::io::Write as _;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mp_core::fork::PerProcess;
use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::user_code::catch_panic;

use crate::error::{Result, SpawnError, launch_error};
use crate::parent::restart::event::{EventListener, ProcessEvent};
use crate::sys::{self, deadline};

/// Interval at which a wait checks for Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// State that the restarting thread shares with other threads.
pub(crate) struct Restarter {
    /// Process that the restarter belongs to. Differs from the current process after a fork.
    process: u32,
    queue: Mutex<PendingWork>,
    changed: Condvar,
}

/// Pending work. It is bounded by the number of processes: while the event of a process is pending, the
/// process is not restarted.
#[derive(Default)]
struct PendingWork {
    /// Number of supervised processes.
    processes: usize,
    /// Pending calls of listeners, and pending reports.
    deliveries: VecDeque<Box<dyn FnOnce() + Send>>,
    waiting: Vec<DelayedRestart>,
}

/// Process that the restarting thread can restart.
pub(crate) trait Restartable: Send + Sync {
    /// Restarts the process after its delay. Blocks until it is started.
    fn restart(self: Arc<Self>);

    /// Returns the name of the process, the number of its next start and the previous failure.
    /// Returns `None` if the process does not wait for a start.
    fn next_start(&self) -> Option<(String, u32, Option<SpawnError>)>;
}

/// Process that waits for its next start.
struct DelayedRestart {
    process: Arc<dyn Restartable>,
    /// Time of the next start. `None` means never.
    until: Option<Instant>,
    /// `true` if the process and this program are notified of Ctrl-C ([`mp_core::interrupted`]).
    graceful: bool,
}

impl DelayedRestart {
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now) || self.graceful && mp_core::interrupted()
    }

    /// Returns the time of the next check.
    fn next(&self, now: Instant) -> Option<Instant> {
        self.until.into_iter().chain(self.graceful.then_some(now + CHECK_INTERVAL)).min()
    }
}

static RESTARTER: PerProcess<Mutex<Option<Arc<Restarter>>>> = mp_core::per_process!(Mutex::new(None));

/// Reference from a supervised process to the restarting thread, which exists as long as there are
/// references.
pub(crate) struct RestarterHandle(Arc<Restarter>);

impl Deref for RestarterHandle {
    type Target = Restarter;

    fn deref(&self) -> &Restarter {
        &self.0
    }
}

impl Drop for RestarterHandle {
    fn drop(&mut self) {
        // A copy of the process has no such thread, and the shared state may be locked for good.
        if self.0.process != std::process::id() {
            return;
        }
        self.0.queue.lock().processes -= 1;
        self.0.changed.notify_one();
    }
}

/// Returns a reference for one more supervised process. Starts the restarting thread if it does not run.
pub(crate) fn acquire() -> Result<RestarterHandle> {
    let mut slot = RESTARTER.lock();
    let running = match slot.as_ref().filter(|running| running.process == std::process::id()) {
        Some(running) => Arc::clone(running),
        None => Arc::clone(slot.insert(begin()?)),
    };
    running.queue.lock().processes += 1;
    Ok(RestarterHandle(running))
}

fn begin() -> Result<Arc<Restarter>> {
    mp_core::waits::add_to_dumps(describe_delays);
    let (queue, changed) = (Mutex::default(), Condvar::default());
    let restarter = Arc::new(Restarter { process: std::process::id(), queue, changed });
    let its = Arc::clone(&restarter);
    thread::Builder::new()
        .name("mp-restarts".to_string())
        .spawn(move || its.run())
        .map_err(|error| launch_error("the thread that restarts processes", None, error))?;
    Ok(restarter)
}

/// Returns a line for each process that waits for its next start.
fn describe_delays() -> String {
    let Some(restarter) = RESTARTER.lock().clone() else { return String::new() };
    let now = Instant::now();
    let waiting: Vec<(Arc<dyn Restartable>, Option<Instant>)> =
        restarter.queue.lock().waiting.iter().map(|one| (Arc::clone(&one.process), one.until)).collect();
    let line = |(process, until): (Arc<dyn Restartable>, Option<Instant>)| {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        let Some((name, attempt, error)) = process.next_start() else { return String::new() };
        let cause = error.map_or_else(String::new, |error| {
            format!(": {}", error.to_string().lines().next().unwrap_or_default())
        });
        format!("mp: attempt {attempt} of {name} follows in {left:.1?}{cause}\n")
    };
    waiting.into_iter().map(line).collect()
}

impl Restarter {
    /// Queues an event for a listener. Events are delivered in the order of the calls.
    pub(crate) fn queue_event(&self, listener: &Arc<EventListener>, event: ProcessEvent) {
        let listener = Arc::clone(listener);
        // A panic of the listener, which the hook has printed, is caught here.
        self.deliver(move || _ = catch_panic(|| listener.get().map(|call| call(event))));
    }

    /// Queues a line to be printed.
    pub(crate) fn queue_report(&self, line: String) {
        // Written in one piece, so that lines of other processes don't come between. The write may block for
        // an unlimited time. It fails if the reader has closed the pipe, which is not a failure of this
        // thread.
        self.deliver(move || _ = std::io::stderr().lock().write_all(line.as_bytes()));
    }

    fn deliver(&self, call: impl FnOnce() + Send + 'static) {
        self.queue.lock().deliveries.push_back(Box::new(call));
        self.changed.notify_one();
    }

    /// Restarts the process after this delay.
    pub(crate) fn start_after(&self, delay: Duration, process: Arc<dyn Restartable>, graceful: bool) {
        let waiting = DelayedRestart { process, until: deadline(delay), graceful };
        self.queue.lock().waiting.push(waiting);
        self.changed.notify_one();
    }

    /// Cancels the restart. The resources of the process are freed when the returned value is dropped.
    #[must_use]
    pub(crate) fn cancel(&self, process: &dyn Restartable) -> Option<Arc<dyn Restartable>> {
        let mut queue = self.queue.lock();
        let is_it = |one: &DelayedRestart| std::ptr::addr_eq(Arc::as_ptr(&one.process), process);
        let at = queue.waiting.iter().position(is_it)?;
        Some(queue.waiting.swap_remove(at).process)
    }

    fn run(&self) {
        // Signal handlers of the program must run on threads of the program. Blocking a valid set can't fail.
        let _ = sys::block_signals();
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            if let Some(call) = queue.deliveries.pop_front() {
                MutexGuard::unlocked(&mut queue, call);
            } else if let Some(at) = queue.waiting.iter().position(|waiting| waiting.is_due(now)) {
                let DelayedRestart { process, .. } = queue.waiting.swap_remove(at);
                MutexGuard::unlocked(&mut queue, move || process.restart());
            } else {
                match queue.waiting.iter().filter_map(|waiting| waiting.next(now)).min() {
                    Some(until) => _ = self.changed.wait_until(&mut queue, until),
                    None if queue.processes > 0 => self.changed.wait(&mut queue),
                    None => {
                        drop(queue);
                        if self.is_done() {
                            return;
                        }
                        queue = self.queue.lock();
                    }
                }
            }
        }
    }

    /// Returns `true` if no work is left, so that the thread ends. The next supervised process then starts
    /// another thread. (As long as this thread exists, it may run code of the program, so no wait of this
    /// process counts as endless: see `mp_core::waits`.)
    fn is_done(&self) -> bool {
        let mut slot = RESTARTER.lock();
        let queue = self.queue.lock();
        let done = queue.processes == 0 && queue.deliveries.is_empty() && queue.waiting.is_empty();
        if done {
            *slot = None;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models a copy that was made while another thread held the lock, which the copy can't unlock.
    #[test]
    fn restarter_handle_dropped_in_a_copy_changes_nothing() {
        let queue = Mutex::new(PendingWork { processes: 1, ..PendingWork::default() });
        let process = std::process::id() + 1;
        let original = Arc::new(Restarter { process, queue, changed: Condvar::default() });
        drop(RestarterHandle(Arc::clone(&original)));
        assert_eq!(original.queue.lock().processes, 1);
    }
}
