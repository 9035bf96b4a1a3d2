//! Outcomes on their way to their calls: collected under a lock, handed out when none is held.

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

/// A task that a worker has begun has failed: it may be tried again.
pub(crate) struct Failed {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    /// How often it was begun before.
    pub(crate) tries: u32,
    pub(crate) kept: Option<Kept>,
    pub(crate) error: TaskError,
    pub(crate) ran: Option<Duration>,
}

/// Outcomes that are to be reported once no lock is held: when this is dropped, also by a panic. So it is
/// made before a lock is taken, and goes after it.
pub(crate) struct Settled<'a> {
    shared: &'a Shared,
    /// Most in a row are of one call.
    outcomes: Vec<(Arc<Job>, Vec<Run>)>,
    failed: Vec<Failed>,
    /// Dropped when all have been reported.
    rubbish: Vec<Rubbish>,
    chunks: Vec<Chunk>,
    kept: Vec<Kept>,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        let (rubbish, chunks, kept) = (Vec::new(), Vec::new(), Vec::new());
        Settled { shared, outcomes: Vec::new(), failed: Vec::new(), rubbish, chunks, kept }
    }

    /// What came of some tasks.
    pub(crate) fn add_run(&mut self, job: &Arc<Job>, run: Run) {
        match self.outcomes.last_mut() {
            Some((last, runs)) if Arc::ptr_eq(last, job) => runs.push(run),
            _ => self.outcomes.push((Arc::clone(job), vec![run])),
        }
    }

    /// A task has failed that is tried again, or else has this outcome.
    pub(crate) fn add_failed(&mut self, failed: Failed) {
        self.failed.push(failed);
    }

    /// All tasks of a chunk that have no outcome yet have this error.
    pub(crate) fn add(&mut self, chunk: Chunk, error: TaskError) {
        let left = chunk.first + chunk.reported..chunk.first + chunk.end;
        self.add_run(&chunk.job, Run::failed(left, error));
        self.drop_later(chunk);
    }

    /// Nothing is left of it; it may hold values of the user's.
    pub(crate) fn drop_later(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
    }

    pub(crate) fn drop_kept(&mut self, kept: Kept) {
        self.kept.push(kept);
    }

    /// Of how many tasks.
    pub(crate) fn len(&self) -> usize {
        self.outcomes.iter().flat_map(|(_, runs)| runs).map(|run| run.count).sum()
    }

    /// Adds tasks that never left their call. Returns the number of those that other threads have in hand, and settle.
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

    /// Of tasks that were taken out of their call.
    pub(crate) fn add_left(&mut self, job: &Arc<Job>, (lost, rest, rubbish): Left, error: &TaskError) {
        self.rubbish.push(rubbish);
        self.add_all(job, lost, error);
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            self.add_run(job, Run::failed(rest, error.clone()));
        }
    }

    /// Of tasks that were to be tried again.
    pub(crate) fn add_lost(&mut self, job: &Arc<Job>, error: &TaskError) {
        self.add_all(job, job.dead_letter(), error);
    }

    /// Of tasks that wait to be tried again.
    pub(crate) fn add_later(&mut self, later: BTreeMap<(Instant, u64), Later>, error: &TaskError) {
        later.into_values().for_each(|Later { job, lost }| self.add_all(&job, vec![lost], error));
    }

    fn add_all(&mut self, job: &Arc<Job>, lost: Vec<Lost>, error: &TaskError) {
        for Lost { index, kept, .. } in lost {
            self.add_run(job, Run::failed(index..index + 1, error.clone()));
            self.drop_kept(kept);
        }
    }

    /// Hands the outcomes to their calls. No lock may be held.
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
        // Each lets no panic out.
        self.rubbish.clear();
        self.chunks.clear();
        self.kept.clear();
    }
}
