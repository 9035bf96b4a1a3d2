//! Withdrawal of tasks from busy or stopped workers, for idle ones.

use std::time::Instant;

use mp_queue::EncodedMessage;

use crate::calls::chunk::Ready;
use crate::message::Task;
use crate::steps::chunk::Share;
use crate::workers::state::{Given, NO_CODE, State, Worker, next_chunk};

/// Work shorter than this, in nanoseconds, is not taken from a worker that has begun it.
const WORTH_SHARING: u64 = 20_000;

impl State {
    /// Withdraws tasks that another worker has not begun, for a worker without work. Returns the number that
    /// the idle worker gets: not all, because the other worker would then withdraw them again.
    pub(crate) fn help(&mut self, idle: usize) -> usize {
        if self.workers[idle].outstanding > 0 {
            return 0;
        }
        let busy = |worker: &&mut Worker| worker.outstanding > 1 && worker.may_be_recalled();
        let mut found = self.workers.iter_mut().filter(busy).map(|worker| {
            if worker.is_learning() {
                return worker.recall_all(false);
            }
            match worker.recall() {
                Some((packed, Given::Task { chunk, .. })) => vec![Ready::packed(chunk, packed)],
                _ => Vec::new(),
            }
        });
        let found = found.find(|found| !found.is_empty()).unwrap_or_default();
        let count = found.len().div_ceil(2);
        self.returned.extend(found);
        if count == 0 { usize::from(self.share()) } else { count }
    }

    /// Withdraws half of the unclaimed items of the worker with the most work. Returns `true` if there were
    /// any.
    fn share(&mut self) -> bool {
        let left = |worker: &Worker| worker.first().map_or(0, |chunk| chunk.job.takes(chunk.left()));
        let most = self.workers.iter_mut().filter(|worker| worker.ready).max_by_key(|worker| left(worker));
        let Some(worker) = most.filter(|worker| left(worker) >= WORTH_SHARING) else { return false };
        let (rest, emptied) = worker.cut(Share::Half, next_chunk());
        self.emptied.extend(emptied);
        let found = rest.is_some();
        self.returned.extend(rest.map(Ready::rest));
        found
    }

    /// Returns `true` if another worker is idle.
    fn has_idle(&self, but: usize) -> bool {
        self.workers.iter().enumerate().any(|(number, worker)| number != but && worker.is_idle())
    }

    /// Withdraws tasks, for idle workers, from workers that leave all of them in their queues, such as
    /// stopped ones. Such a worker receives a message made by `note`, and nothing else until it has answered
    /// that. It can't take withdrawn messages after it resumes, so each task is done once.
    pub(crate) fn take_over(&mut self, now: Instant, note: impl Fn() -> Option<EncodedMessage<Task>>) {
        for number in 0..self.workers.len() {
            let slow = self.workers[number].slow_from().is_some_and(|from| from <= now);
            if !slow || !self.has_idle(number) {
                continue;
            }
            let worker = &mut self.workers[number];
            worker.looked = true;
            let recalled = worker.recall_all(false);
            if !recalled.is_empty()
                && worker.outstanding == 0
                && let Some(packed) = note()
            {
                let message = packed.number();
                let note = Given::Note { code: NO_CODE, learn: false, message };
                let rest = worker.give([packed].into(), [note].into());
                // If the queue is full, it contains a note already.
                worker.suspect = rest.is_empty() || worker.is_learning();
            }
            recalled.into_iter().rev().for_each(|ready| self.returned.push_front(ready));
            let (rest, emptied) = worker.cut(Share::All, next_chunk());
            self.emptied.extend(emptied);
            self.returned.extend(rest.map(Ready::rest));
        }
    }

    /// Records that a worker creates its state again. Other workers run the tasks that it has not begun.
    pub(crate) fn remakes(&mut self, worker: usize, now: Instant) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        let (back, emptied) = worker.starts_anew(now, next_chunk());
        self.emptied.extend(emptied);
        back.into_iter().rev().for_each(|ready| self.returned.push_front(ready));
        self.last_ready = Some(now);
    }

    /// Returns the time at which [`Worker::unsent`] may return results.
    pub(crate) fn next_silence(&self) -> Option<Instant> {
        self.workers.iter().filter_map(Worker::silent_until).min()
    }

    /// Returns the time at which [`take_over`](Self::take_over) may find tasks.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let slow = self.workers.iter().enumerate().filter_map(|(n, worker)| Some((n, worker.slow_from()?)));
        slow.filter(|(number, _)| self.has_idle(*number)).map(|(_, from)| from).min()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use mp_queue::Queue;

    use super::*;
    use crate::calls::chunk::{Chunk, Kept};
    use crate::calls::job::Terms;
    use crate::calls::job::tests::job;
    use crate::run::values::{Plain, Slice};
    use crate::watch::{Own, Watch};

    /// Otherwise an idle worker would receive them only later.
    #[test]
    fn what_is_taken_back_of_a_chunk_is_given_at_once() {
        let worker = || {
            let mut worker = Worker::new(Queue::unbounded().unwrap(), Watch::new().unwrap());
            worker.ready = true;
            worker
        };
        let mut state = State::new(vec![worker(), worker()]);
        assert_eq!(state.help(1), 0);
        let chunk = |first| {
            let plain = Plain { ends: std::iter::repeat_n(0, 9).collect(), bytes: Vec::new() };
            let (job, kept) = (job(9, Terms::default()), Kept::Plain(Slice::of(plain)));
            let chunk = Chunk { id: next_chunk(), job, first, reported: 0, end: 9, tries: 0, kept };
            Given::Task { chunk, message: None }
        };
        let busy = &mut state.workers[0];
        (busy.given, busy.outstanding) = (VecDeque::from([chunk(0)]), 1);
        Own::new(busy.watch.clone()).begin(busy.first().unwrap().id, 9);
        assert_eq!(state.help(1), 1);
        let taken: Vec<(usize, usize)> =
            state.returned.iter().map(|ready| (ready.chunk.first, ready.chunk.end)).collect();
        assert_eq!(taken, [(5, 4)]);
        assert_eq!(state.workers[0].first().map(Chunk::left), Some(5));
        // The worker runs the next chunk, and has sent the answer to the previous one.
        let busy = &mut state.workers[0];
        busy.given.push_back(chunk(9));
        let [_, Given::Task { chunk: next, .. }] = busy.given.make_contiguous() else { unreachable!() };
        Own::new(busy.watch.clone()).begin(next.id, 9);
        let (taken, emptied) = busy.cut(Share::All, next_chunk());
        assert_eq!(taken.map(|chunk| (chunk.first, chunk.end)), Some((10, 8)));
        assert!(emptied.is_none() && busy.given.len() == 2);
    }
}
