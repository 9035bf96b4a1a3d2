//! Batches of one epoch and one rank.

use std::sync::Arc;

use super::assignment::{Plan, PlanData};
use super::bucketing::Windows;
use super::error::PlanError;
use super::order::{DrawOrder, PlannedBatch};
use super::sampler::{Batching, Sampler, Uneven};
use super::saved_state::{PlanState, WindowStart};

/// Order of one epoch. Clones share computed results.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    inner: Arc<(DrawOrder, Windows)>,
}

impl EpochOrder {
    fn new(plan: Arc<PlanData>, epoch: u64) -> Self {
        Self { inner: Arc::new((DrawOrder::new(plan, epoch), Windows::default())) }
    }

    fn order(&self) -> &DrawOrder {
        &self.inner.0
    }

    fn windows(&self) -> &Windows {
        &self.inner.1
    }

    /// Returns the number of the epoch.
    pub fn epoch(&self) -> u64 {
        self.order().epoch
    }

    /// Returns the number of draws in the epoch, over all ranks and without repeated draws. Returns 0 with a
    /// batch sampler of the user.
    pub fn samples(&self) -> u64 {
        if matches!(self.order().plan.batching, Some(Batching::Custom(_))) { 0 } else { self.order().draws() }
    }

    /// Returns the position of a consumer whose next batch is `next`, as [`Plan::state`](super::Plan::state)
    /// does. With [`MaxTokens`](Batching::MaxTokens), the state also has the start of the last known window
    /// at or before that batch. With this start, [`Plan::resume`](super::Plan::resume) does not compute
    /// earlier windows.
    pub fn state(&self, next: u64) -> PlanState {
        self.order().plan.state(self.order().epoch, next).in_window(self.window(next))
    }

    /// Returns the start of the last known window at or before this batch. Returns `None` if the start can be
    /// computed from the batch number.
    pub(crate) fn window(&self, batch: u64) -> Option<WindowStart> {
        self.windows().start(self.order(), batch)
    }

    /// Stores the start of a window from a saved state, so that earlier windows are not computed.
    pub(crate) fn begins(&self, window: Option<WindowStart>) {
        window.into_iter().for_each(|window| self.windows().begins(self.order(), window));
    }

    /// Returns `true` if all epochs have the same numbers of draws and batches, because no user code
    /// determines them.
    pub(crate) fn has_fixed_length(&self) -> bool {
        let plan = &*self.order().plan;
        !matches!(plan.sampler, Sampler::Custom(_)) && !matches!(plan.batching, Some(Batching::Custom(_)))
    }

    /// Returns the number of batches of this rank. Returns `None` if the number is unknown until the batches
    /// are made.
    pub fn batches(&self) -> Option<u64> {
        let order = self.order();
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

    /// Returns an error if the draws of every epoch can't be divided evenly among the ranks. Called with
    /// `Uneven::Error`.
    pub(super) fn check_divided(&self) -> Result<(), PlanError> {
        let order = self.order();
        let plan = &*order.plan;
        let (world, draws) = (u64::from(plan.world), order.draw_count.unwrap_or_default());
        if !self.has_fixed_length() {
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

    /// Returns batch `k` of this rank. Returns `None` after the last batch.
    ///
    /// # Errors
    /// `IndexOutOfRange` if a sampler of the user returns an invalid index. `Uneven` with `Uneven::Error`, if
    /// the last draws can't be divided. `Setting` if there are too many draws or batches.
    pub fn batch(&self, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        // Products of positions and sizes stay below 2⁶⁴.
        let draws = self.order().draws();
        if draws >> 48 != 0 {
            let reason = format!("{draws} draws an epoch; at most 2⁴⁸ − 1 are possible");
            return Err(PlanError::Setting { setting: "sampler", reason });
        }
        match &self.order().plan.batching {
            None => self.order().plain(k),
            Some(Batching::Custom(sampler)) => self.order().custom(&**sampler, k),
            Some(_) => self.windows().batch(self.order(), k),
        }
    }
}

impl Plan {
    /// Returns the order of an epoch. Nothing is computed before the first call of
    /// [`batch`](EpochOrder::batch).
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.inner.clone(), epoch)
    }
}
