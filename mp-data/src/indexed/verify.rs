//! Check that a dataset with indices makes the same batch each time.

use crate::error::failure::BatchFailure;
use crate::indexed::worker::{IndexedTask, IndexedWorker};
use crate::loader::shared::Workers;
use crate::loader::verify::{POISON, VerifyReport, verify};
use crate::worker::in_process::make_in_process;
use crate::{DataLoader, Dataset, LoadError};

impl<D: Dataset> DataLoader<D> {
    /// Makes the first `batches` batches of epoch 0 twice, in memory with different previous contents, and
    /// compares them. Finds samples that depend on more than their index and their random numbers, and rows
    /// that are not written. Values of [`Objects`](crate::Objects) that contain tensors are not compared.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Stamped;
    ///
    /// impl Dataset for Stamped {
    ///     type Batch = Tensor<u64>;
    /// #   fn len(&self) -> usize { 8 }
    ///
    ///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    ///         cx.rows(items, &[2], |item, _, row| {
    ///             row.copy_from_slice(&[item.index as u64, u64::from(std::process::id())]);
    ///             Ok(())
    ///         })
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Stamped).batch_size(4).num_workers(1).build()?;
    /// let verified = loader.verify(2)?;
    /// let difference = "batch 0, sample 0: column 0 is not the same twice";
    /// assert!(verified.to_string().contains(difference), "{verified}");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// Two workers make the two copies of a batch if two workers are free. If one worker makes both copies,
    /// this process makes a third one. For that it decodes the dataset and calls its `init`.
    ///
    /// # Errors
    /// A batch can't be made.
    pub fn verify(&self, batches: u64) -> Result<VerifyReport, Box<LoadError>> {
        let inner = &*self.inner;
        let init = || inner.worker_init();
        let mut mine = None::<IndexedWorker<D>>;
        verify(inner, self.start_of(0), batches, |_, slot| {
            let task = |poison| IndexedTask::new(0, slot.threads, Some(poison), &slot.contents.items);
            let Workers::Pool { call, .. } = &inner.workers else {
                let mut worker = None::<IndexedWorker<D>>;
                return POISON
                    .map(task)
                    .iter()
                    .map(|task| make_in_process(&mut worker, init, task))
                    .collect();
            };
            // Both tasks are sent at once, so that two workers make the batches if two are free.
            let made = POISON.map(|poison| call.apply_async(task(poison))).map(|result| result.get());
            let mut made = made.into_iter().collect::<Result<Vec<_>, _>>().map_err(BatchFailure::from)?;
            if made[0].worker == made[1].worker {
                made.push(make_in_process(&mut mine, init, &task(POISON[1]))?);
            }
            Ok(made)
        })
    }
}
