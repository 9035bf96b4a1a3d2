//! Saved positions of consumers in a plan, and continuation from them.

use super::assignment::Plan;
use super::epoch::EpochOrder;
use super::error::PlanError;
use super::sampler::Batching;
use super::saved_state::{PlanState, same};

impl Plan {
    /// Returns the position of a consumer whose next batch is batch `next` of `epoch`.
    pub fn state(&self, epoch: u64, next: u64) -> PlanState {
        self.inner.state(epoch, next)
    }

    /// Returns the order of the epoch of a saved state, and the number of the next batch. With a state of
    /// [`EpochOrder::state`], the cost of that batch does not depend on the number of batches before it.
    ///
    /// ```
    /// # use mp_data::plan::{Batching, Plan};
    /// let lengths = (0..10_000).map(|i| 1 + i % 90).collect();
    /// let batching = Batching::MaxTokens { lengths, tokens: 400, window: 500 };
    /// let plan = Plan::builder(10_000).shuffle(true).seed(17).batching(batching).build()?;
    /// let order = plan.epoch(2);
    /// let batch = order.batch(900)?;
    /// let state = order.state(900);
    /// let (order, next) = plan.resume(&state)?; // in another process
    /// assert_eq!((next, order.batch(next)?), (900, batch));
    /// # Ok::<(), mp_data::plan::PlanError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`next_batch`](Self::next_batch).
    pub fn resume(&self, state: &PlanState) -> Result<(EpochOrder, u64), PlanError> {
        let (epoch, next) = self.next_batch(state)?;
        let order = self.epoch(epoch);
        order.begins(state.window);
        Ok((order, next))
    }

    /// Returns the epoch and the number of the next batch.
    ///
    /// # Errors
    /// `StateDiffers` names the first property in which the state's plan differs from this plan.
    /// `StateChanged` if the checksum is wrong. Differences of `world` and `batch_size` are allowed if the
    /// global batch is the same, unless the batches are made in windows or by a sampler of the user.
    pub fn next_batch(&self, state: &PlanState) -> Result<(u64, u64), PlanError> {
        let plan = &self.inner.template;
        same("format", &state.format, &plan.format)?;
        same("order", &state.order, &plan.order)?;
        same("batching", &state.batching, &plan.batching)?;
        same("rng", &state.rng, &plan.rng)?;
        same("seed", &state.seed, &plan.seed)?;
        same("len", &state.len, &plan.len)?;
        self.check_sizes(state)?;
        same("drop_last", &state.drop_last, &plan.drop_last)?;
        same("uneven", &state.uneven, &plan.uneven)?;
        same("hash of the weights", &state.weights, &plan.weights)?;
        same("hash of the lengths", &state.lengths, &plan.lengths)?;
        same("hash of the subset", &state.subset, &plan.subset)?;
        state.check_whole()?;
        Ok((state.epoch, state.next))
    }

    /// Returns epoch and batch as [`next_batch`](Self::next_batch) does, but accepts a changed dataset.
    /// Weights, lengths, subset and sampler may have changed too. Batches from the next one on follow the new
    /// order, in which an already delivered sample may be repeated and other samples may be missing.
    ///
    /// # Errors
    /// `StateDiffers` if the global batch differs. `StateDiffers` if the number of ranks differs, and batches
    /// are made in windows or by a sampler of the user. `StateChanged` if the checksum is wrong.
    pub fn next_batch_in_changed(&self, state: &PlanState) -> Result<(u64, u64), PlanError> {
        same("format", &state.format, &self.inner.template.format)?;
        self.check_sizes(state)?;
        state.check_whole()?;
        Ok((state.epoch, state.next))
    }

    fn check_sizes(&self, state: &PlanState) -> Result<(), PlanError> {
        let plan = &self.inner.template;
        let global = match self.inner.global_is_set {
            true => "global_batch_size",
            false => "the global batch (`batch_size` times the number of ranks)",
        };
        match &self.inner.batching {
            None => return same(global, &state.global_batch, &plan.global_batch),
            Some(Batching::BucketByLength { .. }) => {
                same(global, &state.global_batch, &plan.global_batch)?;
                same("batch_size", &state.batch_size, &plan.batch_size)?;
            }
            // No setting determines the sizes of these batches.
            Some(_) => {}
        }
        let world = "world (with `batching` or `batch_sampler`, as many ranks have to go on)";
        same(world, &state.world, &plan.world)
    }
}
