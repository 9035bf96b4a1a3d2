//! The one thread of a process that starts all its children, receives from them, and reaps them.
//!
//! **Invariant:** children are started by this thread, or by the main thread. A child asks the kernel to end it when
//! its parent ends, and there "parent" means the thread that started it; so that thread must live as long as the
//! process. The main thread does (unless it calls `pthread_exit`, which no Rust program does by itself), and waking
//! another one just to have it make a process costs a tenth of the start.
//!
//! **Short lives.** The only process of a start, if its function returns nothing, is left alone for its first milliseconds:
//! a waiter sees its end by its sentinel, reads its messages, and reaps it. The supervisor would be woken by each message of
//! a process, and by its end in the same moment as the waiter, only to find that all is done. After four milliseconds the
//! supervisor listens if a caller waits or asks, and receives at once what was sent meanwhile; so a failure is known that
//! much later at most. It listens without delay if a callback is registered for the end; and after fifty by itself, by the
//! timer: one that fired every four milliseconds cost starts on a virtual machine some 4 % of their time. (What the process
//! held in shared memory is released that much later at most, if it crashes and no caller asks.) The supervisor listens from
//! the beginning to a process that may need an answer (a result in shared memory), that others wait for (several processes of
//! one start), or that something is still to be sent to.
//!
//! | state of a [`Watch`] | in the poll | what changes it, under the lock of [`Watches`] |
//! |---|---|---|
//! | young | nothing | a thread sees its end: reaped; a caller asks, or its time is over: listened to |
//! | listened to | sentinel and socket | a thread sees its end: reaped |
//! | reaped | nothing | nothing: it is no longer among the watches |
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
use crate::error::{Result, SpawnError, failed};
use crate::io::captured::Streams;
use crate::parent::active;
use crate::parent::child_state::{Common, Order, Orders, Watch};
use crate::parent::fork_server;
use crate::parent::fork_server::connection::Life;
use crate::parent::launch::fork;
use crate::parent::launch::{self, Command};
use crate::parent::member_quota::Room;
use crate::parent::supervisor::thread::Loop;
use crate::parent::supervisor::watches::{Watches, add};
use crate::protocol::control_socket::{self, Line};
use crate::protocol::frame::WireError;
use crate::protocol::lifeline;
use crate::protocol::outbox::Ends;
use crate::start_method::StartMethod;
use crate::sys;
use crate::sys::log_event::event;

/// The data of the event that announces new batches; the events of processes have their numbers.
const WAKE: u64 = u64::MAX;
/// The data of the event that the timer has fired.
const TIMER: u64 = u64::MAX - 1;
/// The data of the event that a fork server has ended.
const SERVER: u64 = u64::MAX - 2;

/// The processes of one start, to be started.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) command: Command,
    pub(crate) common: Common,
    pub(crate) orders: Orders,
    pub(crate) room: Room,
}

