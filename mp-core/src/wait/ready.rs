//! Something in shared memory as a descriptor.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::process::mutex::Mutex;

use super::{SharedWaitable, WakeRegistration};
use crate::error::Result;
use crate::sys::readiness::{self, EventFd};

/// A descriptor that is readable when something in shared memory is ready: for `epoll(7)` and its like.
///
/// It becomes readable when the thing becomes ready; up to 100 ms later, if the process that made it ready was killed
/// before it woke others. It stops being readable in [`update`](Self::update), and only there, if the thing is not ready
/// any more. So it may be readable where another thread or process was faster, and has to be updated then.
pub struct ReadyFd {
    what: SharedWaitable,
    fd: Arc<Flag>,
    watch: Mutex<WakeRegistration>,
}

struct Flag(EventFd);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.set();
    }
}

impl ReadyFd {
    /// For this thing; readable if it is ready.
    ///
    /// # Errors
    /// [`Error::Os`](crate::Error::Os) when there is no descriptor or no thread left, and as [`WakeRegistration::arm`].
    pub fn new(what: SharedWaitable) -> Result<Self> {
        let fd = Arc::new(Flag(EventFd::new()?));
        let ready = Self { watch: Mutex::new(WakeRegistration::new(what.clone())), what, fd };
        ready.arm(&mut ready.watch.lock())?;
        Ok(ready)
    }

    /// Looks whether it is still ready. To be called whenever something was taken, or found not to be there.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn update(&self) -> Result<()> {
        // A forked copy has the same descriptor, which is its parent's to clear.
        if let Some(parking) = self.what.place().parking() {
            parking.arena().me()?;
        }
        // As long as it is not readable, it is watched.
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
