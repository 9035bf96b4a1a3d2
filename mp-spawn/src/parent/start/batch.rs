//! Processes that are started together, and their start, one after the other.

use std::collections::VecDeque;
use std::io;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use crate::error::{Result, SpawnError, launch_error};
use crate::io::streams::OutputStreams;
use crate::parent::fork_server;
use crate::parent::group::ChildGroup;
use crate::parent::launch::command::LaunchCommand;
use crate::parent::launch::{self, fork};
use crate::parent::start::member_quota::MemberReservation;
use crate::parent::supervisor;
use crate::parent::supervisor::child::LaunchOrder;
use crate::parent::supervisor::diagnosis::StartProperties;
use crate::parent::supervisor::shared::{StartJob, Supervisor, thread_ended};
use crate::protocol::frame::WireError;
use crate::protocol::lifeline;
use crate::protocol::outbox::StreamEnds;
use crate::start_method::StartMethod;
use crate::sys;

/// Processes that wait to be started, in order.
pub(crate) type LaunchOrders = VecDeque<LaunchOrder>;

/// Processes of one start, to be started.
#[derive(Debug)]
pub(crate) struct StartBatch {
    pub(crate) command: LaunchCommand,
    pub(crate) group: Arc<ChildGroup>,
    pub(crate) properties: Arc<StartProperties>,
    pub(crate) orders: LaunchOrders,
    pub(crate) reservation: MemberReservation,
}

/// Starts the processes of a batch, in order. Blocks until all run, or until one could not be started. In the
/// latter case the running ones have been sent a SIGKILL.
pub(crate) fn start(batch: StartBatch) -> Result<()> {
    let supervisor = supervisor::get()?;
    // Processes made by a fork server are children of the thread that started the server.
    if sys::on_main_thread() || batch.properties.method == StartMethod::ForkServer {
        return start_here(&supervisor, batch);
    }
    if batch.properties.method == StartMethod::Fork {
        // Buffered output belongs to the calling thread, which may be printing. A copy of another thread
        // would write it again.
        let _ = io::stdout().flush();
    }
    let (reply, answer) = channel();
    let job = BatchJob { batch, started: Vec::new(), reply, supervisor: Arc::clone(&supervisor) };
    supervisor.submit(Box::new(job))?;
    answer.recv().unwrap_or_else(|_| Err(thread_ended()))
}

/// Start of a batch on the supervisor thread.
#[derive(Debug)]
struct BatchJob {
    batch: StartBatch,
    /// Numbers of the running processes of the batch.
    started: Vec<u64>,
    reply: Sender<Result<()>>,
    supervisor: Arc<Supervisor>,
}

impl StartJob for BatchJob {
    fn step(mut self: Box<Self>) -> Option<Box<dyn StartJob>> {
        let outcome = match self.batch.orders.pop_front() {
            None => Ok(()),
            Some(order) => launch(&self.supervisor, &self.batch, order).map(|id| self.started.push(id)),
        };
        if outcome.is_ok() && !self.batch.orders.is_empty() {
            return Some(self);
        }
        let BatchJob { batch, started, reply, supervisor } = *self;
        if outcome.is_err() {
            supervisor.kill(&started);
        }
        // Frees the reserved places before the caller learns of the failure and may retry.
        drop(batch);
        // The requesting thread may have ended. Its context still exists.
        let _ = reply.send(outcome);
        None
    }

    fn fail(self: Box<Self>, error: SpawnError) {
        let _ = self.reply.send(Err(error));
    }
}

/// Starts the processes of a batch from the calling thread.
fn start_here(supervisor: &Supervisor, mut batch: StartBatch) -> Result<()> {
    let mut started = Vec::new();
    while let Some(order) = batch.orders.pop_front() {
        match launch(supervisor, &batch, order) {
            Ok(id) => started.push(id),
            Err(error) => {
                supervisor.kill(&started);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Starts one process and begins to watch it. Returns its number. The kernel ends the process when the
/// calling thread ends.
fn launch(supervisor: &Supervisor, batch: &StartBatch, mut order: LaunchOrder) -> Result<u64> {
    let name = batch.group.name(order.rank);
    let mut launch_options = batch.command.launch_options(&order.setup)?;
    let (streams, ends) = OutputStreams::open(&order.setup, order.rank, &name)?;
    let refused = |error: WireError| {
        let error = io::Error::new(io::ErrorKind::InvalidInput, error);
        launch_error("the setting of environment variables", None, error)
    };
    let LaunchOrder { setup, outbox, .. } = &mut order;
    let launched = match batch.properties.method {
        StartMethod::Spawn => {
            launch_options.ends = ends;
            let launched = launch::launch(&batch.command, &launch_options)?;
            // Done only now, because the process takes some time until it needs this data.
            let addressed = lifeline::new_end().and_then(|end| {
                outbox.prepend(end, StreamEnds::default(), &Vec::new(), &[]).map_err(refused)
            });
            if let Err(error) = addressed {
                launched.handle.end(None);
                return Err(error);
            }
            launched
        }
        StartMethod::ForkServer => {
            outbox.prepend(None, ends, &setup.environment, &launch_options.files).map_err(refused)?;
            fork_server::launch(&batch.command, outbox, batch.properties.timeout)?
        }
        StartMethod::Fork => {
            launch_options.ends = ends;
            outbox.prepend(lifeline::new_end()?, StreamEnds::default(), &Vec::new(), &[]).map_err(refused)?;
            supervisor.with_unneeded_files(|files| fork::launch(launch_options, setup, outbox, files))?
        }
    };
    batch.group.set_streams(order.rank, streams);
    let id = supervisor.watch(&batch.group, &batch.properties, order, launched)?;
    // Done only now, because a thread that reserves room locks the reservations first and the children
    // second. For a moment the process counts twice.
    batch.reservation.release_one();
    Ok(id)
}
