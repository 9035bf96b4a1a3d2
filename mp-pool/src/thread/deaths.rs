//! Reports of workers that end: which tasks they had, the tasks' callers learn from their errors.

use std::time::Instant;

use mp_spawn::{ExitStatus, FailureReports, RaisedKind, SpawnError};

use crate::dispatch::shared::Shared;
use crate::thread::start::without_its_name;

const SIGINT: i32 = 2;

/// A worker that has ended.
pub(crate) struct Death<'a> {
    pub(crate) number: usize,
    pub(crate) pid: u32,
    pub(crate) exit: ExitStatus,
    /// Its failure, if it was ready and the pool did not end it.
    pub(crate) failure: Option<&'a SpawnError>,
}

impl Death<'_> {
    /// Logs the end of the worker, and reports failures on stderr: the first at once, later ones at growing intervals. No lock may be
    /// held.
    pub(crate) fn tell(self, shared: &Shared, reports: &mut FailureReports) {
        // Where the pool ends, or has no tasks left and is closed, no worker follows.
        let is_replaced = shared.state.lock().is_serving();
        self.log(is_replaced);
        let Some(failure) = self.failure.filter(|failure| is_replaced && !is_interrupt(failure)) else {
            return;
        };
        let Some(failures) = reports.failed(Instant::now()) else { return };
        let Death { number, pid, .. } = self;
        let since = match failures {
            1 => String::new(),
            failures => format!(" ({failures} workers since the last report)"),
        };
        let (pool, failure) = (shared.settings.pool_name(), without_its_name(failure));
        let failure = failure.lines().next().unwrap_or_default();
        mp_core::waits::tell(&format!(
            "mp: {pool}: worker {number} (pid {pid}) failed and is replaced{since}: {failure}\n"
        ));
    }

    #[cfg(feature = "log")]
    fn log(&self, is_replaced: bool) {
        let Death { number, pid, exit, .. } = self;
        let level = if exit.success() { log::Level::Info } else { log::Level::Warn };
        let end = if is_replaced { ", and is replaced" } else { "" };
        // The logger is the program's.
        mp_core::user_code::caught(
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
