//! State of the supervisor that the threads of a process share: the watched children, and the handling of
//! their messages, timeouts and ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Instant;

use mp_core::fork::PerProcess;
use mp_core::long_lived_fds;
use mp_core::mutex::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::error::os_limit::{NO_EPOLL, OWN_WATCH, WATCH};
use crate::error::{Result, SpawnError, launch_error};
use crate::parent::group::ChildGroup;
use crate::parent::launch::LaunchedProcess;
use crate::parent::supervisor::child::{LaunchOrder, WatchedChild};
use crate::parent::supervisor::diagnosis::StartProperties;
use crate::protocol::control_socket::{self, ParentSocket};
use crate::protocol::lifeline;
use crate::sys::log_event::{self, event};
use crate::sys::start_span::StartSpan;
use crate::sys::{ProcessHandle, new_event, timespec};

/// Event data for new requests. Event data of a process contains the number of the process.
pub(super) const WAKE: u64 = u64::MAX;
/// Event data for the timer.
pub(super) const TIMER: u64 = u64::MAX - 1;
/// Event data for the end of a fork server.
pub(super) const SERVER: u64 = u64::MAX - 2;

/// Call that another thread requests of the supervisor thread.
pub(super) type SupervisorCall = Box<dyn FnOnce() + Send>;

/// State of the supervisor that the threads of a process share.
pub(crate) struct Supervisor {
    /// Process that the supervisor belongs to. Differs from the current process after a fork.
    pub(super) process: u32,
    pub(super) poll: OwnedFd,
    pub(super) wake: OwnedFd,
    /// Timer that fires when the time for a process's hello may have expired.
    pub(super) timer: OwnedFd,
    /// Eventfd that is permanently readable: the sentinel of each process whose end was detected before a
    /// caller requested its sentinel.
    over: Arc<OwnedFd>,
    requests: Mutex<Sender<SupervisorCall>>,
    pub(super) children: Mutex<WatchedChildren>,
    /// Fork servers that have not been reaped.
    servers: Mutex<Vec<Arc<ProcessHandle>>>,
}

pub(super) static SUPERVISOR: PerProcess<Mutex<Option<Arc<Supervisor>>>> =
    mp_core::per_process!(Mutex::new(None));

/// Returns the error of a request to a supervisor thread that has ended.
pub(crate) fn thread_ended() -> SpawnError {
    launch_error("the supervisor thread", None, io::Error::other("it has ended"))
}

