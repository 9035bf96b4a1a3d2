//! Supervisor: the thread of a process that starts all its children, receives their messages, and reaps them.
//!
//! **Invariant:** children are started by this thread, or by the main thread. A child asks the kernel to end
//! it when its parent ends, and the kernel takes the thread that started it for the parent. So that thread
//! must live as long as the process. The main thread does (unless it calls `pthread_exit`, which no Rust
//! program does by itself). Waking another thread just to have it start a process costs a tenth of the start.
//!
//! **Short lives.** If a start has a single process whose function returns nothing, the process is not
//! watched for its first milliseconds: a waiter detects its end by its sentinel, reads its messages, and
//! reaps it. A watching supervisor would be woken by each message of the process, and by its end at the same
//! moment as the waiter, only to find that nothing is left to do. After four milliseconds the supervisor
//! watches the process if a caller waits or queries it, and at once receives messages that were sent
//! meanwhile. So the report of a failure is delayed by that time at most. The supervisor watches without
//! delay if a callback is registered for the end. After fifty milliseconds it watches in any case, by the
//! timer: a timer that fired every four milliseconds cost starts on a virtual machine about 4 % of their
//! time. (If the process crashes and no caller asks, its shared memory is released that much later at most.)
//! The supervisor watches from the beginning a process that may need an answer (a result in shared memory),
//! that others wait for (several processes of one start), or that has not received all its data.
//!
//! | state of a [`WatchedChild`] | in the epoll set | transitions under the lock of [`WatchedChildren`] |
//! |---|---|---|
//! | young | nothing | a thread detects its end: reaped; a caller asks, or its time is over: watched |
//! | watched | sentinel and socket | a thread detects its end: reaped |
//! | reaped | nothing | none: removed from the watches |
//!
//! A process that is killed while it is young is reaped by the waiter, or by the supervisor a moment later.

mod thread;
mod watches;

use std::cell::Cell;
use std::io;
use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use crate::error::os_limit::{NO_EPOLL, OWN_WATCH, WATCH};
use crate::error::{Result, SpawnError, launch_error};
use crate::io::captured::OutputStreams;
use crate::parent::active;
use crate::parent::child_state::{BatchProperties, LaunchOrder, LaunchOrders, WatchedChild};
use crate::parent::fork_server;
use crate::parent::fork_server::connection::ServerProcess;
use crate::parent::launch::fork;
use crate::parent::launch::{self, Command};
use crate::parent::member_quota::MemberReservation;
use crate::parent::supervisor::thread::Loop;
use crate::parent::supervisor::watches::{WatchedChildren, add};
use crate::protocol::control_socket::{self, ParentSocket};
use crate::protocol::frame::WireError;
use crate::protocol::lifeline;
use crate::protocol::outbox::StreamEnds;
use crate::start_method::StartMethod;
use crate::sys;
use crate::sys::log_event::event;

/// Event data for new requests. The events of processes have their numbers.
const WAKE: u64 = u64::MAX;
/// Event data for the timer.
const TIMER: u64 = u64::MAX - 1;
/// Event data for the end of a fork server.
const SERVER: u64 = u64::MAX - 2;

/// Processes of one start, to be started.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) command: Command,
    pub(crate) common: BatchProperties,
    pub(crate) orders: LaunchOrders,
    pub(crate) reservation: MemberReservation,
}

