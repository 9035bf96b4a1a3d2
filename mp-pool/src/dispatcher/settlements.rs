//! Outcomes for calls: collected under a lock, delivered when no lock is held. Outcomes result from replies,
//! and from the state of a dead worker.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::child::message::SingleValue;
use crate::child::values::ReceivedValues;
use crate::dispatcher::retry::FailedTask;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::metrics::meter::TaskCounts;
use crate::slots::slot::WorkerSlot;
use crate::slots::state::PoolState;
use crate::steps::journal::JournalResults;
use crate::tasks::call_state::CallState;
use crate::tasks::chunk::{Chunk, ChunkMessage, ReadyChunk};
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};
use crate::tasks::source::{SavedArgs, UnneededValues};

/// Outcomes to be delivered when no lock is held. Delivered when this value is dropped, also during a panic.
/// The value must be created before a lock is taken, so that it is dropped after the lock.
pub(crate) struct Settlements<'a> {
    shared: &'a PoolShared,
    /// Outcomes by call. Consecutive outcomes are mostly of one call.
    outcomes: Vec<(Arc<CallState>, Vec<OutcomeRun>)>,
    failed: Vec<FailedTask>,
    /// User values, dropped after all outcomes were delivered.
    unneeded: Vec<UnneededValues>,
    chunks: Vec<Chunk>,
}

impl<'a> Settlements<'a> {
    pub(crate) fn new(shared: &'a PoolShared) -> Self {
        let (unneeded, chunks) = (Vec::new(), Vec::new());
        Settlements { shared, outcomes: Vec::new(), failed: Vec::new(), unneeded, chunks }
    }

    /// Adds the outcomes of some tasks.
    pub(crate) fn add_run(&mut self, job: &Arc<CallState>, run: OutcomeRun) {
        match self.outcomes.last_mut() {
            Some((last, runs)) if Arc::ptr_eq(last, job) => runs.push(run),
            _ => self.outcomes.push((Arc::clone(job), vec![run])),
        }
    }

    /// Adds a failed task, which is retried or gets its error as its outcome.
    pub(crate) fn add_failed(&mut self, failed: FailedTask) {
        self.failed.push(failed);
    }

    /// Adds an error for all tasks of a chunk that have no outcome yet.
    pub(crate) fn add(&mut self, chunk: Chunk, error: TaskError) {
        let left = chunk.first + chunk.reported..chunk.first + chunk.end;
        self.add_run(&chunk.job, OutcomeRun::failed(left, error));
        self.drop_later(chunk);
    }

    /// Adds an error for all tasks of some chunks that have no outcome yet.
    pub(crate) fn add_chunks(&mut self, chunks: Vec<Chunk>, error: &TaskError) {
        chunks.into_iter().for_each(|chunk| self.add(chunk, error.clone()));
    }

    /// Drops a finished chunk later, because it may contain user values.
    pub(crate) fn drop_later(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
    }

    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.outcomes.iter().flat_map(|(_, runs)| runs).map(|run| run.count).sum()
    }

    /// Adds an error for the tasks of a call that were not yet taken from its source. Returns the number of
    /// tasks in transit, which other threads will settle.
    pub(crate) fn add_rest(&mut self, job: &Arc<CallState>, error: &TaskError) -> usize {
        let (left, in_hand) = job.cancel(error);
        self.add_unsent(job, left, error);
        in_hand
    }

    /// Adds an error for a chunk that was in transit, and ends its transit. If the call was cancelled, the
    /// error of the cancellation is used instead.
    pub(crate) fn add_from_transit(&mut self, chunk: Chunk, error: TaskError) {
        let final_error = chunk.job.transit.release(chunk.remaining());
        self.add(chunk, final_error.unwrap_or(error));
    }

    /// Adds an error for tasks that were taken from the source of their call and not sent.
    pub(crate) fn add_unsent(
        &mut self,
        job: &Arc<CallState>,
        (rest, unneeded): (Vec<Range<usize>>, UnneededValues),
        error: &TaskError,
    ) {
        self.unneeded.push(unneeded);
        for rest in rest.into_iter().filter(|rest| !rest.is_empty()) {
            self.add_run(job, OutcomeRun::failed(rest, error.clone()));
        }
    }

    /// Delivers the outcomes to their calls. The caller must hold no lock.
    pub(crate) fn deliver(self) {
        drop(self);
    }
}

