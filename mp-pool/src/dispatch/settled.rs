//! Outcomes for calls: collected under a lock, delivered when no lock is held.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::calls::chunk::{Chunk, Kept};
use crate::calls::job::{Job, Left, Lost};
use crate::calls::outcomes::Run;
use crate::calls::source::Rubbish;
use crate::dispatch::shared::Shared;
use crate::error::TaskError;
use crate::workers::later::Later;

/// Failed task that a worker had begun and that may be retried.
pub(crate) struct Failed {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    /// Number of earlier attempts.
    pub(crate) tries: u32,
    pub(crate) kept: Option<Kept>,
    pub(crate) error: TaskError,
    pub(crate) ran: Option<Duration>,
}

/// Outcomes that are delivered on drop, also during a panic, when no lock is held: create the value before
/// taking a lock, so that it is dropped after the lock.
pub(crate) struct Settled<'a> {
    shared: &'a Shared,
    /// Outcomes by call. Consecutive outcomes are mostly of one call.
    outcomes: Vec<(Arc<Job>, Vec<Run>)>,
    failed: Vec<Failed>,
    /// User values, dropped after all outcomes were delivered.
    rubbish: Vec<Rubbish>,
    chunks: Vec<Chunk>,
    kept: Vec<Kept>,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        let (rubbish, chunks, kept) = (Vec::new(), Vec::new(), Vec::new());
        Settled { shared, outcomes: Vec::new(), failed: Vec::new(), rubbish, chunks, kept }
    }

    /// Adds the outcomes of some tasks.
    pub(crate) fn add_run(&mut self, job: &Arc<Job>, run: Run) {
        match self.outcomes.last_mut() {
            Some((last, runs)) if Arc::ptr_eq(last, job) => runs.push(run),
            _ => self.outcomes.push((Arc::clone(job), vec![run])),
        }
    }

    /// Adds a failed task, which is retried or gets its error as its outcome.
    pub(crate) fn add_failed(&mut self, failed: Failed) {
        self.failed.push(failed);
    }

    /// Adds an error for all tasks of a chunk that have no outcome yet.
    pub(crate) fn add(&mut self, chunk: Chunk, error: TaskError) {
        let left = chunk.first + chunk.reported..chunk.first + chunk.end;
        self.add_run(&chunk.job, Run::failed(left, error));
        self.drop_later(chunk);
    }

    /// Drops a finished chunk later, because it may contain user values.
    pub(crate) fn drop_later(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
    }

    pub(crate) fn drop_kept(&mut self, kept: Kept) {
        self.kept.push(kept);
    }

    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.outcomes.iter().flat_map(|(_, runs)| runs).map(|run| run.count).sum()
    }

    /// Adds tasks that never left their call. Returns the number of tasks that other threads have in hand and
    /// will settle.
    pub(crate) fn add_rest(&mut self, job: &Arc<Job>, error: &TaskError) -> usize {
        let (left, in_hand) = job.cancel(error);
        self.add_left(job, left, error);
        in_hand
    }

    /// Adds a chunk that leaves the hand of a thread with an error, unless its call was cancelled.
    pub(crate) fn add_from_hand(&mut self, chunk: Chunk, error: TaskError) {
        let fate = chunk.job.hand.release(chunk.left());
        self.add(chunk, fate.unwrap_or(error));
    }

    /// Adds tasks that were taken from their call.
    pub(crate) fn add_left(&mut self, job: &Arc<Job>, (lost, rest, rubbish): Left, error: &TaskError) {
        self.rubbish.push(rubbish);
        self.add_all(job, lost, error);
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            self.add_run(job, Run::failed(rest, error.clone()));
        }
    }

    /// Adds tasks that were to be retried.
    pub(crate) fn add_lost(&mut self, job: &Arc<Job>, error: &TaskError) {
        self.add_all(job, job.dead_letter(), error);
    }

    /// Adds tasks that wait to be retried.
    pub(crate) fn add_later(&mut self, later: BTreeMap<(Instant, u64), Later>, error: &TaskError) {
        later.into_values().for_each(|Later { job, lost }| self.add_all(&job, vec![lost], error));
    }

    fn add_all(&mut self, job: &Arc<Job>, lost: Vec<Lost>, error: &TaskError) {
        for Lost { index, kept, .. } in lost {
            self.add_run(job, Run::failed(index..index + 1, error.clone()));
            self.drop_kept(kept);
        }
    }

    /// Delivers the outcomes to their calls. No lock may be held.
    pub(crate) fn tell(self) {
        drop(self);
    }
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        for failed in std::mem::take(&mut self.failed) {
            let Some(Failed { job, index, kept, error, ran, .. }) = self.shared.try_again(failed) else {
                continue;
            };
            self.add_run(&job, Run { ran, ..Run::failed(index..index + 1, error) });
            self.kept.extend(kept);
        }
        self.shared.hand_out(std::mem::take(&mut self.outcomes));
        // Dropping these catches panics.
        self.rubbish.clear();
        self.chunks.clear();
        self.kept.clear();
    }
}
