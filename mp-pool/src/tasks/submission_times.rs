//! Submission times of the tasks of a call, for the statistics of waiting times.

use std::collections::VecDeque;
use std::time::Instant;

/// Number of entries below which entries of finished submissions are not removed.
const FEW: usize = 64;

/// Submission times of tasks without an outcome. Entries of tasks with outcomes are removed later.
#[derive(Debug, Default)]
pub(crate) struct SubmissionTimes {
    /// For each submission: total number of tasks up to it, number of its tasks without an outcome, and its
    /// time.
    times: VecDeque<(usize, usize, Instant)>,
    /// Number of entries whose tasks all have outcomes.
    over: usize,
    /// Total number of tasks.
    count: usize,
}

impl SubmissionTimes {
    /// Records a submission of `tasks` tasks, and returns the index of the first.
    pub(crate) fn add(&mut self, tasks: usize, when: Instant) -> usize {
        // Without this, one task that never ends would make the list of a stream grow with all later tasks.
        if self.over > FEW && 2 * self.over > self.times.len() {
            self.times.retain(|(_, left, _)| *left > 0);
            self.over = 0;
        }
        let first = self.count;
        self.count += tasks;
        if tasks > 0 {
            self.times.push_back((self.count, tasks, when));
        }
        first
    }

    /// Records outcomes of tasks from `first` on, which had no outcome. Returns the submission time of the
    /// first task.
    pub(crate) fn settled(&mut self, first: usize, count: usize) -> Option<Instant> {
        let at = self.times.partition_point(|(end, ..)| *end <= first);
        let when = self.times.get(at).map(|(.., when)| *when);
        let (mut from, to) = (first, first + count);
        for (end, left, _) in self.times.range_mut(at..).filter(|(_, left, _)| *left > 0) {
            if from >= to {
                break;
            }
            *left = left.saturating_sub(to.min(*end) - from);
            self.over += usize::from(*left == 0);
            from = *end;
        }
        while let Some((_, 0, _)) = self.times.front() {
            self.times.pop_front();
            self.over -= 1;
        }
        when
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn settled_task_returns_its_submission_time() {
        let (mut submitted, now) = (SubmissionTimes::default(), Instant::now());
        let at = |i: u64| now + Duration::from_secs(i);
        assert_eq!([submitted.add(3, at(0)), submitted.add(0, at(1)), submitted.add(2, at(2))], [0, 3, 3]);
        assert_eq!(submitted.settled(4, 1), Some(at(2)));
        assert_eq!(submitted.settled(1, 1), Some(at(0)));
        assert_eq!(submitted.add(1, at(3)), 5);
        assert_eq!(submitted.settled(2, 2), Some(at(0)), "one of the first time, and one of the next");
        assert_eq!(submitted.settled(5, 1), Some(at(3)));
        assert_eq!(submitted.settled(0, 1), Some(at(0)));
        assert!(submitted.times.is_empty() && submitted.over == 0);
    }

    #[test]
    fn submission_times_of_settled_tasks_are_removed() {
        let (mut submitted, now) = (SubmissionTimes::default(), Instant::now());
        submitted.add(2, now);
        for i in 2..5000_usize {
            let when = now + Duration::from_secs(i as u64);
            assert_eq!(submitted.add(1, when), i);
            assert_eq!(submitted.settled(i, 1), Some(when));
        }
        assert!(submitted.times.len() <= 3 + FEW, "{}", submitted.times.len());
        assert_eq!(submitted.settled(0, 2), Some(now));
        assert!(submitted.times.is_empty() && submitted.over == 0);
        assert_eq!(submitted.add(1, now), 5000);
    }
}
