//! Supervisor: the thread of a process that starts all its children, receives their messages, and reaps them.
//!
//! **Invariant:** children are started by this thread, or by the main thread. A child requests its
//! parent-death signal, which the kernel sends when the thread that started the child ends. So that thread
//! must live as long as the parent. The main thread does (unless it calls `pthread_exit`, which no Rust
//! program does by itself). Waking another thread just to have it start a process costs a tenth of the start.
//!
//! **Short-lived processes.** If a start has a single process whose function returns nothing, the process is
//! not watched for its first milliseconds: a waiter detects its end by its sentinel, reads its messages, and
//! reaps it. A watching supervisor would be woken by each message of the process, and by its end at the same
//! time as the waiter, without any work to do. After four milliseconds the supervisor watches the process if
//! a caller waits or queries it, and receives the messages that have arrived. So the report of a failure is
//! delayed by at most four milliseconds. The supervisor watches without delay if a callback is registered for
//! the end. After fifty milliseconds it watches in any case, by the timer: a timer that fired every four
//! milliseconds cost starts on a virtual machine about 4 % of their time. (If the process crashes and no
//! caller queries it, its shared memory is released at most fifty milliseconds later.) The supervisor watches
//! a process from the beginning in three cases: the process may need an answer (a result in shared memory),
//! the start has several processes, or the process has not received all its data.
//!
//! | state of a [`WatchedChild`](child::WatchedChild) | in the epoll set | transitions under the lock of the children |
//! |---|---|---|
//! | new | nothing | a thread detects its end: reaped; a caller queries it, or its time ends: watched |
//! | watched | sentinel and socket | a thread detects its end: reaped |
//! | reaped | nothing | none: removed from the children |
//!
//! A process that is killed while it is new is reaped by the waiter, or by the supervisor a moment later.

pub(crate) mod child;
mod crash_report;
pub(crate) mod diagnosis;
pub(crate) mod shared;
mod thread;

use std::sync::Arc;
use std::sync::mpsc::channel;

use rustix::event::epoll;

use crate::error::Result;
use crate::parent::supervisor::shared::{SUPERVISOR, Supervisor, thread_ended};
use crate::sys::{self, ProcessHandle};
pub(crate) use thread::is_this_thread;

/// Returns the supervisor of this process, and starts it if there is none.
pub(crate) fn get() -> Result<Arc<Supervisor>> {
    let mut slot = SUPERVISOR.lock();
    Ok(match &*slot {
        Some(running) if running.process == std::process::id() => Arc::clone(running),
        _ => Arc::clone(slot.insert(thread::start()?)),
    })
}

/// Returns the supervisor of this process, if it has one.
fn existing() -> Option<Arc<Supervisor>> {
    let supervisor = SUPERVISOR.lock().as_ref().map(Arc::clone);
    supervisor.filter(|running| running.process == std::process::id())
}

/// Returns the children of this process that have not reported that they joined the shared memory.
pub(crate) fn not_joined() -> Vec<u32> {
    existing().map_or_else(Vec::new, |supervisor| supervisor.not_joined())
}

/// Calls a function on a thread that lives as long as the process, and waits for the result.
pub(crate) fn run_on_lasting_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if sys::on_main_thread() {
        return call();
    }
    let (reply, answer) = channel();
    // The receiver is missing if the requesting thread has ended.
    get()?.send_request(Box::new(move || _ = reply.send(call())))?;
    answer.recv().unwrap_or_else(|_| Err(thread_ended()))
}

/// Calls a function on the supervisor thread, without locks, and does not wait for it. The function is not
/// called if that thread has ended.
pub(crate) fn run_later(call: impl FnOnce() + Send + 'static) {
    if let Ok(supervisor) = get() {
        let _ = supervisor.send_request(Box::new(call));
    }
}

/// Ensures that a fork server is reaped when it ends.
pub(crate) fn watch_server(server: &Arc<ProcessHandle>) -> Result<()> {
    get()?.watch_server(server)
}

/// Reaps a process that is known to have ended, unless it was reaped before.
pub(crate) fn reap(id: u64) {
    if let Some(supervisor) = existing() {
        supervisor.handle_event(id, true, epoll::EventFlags::empty());
    }
}

/// Makes the supervisor watch a process from now on, because a caller queries it.
pub(crate) fn watch(id: u64) {
    if let Some(supervisor) = existing() {
        supervisor.begin_watching(id);
    }
}
