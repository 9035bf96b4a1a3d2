//! Adding and removing the slots of workers.
//!
//! Workers are numbered from 0. The first slots are *wanted*, as many as the pool should have workers. When a
//! pool shrinks, the workers in the other slots end. All transitions are made under the lock of the pool's
//! state:
//!
//! | slot | worker | transition | condition |
//! |---|---|---|---|
//! | wanted | any | not wanted: `leaves_at` is set | the pool shrinks |
//! | not wanted, `leaves_at` set | alive | tasks that it has not begun are ready again; it is `asked_to_leave`: the message to end is in its queue | at the time `leaves_at`, repeated until no more tasks can be withdrawn |
//! | not wanted, `asked_to_leave` | finishes its task | the slot is empty | the worker ends |
//! | not wanted, empty | – | the slot is removed | the pool's thread checks, and no later slot has a worker |
//! | wanted again, `leaves_at` set | alive | the worker stays | the pool grows |
//! | wanted again, `asked_to_leave` | alive | the next worker is started in this slot | the worker ends |
//! | wanted again, empty | – | a worker is started | the pool's thread checks |
//!
//! Only the pool's thread removes slots, and the same thread starts workers, so it never starts a worker in a
//! removed slot. A slot is kept while a thread is about to assign tasks to it.
//!
//! When a worker dies before it has ended by itself, its running task is lost as usual. The message that asks
//! it to end is dropped with the contents of its queue. All of this state dies with the process that owns the
//! pool.

use std::time::{Duration, Instant};

use mp_queue::EncodedMessage;

use crate::child::message::{LEAVE, WorkerRequest};
use crate::slots::slot::{SentMessage, WorkerSlot};
use crate::slots::state::PoolState;

/// Interval between two checks of a surplus worker that could not be asked to end, or that is taking a chunk.
const RECHECK_DELAY: Duration = Duration::from_millis(2);

impl WorkerSlot {
    /// Returns `true` if the worker was not asked to end, and its slot is wanted.
    pub(crate) fn is_staying(&self) -> bool {
        !self.asked_to_leave && self.leaves_at.is_none()
    }

    /// Asks the worker to end after its remaining tasks. Returns `false` if its queue is full.
    pub(crate) fn ask_to_leave(&mut self, packed: EncodedMessage<WorkerRequest>) -> bool {
        if !self.asked_to_leave {
            let note = SentMessage::FunctionChange { code: LEAVE, learn: false, message: packed.number() };
            self.asked_to_leave = self.send_messages([packed].into(), [note].into()).is_empty();
        }
        self.asked_to_leave
    }
}

impl PoolState {
    /// Sets the number of workers. `messages` is the capacity of the arena. The list of workers must have a
    /// slot for each wanted worker.
    pub(crate) fn resize(&mut self, wanted: usize, messages: u32, now: Instant) {
        self.wanted = wanted;
        self.publish();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            worker.set_share(wanted, messages);
            self.words.iter().for_each(|pool| worker.shared_words.publish_place(pool, number));
            if number >= wanted {
                worker.leaves_at = Some(now);
                worker.restart_at = None;
                continue;
            }
            worker.leaves_at = None;
            // A surplus worker has no time of its next start.
            if worker.process.is_none() && worker.restart_at.is_none() {
                worker.restart_at = Some(now);
            }
        }
    }

    /// Asks workers in unwanted slots to end, and withdraws the tasks that they have not begun. `leave`
    /// creates the message that asks a worker to end.
    pub(crate) fn dismiss_surplus(
        &mut self,
        now: Instant,
        leave: impl Fn() -> Option<EncodedMessage<WorkerRequest>>,
    ) {
        if self.phase.error().is_some() {
            return;
        }
        for worker in self.workers.iter_mut().skip(self.wanted) {
            if worker.process.is_none() || worker.leaves_at.is_none_or(|at| at > now) {
                continue;
            }
            worker.take_back(&mut self.tasks);
            let all = worker.may_be_recalled() && !worker.is_taking(None);
            let asked_to_leave = all && leave().is_some_and(|packed| worker.ask_to_leave(packed));
            worker.leaves_at = if asked_to_leave { None } else { Some(now + RECHECK_DELAY) };
        }
    }

    /// Returns the number of slots that are wanted, have a process, or precede a slot with a process.
    pub(crate) fn slot_count(&self) -> usize {
        let is_used = |worker: &WorkerSlot| worker.process.is_some() || worker.feeding;
        self.workers.iter().rposition(is_used).map_or(0, |last| last + 1).max(self.wanted)
    }

    /// Removes unused slots, for the caller to drop without the lock.
    pub(crate) fn remove_slots(&mut self) -> Vec<WorkerSlot> {
        let places = self.slot_count();
        self.workers.split_off(places.min(self.workers.len()))
    }

    /// Returns the time at which [`dismiss_surplus`](Self::dismiss_surplus) or
    /// [`remove_slots`](Self::remove_slots) has work.
    pub(crate) fn next_dismissal(&self, now: Instant) -> Option<Instant> {
        if self.slot_count() < self.workers.len() {
            return Some(now);
        }
        let surplus = self.workers.iter().skip(self.wanted).filter(|_| self.phase.error().is_none());
        let living = surplus.filter(|worker| worker.process.is_some());
        living.filter_map(|worker| worker.leaves_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::slot::tests::worker;

    #[test]
    fn unused_worker_slots_are_removed_from_the_end() {
        let now = Instant::now();
        let mut state = PoolState::new(vec![worker(), worker(), worker()]);
        // A thread is about to assign tasks to this worker.
        state.workers[1].feeding = true;
        state.resize(1, 1024, now);
        assert!(state.workers[0].wants_tasks() && !state.workers[2].wants_tasks());
        assert_eq!(state.next_dismissal(now), Some(now));
        assert_eq!((state.remove_slots().len(), state.workers.len()), (1, 2));
        assert_eq!(state.next_dismissal(now), None);
        state.workers[1].feeding = false;
        assert_eq!((state.remove_slots().len(), state.workers.len()), (1, 1));
    }

    #[test]
    fn dismissed_worker_receives_no_tasks() {
        let now = Instant::now();
        let mut state = PoolState::new(vec![worker(), worker()]);
        state.resize(1, 1024, now);
        state.resize(2, 1024, now);
        assert!(state.workers[1].wants_tasks(), "the worker was not asked to end");
        let leave = state.workers[1].tasks.pack(WorkerRequest::Forget { code: LEAVE });
        assert!(leave.is_ok_and(|packed| state.workers[1].ask_to_leave(packed)));
        state.resize(1, 1024, now);
        state.resize(2, 1024, now);
        assert!(!state.workers[1].wants_tasks());
        state.workers[1].bury();
        assert!(state.workers[1].is_staying());
    }
}