thread_local! {
    // fork: a copy has no supervisor's thread, and is made by none.
    static IS_SUPERVISOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is the supervisor's, in which callbacks run: a process that it waits for would not be reaped.
pub(crate) fn is_this_thread() -> bool {
    IS_SUPERVISOR.try_with(Cell::get).unwrap_or(false)
}

#[derive(Debug)]
struct Job {
    batch: Batch,
    started: Vec<u64>, // the processes of it that run
    reply: Sender<Result<()>>,
}

/// What other threads ask of the supervisor's.
enum Request {
    Start(Box<Job>),
    Call(Box<dyn FnOnce() + Send>),
}

/// What the threads of a process share of its supervisor.
#[derive(Debug)]
struct Supervisor {
    /// The process that it belongs to: another one after a fork.
    process: u32,
    poll: OwnedFd,
    wake: OwnedFd,
    /// Fires when the time of some process to say hello may be over.
    timer: OwnedFd,
    /// Readable from the beginning, for good: the sentinel of processes whose end was seen before theirs was asked for.
    over: Arc<OwnedFd>,
    requests: Mutex<Sender<Request>>,
    watches: Mutex<Watches>,
    /// The fork servers that have not been reaped.
    servers: Mutex<Vec<Arc<Life>>>,
}

static SUPERVISOR: PerProcess<Mutex<Option<Arc<Supervisor>>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Starts the processes of a batch, in order. Blocks until all run, or one could not be started; then those
/// that run already have got a SIGKILL.
pub(crate) fn start(batch: Batch) -> Result<()> {
    let supervisor = running()?;
    // What a fork server makes is the child of the thread that started the server.
    if sys::on_main_thread() || batch.common.method == StartMethod::ForkServer {
        return supervisor.start_here(batch);
    }
    if batch.common.method == StartMethod::Fork {
        // It belongs to this thread, if it prints just now; a copy of another one would write it again.
        let _ = io::stdout().flush();
    }
    let (reply, answer) = channel();
    supervisor.ask(Request::Start(Box::new(Job { batch, started: Vec::new(), reply })))?;
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

/// The processes that were started here and have not reported that they joined the shared memory.
pub(crate) fn outside() -> Vec<u32> {
    present().map_or_else(Vec::new, |supervisor| supervisor.outside())
}

/// Calls something in a thread that lives as long as the process, and waits for it.
pub(crate) fn on_lasting_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if sys::on_main_thread() {
        return call();
    }
    let (reply, answer) = channel();
    // The receiver is gone if the thread that asked is.
    running()?.ask(Request::Call(Box::new(move || _ = reply.send(call()))))?;
    answer.recv().unwrap_or_else(|_| Err(gone()))
}

/// Calls something in the supervisor's thread, which holds no lock then, and waits for nothing. Not at all, if that thread
/// is gone.
pub(crate) fn call_later(call: impl FnOnce() + Send + 'static) {
    if let Ok(supervisor) = running() {
        let _ = supervisor.ask(Request::Call(Box::new(call)));
    }
}

/// Makes sure that a fork server is reaped when it ends.
pub(crate) fn watch_server(life: &Arc<Life>) -> Result<()> {
    let supervisor = running()?;
    supervisor.servers.lock().push(Arc::clone(life));
    let event = epoll::EventData::new_u64(SERVER);
    epoll::add(&supervisor.poll, life.handle.sentinel(), event, epoll::EventFlags::IN)
        .map_err(|error| failed(WATCH, None, error.into()))
}

/// The supervisor of this process, which begins now if it has none.
fn running() -> Result<Arc<Supervisor>> {
    let mut slot = SUPERVISOR.lock();
    Ok(match &*slot {
        Some(running) if running.process == std::process::id() => Arc::clone(running),
        _ => Arc::clone(slot.insert(begin()?)),
    })
}

fn gone() -> SpawnError {
    failed("the supervisor thread", None, io::Error::other("it has ended"))
}

/// The one that runs, if this process has one.
fn present() -> Option<Arc<Supervisor>> {
    let supervisor = SUPERVISOR.lock().as_ref().map(Arc::clone);
    supervisor.filter(|running| running.process == std::process::id())
}

/// A process is known to have ended: reaps it, unless that has happened.
pub(crate) fn ended(id: u64) {
    if let Some(supervisor) = present() {
        supervisor.attend(id, true, epoll::EventFlags::empty());
    }
}

/// A caller asks for a process: the supervisor listens to it from now on, if it has not so far.
pub(crate) fn hear(id: u64) {
    if let Some(supervisor) = present() {
        supervisor.hear(id);
    }
}

fn begin() -> Result<Arc<Supervisor>> {
    let refused = |what| move |error: Errno| failed(what, None, error.into());
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
    let over = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .map_err(refused("timerfd_create"))?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused(NO_EPOLL))?;
    for (fd, event) in [(&wake, WAKE), (&timer, TIMER)] {
        epoll::add(&poll, fd, epoll::EventData::new_u64(event), epoll::EventFlags::IN)
            .map_err(refused(OWN_WATCH))?;
        mp_core::kept::kept("supervisor: wake or timer", fd);
    }
    mp_core::kept::kept("supervisor: over", &over);
    mp_core::kept::kept("supervisor: epoll", &poll);
    let (requests, incoming) = channel();
    let process = std::process::id();
    let (requests, watches, servers) = (Mutex::new(requests), Mutex::default(), Mutex::default());
    let supervisor =
        Arc::new(Supervisor { process, poll, wake, timer, over: Arc::new(over), requests, watches, servers });
    let run = Loop { shared: Arc::clone(&supervisor), incoming, jobs: Vec::new() };
    std::thread::Builder::new()
        .name("mp-supervisor".to_string())
        .spawn(|| run.run())
        .map_err(|error| failed("the supervisor thread", None, error))?;
    Ok(supervisor)
}

impl Supervisor {
    /// Asks the thread for something.
    fn ask(&self, request: Request) -> Result<()> {
        if self.requests.lock().send(request).is_err() {
            *SUPERVISOR.lock() = None;
            return Err(gone());
        }
        rustix::io::write(&self.wake, &1u64.to_ne_bytes())
            .map_err(|error| failed("write to an eventfd", None, error.into()))?;
        Ok(())
    }

