//! Start of several processes by one call, one process after the other.

use std::io;
use std::io::Write as _;
use std::sync::Arc;

use rustix::event::Timespec;

use crate::error::{Result, launch_error};
use crate::io::streams::OutputStreams;
use crate::parent::group::ChildGroup;
use crate::parent::launch::command::LaunchCommand;
use crate::parent::launch::{self, fork};
use crate::parent::start::member_quota::MemberReservation;
use crate::parent::supervisor::child::LaunchOrder;
use crate::parent::supervisor::diagnosis::StartProperties;
use crate::parent::supervisor::shared::Supervisor;
use crate::parent::{fork_server, supervisor};
use crate::protocol::frame::WireError;
use crate::protocol::lifeline;
use crate::protocol::outbox::StreamEnds;
use crate::start_method::StartMethod;
use crate::sys;
use crate::sys::start_span::SpanContext;

/// Common data of the processes of one start.
pub(crate) struct StartBatch {
    pub(crate) command: LaunchCommand,
    pub(crate) group: Arc<ChildGroup>,
    pub(crate) properties: Arc<StartProperties>,
    pub(crate) context: SpanContext,
}

/// Starts processes, in order. Blocks until all processes run. If a process can't be started, sends SIGKILL
/// to the running processes and returns the error.
pub(crate) fn start(
    batch: Arc<StartBatch>,
    orders: Vec<LaunchOrder>,
    reservation: MemberReservation,
) -> Result<()> {
    let (supervisor, method) = (supervisor::get()?, batch.properties.method);
    if method == StartMethod::Fork && !sys::on_main_thread() {
        // Flushed by the calling thread, which may hold the lock of stdout because it prints. Otherwise a
        // copy made by another thread would write the buffered output again.
        let _ = io::stdout().flush();
    }
    // The reserved places are released before the caller gets an error and may retry.
    let start = move || start_here(&supervisor, &batch, orders, &reservation);
    // Processes made by a fork server are children of the thread that started the server.
    if method == StartMethod::ForkServer { start() } else { supervisor::run_on_lasting_thread(start) }
}

/// Starts the processes from the calling thread.
fn start_here(
    supervisor: &Supervisor,
    batch: &StartBatch,
    orders: Vec<LaunchOrder>,
    reservation: &MemberReservation,
) -> Result<()> {
    let mut started = Vec::new();
    for order in orders {
        if supervisor::is_this_thread() {
            // Events of running processes don't wait for the end of all starts.
            let _ = supervisor.handle_events(Some(&Timespec::default()));
        }
        match launch(supervisor, batch, order) {
            Ok(id) => started.push(id),
            Err(error) => {
                supervisor.kill(&started);
                return Err(error);
            }
        }
        reservation.release_one();
    }
    Ok(())
}

/// Starts one process and begins to watch it. Returns the number of the process in the supervisor. The kernel
/// ends the process when the calling thread ends.
fn launch(supervisor: &Supervisor, batch: &StartBatch, mut order: LaunchOrder) -> Result<u64> {
    let who = batch.group.process_name(order.rank);
    order.span = batch.context.begin(&who, batch.properties.method);
    let mut launch_options = batch.command.launch_options(&order.setup)?;
    let (streams, ends) = OutputStreams::open(&order.setup, order.rank, &who.name)?;
    let refused = |error: WireError| {
        let error = io::Error::new(io::ErrorKind::InvalidInput, error);
        launch_error("the setting of environment variables", None, error)
    };
    let LaunchOrder { setup, outbox, .. } = &mut order;
    let launched = match batch.properties.method {
        StartMethod::Spawn => {
            launch_options.ends = ends;
            let launched = launch::launch(&batch.command, &launch_options)?;
            // Done after the start, because the process takes some time until it needs this data.
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
    order.span.record_pid(sys::pid_number(launched.pid));
    batch.group.with_rank(order.rank, |rank| rank.streams = streams);
    let id = supervisor.watch(&batch.group, &batch.properties, order, launched)?;
    // The caller releases the reservation after this return, without the lock of the children: a thread that
    // reserves room locks the reservations first and the children second. For a moment the process counts
    // twice.
    Ok(id)
}
