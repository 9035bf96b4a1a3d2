//! A data loader: worker processes make batches of a dataset in shared memory, the same bit by bit whatever dies.
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
//! From torch's names to these: the table "torch's names, and these" in `docs/data.md` of the repository, which says as well what is
//! different and what is not there yet.
//!
//! The three types to know: [`Dataset`], what you write; [`DataLoader`], what makes its batches, with a table of what happens when
//! something dies; [`LoadError`], why there is none. [`plan`] says which samples are in which batch. For shards that are read from
//! front to back: [`IterableDataset`] and [`StreamLoader`].
//!
//! The examples on the pages of single items are those of the crate `mp-data`. In a program that has `mp`, `mp_data` is `mp::data`, and
//! `mp_tensor::Tensor` is `mp::Tensor`.

#[doc(no_inline)]
pub use mp_data::Tensor;
#[cfg(feature = "indicatif")]
#[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
pub use mp_data::WithProgress;
#[doc(hidden)]
pub use mp_data::derive;
pub use mp_data::{
    Affinity, AnyResult, Batch, BatchInfo, Batches, BuildError, Chain, ChainReader, ConcatDataset, Context,
    DataLoader, DataLoaderBuilder, Dataset, DatasetError, Difference, FrozenStrings, Item, IterableDataset,
    LoadError, Loaded, LoaderMetrics, LoaderState, Next, NotReady, OnError, Other, Ragged, RowDataset, RowOf,
    SampleOf, Samples, ShapesOf, ShardPosition, ShardReader, Skipped, SplitLength, StackDataset,
    StreamBatches, StreamLoader, StreamLoaderBuilder, StreamState, Strings, Subset, TensorDataset, Verified,
    Whole, WorkerInfo, plan, random_split,
};
