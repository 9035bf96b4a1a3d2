//! Samples for `fetch` of a stream.

use crate::Item;

/// Samples of a batch of a stream. [`Context::rows_from`](crate::Context::rows_from) writes them into rows,
/// and [`Context::map_from`](crate::Context::map_from) calls a function for each. Its iterator returns the
/// samples without their items.
#[derive(Debug)]
pub struct Samples<S> {
    pub(crate) items: Vec<Item>,
    pub(crate) samples: Vec<S>,
}

impl<S> Samples<S> {
    /// Returns the number of samples, at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns `true` if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the item of each sample: its number in its shard, and the position that selects its random
    /// numbers.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the samples as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[S] {
        &self.samples
    }
}

impl<S> IntoIterator for Samples<S> {
    type Item = S;
    type IntoIter = std::vec::IntoIter<S>;

    fn into_iter(self) -> Self::IntoIter {
        self.samples.into_iter()
    }
}