impl Drop for Settlements<'_> {
    fn drop(&mut self) {
        // In reverse order: each task is put before the others, so the first task ends up first.
        for failed in std::mem::take(&mut self.failed).into_iter().rev() {
            let Some(FailedTask { chunk, error, run_time }) = self.shared.retry(failed) else { continue };
            let run = OutcomeRun { run_time, ..OutcomeRun::failed(chunk.first..chunk.first + 1, error) };
            self.add_run(&chunk.job, run);
            self.drop_later(chunk);
        }
        self.shared.deliver_outcomes(std::mem::take(&mut self.outcomes));
        // These drops catch panics of user code.
        self.unneeded.clear();
        self.chunks.clear();
    }
}

impl PoolShared {
    /// Delivers outcomes to their calls. All are settled before user code runs: callbacks, wakers, and drops
    /// of kept values. The caller must hold no lock.
    fn deliver_outcomes(&self, outcomes: Vec<(Arc<CallState>, Vec<OutcomeRun>)>) {
        if outcomes.is_empty() {
            return;
        }
        let now = Instant::now();
        // Locked until outcomes are settled and counted, so a caller that has a result finds it counted.
        let mut meter = self.check_owner().is_ok().then(|| self.meter.lock());
        let mut count = 0;
        let mut notified: Vec<Arc<CallState>> = Vec::new();
        for (job, runs) in outcomes {
            let look =
                |run: &OutcomeRun| (run.count, run.run_time, TaskCounts::of(run.error(), run.count as u64));
            job.settle(runs, look, |(tasks, run_time, ends), submitted| {
                count += tasks;
                let tasks = tasks as u64;
                if let Some(meter) = meter.as_mut() {
                    meter.ends.add(ends);
                    if let Some(run_time) = run_time {
                        // The rest of the time since submission was waiting time.
                        meter
                            .waiting
                            .add(now.saturating_duration_since(submitted).saturating_sub(run_time), tasks);
                        meter.running.add(run_time, tasks);
                    }
                }
            });
            if notified.last().is_none_or(|last| !Arc::ptr_eq(last, &job)) {
                notified.push(job);
            }
        }
        let last = meter.as_ref().filter(|_| count > 0).map(|meter| {
            let mut state = self.state.lock();
            debug_assert!(state.unsettled >= count, "{count} more settled of {}", state.unsettled);
            state.unsettled = state.unsettled.saturating_sub(count);
            let TaskCounts { done, failed, lost, cancelled } = meter.ends;
            state.publish_outcomes([done, failed, lost, cancelled]);
            state.unsettled == 0 && !state.is_open()
        });
        drop(meter);
        if let Some(last) = last {
            self.changed.notify_all();
            self.wake_waiting();
            if last {
                // The workers may end now.
                self.wake_thread();
            }
        }
        notified.iter().for_each(|job| job.notify());
    }
}

/// Reports outcomes of consecutive items of a chunk, and ignores items that were reported before. If earlier
/// items of the chunk have no outcome, they get an error. A correct worker skips no item.
pub(crate) fn report_items(
    chunk: &mut Chunk,
    item: usize,
    (count, run_time): (usize, Option<Duration>),
    data: OutcomeData,
    settled: &mut Settlements<'_>,
) {
    let end = item.saturating_add(count).min(chunk.end);
    if item > chunk.reported && end > item {
        let missing = chunk.first + chunk.reported..chunk.first + item;
        settled
            .add_run(&chunk.job, OutcomeRun::failed(missing, TaskError::value("the worker did not send it")));
        chunk.reported = item;
    }
    if let OutcomeData::Failed(error) = data {
        if end > chunk.reported {
            let chunk_of_item = chunk.item(chunk.reported);
            settled.add_failed(FailedTask { chunk: chunk_of_item, error: *error, run_time });
            chunk.reported = end;
        }
    } else if end > chunk.reported {
        settled.add_run(
            &chunk.job,
            OutcomeRun { first: chunk.first + chunk.reported, count: end - chunk.reported, data, run_time },
        );
        chunk.reported = end;
    }
}

