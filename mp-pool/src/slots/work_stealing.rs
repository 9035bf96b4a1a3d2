//! Withdrawal of tasks from busy or stopped workers, for idle workers.

use std::time::Instant;

use mp_queue::EncodedMessage;

use crate::child::message::WorkerRequest;
use crate::slots::slot::{NO_CODE, SentMessage, WorkerSlot};
use crate::slots::state::PoolState;
use crate::steps::chunk::CutShare;
use crate::tasks::chunk::ReadyChunk;

/// Minimum duration of unfinished work in a chunk, in nanoseconds, from which on the chunk is divided.
const WORTH_SHARING: u64 = 20_000;

impl PoolState {
    /// Withdraws chunks for an idle worker from the queue of another worker, and returns their number. At
    /// most half of the other worker's chunks are withdrawn, and at most as many as an idle worker should
    /// have. If the duration of a chunk is unknown, one chunk is withdrawn. If the other worker may have to
    /// learn the function of its chunks, all chunks are withdrawn, and half of them are for the idle worker.
    /// If no worker has queued chunks, the running chunk with the most unfinished work is divided.
    pub(crate) fn steal(&mut self, idle: usize) -> usize {
        if self.workers[idle].outstanding > 0 {
            return 0;
        }
        for number in 0..self.workers.len() {
            let worker = &mut self.workers[number];
            if worker.outstanding <= 1 || !worker.may_be_recalled() {
                continue;
            }
            let (count, found) = if worker.is_learning() {
                let found = worker.recall_all(false);
                (found.len().div_ceil(2), found)
            } else {
                let found = self.steal_chunks(number, idle);
                (found.len(), found)
            };
            if count > 0 {
                self.tasks.ready.extend(found);
                return count;
            }
        }
        usize::from(self.steal_half())
    }

    /// Withdraws chunks from the queue of the worker `busy` for the worker `idle`.
    fn steal_chunks(&mut self, busy: usize, idle: usize) -> Vec<ReadyChunk> {
        let most = self.workers[busy].outstanding / 2;
        let (mut found, mut wanted) = (Vec::new(), 1);
        while found.len() < wanted.min(most) {
            let Some((packed, SentMessage::Chunk { chunk, .. })) = self.workers[busy].recall() else { break };
            if found.is_empty() {
                wanted = match chunk.job.known_nanos(chunk.remaining()) {
                    0 => 1,
                    nanos => self.workers[idle].portion(nanos),
                };
            }
            found.push(ReadyChunk::packed(chunk, packed));
        }
        found
    }

    /// Withdraws half of the unclaimed items from the running chunk with the most unfinished work. Returns
    /// `true` if items were withdrawn.
    fn steal_half(&mut self) -> bool {
        let left = |worker: &WorkerSlot| {
            worker.first().map_or(0, |chunk| chunk.job.expected_nanos(chunk.remaining()))
        };
        let most = self.workers.iter_mut().filter(|worker| worker.ready).max_by_key(|worker| left(worker));
        let Some(worker) = most.filter(|worker| left(worker) >= WORTH_SHARING) else { return false };
        self.tasks.add_cut(worker.cut(CutShare::Half))
    }

    /// Returns `true` if another worker is idle.
    fn has_idle(&self, but: usize) -> bool {
        self.workers.iter().enumerate().any(|(number, worker)| number != but && worker.is_idle())
    }

    /// Withdraws tasks for idle workers from workers that have not begun any of their tasks for a while, such
    /// as stopped workers. A stopped worker can't take withdrawn messages after it resumes, so each task is
    /// done once.
    ///
    /// If a worker then has no tasks, it is sent the request that `note` creates. The worker gets no other
    /// message before it has answered this request.
    pub(crate) fn relieve_slow_workers(
        &mut self,
        now: Instant,
        note: impl Fn() -> Option<EncodedMessage<WorkerRequest>>,
    ) {
        for number in 0..self.workers.len() {
            let slow = self.workers[number].slow_check_at().is_some_and(|from| from <= now);
            if !slow || !self.has_idle(number) {
                continue;
            }
            let worker = &mut self.workers[number];
            worker.queue_checked = true;
            let recalled = worker.recall_all(false);
            if !recalled.is_empty()
                && worker.outstanding == 0
                && let Some(packed) = note()
            {
                let message = packed.number();
                let note = SentMessage::FunctionChange { code: NO_CODE, learn: false, message };
                let rest = worker.send_messages([packed].into(), [note].into());
                // If the queue is full, it contains a request already.
                worker.suspect = rest.is_empty() || worker.is_learning();
            }
            self.tasks.put_first(recalled.into_iter());
            self.tasks.add_cut(worker.cut(CutShare::All));
        }
    }

