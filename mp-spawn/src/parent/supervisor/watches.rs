//! Watched children: when they are added to the epoll set, and the handling of their messages, timeouts and
//! ends.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};

use crate::error::os_limit::WATCH;
use crate::error::{Result, launch_error};
use crate::parent::child_state::WatchedChild;
use crate::parent::supervisor::Supervisor;
use crate::sys::clock::timespec;
use crate::sys::log_event;
use crate::sys::process_handle::ProcessHandle;

/// Processes that are watched.
#[derive(Debug, Default)]
pub(super) struct WatchedChildren {
    pub(super) by_id: HashMap<u64, WatchedChild>,
    /// Sentinels of ended processes that a caller may still hold.
    pub(super) over: Vec<Weak<OwnedFd>>,
    pub(super) next: u64,
    /// Time for which the timer is set.
    timer: Option<Instant>,
}

impl WatchedChildren {
    /// Records that a process has ended. The caller that started it may hold its sentinel.
    fn note_over(&mut self, handle: &ProcessHandle) {
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

impl Supervisor {
    /// Handles the timer: processes whose time is over. Then sets the timer for the others.
    pub(super) fn check_times(&self) {
        let mut watches = self.watches.lock();
        watches.timer = None;
        let now = Instant::now();
        let over = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let mut deaf = Vec::new();
        for (&id, watch) in &mut watches.by_id {
            if over(watch.unwatched_deadline) && !heard(&self.poll, id, watch) {
                deaf.push(id);
            }
            if over(watch.hello_until) {
                watch.handle_hello_timeout();
            }
        }
        let deaf: Vec<_> = deaf.iter().filter_map(|id| watches.by_id.remove(id)).collect();
        let next = watches.by_id.values().filter_map(WatchedChild::next_timeout).min();
        watches.set_timer(&self.timer, next);
        drop(watches);
        deaf.into_iter().for_each(WatchedChild::abandon);
    }

    pub(super) fn hear(&self, id: u64) {
        let mut watches = self.watches.lock();
        let Some(watch) = watches.by_id.get_mut(&id).filter(|watch| watch.unwatched_deadline.is_some())
        else {
            return;
        };
        if !heard(&self.poll, id, watch)
            && let Some(watch) = watches.by_id.remove(&id)
        {
            drop(watches);
            watch.abandon();
        }
    }

    /// Handles an event of a process or of its socket.
    pub(super) fn attend(&self, id: u64, ended: bool, flags: epoll::EventFlags) {
        let mut watches = self.watches.lock();
        let Some(watch) = watches.by_id.get_mut(&id) else { return };
        if ended {
            if watch.reap()
                && let Some(watch) = watches.by_id.remove(&id)
            {
                watches.note_over(&watch.handle);
                drop(watches);
                if log_event::wanted() {
                    watch.log_end();
                }
                self.forget(watch);
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT)
            && watch.send()
            && let Some(socket) = &watch.socket
        {
            let listen = epoll::EventFlags::IN;
            // If this fails, the socket stays writable and the next turn tries again.
            let _ = epoll::modify(&self.poll, socket, epoll::EventData::new_u64(id << 1), listen);
        }
        let more = watch.receive();
        if let Some(socket) = &watch.socket
            && (!more || watch.reported)
        {
            // Deleted explicitly, because a forked process may hold the socket too. It may have been deleted
            // before. A process that has reported is about to end, and a wake-up for each step of its end
            // would cost as much as the rest.
            let _ = epoll::delete(&self.poll, socket);
        }
        if !more {
            watch.socket = None;
        }
    }

    fn forget(&self, watch: WatchedChild) {
        if watch.unwatched_deadline.is_none() {
            // Can't fail, because the sentinel was added. The socket may have been deleted.
            let _ = epoll::delete(&self.poll, watch.handle.sentinel());
            if let Some(socket) = watch.socket.as_ref().filter(|_| !watch.reported) {
                let _ = epoll::delete(&self.poll, socket);
            }
        }
        watch.close();
    }
}

/// Begins to watch a process: sends the data that its socket accepts, and adds it to the epoll set. A young
/// process is added only if some data is unsent.
pub(super) fn add(poll: &OwnedFd, id: u64, watch: &mut WatchedChild) -> Result<()> {
    if watch.send() && watch.unwatched_deadline.is_some() { Ok(()) } else { listen(poll, id, watch) }
}

/// Adds a process to the epoll set. If that is impossible, fails the process and returns `false`.
fn heard(poll: &OwnedFd, id: u64, watch: &mut WatchedChild) -> bool {
    listen(poll, id, watch).map_err(|error| watch.fail(error)).is_ok()
}

/// Adds the socket and the sentinel of a process to the epoll set.
fn listen(poll: &OwnedFd, id: u64, watch: &mut WatchedChild) -> Result<()> {
    watch.unwatched_deadline = None;
    let refused = |error: Errno| launch_error(WATCH, None, error.into());
    let end = epoll::EventData::new_u64(id << 1 | 1);
    epoll::add(poll, watch.handle.sentinel(), end, epoll::EventFlags::IN).map_err(refused)?;
    let sent = watch.send();
    if let Some(socket) = &watch.socket {
        let flags = if sent { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
        if let Err(error) = epoll::add(poll, socket, epoll::EventData::new_u64(id << 1), flags) {
            // Otherwise the sentinel would stay in the set, never handled, and readable for as long as a
            // process has it open.
            let _ = epoll::delete(poll, watch.handle.sentinel());
            return Err(refused(error));
        }
    }
    Ok(())
}