    /// Reaps the fork servers that have ended.
    fn reap_servers(&self) {
        let mut over = Vec::new();
        self.servers.lock().retain(|life| {
            let exit = life.exit();
            if let Some(exit) = exit {
                // It was added, so this can't fail.
                let _ = epoll::delete(&self.poll, life.handle.sentinel());
                over.push((life.pid, exit));
            }
            exit.is_none()
        });
        for (pid, exit) in over {
            event!(Warn, "a fork server (pid {pid}) {exit}");
        }
    }

    /// The files that a copy of this process has no use for. Of processes that have ended: `over`, so that no thread closes
    /// theirs meanwhile.
    fn files(&self, watches: &Watches, over: &[Arc<OwnedFd>]) -> Vec<RawFd> {
        let of_children = watches.by_id.values().flat_map(|watch| {
            let socket = watch.socket.as_ref().map(AsRawFd::as_raw_fd);
            [Some(watch.handle.raw()), socket].into_iter().flatten()
        });
        let own = [&self.poll, &self.wake, &self.timer, &*self.over].into_iter().map(AsRawFd::as_raw_fd);
        let of_ended = over.iter().map(|sentinel| sentinel.as_raw_fd());
        of_children
            .chain(of_ended)
            .chain(own)
            .chain(control_socket::get().map(Line::raw))
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

    /// Starts one process and begins to watch it. The calling thread becomes the one whose end ends the process.
    fn launch(&self, batch: &Batch, mut order: Order) -> Result<u64> {
        let name = batch.common.group.name(order.rank);
        let mut particulars = batch.command.particulars(&order.setup)?;
        // What these have read and not passed on yet is passed on at exit.
        active::care_at_exit();
        let (streams, ends) = Streams::open(&order.setup, order.rank, &name)?;
        let refused = |error: WireError| {
            let error = io::Error::new(io::ErrorKind::InvalidInput, error);
            failed("the setting of environment variables", None, error)
        };
        let Order { setup, outbox, .. } = &mut order;
        let launched = match batch.common.method {
            StartMethod::Spawn => {
                particulars.ends = ends;
                let launched = launch::launch(&batch.command, &particulars)?;
                // Only now: the process takes its time until it asks for that.
                let addressed = lifeline::end()
                    .and_then(|end| outbox.address(end, Ends::default(), &[], &[]).map_err(refused));
                if let Err(error) = addressed {
                    launched.handle.end();
                    return Err(error);
                }
                launched
            }
            StartMethod::ForkServer => {
                outbox.address(None, ends, &setup.environment, &particulars.files).map_err(refused)?;
                fork_server::launch(&batch.command, outbox, batch.common.timeout)?
            }
            StartMethod::Fork => {
                particulars.ends = ends;
                outbox.address(lifeline::end()?, Ends::default(), &[], &[]).map_err(refused)?;
                // Held, so that the copy knows which files are ours.
                let watches = self.watches.lock();
                let over: Vec<_> = watches.over.iter().filter_map(Weak::upgrade).collect();
                let files = self.files(&watches, &over);
                fork::launch(particulars, setup, outbox, &files)?
            }
        };
        batch.common.group.streams(order.rank, streams);
        batch.common.group.readable_at_the_end(&self.over);
        let mut watches = self.watches.lock();
        let id = watches.next;
        let mut watch = Watch::new(batch.common.clone(), order, launched, id);
        if let Err(error) = add(&self.poll, id, &mut watch) {
            drop(watches);
            watch.fail(error.clone());
            watch.abandon();
            return Err(error);
        }
        watches.next += 1;
        watches.set_timer(&self.timer, watch.due());
        watches.by_id.insert(id, watch);
        drop(watches);
        // Only now: a thread that asks for room locks that first, and these then. For a moment the process counts twice.
        batch.room.use_one();
        Ok(id)
    }

    /// The processes that are watched and have not reported that they joined the shared memory.
    fn outside(&self) -> Vec<u32> {
        let watches = self.watches.lock();
        watches.by_id.values().filter(|watch| !watch.has_joined()).map(|watch| watch.handle.pid()).collect()
    }

    fn kill(&self, started: &[u64]) {
        let watches = self.watches.lock();
        started.iter().filter_map(|id| watches.by_id.get(id)).for_each(Watch::kill);
    }
}
