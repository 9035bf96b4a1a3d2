//! Waiting as a future, independent of the runtime, and readiness of an object as a descriptor.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::{SharedWaitable, WaitPoint, Waitable, descriptors, reactor};
use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::process::user_code::{catch_panic, drop_caught};
use crate::process::{PerProcess, per_process};
use crate::sync::shared::{AtomicU32, Ordering};
use crate::sys::readiness::{self, EventFd};

#[cfg(feature = "tokio")]
use super::runtime;

/// Registration of a task to be woken when an object may have become ready.
///
/// For futures and streams of the layers above; see [`poll_until`]. Dropping this value ends the
/// registration. If the registration was armed and the object is ready, another waiter of the object is woken
/// instead.
pub struct WakeRegistration {
    what: SharedWaitable,
    entry: Option<FutureRegistration>,
    since: Instant,
}

/// Entry of a task in the list of the thread or runtime that wakes the task.
enum FutureRegistration {
    Word(reactor::WordEntry),
    Descriptor(descriptors::DescriptorEntry),
    #[cfg(feature = "tokio")]
    Runtime(runtime::RuntimeEntry),
}

/// Kind of waker that a registration wakes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeTarget {
    /// Waker of a task, which checks the object itself after the wake-up. If the task's runtime waits for
    /// descriptors, the runtime wakes the task.
    Task,
    /// Any other waker, which may have to be woken after its runtime has ended.
    Waker,
}

impl FutureRegistration {
    fn at(place: WaitPoint<'_>, target: WakeTarget) -> Result<Self> {
        let (fd, write) = match place {
            WaitPoint::Parking(point) => return Ok(Self::Word(reactor::WordEntry::at(point.parking))),
            WaitPoint::Readable(fd) => (fd, false),
            WaitPoint::Writable(fd) => (fd, true),
            WaitPoint::Nowhere => {
                return Err(Error::InvalidArgument("an object that is always ready has no wait".into()));
            }
        };
        #[cfg(feature = "tokio")]
        if target == WakeTarget::Task
            && let Some(entry) = runtime::RuntimeEntry::at(fd, write)?
        {
            return Ok(Self::Runtime(entry));
        }
        _ = target;
        Ok(Self::Descriptor(descriptors::DescriptorEntry::at(fd, write)?))
    }

    fn is_at(&self, place: WaitPoint<'_>, target: WakeTarget) -> bool {
        _ = target;
        match (self, place.parking(), place.descriptor()) {
            (Self::Word(entry), Some(parking), _) => entry.is_at(parking),
            (Self::Descriptor(entry), _, Some((fd, write))) => entry.is_at(fd, write),
            #[cfg(feature = "tokio")]
            (Self::Runtime(entry), _, Some((fd, write))) => {
                target == WakeTarget::Task && entry.is_at(fd, write)
            }
            _ => false,
        }
    }

    /// Registers the waker in this entry. Returns `false` if the entry has ended, and can't wake the waker.
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
    /// Creates a registration for an object.
    pub fn new(what: SharedWaitable) -> Self {
        Self { what, entry: None, since: Instant::now() }
    }

    /// Returns the time at which the registration was created.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Registers `waker` to be woken once, when the object may have become ready. The caller checks the
    /// object once more after this call, before it waits.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked). [`Error::Os`](crate::Error::Os) if the thread that sleeps for
    /// all tasks can't be started. For a descriptor, also if it can't be duplicated because the limit of
    /// descriptors is reached, or if its kind can't be waited for, for example a regular file.
    ///
    /// Any waker is allowed: it is woken by a thread of this process, even after the current runtime has
    /// ended.
    pub fn arm(&mut self, waker: &Waker) -> Result<()> {
        self.arm_for(WakeTarget::Waker, waker)
    }

    fn arm_for(&mut self, target: WakeTarget, waker: &Waker) -> Result<()> {
        let place = self.what.wait_point();
        if matches!(place, WaitPoint::Nowhere) {
            waker.wake_by_ref();
            return Ok(());
        }
        // The object's place may have changed.
        let entry = match self.entry.take() {
            Some(entry) if entry.is_at(place, target) => entry,
            before => {
                self.leave(before);
                FutureRegistration::at(place, target)?
            }
        };
        if !self.entry.insert(entry).watch(&self.what, waker)? {
            // The runtime of the entry is ending.
            self.entry.insert(FutureRegistration::at(place, WakeTarget::Waker)?).watch(&self.what, waker)?;
        }
        Ok(())
    }

