//! A data loader: worker processes make batches of a dataset in shared memory, in an order that is a function of a seed and an epoch.

pub mod plan;

pub use plan::Item;
