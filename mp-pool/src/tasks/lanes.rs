//! Tasks of a stream that were not sent to a worker, and the last worker of each lane.
//!
//! | data | changes | after the death of a worker |
//! |---|---|---|
//! | a lane's worker | when a task of that lane is sent to a worker | remains the number of the dead worker. Until the replacement with this number is ready, any worker may take the lane |
//!
//! A lane's worker is a hint for the first choice. Any other worker may run tasks of the lane, so only
//! performance depends on the hint.
//!
//! The number of lookups that find the oldest task for a worker depends on the number of workers, not on the
//! number of lanes. For each worker there is a sorted map with the first task of each lane that this worker
//! ran last.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, UserValues};
use mp_reduce::Message;

use crate::tasks::source::{ArgsPiece, LaneFilter, TaskSource, UnneededValues, encode_rows};
use crate::tasks::transit::TransitCounter;

/// Maximum number of lanes whose last workers are stored. When a further lane is used, the workers of all
/// lanes are removed.
const MOST_LANES: usize = 1 << 16;

/// Tasks that were pushed one by one.
pub(crate) struct PushedTasks<A> {
    waiting: Mutex<LaneQueues<A>>,
    /// `true` if arguments are kept for a retry.
    saves: bool,
}

struct LaneQueues<A> {
    /// Waiting tasks by lane, the oldest first, each with its index. Tasks without a lane have the key
    /// `None`. Lanes without waiting tasks are left out.
    rows: HashMap<Option<u64>, VecDeque<(usize, UserValue<A>)>>,
    /// Lanes with waiting tasks, by the worker that ran the lane last and the index of the lane's first task.
    /// The worker is `None` for a lane without a worker.
    heads: HashMap<Option<usize>, BTreeMap<usize, Option<u64>>>,
    count: usize,
    /// Number of the last worker of each lane.
    workers: HashMap<u64, usize>,
    /// Lanes of the tasks whose outcomes were not taken, by task index.
    lanes: HashMap<usize, u64>,
}

impl<A> LaneQueues<A> {
    fn new() -> Self {
        let (rows, heads, workers, lanes) = Default::default();
        LaneQueues { rows, heads, count: 0, workers, lanes }
    }

    /// Returns the last worker of this lane, if known.
    fn worker(&self, lane: Option<u64>) -> Option<usize> {
        lane.and_then(|lane| self.workers.get(&lane).copied())
    }

    /// Returns the index of a lane's first task.
    fn head(&self, lane: Option<u64>) -> Option<usize> {
        self.rows.get(&lane)?.front().map(|(index, _)| *index)
    }

    /// Applies a change to a lane's first task or worker, and moves its entry in `heads` accordingly.
    fn change<R>(&mut self, lane: Option<u64>, change: impl FnOnce(&mut Self) -> R) -> R {
        if let Some(head) = self.head(lane) {
            let worker = self.worker(lane);
            self.heads.get_mut(&worker).and_then(|heads| heads.remove(&head));
        }
        let changed = change(self);
        if let Some(head) = self.head(lane) {
            self.heads.entry(self.worker(lane)).or_default().insert(head, lane);
        }
        changed
    }

    fn push(&mut self, index: usize, lane: Option<u64>, args: UserValue<A>) {
        if let Some(lane) = lane {
            self.lanes.insert(index, lane);
        }
        self.count += 1;
        let is_first = self.head(lane).is_none_or(|head| index < head);
        let push = |waiting: &mut Self| {
            let row = waiting.rows.entry(lane).or_default();
            // Two threads may push at the same time, so a higher index may arrive first.
            let at = row.partition_point(|(other, _)| *other < index);
            row.insert(at, (index, args));
        };
        if is_first { self.change(lane, push) } else { push(self) }
    }

    /// Records that a worker receives a task of this lane.
    fn record_worker(&mut self, lane: u64, worker: usize) {
        if self.workers.get(&lane) == Some(&worker) {
            return;
        }
        if self.workers.len() >= MOST_LANES && !self.workers.contains_key(&lane) {
            self.workers.clear();
            let heads = std::mem::take(&mut self.heads);
            self.heads.insert(None, heads.into_values().flatten().collect());
        }
        self.change(Some(lane), |waiting| waiting.workers.insert(lane, worker));
    }

    /// Returns the lane whose first task is the oldest of the tasks that this worker may take. The inner
    /// `None` stands for tasks without a lane.
    fn find(&self, takes: Option<&LaneFilter>) -> Option<Option<u64>> {
        let may = |worker: &Option<usize>| takes.is_none_or(|takes| takes.allows(*worker));
        let first = self.heads.iter().filter(|(worker, _)| may(worker));
        first.filter_map(|(_, heads)| heads.first_key_value()).min().map(|(_, lane)| *lane)
    }

