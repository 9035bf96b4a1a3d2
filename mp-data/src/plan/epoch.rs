//! The batches of one epoch and one rank.

use std::sync::{Arc, OnceLock};

use mp_core::user_code::catch_panic;

use super::bucketing::{WindowStart, Windows};
use super::{Batching, Inner, Item, PlanError, PlanState, Sampler, Shuffle, Uneven, permutation};
use crate::per_copy::PerCopy;

/// A batch, before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Number of the batch in the epoch; with several ranks, each rank has a batch of this number.
    pub number: u64,
    /// Samples of the batch.
    pub items: Vec<Item>,
    /// Number of samples that count, from the first on: the others are padding, so that each rank has equally
    /// many.
    pub valid: usize,
}

/// The order of one epoch. A clone shares what was computed.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    pub(super) inner: Arc<Order>,
}

#[derive(Debug)]
pub(super) struct Order {
    pub(super) plan: Arc<Inner>,
    pub(super) epoch: u64,
    /// Number of draws; `None` if the user's sampler panicked: it is asked again.
    pub(super) told: Option<u64>,
    table: PerCopy<OnceLock<Vec<u32>>>,
    windows: Windows,
}

impl EpochOrder {
    pub(super) fn new(plan: Arc<Inner>, epoch: u64) -> Self {
        let told = catch_panic(|| plan.draws(epoch));
        let (table, windows) = (PerCopy::default(), Windows::default());
        Self { inner: Arc::new(Order { plan, epoch, told, table, windows }) }
    }

    /// Returns the number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
    }

    /// Returns the number of draws in the epoch, over all ranks and without repeated ones; of batches of the
    /// user's, 0.
    pub fn samples(&self) -> u64 {
        if matches!(self.inner.plan.batching, Some(Batching::Custom(_))) { 0 } else { self.inner.draws() }
    }

    /// Returns the place of a consumer that takes batch `next` next: as [`Plan::state`](super::Plan::state),
    /// and with [`MaxTokens`](Batching::MaxTokens), if batches up to there were asked for, with the window in
    /// which that batch is, so that [going on](super::Plan::resume) there costs no look at those before.
    pub fn state(&self, next: u64) -> PlanState {
        self.inner.plan.state(self.inner.epoch, next).in_window(self.window(next))
    }

    /// Returns the start of the window with this batch, if that is known and not told by its number.
    pub(crate) fn window(&self, batch: u64) -> Option<WindowStart> {
        self.inner.windows.start(&self.inner, batch)
    }

    /// A state has told where a window begins.
    pub(crate) fn begins(&self, window: Option<WindowStart>) {
        window.into_iter().for_each(|window| self.inner.windows.begins(&self.inner, window));
    }

    /// Returns `true` if all epochs have the same numbers of draws and batches: no user code sets them.
    pub(crate) fn is_the_same_length(&self) -> bool {
        let plan = &*self.inner.plan;
        !matches!(plan.sampler, Sampler::Custom(_)) && !matches!(plan.batching, Some(Batching::Custom(_)))
    }

    /// Returns the number of batches of this rank; `None` if it is unknown until they are made.
    pub fn batches(&self) -> Option<u64> {
        let order = &*self.inner;
        let plan = &*order.plan;
        let groups = |all: u64| match plan.uneven {
            Uneven::Drop => all / u64::from(plan.world),
            _ => all.div_ceil(u64::from(plan.world)),
        };
        match &plan.batching {
            None => Some(order.draws() / plan.global + u64::from(order.last_rows() > 0)),
            Some(Batching::BucketByLength { .. }) => Some(groups(if plan.drop_last {
                order.draws() / plan.batch_size
            } else {
                order.draws().div_ceil(plan.batch_size)
            })),
            Some(Batching::MaxTokens { .. }) => (order.draws() == 0).then_some(0),
            Some(Batching::Custom(sampler)) => sampler.batches(order.epoch).map(groups),
        }
    }

    /// With `Uneven::Error`: an error if it is known that this epoch, and each other, can't be divided.
    pub(super) fn check_divided(&self) -> Result<(), PlanError> {
        let order = &*self.inner;
        let plan = &*order.plan;
        let (world, draws) = (u64::from(plan.world), order.told.unwrap_or_default());
        if !self.is_the_same_length() {
            return Ok(());
        }
        let (batch, left) = match &plan.batching {
            None if plan.drop_last => return Ok(()),
            None => (draws / plan.global, draws % plan.global),
            Some(Batching::BucketByLength { .. }) => {
                let short = !plan.drop_last && draws % plan.batch_size > 0;
                let all = draws / plan.batch_size + u64::from(short);
                (all / world, all % world)
            }
            Some(_) => return Ok(()),
        };
        if left % world == 0 { Ok(()) } else { Err(order.uneven(batch, left)) }
    }

    /// Batch `k` of this rank; `None` after the last.
    ///
    /// # Errors
    /// `IndexOutOfRange` of a sampler of the user's, `Uneven` if that was asked for.
    pub fn batch(&self, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        // Products of positions and sizes stay below 2⁶⁴.
        let draws = self.inner.draws();
        if draws >> 48 != 0 {
            let reason = format!("{draws} draws an epoch; at most 2⁴⁸ − 1 are possible");
            return Err(PlanError::Setting { setting: "sampler", reason });
        }
        match &self.inner.plan.batching {
            None => self.inner.plain(k),
            Some(Batching::Custom(sampler)) => self.inner.users(&**sampler, k),
            Some(_) => self.inner.windows.batch(&self.inner, k),
        }
    }
}

