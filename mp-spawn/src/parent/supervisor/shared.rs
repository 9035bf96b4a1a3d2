//! State of the supervisor that the threads of a process share.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::long_lived_fds;
use mp_core::mutex::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use crate::error::os_limit::{NO_EPOLL, OWN_WATCH, WATCH};
use crate::error::{Result, SpawnError, launch_error};
use crate::parent::group::ChildGroup;
use crate::parent::launch::launched::LaunchedProcess;
use crate::parent::supervisor::child::{LaunchOrder, WatchedChild};
use crate::parent::supervisor::children::{WatchedChildren, add};
use crate::parent::supervisor::diagnosis::StartProperties;
use crate::protocol::control_socket::{self, ParentSocket};
use crate::protocol::lifeline;
use crate::sys::descriptors::new_event;
use crate::sys::log_event::event;
use crate::sys::process_handle::ProcessHandle;

/// Event data for new requests. The events of processes have their numbers.
pub(super) const WAKE: u64 = u64::MAX;
/// Event data for the timer.
pub(super) const TIMER: u64 = u64::MAX - 1;
/// Event data for the end of a fork server.
pub(super) const SERVER: u64 = u64::MAX - 2;

/// Start of several processes on the supervisor thread, one in each step, so that events of running processes
/// are handled in between.
pub(crate) trait StartJob: Send {
    /// Starts a process. Returns the job, unless it is done.
    fn step(self: Box<Self>) -> Option<Box<dyn StartJob>>;

    /// Ends the job with an error, because the supervisor thread ends.
    fn fail(self: Box<Self>, error: SpawnError);
}

/// Request of another thread to the supervisor thread.
pub(super) enum SupervisorRequest {
    Start(Box<dyn StartJob>),
    Call(Box<dyn FnOnce() + Send>),
}

/// State of the supervisor that the threads of a process share.
#[derive(Debug)]
pub(crate) struct Supervisor {
    /// Process that the supervisor belongs to. Differs from the current process after a fork.
    pub(super) process: u32,
    pub(super) poll: OwnedFd,
    pub(super) wake: OwnedFd,
    /// Fires when the time of a process for its hello may be over.
    pub(super) timer: OwnedFd,
    /// Permanently readable: the sentinel of processes whose end was detected before a caller requested
    /// theirs.
    over: Arc<OwnedFd>,
    requests: Mutex<Sender<SupervisorRequest>>,
    pub(super) children: Mutex<WatchedChildren>,
    /// Fork servers that have not been reaped.
    servers: Mutex<Vec<Arc<ProcessHandle>>>,
}

pub(super) static SUPERVISOR: PerProcess<Mutex<Option<Arc<Supervisor>>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Returns the error of a request to a supervisor thread that has ended.
pub(crate) fn thread_ended() -> SpawnError {
    launch_error("the supervisor thread", None, io::Error::other("it has ended"))
}

impl Supervisor {
    /// Opens the descriptors of a supervisor, which receives its requests from this channel.
    pub(super) fn new(requests: Sender<SupervisorRequest>) -> Result<Supervisor> {
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

    /// Begins a start of several processes on the supervisor thread.
    pub(crate) fn submit(&self, job: Box<dyn StartJob>) -> Result<()> {
        self.send_request(SupervisorRequest::Start(job))
    }

    /// Sends a request to the supervisor thread.
    pub(super) fn send_request(&self, request: SupervisorRequest) -> Result<()> {
        if self.requests.lock().send(request).is_err() {
            *SUPERVISOR.lock() = None;
            return Err(thread_ended());
        }
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())
            .map_err(|error| launch_error("write to an eventfd", None, error.into()))?;
        Ok(())
    }

    /// Begins to watch a process that was just launched. Returns its number. If that is impossible, the
    /// process is ended.
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

    /// Calls a function with the files that a copy of this process does not need. No thread closes them
    /// meanwhile, because the children are locked and the sentinels of ended processes are referenced.
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
