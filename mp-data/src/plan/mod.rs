//! Which samples are in which batch: a function of seed, epoch and position.

use serde::{Deserialize, Serialize};

/// A draw of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Which sample of the dataset.
    pub index: usize,
    /// The how-manyth draw of the epoch it is, over all ranks. What is random about a sample depends on this, on the seed, and on the
    /// epoch.
    pub position: u64,
}
