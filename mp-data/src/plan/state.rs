//! Saved place of a consumer in a plan.

use serde::{Deserialize, Serialize};

use super::bucketing::WindowStart;
use super::{Batching, EpochOrder, Plan, PlanError, Sampler, Uneven, philox::mix};

/// A place in a plan: which batch is next, and what the order is made from. A few hundred bytes in any format
/// of serde.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanState {
    format: u32,
    order: String,
    batching: String,
    rng: String,
    seed: u64,
    epoch: u64,
    next: u64,
    len: u64,
    batch_size: u64,
    global_batch: u64,
    world: u32,
    drop_last: bool,
    uneven: Uneven,
    weights: Option<u64>,
    lengths: Option<u64>,
    subset: Option<u64>,
    /// The window that has the next batch, or one before it, where only the windows before tell that.
    #[serde(default)]
    window: Option<WindowStart>,
    /// Made of all else.
    check: u64,
}

impl PlanState {
    /// With the checksum of what it has.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(self) -> Self {
        PlanState { check: self.content(), ..self }
    }

    fn content(&self) -> u64 {
        let PlanState { format, order, batching, rng, seed, epoch, next, len, batch_size, .. } = self;
        let PlanState { global_batch, world, drop_last, uneven, weights, lengths, subset, window, .. } = self;
        let texts =
            [order, batching, rng].into_iter().flat_map(|text| text.bytes().map(u64::from).chain([1 << 8]));
        let flags = u64::from(*drop_last) | (*uneven as u64) << 1;
        let numbers = [
            u64::from(*format),
            *seed,
            *epoch,
            *next,
            *len,
            *batch_size,
            *global_batch,
            u64::from(*world),
            flags,
        ];
        let start = window.map(|start| [start.number, start.before]);
        let hashes = [*weights, *lengths, *subset, start.map(|start| start[0]), start.map(|start| start[1])];
        let hashes =
            hashes.into_iter().flat_map(|hash| [u64::from(hash.is_some()), hash.unwrap_or_default()]);
        checksum(texts.chain(numbers).chain(hashes))
    }

    /// Checks that nothing was changed since it was made.
    fn check_whole(&self) -> Result<(), PlanError> {
        if self.check == self.content() {
            return Ok(());
        }
        Err(PlanError::StateChanged)
    }

    /// Returns the checksum.
    pub(crate) fn check(&self) -> u64 {
        self.check
    }

    /// The epoch that it is in.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the next batch.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// With where the window begins in which the next batch is.
    pub(crate) fn in_window(self, window: Option<WindowStart>) -> Self {
        PlanState { window, ..self }.sealed()
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }
}

/// Tells accidental changes of these words, and no deliberate ones.
pub(crate) fn checksum(words: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) =
        words.fold((0, 0u64), |(sum, count), word| (mix(mix(word).wrapping_add(sum)), count + 1));
    mix(sum ^ count)
}

/// Returns the part of the state that never changes, made once a plan.
pub(super) fn template(plan: &super::Inner) -> PlanState {
    PlanState {
        format: 1,
        order: plan.order_name(),
        batching: match &plan.batching {
            None => "plain/1".into(),
            Some(Batching::BucketByLength { window, .. }) => format!("bucket/1 window {window}"),
            Some(Batching::MaxTokens { tokens, window, .. }) => {
                format!("max-tokens/1 {tokens} window {window}")
            }
            Some(Batching::Custom(sampler)) => sampler.name().into(),
        },
        rng: "philox/1".into(),
        seed: plan.seed,
        epoch: 0,
        next: 0,
        len: plan.len,
        batch_size: plan.batch_size,
        global_batch: plan.global,
        world: plan.world,
        drop_last: plan.drop_last,
        uneven: plan.uneven,
        weights: match &plan.sampler {
            Sampler::Weighted { weights, .. } => Some(checksum(weights.iter().map(|w| w.to_bits()))),
            _ => None,
        },
        lengths: match &plan.batching {
            Some(Batching::BucketByLength { lengths, .. } | Batching::MaxTokens { lengths, .. }) => {
                Some(checksum(lengths.iter().map(|&l| u64::from(l))))
            }
            _ => None,
        },
        subset: match (&plan.sampler, plan.chosen) {
            (Sampler::Subset(indices), None) => Some(checksum(indices.iter().copied())),
            (Sampler::Subset(indices), Some(chosen)) => {
                Some(checksum(indices.iter().copied().chain([chosen])))
            }
            (_, chosen) => chosen,
        },
        window: None,
        check: 0,
    }
}

impl super::Inner {
    pub(super) fn state(&self, epoch: u64, next: u64) -> PlanState {
        PlanState { epoch, next, ..self.template.clone() }.sealed()
    }
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    state: &T,
    plan: &T,
) -> Result<(), PlanError> {
    if state == plan {
        return Ok(());
    }
    Err(PlanError::StateDiffers { what, state: format!("{state:?}"), plan: format!("{plan:?}") })
}

impl Plan {
    /// Returns the place of a consumer that takes batch `next` of `epoch` next.
    pub fn state(&self, epoch: u64, next: u64) -> PlanState {
        self.inner.state(epoch, next)
    }

    /// The order of the epoch in which that consumer is, and the number of its next batch. With a state of
    /// [`EpochOrder::state`], the cost of that batch does not depend on how many there are before it.
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
    /// As of [`next_batch`](Self::next_batch).
    pub fn resume(&self, state: &PlanState) -> Result<(EpochOrder, u64), PlanError> {
        let (epoch, next) = self.next_batch(state)?;
        let order = self.epoch(epoch);
        order.begins(state.window);
        Ok((order, next))
    }

    /// The epoch and the number of the next batch.
    ///
    /// # Errors
    /// `StateDiffers` names the first thing in which the state's plan isn't this one; `StateChanged` says
    /// that it was changed. Another `world` and batch size may go on if the global batch is the same and
    /// batches are not made in windows or by the user.
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

    /// Returns epoch and batch as [`next_batch`](Self::next_batch) does, but the dataset may have changed
    /// since, and with it weights, lengths, subset and sampler: the batches from the next one on are those of
    /// the new order. What was given before may come again in it, or never.
    ///
    /// # Errors
    /// `StateDiffers`: the state's global batch is another one, or, where that has to be the same, the number
    /// of ranks. `StateChanged`: it is not as it was made.
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
            // Their sizes are no settings.
            Some(_) => {}
        }
        let world = "world (with `batching` or `batch_sampler`, as many ranks have to go on)";
        same(world, &state.world, &plan.world)
    }
}
