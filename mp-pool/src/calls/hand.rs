//! Number of a call's tasks that a feeding thread has taken and not yet sent to a worker.
//!
//! A thread encodes tasks without the lock of the pool's state. A cancellation during this time finds these
//! tasks in no list, so it counts them here and leaves them to the feeding thread.
//!
//! | step | changed by | under |
//! |---|---|---|
//! | `tasks` + n | a thread that takes n tasks from their source or from the returned tasks | the lock of that list |
//! | `tasks` - n | the same thread, after the tasks were sent to a worker, were returned, or failed | the state's lock, unless they failed |
//! | `fate` set | a cancellation, which took all tasks from the source before | the state's lock |
//!
//! So a task either leaves the hand without `fate` before the cancellation, which then finds it with a worker
//! or among the returned tasks, or it leaves the hand with `fate` as its outcome.

use mp_core::mutex::Mutex;

use crate::error::TaskError;

/// Count of tasks in hand: see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Hand(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tasks: usize,
    fate: Option<TaskError>,
    /// Number of tasks that returned from a worker after the cancellation and were not yet counted by a
    /// caller of `cancel`.
    late: usize,
}

impl State {
    /// Counts tasks for callers of `cancel`, unless the pool ended them.
    fn add_late(&mut self, tasks: usize) {
        if matches!(self.fate, Some(TaskError::Cancelled)) {
            self.late += tasks;
        }
    }
}

impl Hand {
    /// Adds tasks that the caller takes. The caller holds the lock of the list that contains them.
    pub(crate) fn take(&self, tasks: usize) {
        let mut state = self.0.lock();
        state.tasks += tasks;
        state.add_late(tasks);
    }

    /// Removes tasks. Returns the outcome that they must have, if any.
    pub(crate) fn release(&self, tasks: usize) -> Option<TaskError> {
        let mut state = self.0.lock();
        state.tasks = state.tasks.saturating_sub(tasks);
        state.fate.clone()
    }

    /// Sets the outcome of all tasks that are or will be in hand, unless one is set. Returns the number of
    /// tasks that get it.
    pub(crate) fn seal(&self, fate: TaskError) -> usize {
        let mut state = self.0.lock();
        if state.fate.is_some() {
            return 0;
        }
        state.fate = Some(fate);
        state.tasks
    }

    /// Returns the number of tasks that came back from workers since the last call.
    pub(crate) fn take_late(&self) -> usize {
        std::mem::take(&mut self.0.lock().late)
    }

    /// Counts tasks that were cut off a worker's chunk after the cancellation, and returns their outcome.
    pub(crate) fn fate_of_late(&self, tasks: usize) -> Option<TaskError> {
        let mut state = self.0.lock();
        state.add_late(tasks);
        state.fate.clone()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.0.lock().fate.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_in_hand_are_counted_by_one_cancellation() {
        let hand = Hand::default();
        hand.take(5);
        assert!(hand.release(2).is_none());
        assert_eq!(hand.seal(TaskError::Cancelled), 3);
        assert_eq!(hand.seal(TaskError::Cancelled), 0);
        assert!(matches!(hand.release(3), Some(TaskError::Cancelled)));
        assert!(matches!(hand.fate_of_late(4), Some(TaskError::Cancelled)));
        hand.take(2);
        assert_eq!((hand.take_late(), hand.take_late()), (6, 0));
    }

    #[test]
    fn tasks_that_the_pool_ended_are_not_cancelled() {
        let hand = Hand::default();
        hand.seal(TaskError::Terminated);
        hand.take(2);
        assert!(matches!(hand.fate_of_late(4), Some(TaskError::Terminated)));
        assert_eq!(hand.take_late(), 0);
    }
}
