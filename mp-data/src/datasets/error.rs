//! Errors of datasets that are made of other datasets.

use std::error::Error;
use std::fmt;

/// Error returned when a dataset can't be made of other datasets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatasetError {
    /// No dataset was given.
    Empty,
    /// The datasets together have more samples than a `usize` can count.
    TooLong,
    /// Datasets whose samples belong together have different lengths.
    Lengths(Vec<usize>),
    /// An index is not below the length of the dataset.
    #[allow(missing_docs)]
    Index { index: usize, len: usize },
    /// The lengths of a split don't fit the dataset: the reason.
    Split(String),
    /// The list of indices can't be allocated: the reason.
    Memory(String),
}

impl fmt::Display for DatasetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatasetError::Empty => f.write_str("a concatenation of no datasets: give at least one"),
            DatasetError::TooLong => {
                f.write_str("the datasets together have more samples than a `usize` can count")
            }
            DatasetError::Lengths(lengths) => {
                write!(f, "datasets of {lengths:?} samples can't be stacked: they need equally many samples")
            }
            DatasetError::Index { index, len } => {
                write!(
                    f,
                    "a subset with index {index} of a dataset of {len} samples: indices are below its length"
                )
            }
            DatasetError::Split(reason) => f.write_str(reason),
            DatasetError::Memory(reason) => {
                write!(f, "no shared memory for the indices of a subset: {reason}")
            }
        }
    }
}

mp_core::readable_debug!(DatasetError);

impl Error for DatasetError {}
