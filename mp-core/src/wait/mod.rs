//! Waiting for many things at once: what becomes ready in the arena, and descriptors of the kernel.
//!
//! # How
//! What becomes ready in the arena has one parking word ([`Parking`]). A waiter announces itself at the words
//! of all that it waits for, looks at all of them again, and sleeps until one of the words changes: the
//! kernel sleeps on up to 128 words in one call (`futex_waitv`, Linux 5.16). So nothing is new for processes
//! that make things ready: they look whether the bit of sleepers is set in the one word, and make a system
//! call only then.
//!
//! | waits for | sleeps |
//! |---|---|
//! | words, up to 128 | the caller itself, on the words |
//! | descriptors | the caller itself, in `poll` |
//! | both, or more words | the caller in `poll`, on an eventfd, too; a thread of this process (`reactor`) sleeps on the words, and writes it |
//! | a future, or [`ReadyFd`] | that thread sleeps on the words, and wakes the task, or writes the eventfd |
//! | a future, for a descriptor | another thread of this process (`descriptors`) sleeps in `epoll`, and wakes the task; within a tokio runtime, and with the feature `tokio`, that runtime (`runtime`) |
//!
//! That thread is started when it is first needed, one for each 127 words that are slept on at a time. No other process
//! knows of it: it is a sleeper as any other. Where the kernel has no `futex_waitv`, it looks at the words every so often
//! instead (half a millisecond at first, up to 4 ms).
//!
//! # What is never lost
//! A wake-up may be meant for one of several: a waiter that is woken by it, and does not take what there is
//! (since it only looked, was ready for something else as well, or was cancelled), wakes the next one
//! ([`Parking::wake_one`]) if it is still there.
//!
//! | killed, stopped | left | other waiters |
//! |---|---|---|
//! | announced, or asleep | bits of sleepers | the next waker makes a call too many, and takes the bit back |
//! | woken, before it woke the next one | a sleeper beside something that is ready | looks after a poll interval |
//! | a waker, before its call | sleepers | look after a poll interval, and sweep |
//! | stopped while it sleeps | wake-ups that it swallowed | look after a poll interval |
//!
//! Nothing here is written in shared memory but those bits, by the steps of [`Announce`](crate::Announce) and
//! [`Notify`](crate::Notify).

mod descriptors;
mod forms;
mod many;
mod reactor;
mod ready;
#[cfg(feature = "tokio")]
mod runtime;
mod task;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

pub use many::{select, wait};
pub use ready::ReadyFd;
pub use task::{WakeRegistration, poll_until, until, wait_async};

use crate::arena::Parking;
use crate::sys::readiness;

/// Something that becomes ready, and that may be waited for beside other things, by [`wait()`] and
/// [`select`].
///
/// *Ready* is what would not have to wait: a queue with a message, and also one that is closed, or a channel whose other
/// side is gone, since getting from them does not wait either. It is a snapshot: another process may be faster.
pub trait Waitable {
    /// Where to sleep until it may have become ready.
    fn place(&self) -> WaitPoint<'_>;

    /// Whether it is ready, as of now. What lies in the arena is not ready in a forked copy of the process.
    fn is_ready(&self) -> bool;

    /// As [`is_ready`](Self::is_ready), but looks as well for what dead processes have left, which may take a
    /// while. A waiter asks once a poll interval.
    fn is_ready_after_all(&self) -> bool {
        self.is_ready()
    }

    /// What it is, for reports of waits that last long, as in `socket "results" to pid 42`; `None` where it has nothing to say.
    fn described(&self) -> Option<String> {
        None
    }
}

/// Where one sleeps until something may be ready.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum WaitPoint<'a> {
    /// At a word of the arena that changes whenever it may have become ready, if a sleeper is announced
    /// there.
    Parking(ParkingPoint<'a>),
    /// At a descriptor that becomes readable.
    Readable(BorrowedFd<'a>),
    /// At a descriptor that becomes writable.
    Writable(BorrowedFd<'a>),
    /// Nowhere: it is ready, and stays so, as what a process has ended with is in its copy.
    Nowhere,
}

/// A parking word of the arena, for the waits of this crate: no longer than what it is of is borrowed, since its memory may be
/// another's afterwards.
///
/// Other code neither announces nor wakes sleepers there:
///
/// ```compile_fail,E0599
/// use mp_core::{WaitPoint, Waitable};
///
/// fn kept(thing: &impl Waitable) {
///     if let WaitPoint::Parking(point) = thing.place() {
///         point.announce();
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ParkingPoint<'a> {
    parking: Parking,
    of: PhantomData<&'a ()>,
}

impl From<Parking> for ParkingPoint<'_> {
    fn from(parking: Parking) -> Self {
        Self { parking, of: PhantomData }
    }
}

impl WaitPoint<'_> {
    /// As `poll` takes it.
    fn descriptor(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match *self {
            WaitPoint::Parking(_) | WaitPoint::Nowhere => None,
            WaitPoint::Readable(fd) => Some((fd, false)),
            WaitPoint::Writable(fd) => Some((fd, true)),
        }
    }

    fn parking(&self) -> Option<Parking> {
        match *self {
            WaitPoint::Parking(point) => Some(point.parking),
            _ => None,
        }
    }
}

/// Whether a panic of this thread, just now, is only how a runtime answers that it does not wait for
/// descriptors: it is caught, and not to be reported.
#[doc(hidden)]
#[must_use]
pub fn is_asking_a_runtime() -> bool {
    #[cfg(feature = "tokio")]
    return runtime::is_asking();
    #[cfg(not(feature = "tokio"))]
    false
}

/// Something that is waited for by a future, which outlives the handle that it was asked of.
pub type SharedWaitable = Arc<dyn Waitable + Send + Sync>;

/// Any descriptor, as something to wait for: it is ready when it can be read from without blocking, or is at its end.
///
/// ```
/// use std::io::Write;
/// use std::os::unix::net::UnixStream;
/// use mp_core::{Descriptor, wait};
///
/// let (here, mut there) = UnixStream::pair()?;
/// assert!(wait(&[&Descriptor(&here)], Some(std::time::Duration::ZERO))?.is_empty());
/// there.write_all(b"x")?;
/// assert_eq!(wait(&[&Descriptor(&here)], None)?, [0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Descriptor<F>(pub F);

impl<F: AsFd> Waitable for Descriptor<F> {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.0.as_fd())
    }

    fn is_ready(&self) -> bool {
        readiness::is_ready(self.0.as_fd(), false)
    }
}

impl<F: AsFd> fmt::Debug for Descriptor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Descriptor").field(&self.0.as_fd()).finish()
    }
}