thread_local! {
    // fork: a copy has no supervisor thread, and the supervisor thread makes no copies.
    static IS_SUPERVISOR: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` on the supervisor thread, which runs callbacks. A process that this thread waits for would
/// not be reaped.
pub(crate) fn is_this_thread() -> bool {
    IS_SUPERVISOR.try_with(Cell::get).unwrap_or(false)
}

#[derive(Debug)]
struct StartJob {
    batch: Batch,
    started: Vec<u64>, // running processes of the batch
    reply: Sender<Result<()>>,
}

/// Request of another thread to the supervisor thread.
enum SupervisorRequest {
    Start(Box<StartJob>),
    Call(Box<dyn FnOnce() + Send>),
}

/// State of the supervisor that the threads of a process share.
#[derive(Debug)]
struct Supervisor {
    /// Process that it belongs to. Differs from the current process after a fork.
    process: u32,
    poll: OwnedFd,
    wake: OwnedFd,
    /// Fires when the time of a process for its hello may be over.
    timer: OwnedFd,
    /// Permanently readable: the sentinel of processes whose end was detected before a caller requested
    /// theirs.
    over: Arc<OwnedFd>,
    requests: Mutex<Sender<SupervisorRequest>>,
    watches: Mutex<WatchedChildren>,
    /// Fork servers that have not been reaped.
    servers: Mutex<Vec<Arc<ServerProcess>>>,
}

static SUPERVISOR: PerProcess<Mutex<Option<Arc<Supervisor>>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Starts the processes of a batch, in order. Blocks until all run, or until one could not be started. In the
/// latter case the running ones have been sent a SIGKILL.
pub(crate) fn start(batch: Batch) -> Result<()> {
    let supervisor = running()?;
    // Processes made by a fork server are children of the thread that started the server.
    if sys::on_main_thread() || batch.common.method == StartMethod::ForkServer {
        return supervisor.start_here(batch);
    }
    if batch.common.method == StartMethod::Fork {
        // Buffered output belongs to the calling thread, which may be printing. A copy of another thread
        // would write it again.
        let _ = io::stdout().flush();
    }
    let (reply, answer) = channel();
    supervisor.ask(SupervisorRequest::Start(Box::new(StartJob { batch, started: Vec::new(), reply })))?;
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

/// Returns the processes that were started here and have not reported that they joined the shared memory.
pub(crate) fn outside() -> Vec<u32> {
    present().map_or_else(Vec::new, |supervisor| supervisor.outside())
}

/// Calls a function on a thread that lives as long as the process, and waits for the result.
pub(crate) fn on_lasting_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if sys::on_main_thread() {
        return call();
    }
    let (reply, answer) = channel();
    // The receiver is missing if the requesting thread has ended.
    running()?.ask(SupervisorRequest::Call(Box::new(move || _ = reply.send(call()))))?;
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

/// Calls a function on the supervisor thread, without locks, and does not wait for it. The function is not
/// called if that thread has ended.
pub(crate) fn call_later(call: impl FnOnce() + Send + 'static) {
    if let Ok(supervisor) = running() {
        let _ = supervisor.ask(SupervisorRequest::Call(Box::new(call)));
    }
}

/// Ensures that a fork server is reaped when it ends.
pub(crate) fn watch_server(life: &Arc<ServerProcess>) -> Result<()> {
    let supervisor = running()?;
    supervisor.servers.lock().push(Arc::clone(life));
    let event = epoll::EventData::new_u64(SERVER);
    epoll::add(&supervisor.poll, life.handle.sentinel(), event, epoll::EventFlags::IN)
        .map_err(|error| launch_error(WATCH, None, error.into()))
}

/// Returns the supervisor of this process, and starts it if there is none.
fn running() -> Result<Arc<Supervisor>> {
    let mut slot = SUPERVISOR.lock();
    Ok(match &*slot {
        Some(running) if running.process == std::process::id() => Arc::clone(running),
        _ => Arc::clone(slot.insert(begin()?)),
    })
}

fn gone() -> SpawnError {
    launch_error("the supervisor thread", None, io::Error::other("it has ended"))
}

/// Returns the supervisor of this process, if it has one.
fn present() -> Option<Arc<Supervisor>> {
    let supervisor = SUPERVISOR.lock().as_ref().map(Arc::clone);
    supervisor.filter(|running| running.process == std::process::id())
}

/// Reaps a process that is known to have ended, unless it was reaped.
pub(crate) fn ended(id: u64) {
    if let Some(supervisor) = present() {
        supervisor.attend(id, true, epoll::EventFlags::empty());
    }
}

/// Makes the supervisor watch a process from now on, because a caller queries it.
pub(crate) fn hear(id: u64) {
    if let Some(supervisor) = present() {
        supervisor.hear(id);
    }
}

fn begin() -> Result<Arc<Supervisor>> {
    let refused = |what| move |error: Errno| launch_error(what, None, error.into());
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
    let over = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .map_err(refused("timerfd_create"))?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused(NO_EPOLL))?;
    for (fd, event) in [(&wake, WAKE), (&timer, TIMER)] {
        epoll::add(&poll, fd, epoll::EventData::new_u64(event), epoll::EventFlags::IN)
            .map_err(refused(OWN_WATCH))?;
        mp_core::long_lived_fds::register("supervisor: wake or timer", fd);
    }
    mp_core::long_lived_fds::register("supervisor: over", &over);
    mp_core::long_lived_fds::register("supervisor: epoll", &poll);
    let (requests, incoming) = channel();
    let process = std::process::id();
    let (requests, watches, servers) = (Mutex::new(requests), Mutex::default(), Mutex::default());
    let supervisor =
        Arc::new(Supervisor { process, poll, wake, timer, over: Arc::new(over), requests, watches, servers });
    let run = Loop { shared: Arc::clone(&supervisor), incoming, jobs: Vec::new() };
    std::thread::Builder::new()
        .name("mp-supervisor".to_string())
        .spawn(|| run.run())
        .map_err(|error| launch_error("the supervisor thread", None, error))?;
    Ok(supervisor)
}

impl Supervisor {
    /// Sends a request to the supervisor thread.
    fn ask(&self, request: SupervisorRequest) -> Result<()> {
        if self.requests.lock().send(request).is_err() {
            *SUPERVISOR.lock() = None;
            return Err(gone());
        }
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())
            .map_err(|error| launch_error("write to an eventfd", None, error.into()))?;
        Ok(())
    }

    /// Reaps the fork servers that have ended.
    fn reap_servers(&self) {
        let mut over = Vec::new();
        self.servers.lock().retain(|life| {
            let exit = life.exit();
            if let Some(exit) = exit {
                // Can't fail, because the sentinel was added.
                let _ = epoll::delete(&self.poll, life.handle.sentinel());
                over.push((life.pid, exit));
            }
            exit.is_none()
        });
        for (pid, exit) in over {
            event!(Warn, "a fork server (pid {pid}) {exit}");
        }
    }

    /// Returns the files that a copy of this process does not need. `over` has the sentinels of processes
    /// that have ended, referenced so that no thread closes them meanwhile.
    fn files(&self, watches: &WatchedChildren, over: &[Arc<OwnedFd>]) -> Vec<RawFd> {
        let of_children = watches.by_id.values().flat_map(|watch| {
            let socket = watch.socket.as_ref().map(AsRawFd::as_raw_fd);
            [Some(watch.handle.raw()), socket].into_iter().flatten()
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

    /// Starts the processes of a batch from the calling thread.
    fn start_here(&self, mut batch: Batch) -> Result<()> {
        let mut started = Vec::new();
        while let Some(order) = batch.orders.pop_front() {
            match self.launch(&batch, order) {
                Ok(id) => started.push(id),
                Err(error) => {
                    self.kill(&started);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Starts one process and begins to watch it. The kernel ends the process when the calling thread ends.
    fn launch(&self, batch: &Batch, mut order: LaunchOrder) -> Result<u64> {
        let name = batch.common.group.name(order.rank);
        let mut launch_options = batch.command.launch_options(&order.setup)?;
        // The handler writes output at exit that was read from the streams and not passed on.
        active::register_exit_handler();
        let (streams, ends) = OutputStreams::open(&order.setup, order.rank, &name)?;
        let refused = |error: WireError| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, error);
            launch_error("the setting of environment variables", None, error)
        };
        let LaunchOrder { setup, outbox, .. } = &mut order;
        let launched = match batch.common.method {
            StartMethod::Spawn => {
                launch_options.ends = ends;
                let launched = launch::launch(&batch.command, &launch_options)?;
                // Done only now, because the process takes some time until it needs this data.
                let addressed = lifeline::new_end()
                    .and_then(|end| outbox.address(end, StreamEnds::default(), &[], &[]).map_err(refused));
                if let Err(error) = addressed {
                    launched.handle.end();
                    return Err(error);
                }
                launched
            }
            StartMethod::ForkServer => {
                outbox.address(None, ends, &setup.environment, &launch_options.files).map_err(refused)?;
                fork_server::launch(&batch.command, outbox, batch.common.timeout)?
            }
            StartMethod::Fork => {
                launch_options.ends = ends;
                outbox.address(lifeline::new_end()?, StreamEnds::default(), &[], &[]).map_err(refused)?;
                // Locked, so that the copy gets a consistent list of our files.
                let watches = self.watches.lock();
                let over: Vec<_> = watches.over.iter().filter_map(Weak::upgrade).collect();
                let files = self.files(&watches, &over);
                fork::launch(launch_options, setup, outbox, &files)?
            }
        };
        batch.common.group.set_streams(order.rank, streams);
        batch.common.group.set_over_sentinel(&self.over);
        let mut watches = self.watches.lock();
        let id = watches.next;
        let mut watch = WatchedChild::new(batch.common.clone(), order, launched, id);
        if let Err(error) = add(&self.poll, id, &mut watch) {
            drop(watches);
            watch.fail(error.clone());
            watch.abandon();
            return Err(error);
        }
        watches.next += 1;
        watches.set_timer(&self.timer, watch.next_timeout());
        watches.by_id.insert(id, watch);
        drop(watches);
        // Done only now, because a thread that reserves room locks the reservations first and the watches
        // second. For a moment the process counts twice.
        batch.reservation.release_one();
        Ok(id)
    }

    /// Returns the watched processes that have not reported that they joined the shared memory.
    fn outside(&self) -> Vec<u32> {
        let watches = self.watches.lock();
        watches.by_id.values().filter(|watch| !watch.has_joined()).map(|watch| watch.handle.pid()).collect()
    }

    fn kill(&self, started: &[u64]) {
        let watches = self.watches.lock();
        started.iter().filter_map(|id| watches.by_id.get(id)).for_each(WatchedChild::kill);
    }
}