    /// Records that a worker creates its state again. Other workers run the tasks that it has not begun.
    pub(crate) fn reset_worker_state(&mut self, worker: usize, now: Instant) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        (worker.ready, worker.starts_since) = (false, Some(now));
        worker.publish();
        worker.take_back(&mut self.tasks);
        self.last_ready = Some(now);
    }

    /// Returns the time at which [`WorkerSlot::read_journal`] may return results.
    pub(crate) fn next_journal_read(&self) -> Option<Instant> {
        self.workers.iter().filter_map(WorkerSlot::journal_due).min()
    }

    /// Returns the time at which [`relieve_slow_workers`](Self::relieve_slow_workers) may find tasks.
    pub(crate) fn next_slow_check(&self) -> Option<Instant> {
        let slow =
            self.workers.iter().enumerate().filter_map(|(n, worker)| Some((n, worker.slow_check_at()?)));
        slow.filter(|(number, _)| self.has_idle(*number)).map(|(_, from)| from).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::child::journal_words::WordsWriter;
    use crate::child::values::{PackedRange, PackedValues};
    use crate::slots::slot::tests::worker;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;
    use crate::tasks::chunk::Chunk;
    use crate::tasks::source::SavedArgs;

    /// Returns a state in which worker 1 is idle, and worker 0 runs the first of 9 tasks that take `nanos`
    /// each; 0 if unknown.
    fn one_of_two_busy(nanos: u64) -> PoolState {
        let mut state = PoolState::new(vec![worker(), worker()]);
        let (job, busy) = (job(9, CallOptions::default()), &mut state.workers[0]);
        if nanos > 0 {
            job.record_duration(nanos, 1);
        }
        for index in 0..9 {
            let packed = busy.tasks.pack(WorkerRequest::Forget { code: index as u64 }).unwrap();
            let message = packed.number();
            let chunk = Chunk::new(Arc::clone(&job), index, SavedArgs::None);
            busy.send_messages([packed].into(), [SentMessage::Chunk { chunk, message }].into());
        }
        _ = busy.tasks.get();
        state
    }

    #[test]
    fn idle_worker_steals_half_of_a_workers_queue() {
        let mut state = one_of_two_busy(20_000);
        assert_eq!(state.steal(1), 4);
        let stolen: Vec<usize> = state.tasks.ready.iter().map(|ready| ready.chunk.first).collect();
        assert_eq!((stolen, state.workers[0].outstanding), (vec![1, 2, 3, 4], 5));
        // The idle worker takes all of them at once.
        assert!(state.workers[1].portion(0) >= 4);
    }

    #[test]
    fn long_or_unknown_tasks_are_stolen_one_by_one() {
        for nanos in [0, 1_000_000_000] {
            let mut state = one_of_two_busy(nanos);
            // The pace of the worker is known from an earlier call.
            state.workers[1].portion(20_000);
            assert_eq!((state.steal(1), state.tasks.ready.len()), (1, 1), "{nanos}");
        }
    }

    /// `steal` returns the number of chunks, so that the calling thread assigns them itself instead of
    /// leaving them to a later call.
    #[test]
    fn stolen_tasks_are_assigned_at_once() {
        let mut state = PoolState::new(vec![worker(), worker()]);
        assert_eq!(state.steal(1), 0);
        let chunk = |first| {
            let plain = PackedValues { ends: std::iter::repeat_n(0, 9).collect(), bytes: Vec::new() };
            let (job, saved) = (job(9, CallOptions::default()), SavedArgs::Packed(PackedRange::of(plain)));
            let chunk = Chunk { end: 9, ..Chunk::new(job, first, saved) };
            SentMessage::Chunk { chunk, message: None }
        };
        let busy = &mut state.workers[0];
        (busy.unanswered, busy.outstanding) = (VecDeque::from([chunk(0)]), 1);
        WordsWriter::new(busy.shared_words.clone()).begin(busy.first().unwrap().id, 9);
        assert_eq!(state.steal(1), 1);
        let taken: Vec<(usize, usize)> =
            state.tasks.ready.iter().map(|ready| (ready.chunk.first, ready.chunk.end)).collect();
        assert_eq!(taken, [(5, 4)]);
        assert_eq!(state.workers[0].first().map(Chunk::remaining), Some(5));
        // The worker runs the next chunk, and has sent the answer to the previous one.
        let busy = &mut state.workers[0];
        busy.unanswered.push_back(chunk(9));
        let [_, SentMessage::Chunk { chunk: next, .. }] = busy.unanswered.make_contiguous() else {
            unreachable!()
        };
        WordsWriter::new(busy.shared_words.clone()).begin(next.id, 9);
        let (taken, emptied_chunks) = busy.cut(CutShare::All);
        assert_eq!(taken.map(|chunk| (chunk.first, chunk.end)), Some((10, 8)));
        assert!(emptied_chunks.is_none() && busy.unanswered.len() == 2);
    }
}
