//! Descriptors watched by a tokio runtime instead of a thread of this library (feature `tokio`).
//!
//! If a task waits for a descriptor, the driver of the runtime in which the task is polled watches the
//! descriptor. The thread that runs the driver wakes the task, without another thread in between. Only tasks
//! use the driver. Operations that continue after a task was dropped, for example the rest of a message,
//! can't rely on a runtime that may end first. They use the thread of `descriptors`.
//!
//! | state of an entry | changed by |
//! |---|---|
//! | notified, at first and after each event | its owner, which checks the descriptor itself: not ready → watched |
//! | watched, with the last waker stored | the driver, after an event: wakes the waker → notified; the driver, at its end: wakes the waker → over |
//! | over | nothing: the owner uses the thread of `descriptors` |
//!
//! The driver is edge-triggered. So a notified entry checks if the descriptor is still ready, and then wakes
//! its task at once, as if it were level-triggered. If the descriptor is not ready although the driver keeps
//! reporting it, the report concerns an earlier state of the descriptor, for example of a socket that was
//! connected again. The entry then changes to *over*.
//!
//! An entry belongs to one runtime. If the task is polled elsewhere, the entry is replaced, because no thread
//! may run the old driver.
//!
//! | not supported | reason | fallback |
//! |---|---|---|
//! | no runtime, or one without I/O | there is no driver | `descriptors` |
//! | a program that aborts when it panics | a runtime panics if it has no I/O, and there is no other way to query it | `descriptors` |
//! | a forked copy that has not executed a program ([`fork::inherits_nothing`]) | the copy may have inherited the runtime, and shares the kernel's table of watched descriptors with its parent: an entry of the copy would reach the parent as an event with an invalid address | `descriptors` |
//! | an entry that a forked copy has inherited | the copy shares the kernel's table of watched descriptors with its parent | an error; dropping the entry removes nothing, and leaves its descriptor open |
//!
//! Private to the process; no shared memory is used here.

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::sys::readiness;
use crate::{
    fork,
    process::{PerProcess, per_process},
};

/// Runtimes that were recently found to have no I/O. Each runtime is queried only once, because a runtime
/// without I/O panics when it is queried. If an id is reused by a runtime with I/O, the thread of
/// `descriptors` serves that runtime as well.
static WITHOUT_IO: PerProcess<Mutex<Vec<Id>>> = per_process!(Mutex::new(Vec::new()));
/// Maximum number of ids in [`WITHOUT_IO`].
const MOST: usize = 64;

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` while this thread queries a runtime for I/O. A panic in that time only means that the
/// runtime has no I/O, and must not be reported.
pub(super) fn is_asking() -> bool {
    ASKING.try_with(Cell::get).unwrap_or(false)
}

/// Returns the id of this thread's runtime, if the runtime may have a driver.
fn current() -> Option<Id> {
    if !cfg!(panic = "unwind") {
        return None;
    }
    let runtime = Handle::try_current().ok()?.id();
    let serves = fork::inherits_nothing() && !WITHOUT_IO.lock().contains(&runtime);
    serves.then_some(runtime)
}

/// Registers the descriptor with the driver of this thread's runtime. After a failure, the caller uses the
/// fallback, which reports the error.
fn register(fd: OwnedFd, interest: Interest, runtime: Id) -> Option<AsyncFd<OwnedFd>> {
    // Deprecated because of callers that close a descriptor which they only lend. This entry owns its
    // descriptor. The new name requires a tokio version that is too recent for most programs.
    #[allow(deprecated)]
    let enter = || AsyncFd::with_interest(fd, interest);
    _ = ASKING.try_with(|asking| asking.set(true));
    let entered = catch_unwind(AssertUnwindSafe(enter));
    _ = ASKING.try_with(|asking| asking.set(false));
    if entered.is_err() {
        let mut without = WITHOUT_IO.lock();
        if without.len() == MOST {
            without.remove(0);
        }
        without.push(runtime);
    }
    entered.ok()?.ok()
}

/// Entry of a task that waits for a descriptor. Dropping this value removes the entry.
pub(super) struct RuntimeEntry {
    /// Duplicate of the descriptor; `None` only during drop.
    fd: Option<AsyncFd<OwnedFd>>,
    /// Number of the descriptor that `fd` duplicates.
    of: i32,
    write: bool,
    runtime: Id,
    process: u32,
}

impl RuntimeEntry {
    /// Creates an entry in this thread's runtime. Returns `None` if the runtime can't wait for this
    /// descriptor, or for any descriptor.
    pub(super) fn at(fd: BorrowedFd<'_>, write: bool) -> Result<Option<Self>> {
        let Some(runtime) = current() else { return Ok(None) };
        let of = fd.as_raw_fd();
        let interest = if write { Interest::WRITABLE } else { Interest::READABLE };
        let fd = register(readiness::duplicate(fd)?, interest, runtime);
        let process = std::process::id();
        Ok(fd.map(|fd| Self { fd: Some(fd), of, write, runtime, process }))
    }

    /// Returns `true` if the entry is for this descriptor and direction, and for this thread's runtime.
    pub(super) fn is_at(&self, fd: BorrowedFd<'_>, write: bool) -> bool {
        let is_it = self.of == fd.as_raw_fd() && self.write == write;
        is_it && (!self.is_ours() || current() == Some(self.runtime))
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Registers the waker to be woken once, when the descriptor is ready. Returns `false` if the entry has
    /// ended.
    pub(super) fn watch(&mut self, waker: &Waker) -> Result<bool> {
        if !self.is_ours() {
            return Err(Error::Forked);
        }
        let Some(fd) = &self.fd else { return Ok(false) };
        let mut cx = Context::from_waker(waker);
        // Two iterations are sufficient if no event happens meanwhile.
        for _ in 0..3 {
            // Polls both directions: tokio reports a broken descriptor that is not readable only as writable.
            let readiness = match (fd.poll_read_ready(&mut cx), fd.poll_write_ready(&mut cx)) {
                (Poll::Ready(readiness), _) | (_, Poll::Ready(readiness)) => readiness,
                (Poll::Pending, Poll::Pending) => return Ok(true),
            };
            let Ok(mut readiness) = readiness else { return Ok(false) };
            if readiness::is_ready(std::os::fd::AsFd::as_fd(fd.get_ref()), self.write) {
                waker.wake_by_ref();
                return Ok(true);
            }
            // Has no effect if there was an event since the report.
            readiness.clear_ready();
        }
        Ok(false)
    }
}

impl Drop for RuntimeEntry {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Deregistering the entry would deregister the entry of the original process.
            std::mem::forget(self.fd.take());
        }
    }
}
