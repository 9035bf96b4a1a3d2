//! Texts of errors about batches. Failures of all layers are described in the terms of a loader.

use std::error::Error;
use std::fmt;

use mp_pool::{BrokenPool, TaskError};
use mp_spawn::{ExitReport, ProcessName, SpawnError};

use crate::LoadError;
use crate::error::failure::SOURCES;

/// Text of the error of a loader that a forked copy of the process has inherited.
pub(crate) const FORKED: &str =
    "the loader belongs to the process from which this one was forked: build one in this process";

/// Text of the error that replaces a batch if a loader without workers was closed.
pub(crate) const CLOSED: &str = "the loader is closed: it makes no more batches";

/// Error of a batch whose samples were all skipped, with the cause for each.
#[derive(thiserror::Error)]
#[error("no sample is left: {}", .0.join("; and "))]
pub(crate) struct NoSamplesLeft(pub(crate) Vec<String>);

mp_core::readable_debug!(NoSamplesLeft);

/// Returns the name of a batch in texts.
fn batch_name(epoch: u64, batch: u64) -> String {
    format!("batch {batch} of epoch {epoch}")
}

/// Removes the name of a batch from a text about the batch. Used after a text that has named the batch.
pub(crate) fn without_batch_name(text: &str, epoch: u64, batch: u64) -> &str {
    let rest = text.strip_prefix(&batch_name(epoch, batch));
    rest.and_then(|rest| rest.strip_prefix(", ").or(rest.strip_prefix(": "))).unwrap_or(text)
}

/// Returns the text of an error, with its backtrace if `full` is set.
fn text_of(error: &(dyn Error + 'static), full: bool) -> String {
    if full { format!("{error:#}") } else { error.to_string() }
}

/// Returns the text of an error without the process name, because its word `rank` has another meaning for a
/// trainer.
fn strip_process_name(text: String, who: &ProcessName) -> String {
    let Some(rest) = text.strip_prefix(&format!("{who} ")) else { return text };
    // The caller has already named the process.
    rest.strip_prefix("failed: ").unwrap_or(rest).to_owned()
}

/// Returns the worker's process id, and a text that describes the failure in that process.
fn task_text(error: &TaskError, full: bool) -> (Option<u32>, String) {
    match error {
        TaskError::Raised(raised) => {
            let raised = &raised.raised;
            let text = if full { format!("{raised:#}") } else { raised.to_string() };
            (Some(raised.who.pid), strip_process_name(text, &raised.who))
        }
        TaskError::WorkerLost(lost) => {
            let detail = lost.detail.as_ref();
            let end = ExitReport { exit: lost.exit, detail, stderr: lost.stderr.as_deref() };
            (Some(lost.pid), format!("its process {end}"))
        }
        TaskError::TimedOut { pid, timeout, .. } => {
            (Some(*pid), format!("it took more than {timeout:?}, and its process was killed for it"))
        }
        TaskError::Broken(broken) => (None, broken_text(broken, full)),
        TaskError::Terminated | TaskError::Closed { .. } | TaskError::Cancelled => {
            (None, "the workers were ended before it was made".to_owned())
        }
        TaskError::Arguments { why, .. } => (None, format!("its samples can't be sent to a worker: {why}")),
        TaskError::Value { why, .. } => {
            (None, format!("it was made, and can't be sent to the trainer: {why}"))
        }
        _ => (None, text_of(error, full)),
    }
}

fn broken_text(broken: &BrokenPool, full: bool) -> String {
    let BrokenPool { starts, why, cause, .. } = broken;
    let last = match cause.as_ref().map(|cause| (cause, cause.who())) {
        Some((cause @ (SpawnError::ProcessRaised(_) | SpawnError::ProcessExited(_)), Some(who))) => {
            let name =
                who.rank.map_or_else(String::new, |number| format!("worker {number} (pid {}): ", who.pid));
            name + &strip_process_name(text_of(cause, full), who)
        }
        _ => why.clone(),
    };
    if *starts == 0 {
        return format!("the loader has no workers left: {last}");
    }
    format!(
        "the loader has no workers left: {} failed; the last error: {last}",
        mp_core::quantity(starts, "start")
    )
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadError { epoch, batch, item, shard, description, worker, attempts, source } = self;
        f.write_str(&batch_name(*epoch, *batch))?;
        if source.is::<NoSamplesLeft>() {
            // The source names each sample.
            return write!(f, ": {source}");
        }
        if let Some(item) = item {
            write!(f, ", sample {}", item.index)?;
        }
        if let Some(shard) = shard {
            write!(f, " of shard {shard}")?;
        }
        if let Some(description) = description {
            write!(f, " ({description})")?;
        }
        if *attempts > 1 {
            write!(f, ", attempt {attempts}")?;
        }
        let full = f.alternate();
        let (pid, text) = match self.task() {
            Some(error) => task_text(error, full),
            None => (None, text_of(&**source, full)),
        };
        if let Some(worker) = worker {
            write!(f, ", worker {worker}")?;
        }
        if let (Some(pid), Some(_)) = (pid, worker) {
            write!(f, " (pid {pid})")?;
        }
        write!(f, ": {}", without_batch_name(&text, *epoch, *batch))
    }
}

/// Text printed by `unwrap`, and by a `main` that returns the error.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.task().is_some() || self.source.is::<NoSamplesLeft>() {
            // The text contains the source.
            return fmt::Display::fmt(self, f);
        }
        let mut shown = self.to_string();
        f.write_str(&shown)?;
        let sources = std::iter::successors(self.source.source(), |error| (*error).source());
        for source in sources.take(SOURCES) {
            let text = source.to_string();
            if !shown.contains(&text) {
                write!(f, "\n  caused by: {text}")?;
                shown.push_str(&text);
            }
        }
        Ok(())
    }
}
