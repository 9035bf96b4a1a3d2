//! Vector clocks. A clock records, for a point in time, which operations of each stream happened before.

use std::collections::BTreeSet;

/// Vector clock: for each stream, the number of its operations that happened before. The number of an
/// unlisted stream is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    counts: Vec<(u32, u64)>,
    /// Ids of killed processes for whose work a stream has waited, until another process ended the wait.
    released_from: BTreeSet<u32>,
}

impl Clock {
    /// Returns the number of operations of the stream `actor` that happened before.
    pub(crate) fn of(&self, actor: u32) -> u64 {
        self.counts.binary_search_by_key(&actor, |(actor, _)| *actor).map_or(0, |at| self.counts[at].1)
    }

    /// Counts an operation of the stream `actor`, and returns the number of the operation.
    pub(crate) fn tick(&mut self, actor: u32) -> u64 {
        let next = self.of(actor) + 1;
        match self.counts.binary_search_by_key(&actor, |(actor, _)| *actor) {
            Ok(at) => self.counts[at].1 = next,
            Err(at) => self.counts.insert(at, (actor, next)),
        }
        next
    }

    /// Records that a wait for work of a killed process was ended by another process.
    pub(crate) fn release_from(&mut self, pid: u32) {
        self.released_from.insert(pid);
    }

    /// Returns the ids of killed processes for whose work a stream has waited, until another process ended
    /// the wait. Includes waits of streams that happened before.
    pub(crate) fn released_from(&self) -> &BTreeSet<u32> {
        &self.released_from
    }

    /// Joins another clock: operations before that clock also happened before this clock.
    pub(crate) fn join(&mut self, other: &Self) {
        self.released_from.extend(&other.released_from);
        if other.counts.iter().all(|(actor, n)| self.of(*actor) >= *n) {
            return;
        }
        let mut joined = Vec::with_capacity(self.counts.len() + other.counts.len());
        let (mut a, mut b) = (self.counts.iter().peekable(), other.counts.iter().peekable());
        loop {
            joined.push(match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    let both = (x.0, x.1.max(y.1));
                    a.next();
                    b.next();
                    both
                }
                (Some(x), Some(y)) if x.0 > y.0 => {
                    let one = **y;
                    b.next();
                    one
                }
                (Some(x), _) => {
                    let one = **x;
                    a.next();
                    one
                }
                (None, Some(y)) => {
                    let one = **y;
                    b.next();
                    one
                }
                (None, None) => break,
            });
        }
        self.counts = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_clocks_have_the_later_of_both_times() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        assert_eq!((a.tick(3), a.tick(3), b.tick(1), b.tick(3), b.tick(7)), (1, 2, 1, 1, 1));
        a.join(&b);
        assert_eq!([1, 3, 7, 9].map(|actor| a.of(actor)), [1, 2, 1, 0]);
        let before = a.clone();
        a.join(&b);
        assert_eq!(a, before);
        b.release_from(9);
        a.join(&b);
        assert!(a.released_from().contains(&9));
    }
}
