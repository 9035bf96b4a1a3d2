//! Starts of processes, from a function, arguments and options.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp_core::mutex::Mutex;

use crate::child::current::is_child;
use crate::error::launch_error;
use crate::error::{Result, SpawnError};
use crate::io::setup::ProcessOptions;
use crate::parent::child_state::{BatchProperties, LaunchOrder, LaunchOrders};
use crate::parent::group::ChildGroup;
use crate::parent::launch::Command;
use crate::parent::launch::fork;
use crate::parent::member_quota::{self, MemberReservation};
use crate::parent::options::SpawnOptions;
use crate::parent::restart::supervised::{RespawnFn, RestartTerms, Supervision};
use crate::parent::supervisor::{self, Batch};
use crate::protocol::command;
use crate::protocol::frame::{self, FrameKind, WireError};
use crate::protocol::function::loaded_objects;
use crate::protocol::function::{FunctionDesc, FunctionRef};
use crate::protocol::interrupt::Interrupt;
use crate::protocol::message::StartMessage;
use crate::protocol::outbox::Outbox;
use crate::protocol::payload::ChildPayload;
use crate::protocol::settings::InheritedSettings;
use crate::protocol::token;
use crate::start_method::{self, Chosen, StartMethod, get_all_start_methods, get_start_method};
use crate::sys;
use crate::sys::log_event::{self, event};

/// Function and properties of the processes to start.
#[derive(Debug)]
pub(crate) struct StartPlan {
    pub(crate) function: FunctionRef,
    /// `true` if the function returns a value to be sent.
    pub(crate) returns: bool,
    pub(crate) daemon: bool,
    /// `true` if errors name the processes by their ranks.
    pub(crate) ranked: bool,
    pub(crate) names: ProcessNames,
}

/// Names of the processes of a start.
#[derive(Debug)]
pub(crate) enum ProcessNames {
    One(String),
    /// Prefix and number of processes. The number comes from users, so no names are allocated before it is
    /// checked.
    Ranks(String, usize),
}

impl ProcessNames {
    fn count(&self) -> usize {
        match self {
            ProcessNames::One(_) => 1,
            ProcessNames::Ranks(_, count) => *count,
        }
    }

    fn all(self) -> Vec<String> {
        match self {
            ProcessNames::One(name) => vec![name],
            ProcessNames::Ranks(prefix, count) => (0..count).map(|rank| format!("{prefix}-{rank}")).collect(),
        }
    }
}

/// Returns the reference to a function of this program.
pub(crate) fn reference<E: 'static>(desc: &'static FunctionDesc<E>) -> Result<FunctionRef> {
    let unknown =
        || std::io::Error::other("this program's build can't be identified: link it with a build-id");
    desc.reference().ok_or_else(|| launch_error("the lookup", None, unknown()))
}

/// Common settings of all processes of a start, and of their restarts.
#[derive(Debug, Clone)]
struct PreparedStart {
    function: FunctionRef,
    library: Option<PathBuf>,
    returns: bool,
    ranked: bool,
    daemon: bool,
    method: StartMethod,
    command: Command,
    settings: InheritedSettings,
    /// Time within which a process must send its hello.
    timeout: Duration,
}

impl PreparedStart {
    fn new(plan: StartPlan, options: &SpawnOptions) -> Result<(PreparedStart, Vec<String>)> {
        let StartPlan { function, returns, daemon, ranked, names } = plan;
        let prepared = PreparedStart {
            library: loaded_objects::file_of(&function.object),
            settings: settings(options)?,
            command: Command::new(options.command.as_ref(), &function)?,
            method: method(options),
            timeout: options.handshake,
            function,
            returns,
            ranked,
            daemon,
        };
        Ok((prepared, names.all()))
    }

    /// Creates the order for one process.
    fn order(
        &self,
        rank: usize,
        name: String,
        attempt: u32,
        setup: ProcessOptions,
        args: ChildPayload,
    ) -> Result<LaunchOrder> {
        let ChildPayload { bytes, memory, promise } = args;
        let start = StartMessage {
            rank,
            ranked: self.ranked,
            name,
            function: self.function.clone(),
            library: self.library.clone(),
            daemon: self.daemon,
            interrupt: setup.interrupt,
            interrupt_signals: setup.interrupt_signals,
            attempt,
            settings: self.settings.clone(),
            directory: setup.directory.clone(),
            limits: setup.limits.for_child(),
            processors: setup.processors.clone(),
        };
        Ok(LaunchOrder { rank, outbox: frames(&start, &bytes, memory)?, promise, setup })
    }

    /// Creates the batch of all orders.
    fn batch(self, group: &Arc<ChildGroup>, orders: LaunchOrders, reservation: MemberReservation) -> Batch {
        let common = BatchProperties {
            group: Arc::clone(group),
            program: Arc::new(self.command.program.clone()),
            function: Arc::from(self.function.name.as_str()),
            timeout: self.timeout,
            returns: self.returns,
            method: self.method,
        };
        Batch { command: self.command, common, orders, reservation }
    }
}

