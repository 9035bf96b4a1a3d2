//! Draw of a sample.

use serde::{Deserialize, Serialize};

/// Draw of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Index of the sample in the dataset.
    pub index: usize,
    /// Number of this draw in the epoch, from 0, over all ranks. The random numbers of a sample depend on
    /// this number, on the seed, and on the epoch.
    pub position: u64,
}
