//! Data loader: worker processes make batches of a dataset in shared memory, in an order that is a function
//! of a seed and an epoch.
//!
//! [`Dataset`] has a complete program. The program implements [`Dataset`], [`DataLoader`] makes the batches,
//! and [`LoadError`] describes a batch that could not be made. [`IterableDataset`] and [`StreamLoader`] are
//! for shards that are read from start to end.
//!
//! # Guarantees
//! - **Reproducible batches**: batches are equal bit by bit for any number of workers and threads, after the
//!   death of a worker, and after a resume. The order is a function of seed and epoch ([`plan`]), and random
//!   numbers belong to samples, not to workers.
//! - **No batch is lost when a worker dies.** Another worker makes the batch again. A sample that kills its
//!   worker each time is reported, or skipped.
//! - **No copies** between the row that `fetch` writes and the tensor in the training process.
//! - **Exact states**: a saved state covers delivered batches, never prefetched ones.
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
pub use batch::{Batch, ColumnData, Objects, Ragged, Strings, Whole};
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
pub use indexed::saved_state::LoaderState;
pub use loader::metrics::LoaderMetrics;
pub use loader::prefetch::NextBatch;
#[cfg(feature = "indicatif")]
#[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
pub use loader::progress::WithProgress;
pub use loader::verify::{Difference, VerifyReport};
pub use mp_macros::Batch;
pub use mp_reduce::AnyResult;
/// Most common type of a batch's column.
#[doc(no_inline)]
pub use mp_tensor::Tensor;
pub use plan::Item;
pub use settings::OnError;
pub use settings::affinity::Affinity;
#[cfg(feature = "net")]
pub use settings::served::ServedLoader;
pub use stream::{
    ChainDataset, ChainDatasetReader, IterableDataset, SampleOf, ShardPosition, ShardReader, StreamBatches,
    StreamLoader, StreamLoaderBuilder, StreamState,
};

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
