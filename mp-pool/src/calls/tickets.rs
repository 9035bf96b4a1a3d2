//! Outcomes of a stream, from when they come until they are taken: as they come, by the order of their tickets, or by ticket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::outcomes::{Run, What};
use crate::error::TaskError;
use crate::run::values::Many;

/// The outcomes of a stream's tasks, each of which has an index.
#[derive(Debug)]
pub(crate) struct Tickets {
    /// How many tasks may have been pushed whose outcomes were not taken.
    pub(crate) most: usize,
    /// Whether the oldest is taken first.
    pub(crate) in_order: bool,
    /// Nothing more is pushed.
    pub(crate) closed: bool,
    /// By the index of the first task, and how many of each were not taken.
    runs: BTreeMap<usize, (Run, usize)>,
    /// The indices of those, as they came; the first was not taken.
    came: VecDeque<usize>,
    /// The first task whose outcome was not taken,
    oldest: usize,
    /// and those behind it whose outcomes were.
    taken: BTreeSet<usize>,
}

impl Tickets {
    pub(crate) fn new(most: usize) -> Tickets {
        let (runs, came, taken) = (BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        Tickets { most, in_order: false, closed: false, runs, came, oldest: 0, taken }
    }

    /// How many were taken.
    pub(crate) fn count_taken(&self) -> usize {
        self.oldest + self.taken.len()
    }

    pub(crate) fn is_taken(&self, index: usize) -> bool {
        index < self.oldest || self.taken.contains(&index)
    }

    /// Whether the outcome of this task is here.
    pub(crate) fn has(&self, index: usize) -> bool {
        let before = self.runs.range(..=index).next_back();
        before.is_some_and(|(_, (run, _))| index < run.end()) && !self.is_taken(index)
    }

    /// Outcomes have come; false if one of the tasks has an outcome already.
    pub(crate) fn add(&mut self, run: Run) -> bool {
        let (first, end) = (run.first, run.end());
        let overlaps = self.runs.range(..end).next_back().is_some_and(|(_, (other, _))| other.end() > first);
        let taken = first < self.oldest || self.taken.range(first..end).next().is_some();
        if first >= end || overlaps || taken {
            return false;
        }
        self.came.extend(first..end);
        self.runs.insert(first, (run, end - first));
        true
    }

    /// Which one is to be taken next; `None` if it is not here.
    pub(crate) fn next(&self) -> Option<usize> {
        if self.in_order {
            return Some(self.oldest).filter(|oldest| self.has(*oldest));
        }
        self.came.front().copied()
    }

    /// Takes the outcome of a task out.
    pub(crate) fn take(&mut self, index: usize) -> Option<Run> {
        if !self.has(index) {
            return None;
        }
        let (first, (run, left)) = self.runs.range_mut(..=index).next_back()?;
        let (first, whole) = (*first, run.count == 1);
        let one = (!whole).then(|| one_of(run, index - first));
        *left -= 1;
        let rest = if *left == 0 { self.runs.remove(&first).map(|(run, _)| run) } else { None };
        self.taken.insert(index);
        while self.taken.remove(&self.oldest) {
            self.oldest += 1;
        }
        while self.came.front().is_some_and(|front| self.is_taken(*front)) {
            self.came.pop_front();
        }
        one.or(rest)
    }
}

/// One outcome of several.
fn one_of(run: &Run, item: usize) -> Run {
    let what = match &run.what {
        What::Values(many, from) => many.get(from + item).map(|bytes| {
            let end = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            What::Values(Many::found(&[end], bytes), 0)
        }),
        What::Failed(error) => Some(What::Failed(error.clone())),
        What::One(_) => None,
    };
    let what = what.unwrap_or_else(|| What::Failed(TaskError::value("the message is not of this pool")));
    Run { first: run.first + item, count: 1, what, ran: run.ran }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: usize, results: &[&str]) -> Run {
        let mut end = 0;
        let ends: Vec<u32> = results
            .iter()
            .map(|text| {
                end += text.len() as u32;
                end
            })
            .collect();
        let what = What::Values(Many::found(&ends, results.concat().as_bytes()), 0);
        Run { first, count: results.len(), what, ran: None }
    }

    fn text(run: Option<Run>) -> Option<(usize, String)> {
        let run = run?;
        let What::Values(many, from) = &run.what else { panic!("{run:?}") };
        assert_eq!(run.count, 1);
        Some((run.first, String::from_utf8(many.get(*from)?.to_vec()).ok()?))
    }

    #[test]
    fn each_is_taken_once_in_the_order_that_is_asked_for() {
        let mut tickets = Tickets::new(usize::MAX);
        assert!(tickets.add(run(2, &["two", "", "four"])) && tickets.add(run(1, &["one"])));
        assert!(!tickets.add(run(3, &["again"])) && !tickets.add(run(1, &["again", "again"])));
        assert_eq!((tickets.next(), tickets.has(0), tickets.has(4)), (Some(2), false, true));
        assert_eq!(text(tickets.take(3)), Some((3, String::new())));
        assert!(tickets.take(3).is_none() && !tickets.has(3) && tickets.is_taken(3));
        assert_eq!(text(tickets.take(2)), Some((2, "two".into())));
        assert_eq!(tickets.next(), Some(4), "3 was taken");
        tickets.in_order = true;
        assert_eq!(tickets.next(), None, "the oldest is not here");
        assert!(tickets.add(run(0, &["zero"])));
        for (index, is) in [(0, "zero"), (1, "one"), (4, "four")] {
            assert_eq!(tickets.next(), Some(index));
            assert_eq!(text(tickets.take(index)), Some((index, is.into())));
        }
        assert_eq!((tickets.next(), tickets.count_taken()), (None, 5));
        assert!(!tickets.add(run(4, &["again"])), "it was taken");
        assert!(tickets.runs.is_empty() && tickets.came.is_empty() && tickets.taken.is_empty());
    }
}
