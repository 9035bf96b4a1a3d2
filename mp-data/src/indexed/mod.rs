//! Datasets with indices: their loader, its batches and states.
//!
//! `source.rs` implements the interface of the [`loader`](crate::loader) for them.

pub(crate) mod batches;
pub(crate) mod builder;
pub(crate) mod loader;
mod resume;
pub(crate) mod saved_state;
pub(crate) mod source;
mod verify;
pub(crate) mod worker;