/// Returns the start method of these processes.
fn method(options: &SpawnOptions) -> StartMethod {
    options.method.unwrap_or_else(get_start_method)
}

/// Reserves room for `count` processes, if processes can be started at all.
fn reserve(method: StartMethod, count: usize) -> Result<MemberReservation> {
    if token::unconsumed() {
        return Err(SpawnError::NotInitialised);
    }
    if method == StartMethod::Fork {
        fork::check()?;
    }
    member_quota::reserve(count)
}

/// Starts processes. `pack` creates the arguments for each rank.
pub(crate) fn start(
    plan: StartPlan,
    options: &SpawnOptions,
    mut pack: impl FnMut(usize) -> Result<ChildPayload>,
) -> Result<Arc<ChildGroup>> {
    let reservation = reserve(method(options), plan.names.count())?;
    let (prepared, names) = PreparedStart::new(plan, options)?;
    let group = Arc::new(ChildGroup::new(names.iter().cloned(), prepared.ranked));
    let order = |(rank, name)| prepared.order(rank, name, 1, options.setup(rank), pack(rank)?);
    let orders: LaunchOrders = names.into_iter().enumerate().map(order).collect::<Result<_>>()?;
    begin(prepared.batch(&group, orders, reservation), group)
}

/// Starts a process that is restarted after its end according to the terms. `pack` creates the arguments for
/// each start.
pub(crate) fn start_supervised(
    plan: StartPlan,
    options: &SpawnOptions,
    terms: RestartTerms,
    mut pack: impl FnMut() -> Result<ChildPayload> + Send + 'static,
) -> Result<Arc<ChildGroup>> {
    let (prepared, mut names) = PreparedStart::new(plan, options)?;
    let name = names.pop().unwrap_or_default();
    let (setup, named) = (options.setup(0), name.clone());
    let graceful = setup.interrupt == Interrupt::Graceful;
    // Arguments for the next start, created before the present start. So objects in the arguments stay
    // referenced as long as there may be another start: a queue among them does not lose its last peer
    // meanwhile, and a channel is not disconnected.
    let mut ahead: Option<ChildPayload> = None;
    let respawn = move |group: &Arc<ChildGroup>, attempt: u32| {
        let reservation = reserve(prepared.method, 1)?;
        let setup = if attempt > 1 { setup.clone().appending() } else { setup.clone() };
        let args = ahead.take().map_or_else(&mut pack, Ok)?;
        // If there is no room for them now, there may be later.
        ahead = pack().ok();
        let order = prepared.order(0, named.clone(), attempt, setup, args)?;
        Ok(prepared.clone().batch(group, LaunchOrders::from([order]), reservation))
    };
    let respawn: Arc<RespawnFn> = Arc::new(Mutex::new(Box::new(respawn)));
    let group =
        Arc::new(ChildGroup::supervised(name, Supervision::new(terms, graceful, Arc::clone(&respawn))?));
    let batch = (*respawn.lock())(&group, 1)?;
    begin(batch, group)
}

/// Starts the processes of a group for the first time.
fn begin(batch: Batch, group: Arc<ChildGroup>) -> Result<Arc<ChildGroup>> {
    let method = batch.common.method;
    for order in batch.orders.iter().filter(|order| order.setup.interrupt == Interrupt::Graceful) {
        sys::record_first_interrupt(order.setup.interrupt_signals.numbers(), is_child());
    }
    match supervisor::start(batch) {
        Ok(()) => {
            let started = if log_event::wanted() { group.pids() } else { Vec::new() };
            for (rank, pid) in started.into_iter().enumerate() {
                event!(Info, "{} (pid {pid}) was started by {method}", group.name(rank));
            }
            Ok(group)
        }
        Err(error) => {
            group.forbid_restarts();
            group.reap_incomplete();
            Err(error)
        }
    }
}

/// Encodes the frames of a start message, with the shared memory.
fn frames(start: &StartMessage, args: &[u8], memory: BorrowedFd<'static>) -> Result<Outbox> {
    let unsendable =
        |error: WireError| SpawnError::Arguments { who: None, message: error.to_string(), unread: None };
    let mut bytes = Vec::new();
    frame::append(&mut bytes, FrameKind::Start, &start.to_bytes()).map_err(unsendable)?;
    frame::append(&mut bytes, FrameKind::Args, args).map_err(unsendable)?;
    Ok(Outbox::new(bytes, memory))
}

/// Returns the settings that processes inherit from this process and these options.
fn settings(options: &SpawnOptions) -> Result<InheritedSettings> {
    let Chosen { method, fork } = start_method::chosen();
    let method = get_all_start_methods().iter().position(|one| *one == method).unwrap_or(0);
    #[cfg(feature = "log")]
    let log = crate::child::log_to_stderr::inherited_level();
    #[cfg(not(feature = "log"))]
    let log = None;
    #[cfg(feature = "authkey")]
    let key = Some(options.key()?);
    #[cfg(not(feature = "authkey"))]
    let _ = options;
    Ok(InheritedSettings {
        method,
        fork,
        command: command::default_command(),
        #[cfg(feature = "authkey")]
        key,
        log,
    })
}
