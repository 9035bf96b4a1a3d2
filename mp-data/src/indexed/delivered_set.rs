//! Delivered batches, which are the contents of a saved state.

use std::collections::BTreeSet;

/// Epoch, and number of a batch in it.
pub(crate) type BatchId = (u64, u64);

/// Batches that were delivered before earlier ones in flight.
#[derive(Debug, Default)]
pub(crate) struct DeliveredSet {
    out_of_order: BTreeSet<BatchId>,
}

impl DeliveredSet {
    /// Creates the set from a state.
    pub(crate) fn new(epoch: u64, out_of_order: &[u64]) -> DeliveredSet {
        let out_of_order = out_of_order.iter().map(|number| (epoch, *number)).collect();
        DeliveredSet { out_of_order }
    }

    pub(crate) fn has(&self, batch: BatchId) -> bool {
        self.out_of_order.contains(&batch)
    }

    /// Returns the first batch from this one on that was not delivered.
    pub(crate) fn first_from(&self, mut batch: BatchId) -> BatchId {
        while self.has(batch)
            && let Some(next) = batch.1.checked_add(1)
        {
            batch.1 = next;
        }
        batch
    }

    /// Returns the numbers after this one that were delivered.
    pub(crate) fn out_of_order(&self, (epoch, next): BatchId) -> Vec<u64> {
        self.out_of_order.range((epoch, next)..=(epoch, u64::MAX)).map(|given| given.1).collect()
    }

    /// Adds a batch that was delivered or skipped. `first` is the first batch in flight, or the next one to
    /// plan. Returns the first batch that was not delivered.
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