impl PoolState {
    /// Handles tasks that a worker has returned: makes them ready for another worker, or settles them if
    /// their call was cancelled, the program was interrupted or the pool has ended.
    pub(crate) fn take_returned(
        &mut self,
        (worker, id): (usize, u64),
        items: Range<usize>,
        arguments: Option<SingleValue>,
        settled: &mut Settlements<'_>,
    ) {
        let end = self.phase.error();
        let Some(slot) = self.workers.get_mut(worker) else { return };
        let Some(chunk) = slot.chunk(id) else { return };
        let items = items.start.max(chunk.reported)..items.end.min(chunk.end);
        if items.is_empty() {
            return;
        }
        if items.start > chunk.reported {
            let missing = chunk.first + chunk.reported..chunk.first + items.start;
            let error = TaskError::value("the worker did not send it");
            settled.add_run(&chunk.job, OutcomeRun::failed(missing, error));
        }
        let message = match arguments {
            Some(SingleValue::Received(alone)) => alone.into_outgoing().map(ChunkMessage::Unpacked),
            _ => None,
        };
        let mut returned = chunk.item(items.start);
        if let SavedArgs::Packed(slice) = &chunk.saved {
            returned.saved = SavedArgs::Packed(slice.part(items.start, items.end));
        }
        returned.end = items.len();
        chunk.reported = items.end;
        let is_known = message.is_some() || !matches!(returned.saved, SavedArgs::None);
        let (job, is_cancelled_there) = (Arc::clone(&returned.job), chunk.is_cancelled_there);
        let done = slot.finish_chunk(id);
        // A process that returns its tasks is about to end, unless the tasks were cancelled. If the next
        // process returns tasks, too, starts are delayed.
        slot.had_tasks = is_cancelled_there;
        if let Some(done) = done {
            settled.drop_later(done);
        }
        match end {
            Some(end) => settled.add(returned, end),
            None if job.is_cancelled() => {
                let cancelled = job.transit.error_of_returned(returned.remaining());
                settled.add(returned, cancelled.unwrap_or(TaskError::Cancelled));
            }
            // The program was interrupted.
            None if is_cancelled_there => settled.add(returned, TaskError::Interrupted),
            None if !is_known => settled.add(returned, TaskError::value("its arguments were not returned")),
            None => {
                let message = message.unwrap_or(ChunkMessage::Saved);
                self.tasks.ready.push_front(ReadyChunk { chunk: returned, message });
            }
        }
    }
}

/// Withdraws the unclaimed items of a chunk whose call was cancelled, or ended with the pool. Called when the
/// chunk's worker replies: the cancellation could not withdraw the items, because the worker had taken the
/// chunk and not begun it.
pub(crate) fn cut_if_cancelled(worker: &mut WorkerSlot, id: u64, settled: &mut Settlements<'_>) {
    let is_cancelled = |chunk: &&mut Chunk| chunk.remaining() > 0 && chunk.job.is_cancelled();
    let Some(job) = worker.chunk(id).filter(is_cancelled).map(|chunk| Arc::clone(&chunk.job)) else { return };
    let (rest, emptied_chunks) = worker.cut_all_of(&job);
    if let Some(rest) = rest {
        let final_error = job.transit.error_of_returned(rest.remaining()).unwrap_or(TaskError::Cancelled);
        settled.add(rest, final_error);
    }
    emptied_chunks.into_iter().for_each(|chunk| settled.drop_later(chunk));
}

/// Reports the results in a worker's journal before the item `before`, except results reported earlier.
pub(crate) fn report_journal(
    chunk: &mut Chunk,
    found: &JournalResults,
    before: usize,
    settled: &mut Settlements<'_>,
) {
    let JournalResults { first, ends, bytes } = found;
    let count = ends.len().min(before.saturating_sub(*first));
    if *first <= chunk.reported && first + count > chunk.reported {
        let data = OutcomeData::Values(ReceivedValues::from_journal(ends, bytes), chunk.reported - first);
        report_items(chunk, *first, (count, None), data, settled);
    }
}

