//! Datasets with indices: their loader, its batches and states.
//!
//! `source.rs` implements the interface of the [`loader`](crate::loader) for them.

pub(crate) mod batches;
pub(crate) mod builder;
mod delivered_set;
pub(crate) mod loader;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod verify;
pub(crate) mod worker;
