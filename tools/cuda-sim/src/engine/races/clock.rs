//! Vector clocks: the part of each stream's work that happened before a point.

/// Number of operations of each stream that happened before. Streams that are not listed have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<(u32, u64)>);

impl Clock {
    /// Returns the number of operations of a stream that happened before.
    pub(crate) fn of(&self, actor: u32) -> u64 {
        self.0.binary_search_by_key(&actor, |(actor, _)| *actor).map_or(0, |at| self.0[at].1)
    }

    /// Adds an operation of this stream, and returns its number.
    pub(crate) fn tick(&mut self, actor: u32) -> u64 {
        let next = self.of(actor) + 1;
        match self.0.binary_search_by_key(&actor, |(actor, _)| *actor) {
            Ok(at) => self.0[at].1 = next,
            Err(at) => self.0.insert(at, (actor, next)),
        }
        next
    }

    /// Joins another clock: everything before it also happened before this one.
    pub(crate) fn join(&mut self, other: &Self) {
        if other.0.iter().all(|(actor, n)| self.of(*actor) >= *n) {
            return;
        }
        let mut joined = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
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
        self.0 = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_clocks_know_what_either_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        assert_eq!((a.tick(3), a.tick(3), b.tick(1), b.tick(3), b.tick(7)), (1, 2, 1, 1, 1));
        a.join(&b);
        assert_eq!([1, 3, 7, 9].map(|actor| a.of(actor)), [1, 2, 1, 0]);
        let before = a.clone();
        a.join(&b);
        assert_eq!(a, before);
    }
}
