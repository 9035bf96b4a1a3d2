//! Starts of workers in empty slots, with a back-off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_spawn::{CallFailure, ExitStatus, Process, ProcessName, SpawnError};

use crate::dispatcher::settings::WorkerStartup;
use crate::dispatcher::shared::{PoolShared, WorkerExit};
use crate::error::PoolError;
use crate::error::worker_named;
use crate::worker::main_loop::{WorkerArgs, worker_main};

/// Starts a worker in an empty slot.
pub(crate) fn start(shared: &Arc<PoolShared>, number: usize) -> Result<(), PoolError> {
    let settings = &shared.settings;
    // Calls user code: the configuration of a worker, and the encoding of its initializer.
    let launch = |tasks, shared_words, first| {
        let WorkerStartup { initializer, state } = shared.startup();
        let args = WorkerArgs {
            worker: number,
            tasks,
            replies: shared.replies.clone(),
            shared_words,
            most_tasks: settings.most_tasks,
            initializer,
            state,
        };
        let builder = Process::builder().name(settings.worker_name(number)).number(number).daemon(true);
        let builder = settings.configured(number, builder);
        // Output of the previous worker is kept, because it shows why that worker ended.
        let builder = if first { builder } else { builder.replaces() };
        builder.spawn(worker_main, args)
    };
    let (tasks, shared_words, first) = {
        let state = shared.state.lock();
        let worker = &state.workers[number];
        (worker.tasks.clone(), worker.shared_words.clone(), number >= state.ever_started)
    };
    let process = CallFailure::catch(|| launch(tasks, shared_words, first)).map_err(|raise| {
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
            shared.record_exit(WorkerExit { worker: number, pid });
        }
    });
    worker.process = Some(process);
    Ok(())
}

/// Records that a worker could not be started in this slot.
pub(crate) fn not_started(shared: &PoolShared, number: usize, why: String) {
    let report = {
        let mut state = shared.state.lock();
        let has_other_ready = state.has_other_ready(number);
        state.workers[number].start_failed(Instant::now(), why, has_other_ready)
    };
    if report {
        report_failed_starts(shared, number);
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
pub(crate) fn report_failed_starts(shared: &PoolShared, number: usize) {
    let failed = shared.state.lock().workers[number].failed_to_start(number);
    let Some(failed) = failed else { return };
    let pool = shared.settings.pool_name();
    mp_core::waits::tell(&format!(
        "mp: {pool}: {failed}\n  the other workers do its tasks; it is tried again, later each time, up to \
        once a \
         minute\n"
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
pub(crate) fn without_process_name(error: &SpawnError) -> String {
    let text = error.to_string();
    let Some(who) = who(error) else { return text };
    let Some(rest) = text.strip_prefix(&who.to_string()).map(str::trim_start) else { return text };
    rest.strip_prefix("failed: ").unwrap_or(rest).to_owned()
}
