//! Logger that prints to stderr, for this process and the processes that it starts.

use std::io::Write;
use std::sync::OnceLock;

use log::{LevelFilter, Log, Metadata, Record, SetLoggerError};

use crate::child::current;

/// Logger that prints to standard error.
#[derive(Debug)]
struct StderrLogger;

/// Set in a process that uses this logger. A forked copy of the process inherits the value.
// fork: the logger of the program is copied along. If a copy was made during `set_logger`, it sets the logger
// itself, or has none.
static OURS: OnceLock<()> = OnceLock::new();

impl Log for StderrLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let name = current::name().unwrap_or("main");
            // Written in one piece, so that lines of several processes are not mixed.
            let line = format!("[{}/{name}] {}\n", record.level(), record.args());
            // A failure can't be reported.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

/// Prints records of the [`log`](https://docs.rs/log) crate, at this level and above, to standard error, in
/// this process and in processes that it starts later. A line is `[INFO/rank-3] ...`, with the name of the
/// process. May be called again with another level.
///
/// ```
/// use mp_spawn::{SpawnOptions, Stdio, log_to_stderr, start_processes};
///
/// log_to_stderr(log::LevelFilter::Debug)?;
/// log::info!("this is printed as [INFO/main]");
/// let worker = |_: usize, (): ()| log::info!("and this as [INFO/rank-0]");
/// let workers = start_processes(worker, (), SpawnOptions::nprocs(1).stderr(Stdio::Capture))?;
/// workers.wait()?;
/// assert!(workers.stderr(0)?.text().ends_with("[INFO/rank-0] and this as [INFO/rank-0]\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With the feature `log`, this crate logs events of processes, with targets that begin with `mp::`:
///
/// | level | events |
/// |---|---|
/// | warn | a process failed; a fork server ended, or was replaced; a worker of a pool ended early |
/// | info | a process was started; a process ended |
/// | debug | a fork server was started; a worker calls its function; the resources of crashed processes were released |
///
/// Any logger gets these events. A program's own logger must be set in workers as well, in their function.
/// Python's `get_logger` corresponds to [`log::logger`](https://docs.rs/log/latest/log/fn.logger.html), and
/// its levels `SUBDEBUG` and `SUBWARNING` to `Trace` and `Warn`.
///
/// # Errors
///
/// Returns an error if the program has another logger.
#[doc(alias = "get_logger")]
pub fn log_to_stderr(level: LevelFilter) -> Result<(), SetLoggerError> {
    if OURS.get().is_none() {
        log::set_logger(&StderrLogger)?;
        _ = OURS.set(());
    }
    log::set_max_level(level);
    Ok(())
}

/// Returns the level of this logger, which started processes inherit, or `None` if the logger is not set.
pub(crate) fn inherited_level() -> Option<String> {
    OURS.get().map(|()| log::max_level().to_string())
}

/// Sets the logger with the level of the parent, in a process that was just started.
pub(crate) fn inherit(level: Option<String>) {
    if let Some(level) = level.and_then(|level| level.parse().ok()) {
        // Fails only if a constructor of the program has set a logger, which then stays.
        let _ = log_to_stderr(level);
    }
}
