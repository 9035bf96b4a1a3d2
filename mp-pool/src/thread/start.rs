//! Starts of workers in empty slots, with a back-off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_spawn::{CallFailure, ExitStatus, Process, ProcessName, SpawnError};

use crate::child::work::{Orders, work};
use crate::dispatch::settings::AtStart;
use crate::dispatch::shared::{Exited, Shared};
use crate::error::PoolError;
use crate::error::attempts::worker_named;

/// Starts a worker in an empty slot.
pub(crate) fn start(shared: &Arc<Shared>, number: usize) -> Result<(), PoolError> {
    let settings = &shared.settings;
    // Calls user code: the configuration of a worker, and the encoding of its initializer.
    let launch = |tasks, watch, first| {
        let AtStart { initializer, state } = shared.at_start();
        let orders = Orders {
            worker: number,
            tasks,
            replies: shared.replies.clone(),
            watch,
            most_tasks: settings.most_tasks,
            initializer,
            state,
        };
        let builder = Process::builder().name(settings.worker_name(number)).number(number).daemon(true);
        let builder = settings.configured(number, builder);
        // Output of the previous worker is kept, because it shows why that worker ended.
        let builder = if first { builder } else { builder.replaces() };
        builder.spawn(work, orders)
    };
    let (tasks, watch, first) = {
        let state = shared.state.lock();
        let worker = &state.workers[number];
        (worker.tasks.clone(), worker.watch.clone(), number >= state.ever_started)
    };
    let process = CallFailure::catch(|| launch(tasks, watch, first)).map_err(|raise| {
        let why = raise.message();
        PoolError::Settings(format!("what worker {number} is to be started with panicked: {why}"))
    })??;
    let pid = process.pid();
    let told = Arc::downgrade(shared);
    let mut state = shared.state.lock();
    state.restarts += u64::from(!first);
    state.ever_started = state.ever_started.max(number + 1);
    let worker = &mut state.workers[number];
    worker.pid = pid;
    worker.starts_since = Some(Instant::now());
    worker.restart_at = None;
    // The process may have ended before this call, which then calls the closure at once: it adds an event,
    // and takes no lock.
    process.on_exit(move || {
        if let Some(shared) = told.upgrade() {
            shared.exited(Exited { worker: number, pid });
        }
    });
    worker.process = Some(process);
    Ok(())
}

/// Records that a worker could not be started in this slot.
pub(crate) fn not_started(shared: &Shared, number: usize, why: String) {
    let tell = {
        let mut state = shared.state.lock();
        let others_work = state.others_work(number);
        state.workers[number].start_failed(Instant::now(), why, others_work)
    };
    if tell {
        tell_of_failed_starts(shared, number);
    }
}

/// Returns the reason why a worker ended before it was ready. `time` is its time limit, if it was exceeded.
pub(crate) fn why_not_ready(
    (number, pid): (usize, u32),
    failure: Option<&SpawnError>,
    time: Option<Duration>,
    exit: ExitStatus,
) -> String {
    match (failure, time) {
        (_, Some(time)) => {
            format!("worker {number} (pid {pid}) was not ready within {time:?}, and was killed")
        }
        (Some(error), None) => match who(error) {
            Some(who) => {
                let text = error.to_string();
                let rest = text.strip_prefix(&who.to_string());
                rest.map_or(text.clone(), |rest| worker_named(number, who) + rest)
            }
            None => error.to_string(),
        },
        (None, None) => format!("worker {number} (pid {pid}) {exit} before it was ready"),
    }
}

/// Reports once on stderr that a slot has no worker while other workers run the tasks. Otherwise only the
/// speed would show it.
pub(crate) fn tell_of_failed_starts(shared: &Shared, number: usize) {
    let failed = shared.state.lock().workers[number].failed_to_start(number);
    let Some(failed) = failed else { return };
    let pool = shared.settings.pool_name();
    mp_core::waits::tell(&format!(
        "mp: {pool}: {failed}\n  the other workers do its tasks; it is tried again, later each time, up to once a minute\n"
    ));
}

/// Returns the process that an error is about.
fn who(error: &SpawnError) -> Option<&ProcessName> {
    match error {
        SpawnError::ProcessRaised(raised) => Some(&raised.who),
        SpawnError::ProcessExited(exited) => Some(&exited.who),
        _ => None,
    }
}

/// Returns the text of an error without the name of the process.
pub(crate) fn without_its_name(error: &SpawnError) -> String {
    let text = error.to_string();
    let Some(who) = who(error) else { return text };
    let Some(rest) = text.strip_prefix(&who.to_string()).map(str::trim_start) else { return text };
    rest.strip_prefix("failed: ").unwrap_or(rest).to_owned()
}
