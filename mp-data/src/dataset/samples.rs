//! Samples for `fetch` of a stream.

use crate::Item;

/// The samples of a batch: [`Context::rows_from`](crate::Context::rows_from) writes them into rows,
/// [`Context::map_from`](crate::Context::map_from) calls a function for each. As an iterator it gives the
/// samples alone.
#[derive(Debug)]
pub struct Samples<S> {
    pub(crate) items: Vec<Item>,
    pub(crate) samples: Vec<S>,
}

impl<S> Samples<S> {
    /// Returns the number of samples: at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns `true` if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The number of each in its shard, and its position, from which its random numbers come.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// The samples, to be looked at.
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
