//! Datasets with indices: their loader, its batches and states.
//!
//! `kind.rs` says what is particular about them to the [trainer's side](crate::trainer).

pub(crate) mod batches;
pub(crate) mod builder;
mod given;
pub(crate) mod kind;
pub(crate) mod loader;
pub(crate) mod state;
pub(crate) mod verify;