    /// Takes tasks of one lane with consecutive indices.
    fn take(&mut self, most: usize, takes: Option<&LaneFilter>) -> (VecDeque<UserValue<A>>, usize) {
        let Some(lane) = self.find(takes) else { return (VecDeque::new(), 0) };
        let first = self.head(lane).unwrap_or_default();
        let taken = self.change(lane, |waiting| {
            let mut taken = VecDeque::new();
            let Some(row) = waiting.rows.get_mut(&lane) else { return taken };
            while taken.len() < most
                && row.front().is_some_and(|(index, _)| *index == first + taken.len())
                && let Some((_, args)) = row.pop_front()
            {
                taken.push_back(args);
            }
            if row.is_empty() {
                waiting.rows.remove(&lane);
            }
            taken
        });
        self.count -= taken.len();
        (taken, first)
    }
}

impl<A> PushedTasks<A> {
    pub(crate) fn new(saves: bool) -> Self {
        PushedTasks { waiting: Mutex::new(LaneQueues::new()), saves }
    }

    /// Adds the task `index`. `lane` is `None` for a task without a lane.
    pub(crate) fn push(&self, index: usize, lane: Option<u64>, args: A) {
        let args = UserValue::new(args);
        self.waiting.lock().push(index, lane, args);
    }

    /// Records that the outcome of this task was taken.
    pub(crate) fn forget_lane(&self, index: usize) {
        self.waiting.lock().lanes.remove(&index);
    }
}

impl<A: Message + Send> TaskSource for PushedTasks<A> {
    fn take(&self, most: usize, takes: Option<&LaneFilter>, transit: &TransitCounter) -> Vec<ArgsPiece> {
        encode_rows(most, self.saves, |most| {
            let (taken, first) = {
                let mut waiting = self.waiting.lock();
                let taken = waiting.take(most, takes);
                transit.add(taken.0.len());
                taken
            };
            let taken: VecDeque<A> = taken.into_iter().filter_map(UserValue::into_inner).collect();
            (UserValues::from(taken), first)
        })
    }

    fn remaining(&self) -> usize {
        self.waiting.lock().count
    }

    fn clear(&self) -> (Vec<Range<usize>>, UnneededValues) {
        let rows = {
            let waiting = &mut *self.waiting.lock();
            waiting.count = 0;
            waiting.heads.clear();
            std::mem::take(&mut waiting.rows)
        };
        let indices = rows.values().flatten().map(|(index, _)| *index..*index + 1).collect();
        (indices, Box::new(rows))
    }

    fn has_lanes(&self) -> bool {
        true
    }

    fn has_task_for(&self, takes: &LaneFilter) -> bool {
        self.waiting.lock().find(Some(takes)).is_some()
    }

