//! Draw of a sample.

use serde::{Deserialize, Serialize};

/// A draw of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Index of the sample in the dataset.
    pub index: usize,
    /// The number of this draw in the epoch, from 0, over all ranks, over all ranks. What is random about a
    /// sample depends on this, on the seed, and on the epoch.
    pub position: u64,
}
