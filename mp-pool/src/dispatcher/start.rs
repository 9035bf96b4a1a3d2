//! Starts of workers in empty slots, with a back-off, and reports of workers that end. Callers receive the
//! lost tasks as errors.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_spawn::{CallFailure, ExitStatus, FailureReports, Process, ProcessName, RaisedKind, SpawnError};

use crate::child::main_loop::{WorkerArgs, worker_main};
use crate::child::task_span::WorkerLabel;
use crate::dispatcher::settings::WorkerStartup;
use crate::dispatcher::shared::{PoolShared, WorkerExit};
use crate::error::{PoolError, worker_named};
#[cfg(feature = "net")]
use crate::forward::forwarder::{ForwarderArgs, forwarder_main};
#[cfg(feature = "net")]
use crate::forward::places::ForwarderPlace;

/// Starts a worker in an empty slot.
pub(crate) fn start(shared: &Arc<PoolShared>, number: usize) -> Result<(), PoolError> {
    let settings = &shared.settings;
    let builder = |first: bool| {
        let builder = Process::builder().name(settings.worker_name(number)).number(number).daemon(true);
        let builder = settings.configured(number, builder);
        // Output of the previous worker is kept, because it shows why that worker ended.
        if first { builder } else { builder.replaces() }
    };
    // Calls user code: the configuration of a worker, and the encoding of its initializer.
    let launch = |tasks, shared_words, first| {
        let WorkerStartup { initializer, state } = shared.startup();
        let args = WorkerArgs {
            worker: number,
            label: WorkerLabel::new(settings.name.as_deref(), number),
            tasks,
            replies: shared.replies.clone(),
            shared_words,
            most_tasks: settings.most_tasks,
            initializer,
            state,
        };
        builder(first).spawn(worker_main, args)
    };
    #[cfg(feature = "net")]
    let forward = |place: ForwarderPlace, tasks, shared_words, first| {
        let ForwarderPlace { from, service, .. } = place;
        let replies = shared.replies.clone();
        let args = ForwarderArgs { worker: number, tasks, replies, shared_words, from, service };
        builder(first).spawn(forwarder_main, args)
    };
    let (tasks, shared_words, first, _used, _has_failed) = {
        let state = shared.state.lock();
        let worker = &state.workers[number];
        let others = state.workers.iter().take(state.wanted);
        let others = others.filter(|worker| worker.process.is_some() && worker.is_staying());
        let used: Vec<Option<u64>> = others.map(|worker| worker.place).collect();
        let first = number >= state.ever_started;
        (worker.tasks.clone(), worker.shared_words.clone(), first, used, worker.failed_starts > 0)
    };
    #[cfg(feature = "net")]
    let (place, forwarder, started) = match shared.places.choose(&_used, _has_failed) {
        Some(place) => {
            let (id, forwarder) = (place.id, Some(place.clone()));
            (Some(id), forwarder, CallFailure::catch(|| forward(place, tasks, shared_words, first)))
        }
        None => (None, None, CallFailure::catch(|| launch(tasks, shared_words, first))),
    };
    #[cfg(not(feature = "net"))]
    let (place, started) = (None, CallFailure::catch(|| launch(tasks, shared_words, first)));
    let process = started.map_err(|raise| {
        let why = raise.message();
        PoolError::Settings(format!("what worker {number} is to be started with panicked: {why}"))
    })??;
    let pid = process.pid();
    let reported = Arc::downgrade(shared);
    let mut state = shared.state.lock();
    state.restarts += u64::from(!first);
    state.publish();
    state.workers[number].is_new = !first;
    state.ever_started = state.ever_started.max(number + 1);
    let worker = &mut state.workers[number];
    (worker.pid, worker.place) = (pid, place);
    #[cfg(feature = "net")]
    {
        worker.forwarder = forwarder;
    }
    worker.starts_since = Some(Instant::now());
    worker.restart_at = None;
    // If the process has already ended, this call runs the closure at once. The closure locks only the
    // events, not the state, which is locked here.
    process.on_exit(move || {
        if let Some(shared) = reported.upgrade() {
            shared.record_exit(WorkerExit { worker: number, pid });
        }
    });
    worker.process = Some(process);
    worker.publish();
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

/// Returns the reason why a worker ended before it was ready. `time` is the time limit of the start, if it
/// was exceeded.
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

/// Reports once on stderr that a slot has no worker while other workers run the tasks. Without the report,
/// only the speed of the pool would show this.
pub(crate) fn report_failed_starts(shared: &PoolShared, number: usize) {
    let failed = shared.state.lock().workers[number].failed_to_start(number);
    let Some(failed) = failed else { return };
    let pool = shared.settings.pool_name();
    mp_core::waits::publish_report(&format!(
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

const SIGINT: i32 = 2;

/// Pools whose back-offs are listed in dumps.
static POOLS: PerProcess<Mutex<Vec<Weak<PoolShared>>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Lists the back-offs of a pool's workers in dumps, for the life of the pool.
pub(crate) fn list_in_dumps(shared: &Arc<PoolShared>) {
    mp_core::waits::add_to_dumps(restart_lines);
    let mut pools = POOLS.lock();
    pools.retain(|pool| pool.strong_count() > 0);
    pools.push(Arc::downgrade(shared));
}

/// Returns a line for each worker that waits for its next start.
fn restart_lines() -> String {
    let pools: Vec<_> = POOLS.lock().iter().filter_map(Weak::upgrade).collect();
    let (mut text, now) = (String::new(), Instant::now());
    for pool in pools {
        let state = pool.state.lock();
        let waiting = state.workers.iter().enumerate().filter(|(_, worker)| worker.process.is_none());
        for (number, worker) in waiting.filter(|_| state.is_serving()) {
            let Some(at) = worker.restart_at else { continue };
            let left = at.saturating_duration_since(now);
            _ = write!(
                text,
                "mp: worker {number} of {} is started again in {left:.1?}",
                pool.settings.pool_name()
            );
            if worker.failed_starts > 0 {
                let why = worker.failed_why.lines().next().unwrap_or_default();
                _ = write!(text, ", after {} failed starts: {why}", worker.failed_starts);
            }
            text.push('\n');
        }
    }
    text
}

/// Report of a worker that has ended.
pub(crate) struct WorkerDeath<'a> {
    pub(crate) number: usize,
    pub(crate) pid: u32,
    pub(crate) exit: ExitStatus,
    /// Failure of the worker, if it was ready and the pool did not end it.
    pub(crate) failure: Option<&'a SpawnError>,
}

impl WorkerDeath<'_> {
    /// Logs the end of the worker, and reports failures on stderr: the first at once, later ones at growing
    /// intervals. The caller must hold no lock.
    pub(crate) fn report(self, shared: &PoolShared, reports: &mut FailureReports) {
        // A worker is not replaced if the pool is ending, has shrunk, or is closed without tasks.
        let is_replaced = {
            let state = shared.state.lock();
            state.is_serving() && self.number < state.wanted
        };
        self.log(is_replaced);
        let Some(failure) = self.failure.filter(|failure| is_replaced && !is_interrupt(failure)) else {
            return;
        };
        let Some(failures) = reports.failed(Instant::now()) else { return };
        let WorkerDeath { number, pid, .. } = self;
        let since = match failures {
            1 => String::new(),
            failures => format!(" ({failures} workers since the last report)"),
        };
        let (pool, failure) = (shared.settings.pool_name(), without_process_name(failure));
        let failure = failure.lines().next().unwrap_or_default();
        mp_core::waits::publish_report(&format!(
            "mp: {pool}: worker {number} (pid {pid}) failed and is replaced{since}: {failure}\n"
        ));
    }

    #[cfg(feature = "log")]
    fn log(&self, is_replaced: bool) {
        let WorkerDeath { number, pid, exit, .. } = self;
        let level = if exit.success() { log::Level::Info } else { log::Level::Warn };
        let end = if is_replaced { ", and is replaced" } else { "" };
        // The logger belongs to the program and may panic.
        mp_core::user_code::catch_panic(
            || log::log!(target: "mp::pool", level, "worker {number} (pid {pid}) {exit}{end}"),
        );
    }

    #[cfg(not(feature = "log"))]
    fn log(&self, _: bool) {
        let _ = self.exit;
    }
}

fn is_interrupt(failure: &SpawnError) -> bool {
    match failure {
        SpawnError::ProcessRaised(raised) => raised.kind == RaisedKind::Interrupted,
        SpawnError::ProcessExited(exited) => {
            matches!(exited.exit, ExitStatus::Signal { signal, .. } if signal.number() == SIGINT)
        }
        _ => false,
    }
}
