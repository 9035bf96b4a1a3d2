//! Batches that a trainer was given: the contents of its state.

use std::collections::BTreeSet;

/// An epoch, and the number of a batch in it.
pub(crate) type Numbered = (u64, u64);

/// The batches that were given before those that are on their way.
#[derive(Debug, Default)]
pub(crate) struct Given {
    beyond: BTreeSet<Numbered>,
}

impl Given {
    /// Creates it from a state.
    pub(crate) fn new(epoch: u64, beyond: &[u64]) -> Given {
        let beyond = beyond.iter().map(|number| (epoch, *number)).collect();
        Given { beyond }
    }

    pub(crate) fn has(&self, batch: Numbered) -> bool {
        self.beyond.contains(&batch)
    }

    /// The first batch from this one on that was not given.
    pub(crate) fn first_from(&self, mut batch: Numbered) -> Numbered {
        while self.has(batch)
            && let Some(next) = batch.1.checked_add(1)
        {
            batch.1 = next;
        }
        batch
    }

    /// The numbers behind this one that were given.
    pub(crate) fn beyond(&self, (epoch, next): Numbered) -> Vec<u64> {
        self.beyond.range((epoch, next)..=(epoch, u64::MAX)).map(|given| given.1).collect()
    }

    /// A batch was given, or left out. `first` is the first one that is on its way, or planned next. Returns
    /// the first one that was not given.
    pub(crate) fn add(&mut self, batch: Numbered, first: Numbered) -> Numbered {
        if batch > first || !self.beyond.is_empty() {
            self.beyond.insert(batch);
        }
        let next = self.first_from(first);
        if !self.beyond.is_empty() {
            self.beyond = self.beyond.split_off(&next);
        }
        next
    }
}
