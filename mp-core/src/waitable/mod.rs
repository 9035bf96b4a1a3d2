//! Waiting for several objects at once: objects in the arena, and descriptors of the kernel.
//!
//! # Implementation
//! Each object in the arena has one parking word ([`Parking`]). A waiter announces itself at the words of all
//! its objects, checks all of them again, and sleeps until one of the words changes. A thread sleeps on up to
//! 128 words in one system call (`futex_waitv`, Linux 5.16). Processes that make objects ready need no
//! additional work: they check the sleepers bit in the object's word, and make a system call only if the bit
//! is set.
//!
//! | waits for | sleeps |
//! |---|---|
//! | words, up to 128 | the caller itself, on the words |
//! | descriptors | the caller itself, in `poll` |
//! | both, or more words | the caller in `poll`, also on an eventfd; a thread of this process (`reactor`) sleeps on the words, and writes the eventfd |
//! | a future, or [`ReadyFd`] | that thread sleeps on the words, and wakes the task, or writes the eventfd |
//! | a future, for a descriptor | another thread of this process (`descriptors`) sleeps in `epoll`, and wakes the task; within a tokio runtime, and with the feature `tokio`, that runtime (`runtime`) |
//!
//! Reactor threads are started when they are first needed, one for each 126 words that are slept on at the
//! same time. For other processes such a thread is an ordinary sleeper. If the kernel lacks `futex_waitv`,
//! the thread polls the words instead (every half millisecond at first, then less often, up to every 4 ms).
//!
//! # Lost wake-ups
//! A waker can wake one of several waiters. If the woken waiter does not take the value (because it only
//! checked, another object was ready as well, or it was cancelled), and the object is still ready, the woken
//! waiter wakes the next one ([`Parking::wake_one`]).
//!
//! | killed or stopped process | remaining state | other waiters |
//! |---|---|---|
//! | a waiter, announced or asleep | its sleepers bits | the next waker makes one unnecessary system call, and clears the bit |
//! | a woken waiter, before it woke the next waiter | a sleeper although the object is ready | check after a poll interval |
//! | a waker, before its system call | sleepers although the object is ready | check after a poll interval, and reclaim dead members |
//! | a waiter, stopped while it sleeps | wake-ups that it received and did not pass on | check after a poll interval |
//!
//! The sleepers bits are the only shared memory written here, by the steps of [`Announce`](crate::Announce)
//! and [`NotifyOne`](crate::NotifyOne).

mod descriptors;
mod forms;
mod future;
mod reactor;
#[cfg(feature = "tokio")]
mod runtime;
mod select;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

pub use future::{ReadyFd, WakeRegistration, poll_until, until, wait_async};
pub use select::{select, wait};

use crate::arena::Arena;
use crate::parking::Notices;
use crate::parking::Parking;
use crate::recovery::Recovery;
use crate::sync::shared::AtomicU32;
use crate::sys::{Errno, os, readiness};

/// Object that becomes ready. [`wait()`] and [`select`] wait for it together with other objects.
///
/// An object is *ready* if its operation would not block: a queue with a message, and also a closed queue or
/// a channel whose other side is closed, since getting from them returns at once. The state is a snapshot:
/// another process may change it before the caller's next operation.
pub trait Waitable {
    /// Returns the place at which a thread can sleep until the object may have become ready.
    fn wait_point(&self) -> WaitPoint<'_>;

    /// Returns `true` if the object is ready now. Objects in the arena are never ready in a forked copy of
    /// the process.
    fn is_ready(&self) -> bool;

    /// Returns the same as [`is_ready`](Self::is_ready), but first repairs the object after deaths of other
    /// processes, which may take some time. Waiters call this method once per poll interval.
    fn is_ready_recheck(&self) -> bool {
        self.is_ready()
    }

    /// Returns a description for reports of long waits, such as `socket "results" to pid 42`, or `None`.
    fn description(&self) -> Option<String> {
        None
    }
}

/// Place at which a thread can sleep until an object may be ready.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum WaitPoint<'a> {
    /// Word of the arena. If a sleeper is announced at the word, the word changes when the object may have
    /// become ready.
    Parking(ParkingPoint<'a>),
    /// Descriptor that becomes readable.
    Readable(BorrowedFd<'a>),
    /// Descriptor that becomes writable.
    Writable(BorrowedFd<'a>),
    /// No place: the object is ready, and stays ready. For example, the result of an ended process, in a
    /// forked copy.
    Nowhere,
}

/// Parking word of the arena, for the waits of this crate. Borrows from its object, since the object's memory
/// may be reused after the object is dropped.
///
/// Code outside of this crate can neither announce nor wake sleepers at the word:
///
/// ```compile_fail,E0599
/// use mp_core::{WaitPoint, Waitable};
///
/// fn kept(thing: &impl Waitable) {
///     if let WaitPoint::Parking(point) = thing.wait_point() {
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
    /// Returns the descriptor of the place, if there is one, and `true` if the wait is for writing.
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

/// Returns `true` if the current panic of this thread only means that a runtime does not wait for
/// descriptors. The panic is caught, and must not be reported.
#[doc(hidden)]
#[must_use]
pub fn is_asking_a_runtime() -> bool {
    #[cfg(feature = "tokio")]
    return runtime::is_asking();
    #[cfg(not(feature = "tokio"))]
    false
}

/// Object to wait for that is shared with futures, which outlive the handle that created them.
pub type SharedWaitable = Arc<dyn Waitable + Send + Sync>;

/// Any descriptor, as an object to wait for. The descriptor is ready if it can be read without blocking, or
/// is at its end.
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
    fn wait_point(&self) -> WaitPoint<'_> {
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

/// Number of deaths in the arena that were noticed before the last check, if arena words are among the
/// awaited objects. A process has one arena.
#[derive(Clone, Copy, Default)]
struct NoticedDeaths(Option<(Arena, u32)>);

impl NoticedDeaths {
    /// Returns `true` if a death was noticed since the last check. Called before the awaited objects are
    /// checked: see `parking`.
    fn update(&mut self) -> bool {
        self.0.as_mut().is_some_and(|(arena, seen)| {
            let noticed = Notices(*arena).noticed();
            std::mem::replace(seen, noticed) != noticed
        })
    }

    /// Returns the word that counts noticed deaths, and its value at the last check. A thread that sleeps on
    /// it is woken by a death.
    fn word(&self) -> Option<(&'static AtomicU32, u32)> {
        self.0.map(|(arena, seen)| (Notices(arena).noticed_word(), seen))
    }

    fn reclaim_if_due(&self) -> crate::error::Result<()> {
        self.0.map_or(Ok(()), |(arena, _)| Recovery(arena).reclaim_if_due().map(drop))
    }
}

/// Creates the error for a thread that could not be started.
fn no_thread(e: std::io::Error) -> crate::Error {
    os("starting the thread that sleeps on shared words")(Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))
}
