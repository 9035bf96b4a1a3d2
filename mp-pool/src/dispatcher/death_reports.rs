//! Reports of workers that end. The errors of tasks report the lost tasks to callers.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Instant;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_spawn::{ExitStatus, FailureReports, RaisedKind, SpawnError};

use crate::dispatcher::shared::PoolShared;
use crate::dispatcher::start::without_process_name;

const SIGINT: i32 = 2;

/// Pools whose back-offs are listed in dumps.
static POOLS: PerProcess<Mutex<Vec<Weak<PoolShared>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

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
    /// intervals. No lock may be held.
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
        mp_core::waits::tell(&format!(
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
