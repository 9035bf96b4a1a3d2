//! Parts of `multiproc.DataLoader` in Rust: workers and their tasks, the order of samples, and the stacking
//! of samples into shared memory.
//!
//! Datasets in Rust have loaders of their own: see [`rust_loader`](crate::rust_loader).

pub mod plan;
pub mod stack;
pub mod workers;
