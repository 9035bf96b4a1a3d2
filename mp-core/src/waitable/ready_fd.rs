//! Readiness of an object in shared memory, as a descriptor.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::process::mutex::Mutex;

use super::{SharedWaitable, WakeRegistration};
use crate::error::Result;
use crate::sys::readiness::{self, EventFd};

/// Descriptor that is readable when an object in shared memory is ready, for `epoll(7)` and similar
/// interfaces.
///
/// It becomes readable when the object becomes ready, or up to 100 ms later if the process that made it ready
/// was killed before it woke others. Only [`update`](Self::update) clears it, if the object is no longer
/// ready. So it may be readable although another thread or process was faster; call `update` then.
pub struct ReadyFd {
    what: SharedWaitable,
    fd: Arc<FdWaker>,
    watch: Mutex<WakeRegistration>,
}

struct FdWaker(EventFd);

impl Wake for FdWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.set();
    }
}

impl ReadyFd {
    /// Creates the descriptor, readable if the object is ready.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) if no descriptor or thread is available, and the same as for
    /// [`WakeRegistration::arm`].
    pub fn new(what: SharedWaitable) -> Result<Self> {
        let fd = Arc::new(FdWaker(EventFd::new()?));
        let ready = Self { watch: Mutex::new(WakeRegistration::new(what.clone())), what, fd };
        ready.arm(&mut ready.watch.lock())?;
        Ok(ready)
    }

    /// Clears the descriptor if the object is no longer ready. Call it whenever a value was taken, or was
    /// missing.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn update(&self) -> Result<()> {
        // A forked copy shares the descriptor, which only the parent may clear.
        if let Some(parking) = self.what.wait_point().parking() {
            parking.arena().me()?;
        }
        // While it is not readable, it is watched.
        if !readiness::is_ready(self.fd.0.as_fd(), false) {
            return Ok(());
        }
        let mut watch = self.watch.lock();
        if !self.what.is_ready() {
            self.fd.0.clear();
            self.arm(&mut watch)?;
        }
        Ok(())
    }

    fn arm(&self, watch: &mut WakeRegistration) -> Result<()> {
        let armed = watch.arm(&Waker::from(self.fd.clone()));
        if armed.is_err() || self.what.is_ready() {
            self.fd.0.set();
        }
        armed
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.0.as_fd()
    }
}

impl fmt::Debug for ReadyFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyFd").field("fd", &self.as_fd()).finish_non_exhaustive()
    }
}
