//! Data loaders: worker processes make batches of a dataset in shared memory, bit for bit reproducible even
//! if processes die.
//!
//! ```
//! use mp::data::{AnyResult, Context, DataLoader, Dataset, Item, Tensor};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Squares(usize);
//!
//! impl Dataset for Squares {
//!     type Batch = (Tensor<f32>, Tensor<i64>);
//!
//!     fn len(&self) -> usize {
//!         self.0
//!     }
//!
//!     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
//!         cx.rows(items, (&[2], &[]), |item, rng, (noisy, square)| {
//!             noisy.fill(item.index as f32 + rng.f32()); // this row, in the memory that the trainer gets
//!             square[0] = (item.index * item.index) as i64;
//!             Ok(())
//!         })
//!     }
//! }
//!
//! let loader = DataLoader::builder(Squares(100)).batch_size(8).shuffle(true).num_workers(2).build()?;
//! let squares: i64 = loader.epoch(0).map(|batch| Ok(batch?.1.iter().sum::<i64>())).sum::<AnyResult<i64>>()?;
//! assert_eq!(squares, 328_350);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Section 7 of `docs/parity.md` in the repository maps the names of torch's data loader to this module's
//! names. It also lists differences and missing features.
//!
//! Start with three types: [`Dataset`] is the trait that you implement. [`DataLoader`] makes the batches of a
//! dataset, and its documentation has a table of the effects of deaths. [`LoadError`] is the error of a
//! batch. In addition, the module [`plan`] assigns samples to batches, and [`IterableDataset`] and
//! [`StreamLoader`] read shards sequentially.
//!
//! Examples of single items use the crate `mp-data`. In a program with `mp`, write `mp::data` for `mp_data`,
//! and `mp::Tensor` for `mp_tensor::Tensor`.

#[cfg(feature = "net")]
#[cfg_attr(docsrs, doc(cfg(feature = "net")))]
pub use mp_data::ServedLoader;
#[doc(no_inline)]
pub use mp_data::Tensor;
#[cfg(feature = "indicatif")]
#[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
pub use mp_data::WithProgress;
#[doc(hidden)]
pub use mp_data::derive;
pub use mp_data::{
    Affinity, AnyResult, Batch, BatchInfo, Batches, BuildError, ChainDataset, ChainDatasetReader, ColumnData,
    ConcatDataset, Context, DataLoader, DataLoaderBuilder, Dataset, DatasetError, Difference, FrozenStrings,
    Item, IterableDataset, LoadError, LoadedBatch, LoaderMetrics, LoaderState, NextBatch, NotReadyError,
    Objects, OnError, Ragged, RowDataset, RowOf, SampleOf, Samples, ShapesOf, ShardPosition, ShardReader,
    SkippedSample, SplitLength, StackDataset, StreamBatches, StreamLoader, StreamLoaderBuilder, StreamState,
    Strings, Subset, TensorDataset, VerifyReport, Whole, WorkerInfo, plan, random_split,
};
