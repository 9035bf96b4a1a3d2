//! Tests of the loader: batches despite deaths and faults of workers, reports, and treatment of invalid
//! input.

mod affinity;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod dataset_errors;
mod ends;
mod forks;
#[cfg(target_env = "gnu")]
mod freed;
mod images;
mod limits;
mod metrics;
mod names_and_lengths;
mod processes;
mod property;
mod rows;
mod sampler_errors;
mod saved_states;
mod slow_batches;
mod states;
mod texts;
mod threads;
