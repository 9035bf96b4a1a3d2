//! Draws of one epoch, over all ranks.

use std::sync::{Arc, OnceLock};

use mp_core::user_code::catch_panic;
use serde::{Deserialize, Serialize};

use super::assignment::PlanData;
use super::error::PlanError;
use super::permutation;
use super::sampler::{BatchSampler, Sampler, Shuffle, Uneven};
use crate::fork_local::ForkLocal;

/// Planned batch: its samples, before it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Number of the batch in the epoch; with several ranks, each rank has a batch of this number.
    pub number: u64,
    /// Samples of the batch.
    pub items: Vec<Item>,
    /// Number of samples without padding. The samples after them are padding: repeated samples, so that each
    /// rank has equally many.
    pub valid: usize,
}

#[derive(Debug)]
pub(super) struct DrawOrder {
    pub(super) plan: Arc<PlanData>,
    pub(super) epoch: u64,
    /// Number of draws. `None` if the user's sampler has panicked: each use calls the sampler again.
    pub(super) draw_count: Option<u64>,
    table: ForkLocal<OnceLock<Vec<u32>>>,
}

impl DrawOrder {
    pub(super) fn new(plan: Arc<PlanData>, epoch: u64) -> DrawOrder {
        let draw_count = catch_panic(|| plan.draws(epoch));
        DrawOrder { plan, epoch, draw_count, table: ForkLocal::default() }
    }

    pub(super) fn draws(&self) -> u64 {
        self.draw_count.unwrap_or_else(|| self.plan.draws(self.epoch))
    }

    /// Returns a table of all indices, which is made at its first use.
    fn table(&self, make: impl FnOnce() -> Vec<u32>) -> &[u32] {
        // A forked copy of the process uses a table that was made before the fork.
        match self.table.original().get() {
            Some(table) => table,
            None => self.table.get().get_or_init(make),
        }
    }

    /// Returns the number of rows that each rank has in the last global batch, if that batch is incomplete.
    pub(super) fn last_rows(&self) -> u64 {
        let (left, world) = (self.draws() % self.plan.global, u64::from(self.plan.world));
        if self.plan.drop_last {
            0
        } else if self.plan.uneven == Uneven::Drop {
            left / world
        } else {
            left.div_ceil(world)
        }
    }

    /// Returns the draw at `position`. An error names batch `number`.
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

    pub(super) fn plain(&self, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
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
        // `collect` into a `Result` has no lower size hint, so the capacity is reserved here.
        let mut items = Vec::with_capacity(rows.min(1 << 16) as usize);
        for position in first..first + rows {
            items.push(self.item(at(position), k)?);
        }
        Ok(Some(PlannedBatch { number: k, items, valid }))
    }

    pub(super) fn custom(
        &self,
        sampler: &dyn BatchSampler,
        k: u64,
    ) -> Result<Option<PlannedBatch>, PlanError> {
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
        // Each draw needs a unique position.
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

/// Draw: index of a sample in the dataset, and position of the draw in the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Index of the sample in the dataset.
    pub index: usize,
    /// Number of this draw in the epoch, from 0, over all ranks. The random numbers of a sample depend on
    /// this number, on the seed, and on the epoch.
    pub position: u64,
}
