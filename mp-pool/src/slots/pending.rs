//! Tasks that no worker has, and the states of a task.
//!
//! Tasks travel in chunks of one call, one message each. A task is in one of these states. Transitions happen
//! under the lock of the pool's state, except where the table names a thread that does not hold this lock.
//!
//! | state | place | next state | condition, and who makes the transition |
//! |---|---|---|---|
//! | in its call | the [`TaskSource`](crate::tasks::source::TaskSource), not encoded | in transit | a worker has room: any thread that [feeds](crate::dispatcher::shared::PoolShared::feed) |
//! | ready: a chunk without a worker, or without room for its message | [`ready`](PendingTasks::ready) | in transit | same |
//! | | | settled as lost | the pool's thread: too many consecutive workers died while they read its function |
//! | in transit | the feeding thread, which encodes without the lock; counted in [`transit`](crate::tasks::transit) | sent | the worker is alive and its queue has room |
//! | | | ready | the worker has died, its queue is full, or there is no room for the message |
//! | | | settled | its arguments can't be sent, or the call was cancelled meanwhile |
//! | sent: in a worker's queue, or taken by it | `unanswered` of its [slot](crate::slots::slot); the [chunk word](crate::steps::chunk) names the running task | settled, or failed | the pool's thread: its reply arrives, or its result is in the worker's [journal](crate::steps::journal) |
//! | | | ready | it is found in the queue of a worker that is dead, too busy or stopped; or such a worker has begun its chunk, and the chunk was cut before this task |
//! | | | failed | the pool's thread: its worker died while running it |
//! | failed | the pool's thread, which holds no lock and consults the [`RetryPolicy`](crate::tasks::retry_policy::RetryPolicy) | ready, or scheduled | the policy allows a retry, now or later |
//! | | | settled with its error | the retries are used up, the filter returns `false`, its worker received Ctrl-C, its call is cancelled, the pool has ended, or its arguments could not be kept |
//! | scheduled: a chunk of one task | [`scheduled`](PendingTasks::schedule) | ready | the pool's thread: its time has come |
//! | in its call, ready, scheduled; sent and not begun | | settled: `Cancelled`, `Interrupted`, `Terminated`, `Broken` | any thread: its call is cancelled, the program is interrupted, or the pool has ended |
//! | settled | the outcomes of its call | | |
//!
//! The death of a worker changes only the state *sent*. All states die with the pool's process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use mp_core::sync::Ordering;

use crate::tasks::call_state::CallState;
use crate::tasks::chunk::{Chunk, ReadyChunk};

/// Tasks that are not assigned to a worker.
#[derive(Default)]
pub(crate) struct PendingTasks {
    /// Calls with tasks to be sent, in the order of submission.
    pub(crate) calls: VecDeque<Arc<CallState>>,
    /// Chunks that have left their call, in the order in which they are sent.
    pub(crate) ready: VecDeque<ReadyChunk>,
    /// Failed tasks that wait for their retry, by time and a unique number.
    scheduled: BTreeMap<(Instant, u64), Chunk>,
    /// Calls and chunks without tasks to be sent, dropped without the lock because they may contain user
    /// values.
    pub(crate) finished: (Vec<Arc<CallState>>, Vec<Chunk>),
}

impl PendingTasks {
    /// Adds the tasks of a call.
    pub(crate) fn enlist(&mut self, job: &Arc<CallState>) {
        if !job.is_listed.swap(true, Ordering::Relaxed) {
            self.calls.push_back(Arc::clone(job));
        }
    }

    /// Removes the calls at the front whose tasks were all taken.
    pub(crate) fn drop_drained_calls(&mut self) {
        while self.calls.front().is_some_and(|job| job.source.remaining() == 0) {
            let drained = self.calls.pop_front();
            drained.iter().for_each(|job| job.is_listed.store(false, Ordering::Relaxed));
            self.finished.0.extend(drained);
        }
    }

    /// Adds chunks before all others.
    pub(crate) fn put_first(&mut self, chunks: impl DoubleEndedIterator<Item = ReadyChunk>) {
        chunks.rev().for_each(|ready| self.ready.push_front(ready));
    }

