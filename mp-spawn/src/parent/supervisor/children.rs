//! Watched children, and when they are added to the epoll set.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};

use crate::error::os_limit::WATCH;
use crate::error::{Result, launch_error};
use crate::parent::supervisor::child::WatchedChild;
use crate::sys::clock::timespec;
use crate::sys::process_handle::ProcessHandle;

/// Processes that are watched.
#[derive(Debug, Default)]
pub(super) struct WatchedChildren {
    pub(super) by_id: HashMap<u64, WatchedChild>,
    /// Sentinels of ended processes that a caller may still hold.
    pub(super) over: Vec<Weak<OwnedFd>>,
    pub(super) next: u64,
    /// Time for which the timer is set.
    pub(super) timer: Option<Instant>,
}

impl WatchedChildren {
    /// Records that a process has ended. The caller that started it may hold its sentinel.
    pub(super) fn record_end(&mut self, handle: &ProcessHandle) {
        if self.over.len() == self.over.capacity() {
            self.over.retain(|sentinel| sentinel.strong_count() > 0);
        }
        self.over.push(Arc::downgrade(handle.shared_sentinel()));
    }

    /// Sets the timer so that it fires at this time, or before.
    pub(super) fn set_timer(&mut self, timer: &OwnedFd, until: Option<Instant>) {
        let Some(until) = until.filter(|until| self.timer.is_none_or(|set| *until < set)) else { return };
        self.timer = Some(until);
        let value = timespec(until.saturating_duration_since(Instant::now()));
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: never, it_value: value };
        // Can't fail for a valid timer and a valid time.
        let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
    }
}

/// Begins to watch a process: sends the data that its socket accepts, and adds it to the epoll set. A new
/// process is added only if some data is unsent.
pub(super) fn add(poll: &OwnedFd, id: u64, child: &mut WatchedChild) -> Result<()> {
    if child.send() && child.unwatched_deadline.is_some() { Ok(()) } else { listen(poll, id, child) }
}

/// Adds a process to the epoll set. If that is impossible, fails the process and returns `false`.
pub(super) fn try_listen(poll: &OwnedFd, id: u64, child: &mut WatchedChild) -> bool {
    listen(poll, id, child).map_err(|error| child.fail(error)).is_ok()
}

/// Adds the socket and the sentinel of a process to the epoll set.
fn listen(poll: &OwnedFd, id: u64, child: &mut WatchedChild) -> Result<()> {
    child.unwatched_deadline = None;
    let refused = |error: Errno| launch_error(WATCH, None, error.into());
    let end = epoll::EventData::new_u64(id << 1 | 1);
    epoll::add(poll, child.handle.sentinel(), end, epoll::EventFlags::IN).map_err(refused)?;
    let sent = child.send();
    if let Some(socket) = &child.socket {
        let flags = if sent { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
        if let Err(error) = epoll::add(poll, socket, epoll::EventData::new_u64(id << 1), flags) {
            // Otherwise the sentinel would stay in the set, never handled, and readable for as long as a
            // process has it open.
            let _ = epoll::delete(poll, child.handle.sentinel());
            return Err(refused(error));
        }
    }
    Ok(())
}