impl Order {
    pub(super) fn draws(&self) -> u64 {
        self.told.unwrap_or_else(|| self.plan.draws(self.epoch))
    }

    /// A list of all indices, made at its first use.
    fn table(&self, make: impl FnOnce() -> Vec<u32>) -> &[u32] {
        // A copy of the process has what was made before.
        match self.table.of_maker().get() {
            Some(table) => table,
            None => self.table.own().get_or_init(make),
        }
    }

    /// Returns the number of rows of each rank in a last global batch that isn't whole.
    fn last_rows(&self) -> u64 {
        let (left, world) = (self.draws() % self.plan.global, u64::from(self.plan.world));
        if self.plan.drop_last {
            0
        } else if self.plan.uneven == Uneven::Drop {
            left / world
        } else {
            left.div_ceil(world)
        }
    }

    /// The draw at `position`, for an error of batch `number`.
    #[inline]
    pub(super) fn item(&self, position: u64, number: u64) -> Result<Item, PlanError> {
        self.checked(self.index(position), position, number)
    }

    /// Returns the sample that is drawn at `position`.
    #[inline]
    fn index(&self, position: u64) -> u64 {
        let plan = &*self.plan;
        let (seed, epoch) = (plan.seed, self.epoch);
        let permuted = |position: u64| match plan.shuffle {
            None => position,
            Some(Shuffle::Feistel) => permutation::feistel(self.draws(), position, seed, epoch),
            Some(_) => {
                let table = self.table(|| permutation::fisher_yates(self.draws() as u32, seed, epoch));
                u64::from(table[position as usize])
            }
        };
        match &plan.sampler {
            Sampler::Sequential | Sampler::Random => permuted(position),
            Sampler::Subset(indices) => indices[permuted(position) as usize],
            Sampler::WithReplacement(_) => permutation::with_replacement(plan.len, position, seed, epoch),
            Sampler::Weighted { weights, draws, .. } => match &plan.alias {
                Some(alias) => alias.draw(position, seed, epoch),
                None => {
                    let make = || permutation::without_replacement(weights, *draws, seed, epoch);
                    u64::from(self.table(make)[position as usize])
                }
            },
            Sampler::Custom(sampler) => sampler.index(epoch, position),
        }
    }

    #[inline]
    fn checked(&self, index: u64, position: u64, batch: u64) -> Result<Item, PlanError> {
        if index >= self.plan.len {
            return Err(PlanError::IndexOutOfRange { epoch: self.epoch, batch, index, len: self.plan.len });
        }
        Ok(Item { index: index as usize, position })
    }

    pub(super) fn uneven(&self, batch: u64, left: u64) -> PlanError {
        PlanError::Uneven { epoch: self.epoch, batch, left, world: self.plan.world }
    }

    fn plain(&self, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        let plan = &*self.plan;
        let (world, rank) = (u64::from(plan.world), u64::from(plan.rank));
        let draws = self.draws();
        let whole = draws / plan.global;
        let rows = if k < whole { plan.global / world } else { self.last_rows() };
        if k > whole || rows == 0 {
            return Ok(None);
        }
        if k == whole && plan.uneven == Uneven::Error && rows * world != draws % plan.global {
            return Err(self.uneven(k, draws % plan.global));
        }
        let first = k * plan.global + rank * rows;
        let valid = rows.min(draws.saturating_sub(first)) as usize;
        let from = 0;
        let at = |p: u64| if p < draws { p } else { (p - draws + from) % draws };
        // A result of each doesn't tell how many there are.
        let mut items = Vec::with_capacity(rows.min(1 << 16) as usize);
        for position in first..first + rows {
            items.push(self.item(at(position), k)?);
        }
        Ok(Some(PlannedBatch { number: k, items, valid }))
    }

    fn users(&self, sampler: &dyn super::BatchSampler, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        let (world, rank) = (u64::from(self.plan.world), u64::from(self.plan.rank));
        let Some(mut number) = k.checked_mul(world).and_then(|n| n.checked_add(rank)) else {
            return Ok(None);
        };
        let mut repeated = false;
        if let Some(all) = sampler.batches(self.epoch) {
            if k >= all.div_ceil(world) {
                return Ok(None);
            }
            if all - k * world < world {
                match self.plan.uneven {
                    Uneven::Drop => return Ok(None),
                    Uneven::Error => return Err(self.uneven(k, all % world)),
                    Uneven::Pad => {}
                }
                repeated = number >= all;
                number %= all;
            }
        }
        let Some(indices) = sampler.batch(self.epoch, number) else { return Ok(None) };
        // So that each draw has a position of its own.
        if number >> 40 != 0 || indices.len() > 1 << 24 {
            let reason = format!(
                "batch {number} of {} indices: at most 2⁴⁰ batches of 2²⁴ indices are possible",
                indices.len()
            );
            return Err(PlanError::Setting { setting: "batch_sampler", reason });
        }
        let item = |(j, index): (usize, u64)| self.checked(index, (number << 24) + j as u64, k);
        let items: Vec<Item> = indices.into_iter().enumerate().map(item).collect::<Result<_, _>>()?;
        let valid = if repeated { 0 } else { items.len() };
        Ok(Some(PlannedBatch { number: k, items, valid }))
    }
}