/// Takes apart a chunk of a dead worker: claimed tasks without a result are added to `lost`, and tasks that
/// were not claimed are returned.
pub(crate) fn take_apart(
    worker: &WorkerSlot,
    mut chunk: Chunk,
    condemned: Option<(u64, usize)>,
    lost: &mut Vec<(Chunk, usize)>,
    settled: &mut Settlements<'_>,
) -> Option<Chunk> {
    let word = worker.shared_words.word();
    let over = condemned.filter(|(id, _)| *id == chunk.id).map(|(_, item)| item);
    if word.is_of(chunk.id)
        && let Some(found) = worker.shared_words.journal_results(chunk.id)
    {
        report_journal(&mut chunk, &found, over.unwrap_or(usize::MAX), settled);
    }
    let claimed = word.claimed_before_death(chunk.id, over, chunk.reported, chunk.end);
    let rest = chunk.split_off(claimed);
    let from = chunk.reported;
    for item in (from + 1..claimed).rev() {
        if let Some(one) = chunk.split_off(item) {
            lost.push((one, 0));
        }
    }
    if from < claimed {
        lost.push((chunk, from));
    } else {
        settled.drop_later(chunk);
    }
    rest
}

#[cfg(test)]
mod tests {
    use mp_spawn::ExitStatus;

    use super::*;
    use crate::child::values::{PackedRange, PackedValues};
    use crate::dispatcher::shared::tests::{is_awake, shared};
    use crate::error::{Attempts, WorkerLost};
    use crate::slots::slot::SentMessage;
    use crate::slots::state::PoolPhase;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;

    #[test]
    fn last_task_of_closed_pool_wakes_the_pool_thread() {
        let shared = shared();
        let job = job(2, CallOptions::default());
        *shared.state.lock() =
            PoolState { phase: PoolPhase::Closed, unsettled: 2, ..PoolState::new(Vec::new()) };
        for (index, rings) in [(0, false), (1, true)] {
            let mut settled = Settlements::new(&shared);
            settled.add_run(&job, OutcomeRun::failed(index..index + 1, TaskError::Cancelled));
            settled.deliver();
            assert_eq!(is_awake(&shared), rings, "after task {index}");
        }
    }

    /// A process that returns a cancelled chunk counts as a process that has had tasks. So the next start is
    /// not delayed.
    #[test]
    fn cancelled_chunk_does_not_delay_next_start() {
        for is_cancelled_there in [true, false] {
            let (shared, job) = (shared(), job(1, CallOptions::default()));
            let chunk = Chunk { is_cancelled_there, ..Chunk::new(job, 0, SavedArgs::None) };
            let (id, mut settled) = (chunk.id, Settlements::new(&shared));
            let mut state = shared.state.lock();
            state.unsettled = 1;
            state.workers[0].outstanding = 1;
            state.workers[0].unanswered.push_back(SentMessage::Chunk { chunk, message: None });
            state.take_returned((0, id), 0..1, None, &mut settled);
            assert_eq!(state.workers[0].had_tasks, is_cancelled_there);
        }
    }

    /// Lost tasks were begun before the queued tasks, so callers have waited longer for them.
    #[test]
    fn lost_tasks_precede_queued_tasks() {
        let (shared, mut options) = (shared(), CallOptions::default());
        options.retry.set(1, |_| true);
        let job = job(3, options);
        let chunk = |first| {
            let plain = PackedValues { ends: std::iter::repeat_n(0, 1).collect(), bytes: Vec::new() };
            Chunk::new(Arc::clone(&job), first, SavedArgs::Packed(PackedRange::of(plain)))
        };
        shared.state.lock().tasks.ready.push_back(ReadyChunk::unpacked(chunk(2)));
        let mut settled = Settlements::new(&shared);
        for chunk in [chunk(0), chunk(1)] {
            let error = TaskError::WorkerLost(Box::new(WorkerLost {
                worker: 0,
                pid: 1,
                pool: None,
                exit: ExitStatus::Unknown,
                detail: None,
                stderr: None,
                attempts: Attempts::default(),
                note: None,
            }));
            settled.add_failed(FailedTask { chunk, error, run_time: None });
        }
        settled.deliver();
        let state = shared.state.lock();
        assert_eq!(state.tasks.ready.iter().map(|ready| ready.chunk.first).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
