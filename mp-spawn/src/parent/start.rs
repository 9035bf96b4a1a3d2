//! Starting: from a function, arguments and options to processes that run.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::failed;
use crate::error::{Result, SpawnError};
use crate::parent::child_state::{Common, Order};
use crate::parent::group::Group;
use crate::parent::launch::Command;
use crate::parent::launch::fork;
use crate::parent::member_quota;
use crate::parent::options::SpawnOptions;
use crate::parent::supervisor::{self, Batch};
use crate::protocol::command;
use crate::protocol::frame::{self, Kind, WireError};
use crate::protocol::function::loaded_objects;
use crate::protocol::function::{Desc, FunctionRef};
use crate::protocol::interrupt::Interrupt;
use crate::protocol::message::Start;
use crate::protocol::outbox::Outbox;
use crate::protocol::payload::ToChild;
use crate::protocol::settings::Settings;
use crate::protocol::token;
use crate::start_method::{self, Chosen, StartMethod, get_all_start_methods, get_start_method};
use crate::sys::log_event::{self, event};
use crate::sys::note_first_interrupt;

/// What is to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) function: FunctionRef,
    /// Whether it returns something to be sent.
    pub(crate) returns: bool,
    pub(crate) daemon: bool,
    /// Whether they are told apart by their ranks.
    pub(crate) ranked: bool,
    pub(crate) names: Names,
}

/// What the processes of a start are called.
#[derive(Debug)]
pub(crate) enum Names {
    One(String),
    /// By rank: this many, with this prefix. The number comes from users, and nothing is made of it before it is checked.
    Ranks(String, usize),
}

impl Names {
    fn count(&self) -> usize {
        match self {
            Names::One(_) => 1,
            Names::Ranks(_, count) => *count,
        }
    }

    fn all(self) -> Vec<String> {
        match self {
            Names::One(name) => vec![name],
            Names::Ranks(prefix, count) => (0..count).map(|rank| format!("{prefix}-{rank}")).collect(),
        }
    }
}

/// A reference to a function of this program.
pub(crate) fn reference<E: 'static>(desc: &'static Desc<E>) -> Result<FunctionRef> {
    let unknown =
        || std::io::Error::other("this program's build can't be identified: link it with a build-id");
    desc.reference().ok_or_else(|| failed("the lookup", None, unknown()))
}

/// Starts processes. `pack` makes what is sent to each rank.
pub(crate) fn start(
    plan: Plan,
    options: &SpawnOptions,
    mut pack: impl FnMut(usize) -> Result<ToChild>,
) -> Result<Arc<Group>> {
    if token::unconsumed() {
        return Err(SpawnError::NotInitialised);
    }
    let Plan { function, returns, daemon, ranked, names } = plan;
    let method = options.method.unwrap_or_else(get_start_method);
    if method == StartMethod::Fork {
        fork::check()?;
    }
    let room = member_quota::reserve(names.count())?;
    let names = names.all();
    let settings = settings(options)?;
    let command = Command::new(options.command.as_ref(), &function)?;
    let library = loaded_objects::file_of(&function.object);
    let group = Arc::new(Group::new(names.iter().cloned(), ranked));
    let common = Common {
        group: Arc::clone(&group),
        program: Arc::new(command.program.clone()),
        function: Arc::from(function.name.as_str()),
        timeout: options.handshake,
        returns,
        method,
    };
    let order = |(rank, name): (usize, String)| {
        let setup = options.setup(rank);
        let ToChild { bytes, memory, parcel } = pack(rank)?;
        let (directory, processors) = (setup.directory.clone(), setup.processors.clone());
        let start = Start {
            rank,
            ranked,
            name,
            function: function.clone(),
            library: library.clone(),
            daemon,
            interrupt: setup.interrupt,
            settings: settings.clone(),
            directory,
            processors,
        };
        Ok(Order { rank, outbox: frames(&start, &bytes, memory)?, parcel, setup })
    };
    let orders: VecDeque<Order> = names.into_iter().enumerate().map(order).collect::<Result<_>>()?;
    if orders.iter().any(|order| order.setup.interrupt == Interrupt::Graceful) {
        note_first_interrupt();
    }
    match supervisor::start(Batch { command, common, orders, room }) {
        Ok(()) => {
            let started = if log_event::wanted() { group.pids() } else { Vec::new() };
            for (rank, pid) in started.into_iter().enumerate() {
                event!(Info, "{} (pid {pid}) was started by {method}", group.name(rank));
            }
            Ok(group)
        }
        Err(error) => {
            group.reap_incomplete();
            Err(error)
        }
    }
}

/// The frames of a start message, and the shared memory.
fn frames(start: &Start, args: &[u8], memory: BorrowedFd<'static>) -> Result<Outbox> {
    let unsendable = |error: WireError| SpawnError::Arguments { who: None, message: error.to_string() };
    let mut bytes = Vec::new();
    frame::append(&mut bytes, Kind::Start, &start.to_bytes()).map_err(unsendable)?;
    frame::append(&mut bytes, Kind::Args, args).map_err(unsendable)?;
    Ok(Outbox::new(bytes, memory))
}

/// What processes take over from this one, with these options.
fn settings(options: &SpawnOptions) -> Result<Settings> {
    let Chosen { method, fork } = start_method::chosen();
    let method = get_all_start_methods().iter().position(|one| *one == method).unwrap_or(0);
    #[cfg(feature = "log")]
    let log = crate::child::log_to_stderr::handed_down();
    #[cfg(not(feature = "log"))]
    let log = None;
    #[cfg(feature = "authkey")]
    let key = Some(options.key()?);
    #[cfg(not(feature = "authkey"))]
    let _ = options;
    Ok(Settings {
        method,
        fork,
        command: command::usual(),
        #[cfg(feature = "authkey")]
        key,
        log,
    })
}
