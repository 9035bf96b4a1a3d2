//! All lanes of a pass, as a tree whose copies share unchanged nodes.
//!
//! A stream may have 2^22 lanes, and most of them are at the beginning of the pass for a long time. Such a
//! lane has no node. A copy of the tree shares all nodes, and a change copies the nodes between the root and
//! the lane. A node stores the earliest round of the lanes below it. So the lane of the next batch is found
//! by one descent from the root.

use std::sync::Arc;

use super::lane::Lane;

/// Number of children of a node. The next constant is its binary logarithm.
const FAN: usize = 1 << FAN_BITS;
const FAN_BITS: u32 = 4;

/// Round of a lane that has ended. No batch has this round.
const NEVER: u64 = u64::MAX;

#[derive(Clone)]
enum LaneNode {
    /// Lanes at the beginning of the pass.
    Untouched,
    Lane(Arc<Lane>),
    Inner(Arc<InnerNode>),
}

#[derive(Clone)]
struct InnerNode {
    /// Earliest round of the lanes below this node that have not ended.
    earliest: u64,
    below: [LaneNode; FAN],
}

/// All lanes of a pass, by their number.
#[derive(Clone)]
pub(super) struct LaneTree {
    count: usize,
    /// A lane at the beginning of the pass.
    initial: Lane,
    /// Latest round of any lane, including lanes that have ended.
    latest: u64,
    /// Number of lanes that have ended.
    ended: usize,
    /// Number of levels below the root.
    levels: u32,
    root: LaneNode,
}

impl LaneTree {
    /// Creates the tree of a pass in which `count` lanes are at the beginning, with round `first`.
    pub(super) fn new(count: u64, first: u64) -> LaneTree {
        // There are no more lanes than shards, whose number was a `usize`.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let bits = usize::BITS - count.saturating_sub(1).leading_zeros();
        let initial = Lane { round: first, ..Lane::default() };
        let levels = bits.div_ceil(FAN_BITS);
        LaneTree { count, initial, latest: first, ended: 0, levels, root: LaneNode::Untouched }
    }

    /// Creates the tree from the lanes of a state, in a pass that began with round `first`.
    pub(super) fn of(lanes: &[Lane], first: u64) -> LaneTree {
        let mut all = LaneTree::new(lanes.len() as u64, first);
        for (number, lane) in lanes.iter().enumerate() {
            if *lane != all.initial {
                all.set(number, Arc::new(lane.clone()));
            }
        }
        all
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the latest round of any lane, including lanes that have ended.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    /// Returns `true` if a lane has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended > 0
    }

    /// Returns the earliest round of the lanes that have not ended, or `None` if all have ended.
    pub(super) fn earliest(&self) -> Option<u64> {
        Some(self.earliest_of(&self.root, 0)).filter(|round| *round != NEVER)
    }

    /// Returns the earliest round below a node whose first lane is `first`.
    fn earliest_of(&self, node: &LaneNode, first: usize) -> u64 {
        visit();
        match node {
            LaneNode::Untouched if first >= self.count => NEVER,
            LaneNode::Untouched => self.initial.round,
            LaneNode::Lane(lane) if lane.ended => NEVER,
            LaneNode::Lane(lane) => lane.round,
            LaneNode::Inner(inner) => inner.earliest,
        }
    }

    pub(super) fn get(&self, number: usize) -> &Lane {
        let (mut node, mut level) = (&self.root, self.levels);
        loop {
            visit();
            match node {
                LaneNode::Untouched => return &self.initial,
                LaneNode::Lane(lane) => return lane,
                LaneNode::Inner(inner) => {
                    level = level.saturating_sub(1);
                    node = &inner.below[place(number, level)];
                }
            }
        }
    }

    pub(super) fn set(&mut self, number: usize, lane: Arc<Lane>) {
        debug_assert!(number < self.count);
        self.ended -= usize::from(self.get(number).ended);
        self.ended += usize::from(lane.ended);
        self.latest = self.latest.max(lane.round);
        let mut root = std::mem::replace(&mut self.root, LaneNode::Untouched);
        self.set_below(&mut root, (0, self.levels), number, lane);
        self.root = root;
    }

    /// Sets a lane below a node. `first` is the node's first lane, and `level` is the node's level.
    fn set_below(&self, node: &mut LaneNode, (first, level): (usize, u32), number: usize, lane: Arc<Lane>) {
        visit();
        let Some(level) = level.checked_sub(1) else {
            *node = LaneNode::Lane(lane);
            return;
        };
        if !matches!(node, LaneNode::Inner(_)) {
            *node = LaneNode::Inner(Arc::new(InnerNode {
                earliest: 0,
                below: [const { LaneNode::Untouched }; FAN],
            }));
        }
        let LaneNode::Inner(inner) = node else { return };
        let inner = Arc::make_mut(inner);
        let first_of = |place: usize| first + (place << (level * FAN_BITS));
        let place = place(number, level);
        self.set_below(&mut inner.below[place], (first_of(place), level), number, lane);
        let rounds =
            inner.below.iter().enumerate().map(|(place, node)| self.earliest_of(node, first_of(place)));
        inner.earliest = rounds.min().unwrap_or(NEVER);
    }

    /// Returns the first lane from `from` on that has a batch in this round: it has not ended, and its next
    /// batch is in this round or an earlier one.
    pub(super) fn next_in(&self, round: u64, from: usize) -> Option<usize> {
        self.next_below(&self.root, (0, self.levels), round, from)
    }

