//! Shadow state of an allocation, to detect races: for each byte, the last write and the reads after it.
//! Accesses to neighbouring bytes do not race.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::engine::races::clock::Clock;

/// Operation of a stream, as findings describe it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TracedOperation {
    pub(crate) call: String,
    pub(crate) pid: u32,
    pub(crate) stream: u64,
    pub(crate) trace: Option<String>,
    /// Index of the stream in vector clocks, and number of the operation in the stream.
    pub(crate) actor: u32,
    pub(crate) count: u64,
    /// Ids of killed processes for whose work the stream has waited, until another process ended the wait.
    pub(crate) released_from: BTreeSet<u32>,
}

impl TracedOperation {
    fn is_before(&self, clock: &Clock) -> bool {
        clock.of(self.actor) >= self.count
    }

    /// Returns `true` if one operation waited for the process of the other operation, and that process was
    /// killed.
    pub(crate) fn was_released_from(&self, other: &Self) -> bool {
        self.released_from.contains(&other.pid) || other.released_from.contains(&self.pid)
    }
}

#[derive(Clone, Debug, Default)]
struct RangeState {
    write: Option<Rc<TracedOperation>>,
    reads: Vec<Rc<TracedOperation>>,
}

/// Two unordered accesses of the same bytes, at least one of which is a write.
#[derive(Debug)]
pub(crate) struct Race {
    pub(crate) earlier: Rc<TracedOperation>,
    /// `true` if the earlier operation wrote.
    pub(crate) wrote: bool,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Faults of an access: races with earlier accesses, and a read of bytes without a value.
#[derive(Debug, Default)]
pub(crate) struct AccessFaults {
    pub(crate) races: Vec<Race>,
    /// Bytes that were read but never written: offset of the first byte, and number of bytes.
    pub(crate) unwritten: Option<(u64, u64)>,
}

/// States of the bytes of an allocation: end and state of each range, by its start. Ranges don't overlap.
/// Bytes outside of all ranges were never accessed.
#[derive(Debug, Default)]
pub(crate) struct Shadow(BTreeMap<u64, (u64, RangeState)>);

impl Shadow {
    /// Splits the range that contains `at`, so that a range begins at `at`.
    fn split(&mut self, at: u64) {
        let Some((start, (end, state))) = self.0.range(..at).next_back().map(|(s, r)| (*s, r.clone())) else {
            return;
        };
        if end > at {
            self.0.insert(start, (at, state.clone()));
            self.0.insert(at, (end, state));
        }
    }

    /// Records an access, and returns its faults. `clock` is the vector clock of the stream.
    pub(crate) fn access(
        &mut self,
        from: u64,
        to: u64,
        writes: bool,
        by: &Rc<TracedOperation>,
        clock: &Clock,
    ) -> AccessFaults {
        let mut faults = AccessFaults::default();
        if from >= to {
            return faults;
        }
        self.split(from);
        self.split(to);
        let mut touched = from;
        let mut gaps = Vec::new();
        for (start, (end, state)) in self.0.range_mut(from..to) {
            if *start > touched {
                gaps.push((touched, *start));
            }
            touched = *end;
            let mut race = |earlier: &Rc<TracedOperation>, wrote| {
                if !earlier.is_before(clock) {
                    let race =
                        Race { earlier: Rc::clone(earlier), wrote, offset: *start, bytes: *end - *start };
                    faults.races.push(race);
                }
            };
            state.write.iter().for_each(|write| race(write, true));
            if writes {
                state.reads.iter().for_each(|read| race(read, false));
            } else {
                // Earlier reads of a stream are ordered before later reads of the same stream.
                state.reads.retain(|read| read.actor != by.actor);
                state.reads.push(Rc::clone(by));
                if state.write.is_none() {
                    gaps.push((*start, *end));
                }
            }
        }
        if touched < to {
            gaps.push((touched, to));
        }
        if writes {
            let inside: Vec<u64> = self.0.range(from..to).map(|(start, _)| *start).collect();
            inside.iter().for_each(|start| _ = self.0.remove(start));
            self.0.insert(from, (to, RangeState { write: Some(Rc::clone(by)), reads: Vec::new() }));
        } else {
            faults.unwritten = gaps.first().map(|(first, _)| (*first, gaps.iter().map(|(a, b)| b - a).sum()));
            for (start, end) in gaps {
                let state = RangeState { write: None, reads: vec![Rc::clone(by)] };
                self.0.entry(start).or_insert((end, state));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(clock: &mut Clock, actor: u32) -> Rc<TracedOperation> {
        let count = clock.tick(actor);
        let released_from = clock.released_from().clone();
        Rc::new(TracedOperation {
            call: "f".to_owned(),
            pid: actor,
            stream: 1,
            trace: None,
            actor,
            count,
            released_from,
        })
    }

    #[test]
    fn unordered_read_races_with_a_write() {
        let (mut shadow, mut one, mut two) = (Shadow::default(), Clock::default(), Clock::default());
        let write = by(&mut one, 1);
        assert!(shadow.access(100, 200, true, &write, &one).races.is_empty());
        let read = by(&mut two, 2);
        let faults = shadow.access(150, 250, false, &read, &two);
        assert!(
            matches!(faults.races.as_slice(), [race] if race.wrote && race.offset == 150 && race.bytes == 50)
        );
        assert_eq!(faults.unwritten, Some((200, 50)));
        // Neighbouring bytes are independent.
        assert!(shadow.access(0, 100, true, &read, &two).races.is_empty());
    }

    #[test]
    fn release_of_an_actor_by_a_death_is_symmetric() {
        let (mut one, mut two) = (Clock::default(), Clock::default());
        let killed = by(&mut one, 1);
        assert!(!by(&mut two, 2).was_released_from(&killed));
        two.release_from(1);
        let later = by(&mut two, 2);
        assert!(later.was_released_from(&killed) && killed.was_released_from(&later));
        assert!(!later.was_released_from(&by(&mut one, 3)));
    }

    #[test]
    fn ordered_memory_accesses_are_no_race() {
        let (mut shadow, mut one, mut two) = (Shadow::default(), Clock::default(), Clock::default());
        shadow.access(0, 64, true, &by(&mut one, 1), &one);
        two.join(&one);
        let read = by(&mut two, 2);
        let faults = shadow.access(0, 64, false, &read, &two);
        assert!(faults.races.is_empty() && faults.unwritten.is_none());
        // The writer's clock lacks the read.
        let faults = shadow.access(10, 20, true, &by(&mut one, 1), &one);
        assert!(matches!(faults.races.as_slice(), [race] if !race.wrote));
        one.join(&two);
        assert!(shadow.access(0, 64, true, &by(&mut one, 1), &one).races.is_empty());
    }
}
