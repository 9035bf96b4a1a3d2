//! Submission times of the tasks of a call, for the statistics of waiting times.

use std::collections::VecDeque;
use std::time::Instant;

/// Number of finished entries below which cleaning up is not worth it.
const FEW: usize = 64;

/// Submission times of the tasks that have no outcome, and of a few others.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    /// For each submission: total number of tasks up to it, number of its tasks without an outcome, and its
    /// time.
    times: VecDeque<(usize, usize, Instant)>,
    /// Number of entries whose tasks all have outcomes.
    over: usize,
    /// Total number of tasks.
    count: usize,
}

impl Brought {
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

    /// Records outcomes of tasks from `first` on, which had none. Returns the submission time of the first.
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
    fn a_task_was_brought_when_its_call_was_made_or_it_was_pushed() {
        let (mut brought, now) = (Brought::default(), Instant::now());
        let at = |i: u64| now + Duration::from_secs(i);
        assert_eq!([brought.add(3, at(0)), brought.add(0, at(1)), brought.add(2, at(2))], [0, 3, 3]);
        assert_eq!(brought.settled(4, 1), Some(at(2)));
        assert_eq!(brought.settled(1, 1), Some(at(0)));
        assert_eq!(brought.add(1, at(3)), 5);
        assert_eq!(brought.settled(2, 2), Some(at(0)), "one of the first time, and one of the next");
        assert_eq!(brought.settled(5, 1), Some(at(3)));
        assert_eq!(brought.settled(0, 1), Some(at(0)));
        assert!(brought.times.is_empty() && brought.over == 0);
    }

    #[test]
    fn what_is_known_of_tasks_that_are_done_goes_although_an_older_one_is_not() {
        let (mut brought, now) = (Brought::default(), Instant::now());
        brought.add(2, now);
        for i in 2..5000_usize {
            let when = now + Duration::from_secs(i as u64);
            assert_eq!(brought.add(1, when), i);
            assert_eq!(brought.settled(i, 1), Some(when));
        }
        assert!(brought.times.len() <= 3 + FEW, "{}", brought.times.len());
        assert_eq!(brought.settled(0, 2), Some(now));
        assert!(brought.times.is_empty() && brought.over == 0);
        assert_eq!(brought.add(1, now), 5000);
    }
}
