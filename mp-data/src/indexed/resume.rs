//! Continuation from a saved state.

use crate::Dataset;
use crate::indexed::batches::Batches;
use crate::indexed::loader::DataLoader;
use crate::indexed::saved_state::{FORMAT, LoaderState};
use crate::indexed::source::IndexedSource;
use crate::loader::shared::LoaderShared;
use crate::plan::{PlanError, same};

impl<D: Dataset> DataLoader<D> {
    /// Returns an iterator over the batches of an epoch that were not delivered before the state was saved.
    /// The loader can have another number of workers than before and, if the global batch is the same,
    /// another number of ranks.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(usize);
    /// # impl Dataset for Numbers {
    /// #     type Batch = Tensor<i64>;
    /// #     fn len(&self) -> usize { self.0 }
    /// #     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    /// #         cx.rows(items, &[], |item, _, row| { row[0] = item.index as i64; Ok(()) })
    /// #     }
    /// # }
    /// use mp_data::{DataLoader, LoaderState};
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(2).build()?;
    /// let mut batches = loader.epoch(3);
    /// assert_eq!(batches.next().unwrap()?.to_vec(), [0, 1]);
    /// let saved = serde_json::to_string(&batches.state())?; // beside the weights
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(1).build()?; // another day
    /// let state: LoaderState = serde_json::from_str(&saved)?;
    /// let mut batches = loader.resume(&state)?;
    /// assert_eq!((state.epoch(), batches.next().unwrap()?.to_vec()), (3, vec![2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a setting of the loader's plan differs from the saved plan (the error names it),
    /// or the checksum of the state is wrong. Only the rank that saved a state can resume it if batches were
    /// delivered out of order; other ranks get an error.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<D>, PlanError> {
        Ok(self.from(self.source_at(state)?, Some(state.epoch())))
    }

    pub(super) fn source_at(&self, state: &LoaderState) -> Result<IndexedSource<D>, PlanError> {
        same("format", &state.format, &FORMAT)?;
        let LoaderShared { plan, settings, .. } = &*self.inner;
        if settings.allow_changed_dataset {
            // The numbers in `out_of_order` belong to samples of the old order.
            state.check_whole()?;
            let (epoch, next) = plan.next_batch_in_changed(&state.plan)?;
            return Ok(IndexedSource::new(plan, plan.epoch(epoch), next, &[]));
        }
        let (order, next) = plan.resume(&state.plan)?;
        if !state.out_of_order.is_empty() {
            same(
                "world (only the rank that was given batches out of order knows which they were)",
                &state.plan.world(),
                &plan.world(),
            )?;
            same(
                "rank (only the rank that was given batches out of order knows which they were)",
                &state.rank,
                &plan.rank(),
            )?;
        }
        state.check_whole()?;
        Ok(IndexedSource::new(plan, order, next, &state.out_of_order))
    }
}
