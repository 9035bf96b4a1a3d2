//! Tasks of a stream that no worker has been given, and which worker had which lane last.
//!
//! | what | changes | what a death leaves |
//! |---|---|---|
//! | a lane's worker | whenever a worker is given a task of that lane | the number of the one that died: any worker may have its lanes, and the one in its place, as soon as that is ready |
//!
//! A lane's worker is a hint: where to look first. Any other may do its tasks, so nothing but time depends on it.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use mp_core::mutex::Mutex;
use mp_core::user_code::{Apart, Each};
use mp_reduce::Message;

use crate::calls::source::{Piece, Rubbish, Source, encode_rows};

/// How many lanes are remembered; then all are forgotten.
const MOST_LANES: usize = 1 << 16;

/// For which worker tasks are taken.
pub(crate) struct Takes {
    pub(crate) worker: usize,
    /// Of which workers it may take the lanes.
    pub(crate) lanes_of: Vec<bool>,
}

/// Tasks that were pushed one by one.
pub(crate) struct Pushed<A> {
    waiting: Mutex<Waiting<A>>,
    /// Whether they are kept for another attempt.
    keeps: bool,
}

struct Waiting<A> {
    /// The tasks of each lane that has some, and of no lane, the oldest first, with their indices.
    rows: HashMap<Option<u64>, VecDeque<(usize, Apart<A>)>>,
    count: usize,
    /// Which worker was given a task of a lane last.
    workers: HashMap<u64, usize>,
    /// The lanes of tasks whose outcomes were not taken, by their index.
    lanes: HashMap<usize, u64>,
}

impl<A> Waiting<A> {
    /// Whether a worker may take tasks of this lane.
    fn may(&self, lane: Option<u64>, takes: &Takes) -> bool {
        let worker = lane.and_then(|lane| self.workers.get(&lane));
        worker.is_none_or(|worker| {
            *worker == takes.worker || takes.lanes_of.get(*worker).is_none_or(|may| *may)
        }) || mp_core::mutant!("pool.lane.ignored")
    }

    /// The lane whose first task is the oldest that this worker may take.
    fn find(&self, takes: Option<&Takes>) -> Option<Option<u64>> {
        let may = |lane| takes.is_none_or(|takes| self.may(lane, takes));
        let rows = self.rows.iter().filter(|(lane, _)| may(**lane));
        rows.min_by_key(|(_, row)| row.front().map(|(index, _)| *index)).map(|(lane, _)| *lane)
    }

    /// Takes tasks of one lane whose indices follow each other.
    fn take(&mut self, most: usize, takes: Option<&Takes>) -> (VecDeque<Apart<A>>, usize) {
        let mut taken = VecDeque::new();
        let Some(lane) = self.find(takes) else { return (taken, 0) };
        let Some(row) = self.rows.get_mut(&lane) else { return (taken, 0) };
        let first = row.front().map_or(0, |(index, _)| *index);
        while taken.len() < most
            && row.front().is_some_and(|(index, _)| *index == first + taken.len())
            && let Some((_, args)) = row.pop_front()
        {
            taken.push_back(args);
        }
        if row.is_empty() {
            self.rows.remove(&lane);
        }
        self.count -= taken.len();
        (taken, first)
    }
}

impl<A> Pushed<A> {
    pub(crate) fn new(keeps: bool) -> Self {
        let (rows, workers, lanes) = (HashMap::new(), HashMap::new(), HashMap::new());
        Pushed { waiting: Mutex::new(Waiting { rows, count: 0, workers, lanes }), keeps }
    }

    /// A task with this index, of a lane or of none.
    pub(crate) fn push(&self, index: usize, lane: Option<u64>, args: A) {
        let args = Apart::new(args);
        let waiting = &mut *self.waiting.lock();
        if let Some(lane) = lane {
            waiting.lanes.insert(index, lane);
        }
        let row = waiting.rows.entry(lane).or_default();
        // Two threads may push at once.
        let at = row.partition_point(|(other, _)| *other < index);
        row.insert(at, (index, args));
        waiting.count += 1;
    }

