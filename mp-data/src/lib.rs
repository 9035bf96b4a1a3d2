//! A data loader: worker processes make batches of a dataset in shared memory, in an order that is a function of a seed and an epoch.
//!
//! A program: at [`Dataset`]. The three types to know: [`Dataset`], what you write; [`DataLoader`], what makes its batches; and
//! [`LoadError`], why there is none. For shards that are read from front to back: [`IterableDataset`] and [`StreamLoader`].
//!
//! # What holds
//! - **The same batches**, bit by bit, for any number of workers and threads, after any death, and after a resume: the order is a
//!   function of seed and epoch ([`plan`]), and random numbers belong to samples, not to workers.
//! - **A worker that dies costs time and no batch.** A sample that kills its worker each time is named, or left out.
//! - **Nothing is copied** between the row that `fetch` writes and the tensor that the trainer gets.
//! - **A state is exact**: it says which batches the trainer was given, not which were prefetched.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod affinity;
mod batch;
mod batches;
mod builder;
mod context;
mod dataset;
mod error;
mod failure;
mod freed;
mod frozen_strings;
mod given;
mod indexed;
mod info;
mod inner;
mod kind;
mod lane;
#[cfg(feature = "log")]
mod large;
mod late;
mod loader;
mod metrics;
mod moment;
mod outcomes;
mod own_lock;
pub mod plan;
#[cfg(feature = "indicatif")]
mod progress;
mod reports;
mod samples;
mod sending;
mod settings;
mod state;
mod stream;
mod verify;
mod window;
mod worker;

pub use affinity::Affinity;
#[doc(hidden)]
pub use batch::derive;
pub use batch::{Batch, Other, Ragged, Strings};
pub use batches::Batches;
pub use builder::DataLoaderBuilder;
pub use context::Context;
pub use dataset::Dataset;
pub use error::{BuildError, LoadError, NotReady};
pub use frozen_strings::FrozenStrings;
pub use info::{Info, Loaded, Skipped, WorkerInfo};
pub use loader::DataLoader;
pub use metrics::LoaderMetrics;
pub use mp_macros::Batch;
pub use plan::Item;
#[cfg(feature = "indicatif")]
#[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
pub use progress::WithProgress;
pub use samples::Samples;
pub use settings::OnError;
pub use state::LoaderState;
pub use stream::{
    Chain, IterableDataset, NoDataset, Position, SampleOf, ShardReader, StreamBatches, StreamLoader,
    StreamLoaderBuilder, StreamState,
};
pub use verify::{Difference, Verified};
pub use window::Next;

/// A result with any error: what functions of a dataset return.
pub type AnyResult<T, E = Box<dyn std::error::Error + Send + Sync>> = Result<T, E>;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
