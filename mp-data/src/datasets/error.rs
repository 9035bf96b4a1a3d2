//! Errors of datasets that are made of other datasets.

/// Error returned when a dataset can't be made of other datasets.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// No dataset was given.
    #[error("a concatenation of no datasets: give at least one")]
    Empty,
    /// The datasets together have more samples than a `usize` can count.
    #[error("the datasets together have more samples than a `usize` can count")]
    TooLong,
    /// Datasets whose samples belong together have different lengths.
    #[error("datasets of {0:?} samples can't be stacked: they need equally many samples")]
    Lengths(Vec<usize>),
    /// An index is not below the length of the dataset.
    #[error("a subset with index {index} of a dataset of {len} samples: indices are below its length")]
    #[allow(missing_docs)]
    Index { index: usize, len: usize },
    /// The lengths of a split don't fit the dataset. The field is the reason.
    #[error("{0}")]
    Split(String),
    /// The list of indices can't be allocated. The field is the reason.
    #[error("no shared memory for the indices of a subset: {0}")]
    Memory(String),
}

mp_core::readable_debug!(DatasetError);
