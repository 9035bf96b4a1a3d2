//! Best-fit allocator of the units of a slab, in private memory of the process that cuts the slab up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Units of a slab, and the free ranges among them. Adjacent free ranges are merged.
#[derive(Debug)]
pub(crate) struct Ranges {
    units: u32,
    free: u32,
    /// Number of units of each free range, by its first unit.
    by_start: BTreeMap<u32, u32>,
    /// Free ranges as `(length, first unit)`, the shortest first.
    by_length: BTreeSet<(u32, u32)>,
}

impl Ranges {
    /// Creates the ranges of a slab of this many units, all of which are free.
    pub(crate) fn new(units: u32) -> Self {
        let mut new = Self { units, free: 0, by_start: BTreeMap::new(), by_length: BTreeSet::new() };
        new.insert(0, units);
        new
    }

    /// Takes a range of this length from the shortest free range that is long enough. Returns `None` if there
    /// is none.
    pub(crate) fn take(&mut self, length: u32) -> Option<Range<u32>> {
        let length = length.max(1);
        let &(all, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, all);
        self.insert(start + length, all - length);
        Some(start..start + length)
    }

    /// Frees a range. All of its units must be in use.
    pub(crate) fn give(&mut self, range: Range<u32>) {
        let (mut start, mut end) = (range.start, range.end);
        debug_assert!(start < end && end <= self.units && !self.touches_free(&range), "{range:?}");
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before, length);
            start = before;
        }
        if let Some(&length) = self.by_start.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.insert(start, end - start);
    }

    /// Returns the number of free units.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    fn touches_free(&self, range: &Range<u32>) -> bool {
        let before = self.by_start.range(..range.end).next_back();
        before.is_some_and(|(start, length)| start + length > range.start)
    }

    fn insert(&mut self, start: u32, length: u32) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
            self.free += length;
        }
    }

    fn remove(&mut self, start: u32, length: u32) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference allocator: a flag for each unit, `true` if the unit is in use.
    struct List(Vec<bool>);

    impl List {
        /// Returns the free ranges as `(length, start)`.
        fn free(&self) -> Vec<(u32, u32)> {
            let mut found = Vec::new();
            let mut start = 0;
            for run in self.0.chunk_by(|one, other| one == other) {
                if !run[0] {
                    found.push((u32::try_from(run.len()).unwrap(), start));
                }
                start += u32::try_from(run.len()).unwrap();
            }
            found
        }

        fn set(&mut self, range: &Range<u32>, taken: bool) {
            for unit in range.clone() {
                assert_ne!(std::mem::replace(&mut self.0[unit as usize], taken), taken, "unit {unit}");
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_of_a_slab_behave_like_a_list_of_units(
            asked in proptest::collection::vec((any::<bool>(), 0_u32..40), 1..200),
        ) {
            let mut ranges = Ranges::new(97);
            let mut list = List(vec![false; 97]);
            let mut taken: Vec<Range<u32>> = Vec::new();
            for (takes, number) in asked {
                if takes || taken.is_empty() {
                    let length = number.max(1);
                    let best = list.free().into_iter().filter(|(all, _)| *all >= length).min();
                    let got = ranges.take(number);
                    prop_assert_eq!(got.clone(), best.map(|(_, start)| start..start + length));
                    if let Some(range) = got {
                        list.set(&range, true);
                        taken.push(range);
                    }
                } else {
                    let range = taken.swap_remove(number as usize % taken.len());
                    list.set(&range, false);
                    ranges.give(range);
                }
                let mut free = list.free();
                prop_assert_eq!(ranges.free(), free.iter().map(|(length, _)| length).sum::<u32>());
                free.sort_unstable();
                prop_assert_eq!(ranges.by_length.iter().copied().collect::<Vec<_>>(), free);
            }
            taken.into_iter().for_each(|range| ranges.give(range));
            prop_assert_eq!(ranges.free(), 97);
            prop_assert_eq!(ranges.take(97), Some(0..97));
        }
    }

    #[test]
    fn range_longer_than_the_free_space_is_not_cut() {
        let mut ranges = Ranges::new(4);
        assert_eq!((ranges.take(5), ranges.take(3), ranges.take(2)), (None, Some(0..3), None));
        ranges.give(0..3);
        assert_eq!(ranges.take(4), Some(0..4));
    }
}