    fn next_below(
        &self,
        node: &LaneNode,
        (first, level): (usize, u32),
        round: u64,
        from: usize,
    ) -> Option<usize> {
        if self.earliest_of(node, first) > round {
            return None;
        }
        let LaneNode::Inner(inner) = node else {
            return Some(first.max(from)).filter(|number| *number < self.count);
        };
        let level = level.saturating_sub(1);
        let width = 1 << (level * FAN_BITS);
        let nodes = inner.below.iter().enumerate().map(|(place, node)| (first + place * width, node));
        let mut rest = nodes.skip_while(|(first, _)| first + width <= from);
        rest.find_map(|(first, node)| self.next_below(node, (first, level), round, from))
    }

    /// Iterates over all lanes, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        (0..self.count).map(|number| self.get(number))
    }
}

/// Returns the index, in its parent's array, of the node of this level that contains a lane.
fn place(number: usize, level: u32) -> usize {
    number >> (level * FAN_BITS) & (FAN - 1)
}

/// Counts the visited nodes, in tests.
fn visit() {
    #[cfg(test)]
    tests::VISITED.with(|visited| visited.set(visited.get() + 1));
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use mp_tensor::Tensor;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::{AnyResult, Context, IterableDataset, Samples, ShardPosition, StreamLoader};

    thread_local! {
        /// Number of nodes that this thread has visited.
        pub(in crate::stream) static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    fn lane(round: u64, ended: bool) -> Arc<Lane> {
        Arc::new(Lane { round, ended, ..Lane::default() })
    }

    /// Checks that the tree and the list of lanes give the same results.
    #[track_caller]
    fn assert_same(lanes: &LaneTree, list: &[Lane], from: usize, round: u64) {
        assert!(lanes.iter().eq(list));
        let going_on = || list.iter().filter(|lane| !lane.ended).map(|lane| lane.round);
        assert_eq!(lanes.earliest(), going_on().min());
        assert_eq!(Some(lanes.latest()), list.iter().map(|lane| lane.round).max());
        assert_eq!(lanes.has_ended(), list.iter().any(|lane| lane.ended));
        let mut rest = list.iter().enumerate().skip(from);
        let next = rest.find(|(_, lane)| !lane.ended && lane.round <= round);
        assert_eq!(lanes.next_in(round, from), next.map(|(number, _)| number));
    }

    #[test]
    fn lane_tree_returns_the_same_as_a_list() {
        let mut state = 17u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for count in [1, 2, 15, 16, 17, 255, 257, 300] {
            let (mut lanes, mut list) =
                (LaneTree::new(count, 3), vec![Lane { round: 3, ..Lane::default() }; count as usize]);
            let mut copies = Vec::new();
            for step in 0..200 {
                let (number, from) = (random(count) as usize, random(count + 1) as usize);
                let changed = lane(list[number].round.max(3 + random(6)), random(3) > 0);
                lanes.set(number, Arc::clone(&changed));
                list[number] = (*changed).clone();
                assert_same(&lanes, &list, from, 2 + random(8));
                if step % 50 == 0 {
                    copies.push((lanes.clone(), list.clone()));
                }
            }
            for (lanes, list) in copies {
                assert_same(&lanes, &list, 0, 5);
                assert!(LaneTree::of(&list, 3).iter().eq(&list));
            }
        }
    }

    #[test]
    fn lane_tree_changes_and_searches_visit_few_nodes() {
        let mut lanes = LaneTree::new(1 << 22, 0);
        let visited = |lanes: &mut LaneTree, ask: &dyn Fn(&mut LaneTree)| {
            VISITED.set(0);
            ask(lanes);
            VISITED.get()
        };
        // Six levels of 16 nodes, twice.
        let few = |visited: u64| assert!(visited <= 2 * 6 * 17, "{visited} nodes");
        for number in (0..1 << 22).step_by(4099).chain(0..64) {
            few(visited(&mut lanes, &|lanes| lanes.set(number, lane(1, true))));
            few(visited(&mut lanes, &|lanes| assert_eq!(lanes.earliest(), Some(0))));
            few(visited(&mut lanes, &|lanes| assert!(lanes.next_in(0, number) > Some(number))));
            few(visited(&mut lanes, &|lanes| assert!(lanes.clone().get(number).ended)));
        }
    }

    /// Dataset with this number of shards, each with one sample.
    #[derive(Serialize, Deserialize)]
    pub(in crate::stream) struct Singles(usize);

    impl IterableDataset for Singles {
        type Batch = Tensor<u64>;
        type Reader = std::iter::Once<AnyResult<u64>>;

        fn shards(&self) -> usize {
            self.0
        }

        fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Self::Reader> {
            Ok(std::iter::once(Ok(shard as u64)))
        }

        fn fetch(&mut self, samples: Samples<u64>, cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
            cx.rows_from(samples, &[], |number, _, row| {
                row[0] = number;
                Ok(())
            })
        }
    }

    #[test]
    fn batches_of_many_lanes_visit_few_lane_tree_nodes() {
        let visited = |lanes: usize| {
            let loader = StreamLoader::builder(Singles(lanes)).lanes(lanes as u64).build().unwrap();
            VISITED.set(0);
            let given: Vec<u64> = loader.epoch(0).take(100).map(|batch| batch.unwrap()[[0]]).collect();
            assert_eq!(given, (0..100).collect::<Vec<_>>());
            VISITED.get()
        };
        let (few, many) = (visited(1 << 12), visited(1 << 22));
        // Three levels, and six.
        assert!(many <= 3 * few, "{few} nodes, {many} nodes");
    }
}
