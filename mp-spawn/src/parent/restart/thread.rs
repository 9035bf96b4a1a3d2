//! The thread that starts supervised processes again, when their time has come, and tells the program of them.
//!
//! It is not the supervisor's: a start by a fork server may wait for that one, and for a server that is stopped, and the
//! program's callbacks run here. It starts nothing itself, since the kernel would end a process with the thread that started it:
//! it asks the supervisor, as any thread does. One thread does all of that, so that a process whose start takes long delays the
//! restarts of others, and neither their ends nor those that the program asks for.

use std::collections::VecDeque;
use std::io::Write as _;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::user_code::caught;

use crate::error::{Result, failed};
use crate::parent::group::Group;
use crate::parent::rank::ProcessStatus;
use crate::parent::restart::event::{Listener, ProcessEvent};
use crate::sys;
use crate::sys::clock::deadline;

/// How often a wait looks whether Ctrl-C was pressed.
const LOOK: Duration = Duration::from_millis(100);

/// What the thread shares with others.
#[derive(Debug)]
pub(crate) struct Restarter {
    /// The process that it belongs to: another one after a fork.
    process: u32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// What there is to do. It is bounded by the processes: while a listener has an event, its process is not started again.
#[derive(Debug, Default)]
struct Queue {
    /// How many processes are supervised.
    processes: usize,
    news: VecDeque<News>,
    waiting: Vec<Waiting>,
}

/// Something to be told.
#[derive(Debug)]
enum News {
    Event(Arc<Listener>, ProcessEvent),
    /// A line for stderr, which may stand still for as long as it likes.
    Report(String),
}

/// A process that waits for its next start.
#[derive(Debug)]
struct Waiting {
    group: Arc<Group>,
    /// Until then; `None` is never.
    until: Option<Instant>,
    /// Whether Ctrl-C is told to the process, and to this one.
    graceful: bool,
}

impl Waiting {
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now) || self.graceful && mp_core::interrupted()
    }

    /// When to look again.
    fn next(&self, now: Instant) -> Option<Instant> {
        self.until.into_iter().chain(self.graceful.then_some(now + LOOK)).min()
    }
}

static RESTARTER: PerProcess<Mutex<Option<Arc<Restarter>>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// That one supervised process has of it: as long as there are some, the thread is there.
#[derive(Debug)]
pub(crate) struct Share(Arc<Restarter>);

impl Deref for Share {
    type Target = Restarter;

    fn deref(&self) -> &Restarter {
        &self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // In a copy of the process, that thread is not there, and what it shared may be locked for good.
        if self.0.process != std::process::id() {
            return;
        }
        self.0.queue.lock().processes -= 1;
        self.0.changed.notify_one();
    }
}

/// For one more process: the thread of this program, which begins now if there is none.
pub(crate) fn share() -> Result<Share> {
    let mut slot = RESTARTER.lock();
    let running = match slot.as_ref().filter(|running| running.process == std::process::id()) {
        Some(running) => Arc::clone(running),
        None => Arc::clone(slot.insert(begin()?)),
    };
    running.queue.lock().processes += 1;
    Ok(Share(running))
}

fn begin() -> Result<Arc<Restarter>> {
    mp_core::waits::add_to_dumps(back_offs);
    let (queue, changed) = (Mutex::default(), Condvar::default());
    let restarter = Arc::new(Restarter { process: std::process::id(), queue, changed });
    let its = Arc::clone(&restarter);
    thread::Builder::new()
        .name("mp-restarts".to_string())
        .spawn(move || its.run())
        .map_err(|error| failed("the thread that restarts processes", None, error))?;
    Ok(restarter)
}

/// A line for each process that waits for its next start.
fn back_offs() -> String {
    let Some(restarter) = RESTARTER.lock().clone() else { return String::new() };
    let now = Instant::now();
    let waiting =
        restarter.queue.lock().waiting.iter().map(|one| (Arc::clone(&one.group), one.until)).collect();
    let line = |(group, until): (Arc<Group>, Option<Instant>)| {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        let Ok(ProcessStatus::Restarting { attempt, error }) = group.status(0) else { return String::new() };
        let cause = error.map_or_else(String::new, |error| {
            format!(": {}", error.to_string().lines().next().unwrap_or_default())
        });
        format!("mp: attempt {attempt} of {} follows in {left:.1?}{cause}\n", group.name(0))
    };
    let waiting: Vec<(Arc<Group>, Option<Instant>)> = waiting;
    waiting.into_iter().map(line).collect()
}

impl Restarter {
    /// Tells a listener, soon, in the order of these calls.
    pub(crate) fn tell(&self, listener: &Arc<Listener>, event: ProcessEvent) {
        self.queue.lock().news.push_back(News::Event(Arc::clone(listener), event));
        self.changed.notify_one();
    }

    /// Prints a line, soon.
    pub(crate) fn report(&self, line: String) {
        self.queue.lock().news.push_back(News::Report(line));
        self.changed.notify_one();
    }

    /// Starts the process of this group again after this time.
    pub(crate) fn start_after(&self, delay: Duration, group: &Arc<Group>, graceful: bool) {
        let waiting = Waiting { group: Arc::clone(group), until: deadline(delay), graceful };
        self.queue.lock().waiting.push(waiting);
        self.changed.notify_one();
    }

    /// Doesn't start it. What was kept for it goes when what this returns does.
    #[must_use]
    pub(crate) fn forget(&self, group: &Group) -> Option<Arc<Group>> {
        let mut queue = self.queue.lock();
        let at = queue.waiting.iter().position(|waiting| std::ptr::eq(&*waiting.group, group))?;
        Some(queue.waiting.swap_remove(at).group)
    }

    fn run(&self) {
        // A handler of the program runs in one of the program's threads. This can't fail for a valid set.
        let _ = sys::block_signals();
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            if let Some(news) = queue.news.pop_front() {
                MutexGuard::unlocked(&mut queue, || {
                    let (listener, event) = match news {
                        News::Event(listener, event) => (listener, event),
                        // In one piece: lines of other processes don't come between.
                        // A write fails if the reader is gone: that is not a failure of this thread.
                        News::Report(line) => {
                            _ = std::io::stderr().lock().write_all(line.as_bytes());
                            return;
                        }
                    };
                    // Its panic, which the hook has shown, ends here.
                    caught(|| listener.get().map(|tell| tell(event)));
                    drop(listener);
                });
            } else if let Some(at) = queue.waiting.iter().position(|waiting| waiting.is_due(now)) {
                let Waiting { group, .. } = queue.waiting.swap_remove(at);
                MutexGuard::unlocked(&mut queue, move || group.start_again());
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

    /// Whether there is nothing to do any more: then the next supervised process begins another thread. (As long as there is this
    /// one, which may run code of the program, no wait of this process is known to have no end: see `mp_core::waits`.)
    fn is_done(&self) -> bool {
        let mut slot = RESTARTER.lock();
        let queue = self.queue.lock();
        let done = queue.processes == 0 && queue.news.is_empty() && queue.waiting.is_empty();
        if done {
            *slot = None;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a copy that was made while another thread had the lock, which is not there to unlock it.
    #[test]
    fn a_share_that_was_copied_from_another_process_is_not_given_back() {
        let queue = Mutex::new(Queue { processes: 1, ..Queue::default() });
        let process = std::process::id() + 1;
        let original = Arc::new(Restarter { process, queue, changed: Condvar::default() });
        drop(Share(Arc::clone(&original)));
        assert_eq!(original.queue.lock().processes, 1);
    }
}