    /// Ends the registration.
    pub fn disarm(&mut self) {
        let entry = self.entry.take();
        self.leave(entry);
    }

    fn leave(&self, entry: Option<FutureRegistration>) {
        if let Some(FutureRegistration::Word(entry)) = entry {
            let parking = entry.parking();
            drop(entry);
            // This waiter may have received another waiter's wake-up. In a forked copy nothing is ready.
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

/// Polls once: calls `look`; if that returns `None`, registers the task and calls `look` again. `watch`
/// contains the registration: it is `None` before the first call, and after a call that returns a result.
///
/// For futures and streams that own the [`WakeRegistration`]. A value taken by `look` is returned by the same
/// call, so dropping the future never loses a value.
///
/// # Errors
/// Any error of `look` and of [`WakeRegistration::arm`].
pub fn poll_until<R, E: From<Error>>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    what: impl FnOnce() -> SharedWaitable,
    mut look: impl FnMut() -> Result<Option<R>, E>,
) -> Poll<Result<R, E>> {
    let mut found = look();
    if let Ok(None) = found {
        match watch.get_or_insert_with(|| WakeRegistration::new(what())).arm_for(WakeTarget::Task, cx.waker())
        {
            // Checks again after the task was announced.
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

/// Calls `look` until it returns a value, and returns that value. Between the calls, waits for the object
/// that `what` returns.
///
/// ```
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// #     match future.as_mut().poll(&mut cx) { std::task::Poll::Ready(v) => v, _ => unreachable!() }
/// # }
/// let found = mp_core::until(|| unreachable!("no wait is needed"), || Ok::<_, mp_core::Error>(Some(5)));
/// assert_eq!(block_on(found)?, 5);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Errors
/// The same as for [`poll_until`].
pub async fn until<R, E: From<Error>>(
    what: impl Fn() -> SharedWaitable,
    mut look: impl FnMut() -> Result<Option<R>, E>,
) -> Result<R, E> {
    let mut watch = None;
    poll_fn(|cx| poll_until(&mut watch, cx, &what, &mut look)).await
}

/// Waits until the object is ready, as a future: [`wait`](crate::wait()) for one object.
///
/// Nothing is consumed, and the future may be dropped at any time.
///
/// # Errors
/// The same as for [`WakeRegistration::arm`].
pub async fn wait_async(what: impl Waitable + Send + Sync + 'static) -> Result<()> {
    let what: SharedWaitable = Arc::new(what);
    until(|| what.clone(), || Ok(what.is_ready().then_some(()))).await
}

/// Descriptor that is readable when an object in shared memory is ready, for `epoll(7)` and similar
/// interfaces.
///
/// The descriptor becomes readable when the object becomes ready, or up to 100 ms later if the process that
/// made the object ready was killed before it woke waiters. Only [`update`](Self::update) clears the
/// descriptor, and only if the object is no longer ready. Call `update` also if another thread or process has
/// taken the value that made the object ready.
pub struct ReadyFd(Arc<ReadyState>);

struct ReadyState {
    what: SharedWaitable,
    fd: Arc<FdWaker>,
    watch: Mutex<WakeRegistration>,
    /// `true` if the descriptors of all other ready objects must become readable before this descriptor.
    after_others: bool,
}

/// All descriptors that [`ReadyFd::new`] has created in this process. They become readable before those that
/// [`ReadyFd::new_after_others`] has created.
///
/// A raw `fork` may copy a locked lock. So a copy, which can't add descriptors, never uses the lock.
struct ReadyFds {
    /// Process that has added descriptors, or 0.
    process: AtomicU32,
    all: Mutex<Vec<Weak<ReadyState>>>,
}

static READY_FDS: PerProcess<ReadyFds> =
    per_process!(ReadyFds { process: AtomicU32::new(0), all: Mutex::new(Vec::new()) });

/// Waker that makes a descriptor of this process readable.
pub(super) struct FdWaker(pub(super) EventFd);

impl FdWaker {
    pub(super) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(EventFd::new()?)))
    }
}

impl Wake for FdWaker {
    fn wake(self: Arc<Self>) {
        self.0.set();
    }
}

/// Waker that first makes the descriptors of all ready objects readable, and then its own descriptor.
struct LastWaker(Arc<FdWaker>);

impl Wake for LastWaker {
    fn wake(self: Arc<Self>) {
        ReadyFd::set_all();
        self.0.0.set();
    }
}

impl ReadyFd {
    /// Creates the descriptor, readable if the object is ready.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) if no descriptor or thread is available, and the same as for
    /// [`WakeRegistration::arm`].
    pub fn new(what: SharedWaitable) -> Result<Self> {
        let state = ReadyState::new(what, false)?;
        let fds = &*READY_FDS;
        fds.process.store(std::process::id(), Ordering::Relaxed);
        let mut all = fds.all.lock();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
            let live = all.len();
            all.reserve(live + 1);
        }
        all.push(Arc::downgrade(&state));
        drop(all);
        // A concurrent `set_all` may have missed the new descriptor.
        state.set_if_ready();
        Ok(Self(state))
    }

    /// Creates the descriptor of an object that stays ready once it is ready, such as an ended process. When
    /// the descriptor becomes readable, the descriptors of all objects that were ready before are already
    /// readable, if [`new`](Self::new) has created them in this process.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    #[doc(hidden)]
    pub fn new_after_others(what: SharedWaitable) -> Result<Self> {
        ReadyState::new(what, true).map(Self)
    }

    /// Makes the descriptor readable at once, if the object is ready. Without this call, a thread of this
    /// process makes it readable with a delay.
    #[doc(hidden)]
    pub fn set_if_ready(&self) {
        self.0.set_if_ready();
    }

    /// Makes all descriptors readable that [`new`](Self::new) has created in this process and whose objects
    /// are ready.
    #[doc(hidden)]
    pub fn set_all() {
        let fds = &*READY_FDS;
        if fds.process.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        // No object is checked or dropped under the lock: that may create or drop other descriptors.
        let all: Vec<_> = fds.all.lock().iter().filter_map(Weak::upgrade).collect();
        for one in all {
            catch_panic(|| one.set_if_ready());
            drop_caught(one);
        }
    }

    /// Clears the descriptor if the object is no longer ready. The caller calls this function after each
    /// attempt to take a value from the object, whether it succeeded or not.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn update(&self) -> Result<()> {
        let state = &*self.0;
        // A forked copy shares the descriptor, which only the parent may clear.
        if let Some(parking) = state.what.wait_point().parking() {
            parking.arena().me()?;
        }
        // A descriptor that is not readable is still being watched.
        if !readiness::is_ready(self.as_fd(), false) {
            return Ok(());
        }
        state.clear_unless_ready(&mut state.watch.lock())
    }
}

