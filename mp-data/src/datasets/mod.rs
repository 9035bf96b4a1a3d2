//! Datasets made of other datasets, by torch's names.

mod concat;
mod error;
mod rows;
mod split;
mod stack;
mod subset;

pub use concat::ConcatDataset;
pub use error::DatasetError;
pub use rows::{RowDataset, RowOf, ShapesOf};
pub use split::{SplitLength, random_split};
pub use stack::{StackDataset, TensorDataset};
pub use subset::Subset;
