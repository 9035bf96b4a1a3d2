//! Starts of processes, from a function, arguments and options.

pub(crate) mod batch;
pub(crate) mod member_quota;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use mp_core::mutex::Mutex;

use crate::child::current::is_child;
use crate::error::{Result, SpawnError, launch_error};
use crate::io::setup::ProcessOptions;
use crate::parent::active;
use crate::parent::group::ChildGroup;
use crate::parent::launch::command::LaunchCommand;
use crate::parent::launch::fork;
use crate::parent::options::SpawnOptions;
use crate::parent::restart::supervision::{PreparedStart, RespawnFn, RestartTerms, Supervision};
use crate::parent::start::batch::StartBatch;
use crate::parent::start::member_quota::MemberReservation;
use crate::parent::supervisor::child::LaunchOrder;
use crate::parent::supervisor::diagnosis::StartProperties;
use crate::protocol::fields::to_bytes;
use crate::protocol::frame::{self, FrameKind, WireError};
use crate::protocol::function::{FunctionRef, loaded_objects};
use crate::protocol::interrupt::Interrupt;
use crate::protocol::message::{InheritedSettings, StartMessage};
use crate::protocol::outbox::Outbox;
use crate::protocol::payload::ChildPayload;
use crate::protocol::{command, token};
use crate::start_method::{self, StartMethod, get_start_method};
use crate::sys;
use crate::sys::log_event::{self, event};
use crate::sys::start_span::{SpanContext, StartSpan};

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
    /// Prefix and number of processes. The number comes from users, so no names are allocated before the
    /// number is checked.
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

/// Common settings of all processes of a start, and of their restarts.
#[derive(Debug)]
struct StartTemplate {
    function: FunctionRef,
    library: Option<PathBuf>,
    ranked: bool,
    daemon: bool,
    command: LaunchCommand,
    settings: InheritedSettings,
    properties: Arc<StartProperties>,
}

impl StartTemplate {
    fn new(plan: StartPlan, options: &SpawnOptions) -> Result<(StartTemplate, Vec<String>)> {
        let StartPlan { function, returns, daemon, ranked, names } = plan;
        let command = LaunchCommand::new(options.command.as_ref(), &function)?;
        let properties = StartProperties {
            program: command.program.clone(),
            method: method(options),
            guest: function.is_guest(),
            function: function.name.clone(),
            returns,
            timeout: options.handshake,
        };
        let template = StartTemplate {
            library: loaded_objects::file_of(&function.object),
            settings: settings(options)?,
            properties: Arc::new(properties),
            command,
            function,
            ranked,
            daemon,
        };
        Ok((template, names.all()))
    }

    /// Creates the data for the start of one process.
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
        let (outbox, span) = (frames(&start, &bytes, memory)?, StartSpan::default());
        Ok(LaunchOrder { rank, outbox, promise, setup, span })
    }

    /// Creates the common data of the processes of a group.
    fn batch(&self, group: &Arc<ChildGroup>) -> Arc<StartBatch> {
        let (group, properties) = (Arc::clone(group), Arc::clone(&self.properties));
        let context = SpanContext::current();
        Arc::new(StartBatch { command: self.command.clone(), group, properties, context })
    }
}

/// Returns the start method of these processes.
fn method(options: &SpawnOptions) -> StartMethod {
    options.method.unwrap_or_else(get_start_method)
}

/// Reserves member slots for `count` processes, if processes can be started by this method.
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
    let (template, names) = StartTemplate::new(plan, options)?;
    let group = Arc::new(ChildGroup::new(names.iter().cloned(), template.ranked));
    let order = |(rank, name)| template.order(rank, name, 1, options.setup(rank), pack(rank)?);
    let orders = names.into_iter().enumerate().map(order).collect::<Result<_>>()?;
    begin(template.batch(&group), orders, reservation)
}