impl Supervisor {
    /// Opens the descriptors of a supervisor. Other threads send requests to it through `requests`.
    pub(super) fn new(requests: Sender<SupervisorCall>) -> Result<Supervisor> {
        let refused = |what| move |error: Errno| launch_error(what, None, error.into());
        let wake = new_event(0)?;
        let over = new_event(1)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(refused("timerfd_create"))?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused(NO_EPOLL))?;
        for (fd, event) in [(&wake, WAKE), (&timer, TIMER)] {
            epoll::add(&poll, fd, epoll::EventData::new_u64(event), epoll::EventFlags::IN)
                .map_err(refused(OWN_WATCH))?;
            long_lived_fds::register("supervisor: wake or timer", fd);
        }
        long_lived_fds::register("supervisor: over", &over);
        long_lived_fds::register("supervisor: epoll", &poll);
        Ok(Supervisor {
            process: std::process::id(),
            poll,
            wake,
            timer,
            over: Arc::new(over),
            requests: Mutex::new(requests),
            children: Mutex::default(),
            servers: Mutex::default(),
        })
    }

    /// Sends a request to the supervisor thread.
    pub(super) fn send_request(&self, request: SupervisorCall) -> Result<()> {
        if self.requests.lock().send(request).is_err() {
            *SUPERVISOR.lock() = None;
            return Err(thread_ended());
        }
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())
            .map_err(|error| launch_error("write to an eventfd", None, error.into()))?;
        Ok(())
    }

    /// Begins to watch a process that was just launched, and returns the number of the process in the
    /// supervisor. If watching is impossible, ends the process and returns an error.
    pub(crate) fn watch(
        &self,
        group: &Arc<ChildGroup>,
        properties: &Arc<StartProperties>,
        order: LaunchOrder,
        launched: LaunchedProcess,
    ) -> Result<u64> {
        group.set_over_sentinel(&self.over);
        let mut children = self.children.lock();
        let id = children.next;
        let mut child = WatchedChild::new(Arc::clone(group), Arc::clone(properties), order, launched, id);
        if let Err(error) = add(&self.poll, id, &mut child) {
            drop(children);
            child.fail(error.clone());
            child.abandon();
            return Err(error);
        }
        children.next += 1;
        children.set_timer(&self.timer, child.next_timeout());
        children.by_id.insert(id, child);
        Ok(id)
    }

    /// Ensures that a fork server is reaped when it ends.
    pub(super) fn watch_server(&self, server: &Arc<ProcessHandle>) -> Result<()> {
        self.servers.lock().push(Arc::clone(server));
        let event = epoll::EventData::new_u64(SERVER);
        epoll::add(&self.poll, server.sentinel(), event, epoll::EventFlags::IN)
            .map_err(|error| launch_error(WATCH, None, error.into()))
    }

    /// Reaps the fork servers that have ended.
    pub(super) fn reap_servers(&self) {
        let mut over = Vec::new();
        self.servers.lock().retain(|server| {
            let exit = server.reap();
            if let Some(exit) = exit {
                // Can't fail, because the sentinel was added.
                let _ = epoll::delete(&self.poll, server.sentinel());
                over.push((server.pid(), exit));
            }
            exit.is_none()
        });
        for (pid, exit) in over {
            event!(Warn, "a fork server (pid {pid}) {exit}");
        }
    }

    /// Calls a function with the files that a copy of this process does not need. No thread closes these
    /// files during the call, because the children are locked and the sentinels of ended processes are
    /// referenced.
    pub(crate) fn with_unneeded_files<R>(&self, call: impl FnOnce(&[RawFd]) -> R) -> R {
        let children = self.children.lock();
        let over: Vec<_> = children.over.iter().filter_map(Weak::upgrade).collect();
        call(&self.files(&children, &over))
    }

    /// Returns the files that a copy of this process does not need. `over` has the sentinels of processes
    /// that have ended.
    fn files(&self, children: &WatchedChildren, over: &[Arc<OwnedFd>]) -> Vec<RawFd> {
        let of_children = children.by_id.values().flat_map(|child| {
            let socket = child.socket.as_ref().map(AsRawFd::as_raw_fd);
            [Some(child.handle.raw()), socket].into_iter().flatten()
        });
        let own = [&self.poll, &self.wake, &self.timer, &*self.over].into_iter().map(AsRawFd::as_raw_fd);
        let of_ended = over.iter().map(|sentinel| sentinel.as_raw_fd());
        of_children
            .chain(of_ended)
            .chain(own)
            .chain(control_socket::get().map(ParentSocket::raw))
            .chain(lifeline::files())
            .collect()
    }

    /// Returns the watched processes that have not reported that they joined the shared memory.
    pub(super) fn not_joined(&self) -> Vec<u32> {
        let children = self.children.lock();
        children.by_id.values().filter(|child| !child.has_joined()).map(|child| child.handle.pid()).collect()
    }

    /// Kills the processes with these numbers.
    pub(crate) fn kill(&self, started: &[u64]) {
        let children = self.children.lock();
        started.iter().filter_map(|id| children.by_id.get(id)).for_each(WatchedChild::kill);
    }
}

/// Processes that are watched.
#[derive(Default)]
pub(super) struct WatchedChildren {
    pub(super) by_id: HashMap<u64, WatchedChild>,
    /// Sentinels of ended processes that a caller may still hold.
    pub(super) over: Vec<Weak<OwnedFd>>,
    pub(super) next: u64,
    /// Time at which the timer fires, if it is set.
    pub(super) timer: Option<Instant>,
}

