//! Outcomes of a stream from their arrival until they are taken: in the order of arrival, in the order of
//! tickets, or by ticket.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::child::values::ReceivedValues;
use crate::error::TaskError;
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};

/// Number of entries in `arrivals` below which entries of taken outcomes are not removed.
const FEW: usize = 64;

/// Outcomes of a stream's tasks by index.
#[derive(Debug)]
pub(crate) struct TicketOutcomes {
    /// Maximum number of pushed tasks whose outcomes were not taken.
    pub(crate) most: usize,
    /// `true` if outcomes are taken in the order of the tasks, `false` if in the order of arrival.
    pub(crate) in_order: bool,
    /// `true` if the input has ended.
    pub(crate) closed: bool,
    /// Runs by the index of their first task, with the number of outcomes that were not taken.
    runs: BTreeMap<usize, (OutcomeRun, usize)>,
    /// Indices of tasks in the order in which their outcomes arrived. The first entry is of an outcome that
    /// was not taken. Entries of taken outcomes are removed when they are about half of all entries.
    arrivals: VecDeque<usize>,
    /// Number of outcomes that have arrived and were not taken.
    untaken: usize,
    /// Tasks whose outcomes were taken. They are stored as ranges, so one task that never ends does not make
    /// the memory of a stream grow with all later tasks.
    taken: NumberSet,
}

/// Set of mostly consecutive numbers.
#[derive(Debug, Default)]
struct NumberSet {
    /// End of each range (exclusive) by its start.
    rows: BTreeMap<usize, usize>,
    count: usize,
}

impl NumberSet {
    fn contains(&self, number: usize) -> bool {
        self.overlaps(number..number + 1)
    }

    /// Returns `true` if the set contains a number of this range.
    fn overlaps(&self, row: Range<usize>) -> bool {
        self.rows.range(..row.end).next_back().is_some_and(|(_, end)| *end > row.start)
    }

    /// Inserts a number that is not in the set.
    fn insert(&mut self, number: usize) {
        self.count += 1;
        let end = self.rows.remove(&(number + 1)).unwrap_or(number + 1);
        match self.rows.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => _ = self.rows.insert(number, end),
        }
    }

    /// Returns the first number from 0 on that is not in the set.
    fn first_missing(&self) -> usize {
        self.rows.get(&0).copied().unwrap_or(0)
    }
}

impl TicketOutcomes {
    pub(crate) fn new(most: usize) -> TicketOutcomes {
        let (runs, arrivals) = (BTreeMap::new(), VecDeque::new());
        TicketOutcomes {
            most,
            in_order: false,
            closed: false,
            runs,
            arrivals,
            untaken: 0,
            taken: NumberSet::default(),
        }
    }

    /// Returns the number of outcomes that were taken.
    pub(crate) fn count_taken(&self) -> usize {
        self.taken.count
    }

    pub(crate) fn is_taken(&self, index: usize) -> bool {
        self.taken.contains(index)
    }

    /// Returns `true` if the outcome of this task has arrived and was not taken.
    pub(crate) fn has(&self, index: usize) -> bool {
        let before = self.runs.range(..=index).next_back();
        before.is_some_and(|(_, (run, _))| index < run.end()) && !self.is_taken(index)
    }

    /// Adds outcomes. Returns `false` if one of the tasks has an outcome already.
    pub(crate) fn add(&mut self, run: OutcomeRun) -> bool {
        let (first, end) = (run.first, run.end());
        let overlaps = self.runs.range(..end).next_back().is_some_and(|(_, (other, _))| other.end() > first);
        if first >= end || overlaps || self.taken.overlaps(first..end) {
            return false;
        }
        self.arrivals.extend(first..end);
        self.untaken += end - first;
        self.runs.insert(first, (run, end - first));
        true
    }

    /// Returns the index of the next outcome, or `None` if it has not arrived.
    pub(crate) fn next(&self) -> Option<usize> {
        if self.in_order {
            return Some(self.taken.first_missing()).filter(|oldest| self.has(*oldest));
        }
        self.arrivals.front().copied()
    }

    /// Takes the outcome of a task.
    pub(crate) fn take(&mut self, index: usize) -> Option<OutcomeRun> {
        if !self.has(index) {
            return None;
        }
        let (first, (run, left)) = self.runs.range_mut(..=index).next_back()?;
        let (first, whole) = (*first, run.count == 1);
        let one = (!whole).then(|| split_one(run, index - first));
        *left -= 1;
        let rest = if *left == 0 { self.runs.remove(&first).map(|(run, _)| run) } else { None };
        self.taken.insert(index);
        self.untaken -= 1;
        while self.arrivals.front().is_some_and(|front| self.is_taken(*front)) {
            self.arrivals.pop_front();
        }
        // Other outcomes were taken by their tickets.
        if self.arrivals.len() > 2 * self.untaken + FEW {
            self.arrivals.retain(|index| !self.taken.contains(*index));
        }
        one.or(rest)
    }
}

