//! A data loader: worker processes make batches of a dataset in shared memory, in an order that is a function
//! of a seed and an epoch.
//!
//! A program: at [`Dataset`]. The three types to know: [`Dataset`], what you write; [`DataLoader`], what
//! makes its batches; and [`LoadError`], why there is none. For shards that are read from front to back:
//! [`IterableDataset`] and [`StreamLoader`].
//!
//! # What holds
//! - **The same batches**, bit by bit, for any number of workers and threads, after any death, and after a
//!   resume: the order is a function of seed and epoch ([`plan`]), and random numbers belong to samples, not
//!   to workers.
//! - **A worker that dies costs time and no batch.** A sample that kills its worker each time is named, or
//!   left out.
//! - **Nothing is copied** between the row that `fetch` writes and the tensor that the trainer gets.
//! - **A state is exact**: it says which batches the trainer was given, not which were prefetched.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod dataset;
mod datasets;
mod error;
mod fork_local;
mod indexed;
mod loader;
pub mod plan;
mod settings;
mod stream;
mod worker;

#[doc(hidden)]
pub use batch::derive;
pub use batch::{Batch, Objects, Ragged, Strings, Whole};
pub use dataset::Dataset;
pub use dataset::context::Context;
pub use dataset::frozen_strings::FrozenStrings;
pub use dataset::info::{BatchInfo, LoadedBatch, SkippedSample, WorkerInfo};
pub use dataset::samples::Samples;
pub use datasets::{
    ConcatDataset, DatasetError, RowDataset, RowOf, ShapesOf, SplitLength, StackDataset, Subset,
    TensorDataset, random_split,
};
pub use error::{BuildError, LoadError, NotReadyError};
pub use indexed::batches::Batches;
pub use indexed::builder::DataLoaderBuilder;
pub use indexed::loader::DataLoader;
pub use indexed::state::LoaderState;
pub use indexed::verify::{Difference, VerifyReport};
pub use loader::metrics::LoaderMetrics;
pub use loader::prefetch::NextBatch;
#[cfg(feature = "indicatif")]
#[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
pub use loader::progress::WithProgress;
pub use mp_macros::Batch;
pub use mp_reduce::AnyResult;
/// Column of a batch, as most datasets make it.
#[doc(no_inline)]
pub use mp_tensor::Tensor;
pub use plan::Item;
pub use settings::OnError;
pub use settings::affinity::Affinity;
pub use stream::{
    ChainDataset, ChainDatasetReader, IterableDataset, SampleOf, ShardPosition, ShardReader, StreamBatches,
    StreamLoader, StreamLoaderBuilder, StreamState,
};

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