impl WatchedChildren {
    /// Records the sentinel of a process that has ended, because a caller may still hold it.
    pub(super) fn record_end(&mut self, handle: &ProcessHandle) {
        if self.over.len() == self.over.capacity() {
            self.over.retain(|sentinel| sentinel.strong_count() > 0);
        }
        self.over.push(Arc::downgrade(handle.shared_sentinel()));
    }

    /// Sets the timer to `until`, unless it is already set to an earlier time.
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

/// Begins to watch a process: sends the data that the process's socket accepts, and adds the socket to the
/// epoll set. If all data of a process that is starting was sent, its socket is added later.
pub(super) fn add(poll: &OwnedFd, id: u64, child: &mut WatchedChild) -> Result<()> {
    if child.send() && child.unwatched_deadline.is_some() { Ok(()) } else { listen(poll, id, child) }
}

/// Adds a process to the epoll set. On an error, records a failure of the process, kills it and returns
/// `false`.
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

impl Supervisor {
    /// Handles the processes whose time has expired, and sets the timer for the remaining processes.
    pub(super) fn handle_timeouts(&self) {
        let mut children = self.children.lock();
        children.timer = None;
        let now = Instant::now();
        let over = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let (mut unwatchable, mut started) = (Vec::new(), Vec::new());
        for (&id, child) in &mut children.by_id {
            if over(child.unwatched_deadline) && !try_listen(&self.poll, id, child) {
                unwatchable.push(id);
            }
            if over(child.hello_until) {
                child.handle_hello_timeout();
                started.push(child.span.take_ready());
            }
        }
        let unwatchable: Vec<_> = unwatchable.iter().filter_map(|id| children.by_id.remove(id)).collect();
        let next = children.by_id.values().filter_map(WatchedChild::next_timeout).min();
        children.set_timer(&self.timer, next);
        drop(children);
        started.into_iter().for_each(StartSpan::end);
        unwatchable.into_iter().for_each(WatchedChild::abandon);
    }

    pub(super) fn begin_watching(&self, id: u64) {
        let mut children = self.children.lock();
        let Some(child) = children.by_id.get_mut(&id).filter(|child| child.unwatched_deadline.is_some())
        else {
            return;
        };
        if !try_listen(&self.poll, id, child)
            && let Some(child) = children.by_id.remove(&id)
        {
            drop(children);
            child.abandon();
        }
    }

    /// Handles an event of a process or of its socket.
    pub(super) fn handle_event(&self, id: u64, ended: bool, flags: epoll::EventFlags) {
        let mut children = self.children.lock();
        let Some(child) = children.by_id.get_mut(&id) else { return };
        if ended {
            if child.reap()
                && let Some(child) = children.by_id.remove(&id)
            {
                children.record_end(&child.handle);
                drop(children);
                if log_event::wanted() {
                    child.log_end();
                }
                self.remove(child);
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT)
            && child.send()
            && let Some(socket) = &child.socket
        {
            let listen = epoll::EventFlags::IN;
            // If this fails, the socket stays writable and the next turn tries again.
            let _ = epoll::modify(&self.poll, socket, epoll::EventData::new_u64(id << 1), listen);
        }
        let more = child.receive();
        if let Some(socket) = &child.socket
            && (!more || child.reported)
        {
            // Deleted explicitly, because a forked process may hold the socket too. It may have been deleted
            // before. A process that has reported is about to end, and a wake-up for each step of its end
            // would cost as much as the rest.
            let _ = epoll::delete(&self.poll, socket);
        }
        if !more {
            child.socket = None;
        }
        let started = child.span.take_ready();
        drop(children);
        started.end();
    }

    fn remove(&self, child: WatchedChild) {
        if child.unwatched_deadline.is_none() {
            // Can't fail, because the sentinel was added. The socket may have been deleted.
            let _ = epoll::delete(&self.poll, child.handle.sentinel());
            if let Some(socket) = child.socket.as_ref().filter(|_| !child.reported) {
                let _ = epoll::delete(&self.poll, socket);
            }
        }
        child.close();
    }
}
