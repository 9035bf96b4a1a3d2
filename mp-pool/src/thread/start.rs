//! Starting a worker in an empty place, and not too often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_spawn::{ExitStatus, Process, ProcessName, Raise, SpawnError};

use crate::child::work::{Orders, work};
use crate::dispatch::settings::AtStart;
use crate::dispatch::shared::{Exited, Shared};
use crate::error::PoolError;
use crate::error::attempts::worker_named;

/// Starts a worker in an empty place.
pub(crate) fn start(shared: &Arc<Shared>, number: usize) -> Result<(), PoolError> {
    let settings = &shared.settings;
    // Code of the user: what a worker is configured by, and what its initializer is sent with.
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
        // What the one before has written is what tells why it has ended.
        let builder = if first { builder } else { builder.replaces() };
        builder.spawn(work, orders)
    };
    let (tasks, watch, first) = {
        let state = shared.state.lock();
        let worker = &state.workers[number];
        (worker.tasks.clone(), worker.watch.clone(), number >= state.ever_started)
    };
    let process = Raise::catch(|| launch(tasks, watch, first)).map_err(|raise| {
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
    // It may have been over before this is called, and then calls at once: an event, no lock.
    process.on_exit(move || {
        if let Some(shared) = told.upgrade() {
            shared.exited(Exited { worker: number, pid });
        }
    });
    worker.process = Some(process);
    Ok(())
}

/// A worker could not be started in that place.
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

/// Why a worker that was started has ended before it was ready; `time` is what it had, if that was over.
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

/// Says once that a place has no worker while others do the tasks: else it would show in nothing but the speed.
pub(crate) fn tell_of_failed_starts(shared: &Shared, number: usize) {
    let failed = shared.state.lock().workers[number].failed_to_start(number);
    let Some(failed) = failed else { return };
    let pool = shared.settings.pool_name();
    mp_core::waits::tell(&format!(
        "mp: {pool}: {failed}\n  the other workers do its tasks; it is tried again, later each time, up to once a minute\n"
    ));
}

/// Process that an error is about.
fn who(error: &SpawnError) -> Option<&ProcessName> {
    match error {
        SpawnError::ProcessRaised(raised) => Some(&raised.who),
        SpawnError::ProcessExited(exited) => Some(&exited.who),
        _ => None,
    }
}

/// What became of a process, without the name that pools don't give it.
pub(crate) fn without_its_name(error: &SpawnError) -> String {
    let text = error.to_string();
    let Some(who) = who(error) else { return text };
    let Some(rest) = text.strip_prefix(&who.to_string()).map(str::trim_start) else { return text };
    rest.strip_prefix("failed: ").unwrap_or(rest).to_owned()
}
