//! Number of a call's tasks that a feeding thread has taken and not yet sent to a worker.
//!
//! A thread encodes tasks without the lock of the pool's state. During this time the tasks are in no list
//! that a cancellation can search. The cancellation counts them by this counter, and the feeding thread
//! settles them.
//!
//! | step | changed by | under |
//! |---|---|---|
//! | `tasks` + n | a thread that takes n tasks from their source or from the ready chunks | the lock of that list |
//! | `tasks` - n | the same thread, after the tasks were sent to a worker, became ready, or failed | the state's lock, unless they failed |
//! | `final_error` set | a cancellation, which took all tasks from the source before | the state's lock |
//!
//! So there are two cases. A task that ends its transit without `final_error` did so before the cancellation,
//! which then finds it with a worker or among the ready chunks. Any other task ends its
//! transit with `final_error` as its outcome.

use mp_core::mutex::Mutex;

use crate::error::TaskError;

/// Number of tasks in transit: see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct TransitCounter(Mutex<TransitState>);

#[derive(Debug, Default)]
struct TransitState {
    tasks: usize,
    final_error: Option<TaskError>,
    /// Number of tasks that came back from workers after the cancellation, and that no call of `cancel` has
    /// counted yet.
    returned: usize,
}

impl TransitState {
    /// Records tasks to be counted by the next call of `cancel`, if the call was cancelled.
    fn add_returned(&mut self, tasks: usize) {
        if matches!(self.final_error, Some(TaskError::Cancelled)) {
            self.returned += tasks;
        }
    }
}

impl TransitCounter {
    /// Begins the transit of tasks. The caller holds the lock of the list from which it takes the tasks.
    pub(crate) fn add(&self, tasks: usize) {
        let mut state = self.0.lock();
        state.tasks += tasks;
        state.add_returned(tasks);
    }

    /// Ends the transit of tasks. Returns the error that a cancellation has set as their outcome, if any.
    pub(crate) fn release(&self, tasks: usize) -> Option<TaskError> {
        let mut state = self.0.lock();
        state.tasks = state.tasks.saturating_sub(tasks);
        state.final_error.clone()
    }

    /// Sets the outcome of all tasks that are or will be in transit. Returns the number of tasks in transit,
    /// or 0 if an outcome was already set.
    pub(crate) fn seal(&self, final_error: TaskError) -> usize {
        let mut state = self.0.lock();
        if state.final_error.is_some() {
            return 0;
        }
        state.final_error = Some(final_error);
        state.tasks
    }

    /// Returns the number of tasks that came back from workers since the last call.
    pub(crate) fn take_returned(&self) -> usize {
        std::mem::take(&mut self.0.lock().returned)
    }

    /// Records tasks that were withdrawn from a worker's chunk after the cancellation, and returns their
    /// outcome.
    pub(crate) fn error_of_returned(&self, tasks: usize) -> Option<TaskError> {
        let mut state = self.0.lock();
        state.add_returned(tasks);
        state.final_error.clone()
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.0.lock().final_error.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_in_transit_are_counted_by_one_cancellation() {
        let transit = TransitCounter::default();
        transit.add(5);
        assert!(transit.release(2).is_none());
        assert_eq!(transit.seal(TaskError::Cancelled), 3);
        assert_eq!(transit.seal(TaskError::Cancelled), 0);
        assert!(matches!(transit.release(3), Some(TaskError::Cancelled)));
        assert!(matches!(transit.error_of_returned(4), Some(TaskError::Cancelled)));
        transit.add(2);
        assert_eq!((transit.take_returned(), transit.take_returned()), (6, 0));
    }

    #[test]
    fn terminated_tasks_in_transit_are_not_cancelled() {
        let transit = TransitCounter::default();
        transit.seal(TaskError::Terminated);
        transit.add(2);
        assert!(matches!(transit.error_of_returned(4), Some(TaskError::Terminated)));
        assert_eq!(transit.take_returned(), 0);
    }
}
