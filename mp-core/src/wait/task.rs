//! Waiting as a future: whatever the runtime.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

#[cfg(feature = "tokio")]
use super::runtime;
use super::{SharedWaitable, WaitPoint, Waitable, descriptors, reactor};
use crate::error::{Error, Result};

/// Has a task woken when something may have become ready.
///
/// For futures and streams of the layers above; see [`poll_until`]. Dropping it ends that; if it has waited,
/// and the thing is ready, the next waiter is woken instead.
pub struct WakeRegistration {
    what: SharedWaitable,
    entry: Option<Entry>,
}

/// Where it waits.
enum Entry {
    Word(reactor::WordEntry),
    Descriptor(descriptors::DescriptorEntry),
    #[cfg(feature = "tokio")]
    Runtime(runtime::RuntimeEntry),
}

/// For whom an entry is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// A task, which is woken to look itself: in its runtime, if that can wait.
    Task,
    /// Any waker, which may have to be woken when no runtime is left.
    Waker,
}

impl Entry {
    fn at(place: WaitPoint<'_>, whom: For) -> Result<Self> {
        let (fd, write) = match place {
            WaitPoint::Parking(point) => return Ok(Self::Word(reactor::WordEntry::at(point.parking))),
            WaitPoint::Readable(fd) => (fd, false),
            WaitPoint::Writable(fd) => (fd, true),
            WaitPoint::Nowhere => {
                return Err(Error::InvalidArgument("a thing that is always ready is not waited for".into()));
            }
        };
        #[cfg(feature = "tokio")]
        if whom == For::Task
            && let Some(entry) = runtime::RuntimeEntry::at(fd, write)?
        {
            return Ok(Self::Runtime(entry));
        }
        _ = whom;
        Ok(Self::Descriptor(descriptors::DescriptorEntry::at(fd, write)?))
    }

    fn is_at(&self, place: WaitPoint<'_>, whom: For) -> bool {
        _ = whom;
        match (self, place.parking(), place.descriptor()) {
            (Self::Word(entry), Some(parking), _) => entry.is_at(parking),
            (Self::Descriptor(entry), _, Some((fd, write))) => entry.is_at(fd, write),
            #[cfg(feature = "tokio")]
            (Self::Runtime(entry), _, Some((fd, write))) => whom == For::Task && entry.is_at(fd, write),
            _ => false,
        }
    }

    /// Has the waker woken; whether it will be, by this entry.
    fn watch(&mut self, what: &SharedWaitable, waker: &Waker) -> Result<bool> {
        match self {
            Self::Word(entry) => entry.watch(Some(what), waker).map(|()| true),
            Self::Descriptor(entry) => entry.watch(waker).map(|()| true),
            #[cfg(feature = "tokio")]
            Self::Runtime(entry) => entry.watch(waker),
        }
    }
}

impl WakeRegistration {
    /// Of this thing.
    pub fn new(what: SharedWaitable) -> Self {
        Self { what, entry: None }
    }

    /// Has `waker` woken, once, when it may have become ready. To be called before looking for the last time.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked); [`Error::Os`](crate::Error::Os) when the thread that sleeps for all tasks can't
    /// be started, and for a descriptor when there is none left (one that is waited for takes one more), or if it is of a
    /// kind that can't be waited for, as a file's.
    ///
    /// The waker may be anything: it is woken by a thread of this process, whatever becomes of the runtime that this is called in.
    pub fn arm(&mut self, waker: &Waker) -> Result<()> {
        self.arm_for(For::Waker, waker)
    }

    fn arm_for(&mut self, whom: For, waker: &Waker) -> Result<()> {
        let place = self.what.place();
        if matches!(place, WaitPoint::Nowhere) {
            waker.wake_by_ref();
            return Ok(());
        }
        // What it waits at may be another place than before.
        let entry = match self.entry.take() {
            Some(entry) if entry.is_at(place, whom) => entry,
            before => {
                self.leave(before);
                Entry::at(place, whom)?
            }
        };
        if !self.entry.insert(entry).watch(&self.what, waker)? {
            // Its runtime is at its end.
            self.entry.insert(Entry::at(place, For::Waker)?).watch(&self.what, waker)?;
        }
        Ok(())
    }

    /// Ends it.
    pub fn disarm(&mut self) {
        let entry = self.entry.take();
        self.leave(entry);
    }

    fn leave(&self, entry: Option<Entry>) {
        if let Some(Entry::Word(entry)) = entry {
            let parking = entry.parking();
            drop(entry);
            // It may have been woken in the place of another one. In a forked copy nothing is ready.
            if self.what.is_ready() {
                parking.wake_one();
            }
        }
    }
}

impl Drop for WakeRegistration {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for WakeRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeRegistration").field("armed", &self.entry.is_some()).finish_non_exhaustive()
    }
}

/// Polls once: looks; if nothing is found, has the task woken, and looks again. `watch` is empty at first, and is emptied
/// when something is found.
///
/// For futures and streams that keep the [`WakeRegistration`] themselves. What `look` takes is returned by the same
/// call: dropping the future, at whatever time, drops nothing else.
///
/// # Errors
/// Those of `look`, and of [`WakeRegistration::arm`].
pub fn poll_until<R, E: From<Error>>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    what: impl FnOnce() -> SharedWaitable,
    mut look: impl FnMut() -> Result<Option<R>, E>,
) -> Poll<Result<R, E>> {
    let mut found = look();
    if let Ok(None) = found {
        match watch.get_or_insert_with(|| WakeRegistration::new(what())).arm_for(For::Task, cx.waker()) {
            // It looks again after its task was announced, and forgets what it has found.
            Ok(()) => found = look(),
            Err(e) => found = Err(e.into()),
        }
    }
    match found.transpose() {
        Some(found) => {
            *watch = None;
            Poll::Ready(found)
        }
        None => Poll::Pending,
    }
}

/// Waits until `look` finds something; `what` is what becomes ready when it may.
///
/// ```
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// #     match future.as_mut().poll(&mut cx) { std::task::Poll::Ready(v) => v, _ => unreachable!() }
/// # }
/// let found = mp_core::until(|| unreachable!("it need not wait"), || Ok::<_, mp_core::Error>(Some(5)));
/// assert_eq!(block_on(found)?, 5);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Errors
/// As [`poll_until`].
pub async fn until<R, E: From<Error>>(
    what: impl Fn() -> SharedWaitable,
    mut look: impl FnMut() -> Result<Option<R>, E>,
) -> Result<R, E> {
    let mut watch = None;
    poll_fn(|cx| poll_until(&mut watch, cx, &what, &mut look)).await
}

/// Waits until it is ready, as a future: [`wait`](crate::wait()) for one thing.
///
/// It takes nothing, and may be dropped at any time.
///
/// # Errors
/// As [`WakeRegistration::arm`].
pub async fn wait_async(what: impl Waitable + Send + Sync + 'static) -> Result<()> {
    let what: SharedWaitable = Arc::new(what);
    until(|| what.clone(), || Ok(what.is_ready().then_some(()))).await
}
