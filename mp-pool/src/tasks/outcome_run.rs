//! Outcomes of consecutive tasks, as they arrived.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use mp_core::message::Incoming;

use crate::child::values::ReceivedValues;
use crate::error::TaskError;

/// Outcomes of consecutive tasks.
#[derive(Debug)]
pub(crate) struct OutcomeRun {
    /// Index of the first task.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) data: OutcomeData,
    /// Run time of each task, if a worker has answered them.
    pub(crate) run_time: Option<Duration>,
}

/// Contents of a run: bytes of results, not decoded yet, or an error.
#[derive(Debug)]
pub(crate) enum OutcomeData {
    /// Results of consecutive tasks. The run begins at this position of the values.
    Values(ReceivedValues, usize),
    /// Single result with its attachments.
    Single(Box<Incoming>),
    /// The same error for all tasks. (Boxed, because errors are rare, and runs stay in memory until they are
    /// taken.)
    Failed(Box<TaskError>),
}

impl OutcomeRun {
    /// Creates a run of tasks with the same error.
    pub(crate) fn failed(tasks: Range<usize>, error: TaskError) -> OutcomeRun {
        OutcomeRun {
            first: tasks.start,
            count: tasks.len(),
            data: OutcomeData::Failed(Box::new(error)),
            run_time: None,
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.first + self.count
    }

    /// Returns the error of all tasks of the run.
    pub(crate) fn error(&self) -> Option<&TaskError> {
        if let OutcomeData::Failed(error) = &self.data { Some(error) } else { None }
    }
}

/// Runs of outcomes in *stretches*: each run of a stretch begins at the end of the previous run. Workers
/// answer their own chunks in order, so most runs extend one of a few stretches.
#[derive(Debug, Default)]
pub(super) struct OutcomeRuns {
    /// Non-empty stretches. Adjacent stretches are not joined.
    stretches: VecDeque<VecDeque<OutcomeRun>>,
    len: usize,
}

impl OutcomeRuns {
    /// Returns the number of runs.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<&OutcomeRun> {
        self.stretches.front()?.front()
    }

    pub(super) fn pop_first(&mut self) -> Option<OutcomeRun> {
        let stretch = self.stretches.front_mut()?;
        let run = stretch.pop_front();
        if stretch.is_empty() {
            self.stretches.pop_front();
        }
        self.len -= usize::from(run.is_some());
        run
    }

    /// Adds a run after all others.
    pub(super) fn push(&mut self, run: OutcomeRun) {
        match self.stretches.back_mut() {
            Some(stretch) => stretch.push_back(run),
            None => self.stretches.push_back(VecDeque::from([run])),
        }
        self.len += 1;
    }

    /// Inserts a run at the position of its tasks, which must be in `base..total`. Returns `false` and
    /// changes nothing if a task has an outcome already, or the run is empty.
    pub(super) fn insert(&mut self, run: OutcomeRun, base: usize, total: usize) -> bool {
        let at = self.stretches.partition_point(|stretch| stretch[0].first <= run.first);
        let before = at.checked_sub(1).and_then(|before| self.stretches.get_mut(before));
        let free = before.as_ref().and_then(|stretch| stretch.back()).map_or(base, OutcomeRun::end);
        let until = self.stretches.get(at).map_or(total, |stretch| stretch[0].first);
        let fits = free <= run.first && run.end() <= until && run.count > 0;
        if !fits {
            return false;
        }
        self.len += 1;
        match at.checked_sub(1) {
            Some(before) if free == run.first => self.stretches[before].push_back(run),
            _ => self.stretches.insert(at, VecDeque::from([run])),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::error::TaskError;

    fn run(tasks: Range<usize>) -> OutcomeRun {
        OutcomeRun::failed(tasks, TaskError::Terminated)
    }

    /// Results of two workers form two stretches, however many results there are. So inserting a run neither
    /// searches all runs nor moves them.
    #[test]
    fn task_results_of_each_worker_form_one_stretch() {
        let mut runs = OutcomeRuns::default();
        for i in 0..1000 {
            assert!(runs.insert(run(i..i + 1), 0, 2000) && runs.insert(run(1000 + i..1001 + i), 0, 2000));
        }
        assert_eq!((runs.stretches.len(), runs.len()), (2, 2000));
        let firsts = std::iter::from_fn(|| runs.pop_first()).map(|run| run.first);
        assert!(firsts.eq(0..2000));
        assert_eq!((runs.stretches.len(), runs.len()), (0, 0));
    }

    proptest! {
        /// The outcomes are compared with a table that has an entry for each task.
        #[test]
        fn task_outcomes_are_unique_and_ordered(
            operations in prop::collection::vec((0..60_usize, 0..5_usize, any::<bool>()), 0..200),
        ) {
            let (mut runs, mut there, mut base) = (OutcomeRuns::default(), [None; 50], 0);
            for (number, (first, count, take)) in operations.into_iter().enumerate() {
                if take && runs.first().is_some_and(|run| run.first == base) {
                    let run = runs.pop_first().unwrap();
                    prop_assert_eq!(run.first, base);
                    let numbers = &there[run.first..run.end()];
                    prop_assert!(numbers[0].is_some() && numbers.iter().all(|n| *n == numbers[0]));
                    base = run.end();
                    continue;
                }
                let tasks = first..first + count;
                let free = |there: &[Option<usize>; 50]| there[tasks.clone()].iter().all(Option::is_none);
                let fits = first >= base && tasks.end <= 50 && count > 0 && free(&there);
                prop_assert_eq!(runs.insert(run(tasks.clone()), base, 50), fits);
                if fits {
                    there[tasks].fill(Some(number));
                }
                let mut of_rest: Vec<_> = there[base..].iter().flatten().collect();
                of_rest.dedup();
                prop_assert_eq!(runs.len(), of_rest.len());
                let free_until = there[base..].iter().position(Option::is_some).map(|at| base + at);
                prop_assert_eq!(runs.first().map(|run| run.first), free_until);
            }
        }
    }
}