/// Starts a process that is restarted after its end according to the terms. `pack` creates the arguments for
/// each start.
pub(crate) fn start_supervised(
    plan: StartPlan,
    options: &SpawnOptions,
    terms: RestartTerms,
    mut pack: impl FnMut() -> Result<ChildPayload> + Send + 'static,
) -> Result<Arc<ChildGroup>> {
    let (template, mut names) = StartTemplate::new(plan, options)?;
    let name = names.pop().unwrap_or_default();
    let (setup, named) = (options.setup(0), name.clone());
    let graceful = setup.interrupt == Interrupt::Graceful;
    // Arguments for the next start, created before the present start. So objects in the arguments stay
    // referenced as long as there may be another start: a queue among them does not lose its last peer
    // meanwhile, and a channel is not disconnected.
    let mut ahead: Option<ChildPayload> = None;
    let group = Arc::new(ChildGroup::new([name].into_iter(), template.ranked));
    let weak = Arc::downgrade(&group);
    let mut next_start = move |attempt: u32| -> Result<_> {
        // The caller of a start, and the thread that restarts the process, hold the group.
        let over = || launch_error("the restart", None, std::io::Error::other("the process is over"));
        let group = weak.upgrade().ok_or_else(over)?;
        let reservation = reserve(template.properties.method, 1)?;
        let setup = if attempt > 1 { setup.clone().appending() } else { setup.clone() };
        let args = ahead.take().map_or_else(&mut pack, Ok)?;
        // If the arguments can't be created now, a later attempt may succeed.
        ahead = pack().ok();
        let order = template.order(0, named.clone(), attempt, setup, args)?;
        Ok((template.batch(&group), vec![order], reservation))
    };
    let (batch, orders, reservation) = next_start(1)?;
    let respawn = move |attempt| {
        let (batch, orders, reservation) = next_start(attempt)?;
        Ok(Box::new(move || batch::start(batch, orders, reservation)) as PreparedStart)
    };
    let respawn: Arc<RespawnFn> = Arc::new(Mutex::new(Box::new(respawn)));
    group.supervise(Supervision::new(terms, graceful, respawn)?);
    begin(batch, orders, reservation)
}

/// Starts the processes of a group for the first time.
fn begin(
    batch: Arc<StartBatch>,
    orders: Vec<LaunchOrder>,
    reservation: MemberReservation,
) -> Result<Arc<ChildGroup>> {
    let (group, method) = (Arc::clone(&batch.group), batch.properties.method);
    // At exit, the handler writes output that was read from the streams of the processes and not passed on.
    active::register_exit_handler();
    for order in orders.iter().filter(|order| order.setup.interrupt == Interrupt::Graceful) {
        sys::record_first_interrupt(order.setup.interrupt_signals.numbers(), is_child());
    }
    match batch::start(batch, orders, reservation) {
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

/// Encodes a start message and arguments as frames, to be sent with the file of the shared memory.
fn frames(start: &StartMessage, args: &[u8], memory: BorrowedFd<'static>) -> Result<Outbox> {
    let unsendable =
        |error: WireError| SpawnError::Arguments { who: None, message: error.to_string(), unread: None };
    let mut bytes = Vec::new();
    frame::append(&mut bytes, FrameKind::Start, &to_bytes(start)).map_err(unsendable)?;
    frame::append(&mut bytes, FrameKind::Args, args).map_err(unsendable)?;
    Ok(Outbox::new(bytes, memory))
}

/// Returns the settings that processes inherit from this process and these options.
fn settings(options: &SpawnOptions) -> Result<InheritedSettings> {
    #[cfg(feature = "log")]
    let log = crate::child::log_to_stderr::inherited_level();
    #[cfg(not(feature = "log"))]
    let log = None;
    #[cfg(feature = "authkey")]
    let key = Some(options.key()?);
    #[cfg(not(feature = "authkey"))]
    let _ = options;
    Ok(InheritedSettings {
        start: start_method::current_settings(),
        command: command::default_command(),
        #[cfg(feature = "authkey")]
        key,
        log,
    })
}