    /// The outcome of this task was taken.
    pub(crate) fn is_over(&self, index: usize) {
        self.waiting.lock().lanes.remove(&index);
    }
}

impl<A: Message + Send> Source for Pushed<A> {
    fn take(&self, most: usize, takes: Option<&Takes>, into: &mut Vec<Piece>) {
        encode_rows(most, self.keeps, into, |most| {
            let (taken, first) = self.waiting.lock().take(most, takes);
            (Each::from(taken.into_iter().filter_map(Apart::into_inner).collect::<VecDeque<A>>()), first)
        });
    }

    fn left(&self) -> usize {
        self.waiting.lock().count
    }

    fn clear(&self) -> (Vec<Range<usize>>, Rubbish) {
        let rows = {
            let waiting = &mut *self.waiting.lock();
            waiting.count = 0;
            std::mem::take(&mut waiting.rows)
        };
        let indices = rows.values().flatten().map(|(index, _)| *index..*index + 1).collect();
        (indices, Box::new(rows))
    }

    fn has_lanes(&self) -> bool {
        true
    }

    fn has_for(&self, takes: &Takes) -> bool {
        self.waiting.lock().find(Some(takes)).is_some()
    }

    fn goes_to(&self, index: usize, worker: usize) {
        let waiting = &mut *self.waiting.lock();
        let Some(lane) = waiting.lanes.get(&index).copied() else { return };
        if waiting.workers.len() >= MOST_LANES {
            waiting.workers.clear();
        }
        waiting.workers.insert(lane, worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(worker: usize, lanes_of: [bool; 2]) -> Takes {
        Takes { worker, lanes_of: lanes_of.to_vec() }
    }

    /// The indices of the tasks that a worker gets.
    fn given(pushed: &Pushed<u64>, takes: &Takes) -> Vec<usize> {
        let mut pieces = Vec::new();
        Source::take(pushed, 10, Some(takes), &mut pieces);
        let indices: Vec<usize> = pieces
            .into_iter()
            .flat_map(|piece| piece.first..piece.first + piece.args.map_or(1, |args| args.len()))
            .collect();
        indices.iter().for_each(|index| pushed.goes_to(*index, takes.worker));
        indices
    }

    #[test]
    fn a_lane_stays_with_its_worker_unless_another_may_have_it() {
        let pushed = Pushed::new(false);
        let push = |index: usize, lane| pushed.push(index, lane, index as u64);
        push(0, Some(7));
        push(1, None);
        assert!(pushed.has_for(&takes(0, [false; 2])), "no worker has had that lane");
        assert_eq!(given(&pushed, &takes(0, [false; 2])), [0, 1]);
        push(2, Some(7));
        push(3, Some(8));
        assert_eq!(given(&pushed, &takes(1, [false; 2])), [3]);
        assert!(!pushed.has_for(&takes(1, [false; 2])));
        assert!(given(&pushed, &takes(1, [false; 2])).is_empty());
        assert!(pushed.has_for(&takes(1, [true, false])), "the other one has work");
        push(4, Some(8));
        // The oldest first.
        assert_eq!(given(&pushed, &takes(0, [false, true])), [2, 4]);
        push(5, Some(8));
        assert_eq!(given(&pushed, &takes(1, [false; 2])), [0; 0]);
        assert_eq!(given(&pushed, &takes(0, [false; 2])), [5]);
        assert_eq!(pushed.left(), 0);
    }

    #[test]
    fn what_is_left_is_known_by_its_indices() {
        let pushed = Pushed::new(false);
        let rows = [(0, None), (1, Some(1)), (2, None)];
        rows.iter().for_each(|(index, lane)| pushed.push(*index, *lane, 0_u64));
        assert_eq!(given(&pushed, &takes(0, [false; 2])).len(), 3);
        let rows = [(5, Some(1)), (4, None), (3, None)];
        rows.iter().for_each(|(index, lane)| pushed.push(*index, *lane, 0_u64));
        let mut left: Vec<usize> = pushed.clear().0.into_iter().flatten().collect();
        left.sort_unstable();
        assert_eq!((left, pushed.left()), (vec![3, 4, 5], 0));
    }
}