    /// Adds the chunks that [`cut`](crate::slots::slot::WorkerSlot::cut) has returned: withdrawn tasks become
    /// ready, and an emptied chunk is dropped later. Returns `true` if a task was withdrawn.
    pub(crate) fn add_cut(&mut self, (rest, emptied): (Option<Chunk>, Option<Chunk>)) -> bool {
        let found = rest.is_some();
        self.ready.extend(rest.map(ReadyChunk::unpacked));
        self.finished.1.extend(emptied);
        found
    }

    /// Schedules a retry of a chunk of one task.
    pub(crate) fn schedule(&mut self, at: Instant, chunk: Chunk) {
        self.scheduled.insert((at, chunk.id), chunk);
    }

    /// Returns the time of the next retry.
    pub(crate) fn next_retry(&self) -> Option<Instant> {
        self.scheduled.keys().next().map(|(at, _)| *at)
    }

    /// Makes failed tasks ready if the time of their retry has come.
    pub(crate) fn retry_due(&mut self, now: Instant) {
        while let Some(first) = self.scheduled.first_entry().filter(|first| first.key().0 <= now) {
            self.ready.push_back(ReadyChunk::unpacked(first.remove()));
        }
    }

    /// Removes a call and its chunks, and returns the chunks.
    pub(crate) fn take_of(&mut self, job: &Arc<CallState>) -> Vec<Chunk> {
        let is_its = |chunk: &Chunk| Arc::ptr_eq(&chunk.job, job);
        if job.is_listed.swap(false, Ordering::Relaxed) {
            self.calls.retain(|listed| !Arc::ptr_eq(listed, job));
        }
        let ready = std::mem::take(&mut self.ready).into_iter();
        let (taken, ready): (VecDeque<_>, _) = ready.partition(|ready| is_its(&ready.chunk));
        self.ready = ready;
        let scheduled = std::mem::take(&mut self.scheduled).into_iter();
        let (later, scheduled): (BTreeMap<_, _>, _) = scheduled.partition(|(_, chunk)| is_its(chunk));
        self.scheduled = scheduled;
        taken.into_iter().map(|ready| ready.chunk).chain(later.into_values()).collect()
    }

    /// Removes all tasks: the calls, and the chunks that have left their calls.
    pub(crate) fn take_all(&mut self) -> (VecDeque<Arc<CallState>>, Vec<Chunk>) {
        let ready = self.ready.drain(..).map(|ready| ready.chunk);
        let chunks = ready.chain(std::mem::take(&mut self.scheduled).into_values()).collect();
        (std::mem::take(&mut self.calls), chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;
    use crate::tasks::source::SavedArgs;

    /// If the task were left, the cancelled call would wait for its outcome forever.
    #[test]
    fn cancel_takes_tasks_that_wait_for_retry() {
        let (mut tasks, now) = (PendingTasks::default(), Instant::now());
        let calls = [(); 2].map(|()| job(2, CallOptions::default()));
        for call in &calls {
            let chunk = |first| Chunk::new(Arc::clone(call), first, SavedArgs::None);
            tasks.enlist(call);
            tasks.ready.push_back(ReadyChunk::unpacked(chunk(0)));
            tasks.schedule(now, chunk(1));
        }
        let taken = tasks.take_of(&calls[0]);
        assert_eq!(taken.iter().map(|chunk| chunk.first).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((tasks.calls.len(), tasks.ready.len(), tasks.next_retry()), (1, 1, Some(now)));
        tasks.retry_due(now);
        // A call is in the list once, and again after it was removed.
        tasks.enlist(&calls[1]);
        assert_eq!(tasks.calls.len(), 1);
        tasks.enlist(&calls[0]);
        assert_eq!(tasks.calls.len(), 2);
        assert!(tasks.take_of(&calls[0]).is_empty());
        let (left, chunks) = tasks.take_all();
        assert!(Arc::ptr_eq(&left[0], &calls[1]) && chunks.len() == 2 && tasks.next_retry().is_none());
    }
}