impl ReadyState {
    fn new(what: SharedWaitable, after_others: bool) -> Result<Arc<Self>> {
        let fd = FdWaker::new()?;
        let watch = Mutex::new(WakeRegistration::new(what.clone()));
        let state = Arc::new(Self { what, fd, watch, after_others });
        state.arm(&mut state.watch.lock())?;
        Ok(state)
    }

    fn waker(&self) -> Waker {
        if self.after_others {
            Waker::from(Arc::new(LastWaker(self.fd.clone())))
        } else {
            Waker::from(self.fd.clone())
        }
    }

    fn arm(&self, watch: &mut WakeRegistration) -> Result<()> {
        let waker = self.waker();
        let armed = watch.arm(&waker);
        if armed.is_err() || self.what.is_ready() {
            waker.wake();
        }
        armed
    }

    fn clear_unless_ready(&self, watch: &mut WakeRegistration) -> Result<()> {
        if !self.what.is_ready() {
            self.fd.0.clear();
            self.arm(watch)?;
        }
        Ok(())
    }

    fn set_if_ready(&self) {
        if !self.what.is_ready() {
            return;
        }
        if self.after_others {
            self.waker().wake();
            return;
        }
        let mut watch = self.watch.lock();
        self.fd.0.set();
        // If another receiver took the value before the descriptor was set, its `update` had nothing to
        // clear. After an error the descriptor stays readable.
        _ = self.clear_unless_ready(&mut watch);
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.0.as_fd()
    }
}

impl fmt::Debug for ReadyFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyFd").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}
