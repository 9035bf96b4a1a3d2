//! Descriptors that a tokio runtime waits for, in the place of a thread of this library (feature `tokio`).
//!
//! A task that is polled within a runtime has its descriptor watched by that runtime's own driver: the thread
//! that turns the driver wakes the task, and no thread of this library runs in between. Only tasks do that.
//! What continues after a task is gone, as the rest of a message does, can't rely on a runtime that may end
//! first, and stays with the thread of `descriptors`.
//!
//! | state of an entry | changed by |
//! |---|---|
//! | told, at first and after each event | its owner, which looks at the descriptor itself: not ready → watched |
//! | watched, with the last waker that was left | the driver, by an event, and it wakes the waker → told; the driver's end, and it wakes the waker → over |
//! | over | nothing: its owner goes to the thread of `descriptors` |
//!
//! The driver tells of edges. So an entry that was told looks whether the descriptor is ready still: if so it wakes its task at
//! once, as one that is watched by the level would. If it is not, and the driver goes on saying so, then what it says is of
//! an earlier life of the descriptor, as a socket's that was connected anew: over.
//!
//! It is the place of a task in one runtime. Polled elsewhere, it is given up for another: there may be no
//! thread that turns the old driver.
//!
//! | where it does not serve | why | then |
//! |---|---|---|
//! | no runtime, or one without I/O | there is no driver | `descriptors` |
//! | a program that aborts when it panics | whether a runtime has I/O can't be asked: it panics if it has none | `descriptors` |
//! | a copy of a process that was not executed ([`fork::nothing_is_inherited`]) | the runtime may be its original's, with which it shares the kernel's table of what is watched: what it entered there would reach the original as an event of its own, with an address that means nothing | `descriptors` |
//! | an entry in a copy that was made while it was there | the same | an error; dropping it takes nothing out, and leaves its descriptor open |
//!
//! Private to the process; nothing here is shared memory.

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::sys::{epoll, readiness};
use crate::{
    fork,
    process::{GENERATIONS, PerProcess},
};

/// Runtimes without I/O, the last ones that were met. Each is asked once, since the answer is a panic. Where a number is used
/// again, by a runtime with I/O, a thread continues to wait for that one as well.
static WITHOUT_IO: PerProcess<Mutex<Vec<Id>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);
/// How many are remembered.
const MOST: usize = 64;

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread asks a runtime just now whether it has I/O: a panic is an answer, and not to be
/// reported.
pub(super) fn is_asking() -> bool {
    ASKING.try_with(Cell::get).unwrap_or(false)
}

/// The runtime in which this thread is, if it may have a driver.
fn current() -> Option<Id> {
    if !cfg!(panic = "unwind") {
        return None;
    }
    let runtime = Handle::try_current().ok()?.id();
    let serves = fork::nothing_is_inherited() && !WITHOUT_IO.lock().contains(&runtime);
    serves.then_some(runtime)
}

/// Enters it with the driver of the runtime in which this thread is. If that can't be, the other way will say why.
fn register(fd: OwnedFd, interest: Interest, runtime: Id) -> Option<AsyncFd<OwnedFd>> {
    // Deprecated because of owners that close what they lend; this one is the descriptor's owner. The name that came after it
    // is too new for most programs.
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

/// A place for a task that waits for a descriptor. Dropping it takes it out.
pub(super) struct RuntimeEntry {
    /// A duplicate; there until it is dropped.
    fd: Option<AsyncFd<OwnedFd>>,
    /// The number of the original.
    of: i32,
    write: bool,
    runtime: Id,
    process: u32,
}

impl RuntimeEntry {
    /// In the runtime in which this thread is; `None` if that doesn't wait for descriptors, or not for this one.
    pub(super) fn at(fd: BorrowedFd<'_>, write: bool) -> Result<Option<Self>> {
        let Some(runtime) = current() else { return Ok(None) };
        let of = fd.as_raw_fd();
        let interest = if write { Interest::WRITABLE } else { Interest::READABLE };
        let fd = register(epoll::duplicate(fd)?, interest, runtime);
        let process = std::process::id();
        Ok(fd.map(|fd| Self { fd: Some(fd), of, write, runtime, process }))
    }

    /// Whether it is at this descriptor, for this, and in the runtime in which this thread is.
    pub(super) fn is_at(&self, fd: BorrowedFd<'_>, write: bool) -> bool {
        let is_it = self.of == fd.as_raw_fd() && self.write == write;
        is_it && (!self.is_ours() || current() == Some(self.runtime))
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Has the waker woken when it is ready, once. Whether that will happen: not if it is over.
    pub(super) fn watch(&mut self, waker: &Waker) -> Result<bool> {
        if !self.is_ours() {
            return Err(Error::Forked);
        }
        let Some(fd) = &self.fd else { return Ok(false) };
        let mut cx = Context::from_waker(waker);
        // One more than it takes if nothing happens meanwhile.
        for _ in 0..3 {
            // The other direction as well: tokio tells of a descriptor that is broken, and not readable, only there.
            let told = match (fd.poll_read_ready(&mut cx), fd.poll_write_ready(&mut cx)) {
                (Poll::Ready(told), _) | (_, Poll::Ready(told)) => told,
                (Poll::Pending, Poll::Pending) => return Ok(true),
            };
            let Ok(mut told) = told else { return Ok(false) };
            if readiness::is_ready(std::os::fd::AsFd::as_fd(fd.get_ref()), self.write) {
                waker.wake_by_ref();
                return Ok(true);
            }
            // If there was an event since it was told, this changes nothing.
            told.clear_ready();
        }
        Ok(false)
    }
}

impl Drop for RuntimeEntry {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Taking it out would take the original's out.
            std::mem::forget(self.fd.take());
        }
    }
}
