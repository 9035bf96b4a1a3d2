//! The loader: what it makes, whatever happens to its workers; what it says; and what it does with bad input.

mod affinity;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod edges;
#[cfg(target_env = "gnu")]
mod freed;
mod late;
mod limits;
mod metrics;
mod processes;
mod property;
mod rows;
mod saved_states;
mod states;
mod texts;
mod told;
