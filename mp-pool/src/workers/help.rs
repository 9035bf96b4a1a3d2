//! Taking tasks back from workers, for those that have nothing to do.

use std::time::Instant;

use mp_queue::EncodedMessage;

use crate::calls::chunk::Ready;
use crate::message::Task;
use crate::steps::chunk::Share;
use crate::workers::state::{Given, NO_CODE, State, Worker, next_chunk};

/// Less work than this, in nanoseconds, is not taken from a worker that has begun it.
const WORTH_SHARING: u64 = 20_000;

impl State {
    /// There is nothing else to do for this worker: takes back tasks that another one has not begun. How many it gets of
    /// them: not all, or the other one would be without and take them back again.
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

    /// Takes back half of what the worker that has most to do has not begun; whether there was something.
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

    /// Whether a worker has nothing to do, beside this one.
    fn has_idle(&self, but: usize) -> bool {
        self.workers.iter().enumerate().any(|(number, worker)| number != but && worker.is_idle())
    }

    /// Takes tasks back from workers that leave them all in their queues, as stopped ones do, for those that have nothing to do.
    /// Such a worker gets a note, made by `note`, and nothing else until it has answered that. What comes out of its queue it
    /// can't take any more, whenever it goes on: so each task is done once.
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
                // Without room there is a note in its queue already.
                worker.suspect = rest.is_empty() || worker.is_learning();
            }
            recalled.into_iter().rev().for_each(|ready| self.returned.push_front(ready));
            let (rest, emptied) = worker.cut(Share::All, next_chunk());
            self.emptied.extend(emptied);
            self.returned.extend(rest.map(Ready::rest));
        }
    }

    /// A worker makes its state anew: others do what it has not begun.
    pub(crate) fn remakes(&mut self, worker: usize, now: Instant) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        let (back, emptied) = worker.starts_anew(now, next_chunk());
        self.emptied.extend(emptied);
        back.into_iter().rev().for_each(|ready| self.returned.push_front(ready));
        self.last_ready = Some(now);
    }

    /// When [`Worker::unsent`] may have something.
    pub(crate) fn next_silence(&self) -> Option<Instant> {
        self.workers.iter().filter_map(Worker::silent_until).min()
    }

    /// When [`take_over`](Self::take_over) may have something to do.
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

    /// Else an idle worker would be given it at some later time only.
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
        // It is at the next one, and has put its answer to that one.
        let busy = &mut state.workers[0];
        busy.given.push_back(chunk(9));
        let [_, Given::Task { chunk: next, .. }] = busy.given.make_contiguous() else { unreachable!() };
        Own::new(busy.watch.clone()).begin(next.id, 9);
        let (taken, emptied) = busy.cut(Share::All, next_chunk());
        assert_eq!(taken.map(|chunk| (chunk.first, chunk.end)), Some((10, 8)));
        assert!(emptied.is_none() && busy.given.len() == 2);
    }
}