/// Extracts one outcome of a run.
fn split_one(run: &OutcomeRun, item: usize) -> OutcomeRun {
    let data = match &run.data {
        OutcomeData::Values(many, from) => many.get(from + item).map(|bytes| {
            let end = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            OutcomeData::Values(ReceivedValues::from_journal(&[end], bytes), 0)
        }),
        OutcomeData::Failed(error) => Some(OutcomeData::Failed(error.clone())),
        OutcomeData::Single(_) => None,
    };
    let data = data.unwrap_or_else(|| {
        OutcomeData::Failed(Box::new(TaskError::value("the message is not of this pool")))
    });
    OutcomeRun { first: run.first + item, count: 1, data, run_time: run.run_time }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: usize, results: &[&str]) -> OutcomeRun {
        let mut end = 0;
        let ends: Vec<u32> = results
            .iter()
            .map(|text| {
                end += text.len() as u32;
                end
            })
            .collect();
        let data = OutcomeData::Values(ReceivedValues::from_journal(&ends, results.concat().as_bytes()), 0);
        OutcomeRun { first, count: results.len(), data, run_time: None }
    }

    fn text(run: Option<OutcomeRun>) -> Option<(usize, String)> {
        let run = run?;
        let OutcomeData::Values(many, from) = &run.data else { panic!("{run:?}") };
        assert_eq!(run.count, 1);
        Some((run.first, String::from_utf8(many.get(*from)?.to_vec()).ok()?))
    }

    #[test]
    fn each_outcome_is_taken_once_in_requested_order() {
        let mut tickets = TicketOutcomes::new(usize::MAX);
        assert!(tickets.add(run(2, &["two", "", "four"])) && tickets.add(run(1, &["one"])));
        assert!(!tickets.add(run(3, &["again"])) && !tickets.add(run(1, &["again", "again"])));
        assert_eq!((tickets.next(), tickets.has(0), tickets.has(4)), (Some(2), false, true));
        assert_eq!(text(tickets.take(3)), Some((3, String::new())));
        assert!(tickets.take(3).is_none() && !tickets.has(3) && tickets.is_taken(3));
        assert_eq!(text(tickets.take(2)), Some((2, "two".into())));
        assert_eq!(tickets.next(), Some(4), "3 was taken");
        tickets.in_order = true;
        assert_eq!(tickets.next(), None, "the oldest has not arrived");
        assert!(tickets.add(run(0, &["zero"])));
        for (index, is) in [(0, "zero"), (1, "one"), (4, "four")] {
            assert_eq!(tickets.next(), Some(index));
            assert_eq!(text(tickets.take(index)), Some((index, is.into())));
        }
        assert_eq!((tickets.next(), tickets.count_taken()), (None, 5));
        assert!(!tickets.add(run(4, &["again"])), "it was taken");
        assert!(tickets.runs.is_empty() && tickets.arrivals.is_empty());
        assert_eq!((tickets.untaken, tickets.taken.rows.len()), (0, 1));
    }

    /// The result does not depend on the numbers or their order: it is compared with a set of numbers.
    #[test]
    fn taken_outcome_numbers_are_stored_as_ranges() {
        let (mut rows, mut all) = (NumberSet::default(), std::collections::BTreeSet::new());
        for i in 0..1000_usize {
            // Each number occurs once: 367 and 1000 have no common divisor.
            let number = i * 367 % 1000;
            assert!(!rows.contains(number));
            rows.insert(number);
            all.insert(number);
            assert!((0..1001).all(|n| rows.contains(n) == all.contains(&n)));
            assert_eq!(rows.count, all.len());
            let missing = (0..).find(|n| !all.contains(n));
            assert_eq!(Some(rows.first_missing()), missing);
            let some = number.saturating_sub(2)..number;
            assert_eq!(rows.overlaps(some.clone()), all.range(some).next().is_some());
        }
        assert_eq!(rows.rows, BTreeMap::from([(0, 1000)]));
    }

    /// Test with a task that never ends, and a result that is never taken.
    #[test]
    fn long_stream_of_outcomes_uses_constant_memory() {
        let mut tickets = TicketOutcomes::new(usize::MAX);
        assert!(tickets.add(run(1, &["never taken"])));
        for index in 2..10_000 {
            assert!(tickets.add(run(index, &["taken by its ticket"])));
            assert!(tickets.take(index).is_some());
        }
        assert_eq!((tickets.count_taken(), tickets.taken.rows.len(), tickets.runs.len()), (9_998, 1, 1));
        assert!(tickets.arrivals.len() <= 2 + FEW, "{}", tickets.arrivals.len());
        assert_eq!(tickets.next(), Some(1));
    }
}
