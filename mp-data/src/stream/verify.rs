//! Check that a dataset of shards makes the same batch each time, also if its shards are opened at a token.

use super::dataset::IterableDataset;
use super::loader::StreamLoader;
use super::worker::{StreamTask, StreamWorker};
use crate::LoadError;
use crate::error::failure::BatchFailure;
use crate::loader::shared::Workers;
use crate::loader::source::BatchSource;
use crate::loader::verify::{POISON, VerifyReport, verify};
use crate::worker::in_process::make_in_process;

impl<D: IterableDataset> StreamLoader<D> {
    /// Makes the first `batches` batches of epoch 0 twice, in memory with different initial contents, and
    /// compares them. The first copy of a batch is made in this process, by readers that stay open. The
    /// second copy is made in a worker, by readers that are opened at the start of the batch. Reports tokens
    /// of wrong positions, rows that are not written, and samples that depend on more than their position and
    /// random numbers. Values of [`Objects`](crate::Objects) that contain tensors are not compared.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, StreamLoader, IterableDataset, ShardPosition, Samples};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Hundreds;
    /// # type Hundred = std::iter::Map<std::ops::Range<u64>, fn(u64) -> AnyResult<u64>>;
    /// # impl IterableDataset for Hundreds {
    /// #     type Batch = Tensor<u64>;
    /// #     type Reader = Hundred;
    /// #     fn shards(&self) -> usize { 3 }
    /// #     fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Hundred> {
    /// #         Ok((100 * shard as u64..100 * (shard as u64 + 1)).map(Ok as fn(u64) -> AnyResult<u64>))
    /// #     }
    /// #     fn fetch(
    /// #         &mut self,
    /// #         samples: Samples<u64>,
    /// #         cx: &mut Context<Tensor<u64>>,
    /// #     ) -> AnyResult<Tensor<u64>> {
    /// #         cx.rows_from(samples, &[], |number, _, row| { row[0] = number; Ok(()) })
    /// #     }
    /// # }
    /// let loader = StreamLoader::builder(Hundreds).batch_size(8).num_workers(1).build()?;
    /// let verified = loader.verify(20)?;
    /// assert!(verified.is_same(), "{verified}");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// A batch can't be made.
    pub fn verify(&self, batches: u64) -> Result<VerifyReport, Box<LoadError>> {
        let inner = &*self.inner;
        let init = || inner.worker_init();
        let most = inner.plan.steps.map_or(batches, |steps| steps.min(batches));
        let mut mine = None::<StreamWorker<D>>;
        verify(inner, self.start_of(0), most, |source, slot| {
            let task = source.task(slot);
            let second = StreamTask { poison: Some(POISON[1]), opens: true, ..task.clone() };
            let first = make_in_process(&mut mine, init, &StreamTask { poison: Some(POISON[0]), ..task })?;
            let second = match &inner.workers {
                Workers::Pool { call, .. } => call.apply_async(second).get().map_err(BatchFailure::from)?,
                Workers::InProcess(_) => make_in_process(&mut None::<StreamWorker<D>>, init, &second)?,
            };
            Ok(vec![first, second])
        })
    }
}
