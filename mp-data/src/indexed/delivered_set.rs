//! Batches that a trainer was given: the contents of its state.

use std::collections::BTreeSet;

/// An epoch, and the number of a batch in it.
pub(crate) type BatchId = (u64, u64);

/// The batches that were given before those that are on their way.
#[derive(Debug, Default)]
pub(crate) struct DeliveredSet {
    out_of_order: BTreeSet<BatchId>,
}

impl DeliveredSet {
    /// Creates it from a state.
    pub(crate) fn new(epoch: u64, out_of_order: &[u64]) -> DeliveredSet {
        let out_of_order = out_of_order.iter().map(|number| (epoch, *number)).collect();
        DeliveredSet { out_of_order }
    }

    pub(crate) fn has(&self, batch: BatchId) -> bool {
        self.out_of_order.contains(&batch)
    }

    /// The first batch from this one on that was not given.
    pub(crate) fn first_from(&self, mut batch: BatchId) -> BatchId {
        while self.has(batch)
            && let Some(next) = batch.1.checked_add(1)
        {
            batch.1 = next;
        }
        batch
    }

    /// The numbers behind this one that were given.
    pub(crate) fn out_of_order(&self, (epoch, next): BatchId) -> Vec<u64> {
        self.out_of_order.range((epoch, next)..=(epoch, u64::MAX)).map(|given| given.1).collect()
    }

    /// A batch was given, or left out. `first` is the first one that is on its way, or planned next. Returns
    /// the first one that was not given.
    pub(crate) fn add(&mut self, batch: BatchId, first: BatchId) -> BatchId {
        if batch > first || !self.out_of_order.is_empty() {
            self.out_of_order.insert(batch);
        }
        let next = self.first_from(first);
        if !self.out_of_order.is_empty() {
            self.out_of_order = self.out_of_order.split_off(&next);
        }
        next
    }
}