    fn record_worker(&self, index: usize, worker: usize) {
        let waiting = &mut *self.waiting.lock();
        let Some(lane) = waiting.lanes.get(&index).copied() else { return };
        waiting.record_worker(lane, worker);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn takes(worker: usize, lanes_of: [bool; 2]) -> LaneFilter {
        LaneFilter { worker, lanes_of: lanes_of.to_vec() }
    }

    /// Returns the indices of the tasks that a worker receives.
    fn given(pushed: &PushedTasks<u64>, takes: &LaneFilter) -> Vec<usize> {
        let pieces = TaskSource::take(pushed, 10, Some(takes), &TransitCounter::default());
        let indices: Vec<usize> = pieces
            .into_iter()
            .flat_map(|piece| piece.first..piece.first + piece.args.map_or(1, |args| args.len()))
            .collect();
        indices.iter().for_each(|index| pushed.record_worker(*index, takes.worker));
        indices
    }

    #[test]
    fn lane_of_tasks_stays_with_its_worker() {
        let pushed = PushedTasks::new(false);
        let push = |index: usize, lane| pushed.push(index, lane, index as u64);
        push(0, Some(7));
        push(1, None);
        assert!(pushed.has_task_for(&takes(0, [false; 2])), "no worker has had that lane");
        assert_eq!(given(&pushed, &takes(0, [false; 2])), [0, 1]);
        push(2, Some(7));
        push(3, Some(8));
        assert_eq!(given(&pushed, &takes(1, [false; 2])), [3]);
        assert!(!pushed.has_task_for(&takes(1, [false; 2])));
        assert!(given(&pushed, &takes(1, [false; 2])).is_empty());
        assert!(pushed.has_task_for(&takes(1, [true, false])), "worker 0 is busy");
        push(4, Some(8));
        // The oldest task comes first.
        assert_eq!(given(&pushed, &takes(0, [false, true])), [2, 4]);
        push(5, Some(8));
        assert_eq!(given(&pushed, &takes(1, [false; 2])), [0; 0]);
        assert_eq!(given(&pushed, &takes(0, [false; 2])), [5]);
        assert_eq!(pushed.remaining(), 0);
    }

    #[test]
    fn remaining_pushed_tasks_are_listed_by_index() {
        let pushed = PushedTasks::new(false);
        let rows = [(0, None), (1, Some(1)), (2, None)];
        rows.iter().for_each(|(index, lane)| pushed.push(*index, *lane, 0_u64));
        assert_eq!(given(&pushed, &takes(0, [false; 2])).len(), 3);
        let rows = [(5, Some(1)), (4, None), (3, None)];
        rows.iter().for_each(|(index, lane)| pushed.push(*index, *lane, 0_u64));
        let mut left: Vec<usize> = pushed.clear().0.into_iter().flatten().collect();
        left.sort_unstable();
        assert_eq!((left, pushed.remaining()), (vec![3, 4, 5], 0));
    }

    /// Reference implementation of `find`: the oldest of all tasks that the worker may take.
    fn oldest(
        tasks: &[(usize, Option<u64>)],
        workers: &HashMap<u64, usize>,
        takes: &LaneFilter,
    ) -> Option<usize> {
        let may = |lane: Option<u64>| takes.allows(lane.and_then(|lane| workers.get(&lane).copied()));
        tasks.iter().filter(|(_, lane)| may(*lane)).map(|(index, _)| *index).min()
    }

    /// Two threads may push at the same time, and lanes may change their workers while they have tasks.
    #[test]
    fn workers_take_the_oldest_task_allowed_by_lanes() {
        let mut seed = 11_u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        let pushed = PushedTasks::new(false);
        let (mut tasks, mut workers, mut next) = (Vec::<(usize, Option<u64>)>::new(), HashMap::new(), 0);
        for _ in 0..4000 {
            match below(8) {
                0..4 => {
                    let [first, second] =
                        [below(10), below(10)].map(|lane| Some(lane).filter(|lane| *lane < 9));
                    // The task with the higher index is pushed first.
                    for (index, lane) in [(next + 1, second), (next, first)] {
                        pushed.push(index, lane, 0_u64);
                        tasks.push((index, lane));
                    }
                    next += 2;
                }
                4 if below(100) == 0 => {
                    let mut left: Vec<usize> = pushed.clear().0.into_iter().flatten().collect();
                    left.sort_unstable();
                    let mut known: Vec<usize> = tasks.drain(..).map(|(index, _)| index).collect();
                    known.sort_unstable();
                    assert_eq!(left, known);
                }
                _ => {
                    let worker = below(3) as usize;
                    let lanes_of = (0..3).map(|_| below(2) == 0).collect();
                    let takes = LaneFilter { worker, lanes_of };
                    let wanted = oldest(&tasks, &workers, &takes);
                    assert_eq!(pushed.has_task_for(&takes), wanted.is_some());
                    let (taken, first) = pushed.waiting.lock().take(1, Some(&takes));
                    assert_eq!((taken.len(), wanted.unwrap_or(0)), (usize::from(wanted.is_some()), first));
                    let Some(at) = tasks.iter().position(|(index, _)| Some(*index) == wanted) else {
                        continue;
                    };
                    pushed.record_worker(first, worker);
                    if let (_, Some(lane)) = tasks.swap_remove(at) {
                        workers.insert(lane, worker);
                    }
                }
            }
            assert_eq!(pushed.remaining(), tasks.len());
        }
        assert!(next > 1000 && !tasks.is_empty());
    }

    /// Checking every lane for every task would take billions of checks, and minutes.
    #[test]
    fn number_of_lanes_does_not_slow_down_takes_of_tasks() {
        const LANES: usize = MOST_LANES + 5000;
        let begun = Instant::now();
        let pushed = PushedTasks::new(false);
        let mut given = 0;
        for round in 0..2 {
            (0..LANES).for_each(|lane| pushed.push(round * LANES + lane, Some(lane as u64), 0_u64));
            for turn in 0.. {
                let takes = takes(turn % 2, [true; 2]);
                assert_eq!(pushed.has_task_for(&takes), turn < LANES);
                let (taken, first) = pushed.waiting.lock().take(10, Some(&takes));
                if taken.is_empty() {
                    break;
                }
                assert_eq!(first, given, "the oldest first");
                pushed.record_worker(first, takes.worker);
                pushed.forget_lane(first);
                given += taken.len();
            }
        }
        assert_eq!((given, pushed.remaining()), (2 * LANES, 0));
        let waiting = pushed.waiting.lock();
        assert!(waiting.workers.len() <= MOST_LANES && waiting.lanes.is_empty());
        assert!(waiting.heads.values().all(BTreeMap::is_empty));
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    }
}
