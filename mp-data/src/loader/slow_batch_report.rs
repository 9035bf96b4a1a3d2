//! Reports of slow batches.

use std::time::Duration;

use mp_core::waits;
use mp_pool::RunningTask;

use crate::NotReadyError;
use crate::loader::prefetch::Prefetch;
use crate::loader::shared::Workers;
use crate::loader::source::{BatchSlot, BatchSlotState, BatchSource};

impl<K: BatchSource> Prefetch<K> {
    /// Returns epoch and number of the batch that the iterator waits for: the first unfinished batch, or the
    /// next batch to plan.
    fn awaited(&self) -> (u64, u64) {
        self.front().map_or_else(|| self.source.next(), |slot| (slot.epoch, slot.number))
    }

    fn front(&self) -> Option<&BatchSlot<K>> {
        self.slots.iter().find(|slot| !slot.is_done())
    }

    pub(crate) fn not_ready(&self) -> NotReadyError {
        NotReadyError { batch: Some(self.awaited()), running: self.running() }
    }

    /// Returns lines about the workers: the activity of each worker that makes a batch, or the states of all
    /// workers if no worker makes a batch.
    fn running(&self) -> Vec<String> {
        let running = self.stream.as_ref().map(|stream| stream.running()).unwrap_or_default();
        let mut lines: Vec<String> = running.iter().map(|task| self.line(task)).collect();
        if let (true, Workers::Pool { pool, .. }) = (lines.is_empty(), &self.inner.workers) {
            // Workers are starting, decode the dataset, or have not sent their batch.
            let metrics = pool.pool().metrics();
            lines.extend(metrics.workers.iter().map(|worker| format!("{worker}{}", stopped(worker.pid))));
            lines.extend(metrics.failed_starts.iter().map(ToString::to_string));
        }
        if let (1.., Some(last)) = (self.skipped_since, self.skipped_batches.last()) {
            let count = self.skipped_since;
            let which = if count == 1 { "1 batch was".into() } else { format!("{count} batches were") };
            lines.push(format!("{which} left out since the last one that was given; the last error: {last}"));
        }
        lines
    }

    fn line(&self, task: &RunningTask) -> String {
        let RunningTask { worker, pid, running_for, note, .. } = *task;
        let mut line = format!("worker {worker} (pid {pid}{}): ", stopped(pid));
        match self
            .slots
            .iter()
            .find(|slot| matches!(slot.state, BatchSlotState::Sent(ticket) if ticket == task.task))
        {
            None => line.push_str("an abandoned batch"),
            Some(slot) => {
                line.push_str(&format!("batch {} of epoch {}", slot.number, slot.epoch));
                if let Some(at) = note.and_then(|note| K::locate_failure(&slot.contents, note)) {
                    line.push_str(&format!(", sample {}", at.item.index));
                    if let Some(shard) = at.shard {
                        line.push_str(&format!(" of shard {shard}"));
                    }
                    if let Some(description) = self.described(&at) {
                        line.push_str(&format!(" ({description})"));
                    }
                }
            }
        }
        line + &format!(", for {running_for:.1?}")
    }

    /// Reports the wait for a batch, with the activities of the workers.
    pub(crate) fn report(&self, waited: Duration) {
        let (epoch, number) = self.awaited();
        let mut text = format!("mp: batch {number} of epoch {epoch} has been waited for {waited:.1?}\n");
        for line in self.running() {
            text.push_str(&format!("  {line}\n"));
        }
        waits::publish_report(&text);
    }
}

fn stopped(pid: u32) -> &'static str {
    if waits::is_stopped(pid) { ", stopped by a signal or a debugger" } else { "" }
}
