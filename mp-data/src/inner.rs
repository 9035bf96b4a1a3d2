//! What a loader and its batches share: a plan, a dataset, and who makes batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mp_pool::{Call, StatePool};

use crate::Dataset;
use crate::metrics::Meter;
use crate::plan::Plan;
use crate::settings::Settings;
use crate::worker::{Made, Orders, Sent, Task, Worker};

/// Who makes batches.
pub(crate) enum Workers<D: Dataset> {
    Pool {
        pool: StatePool<Worker<D>>,
        call: Call<Task, Made<D::Batch>>,
    },
    /// The caller. `None` before the first batch, and after a panic.
    Here(Mutex<Option<Worker<D>>>),
}

pub(crate) struct Inner<D: Dataset> {
    pub(crate) dataset: Arc<D>,
    pub(crate) plan: Plan,
    pub(crate) settings: Settings,
    pub(crate) workers: Workers<D>,
    pub(crate) meter: Mutex<Meter>,
}

impl<D: Dataset> Inner<D> {
    pub(crate) fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn orders(&self) -> Orders<D> {
        orders(&self.dataset, &self.plan, &self.settings)
    }
}

pub(crate) fn orders<D: Dataset>(dataset: &Arc<D>, plan: &Plan, settings: &Settings) -> Orders<D> {
    let Settings { num_workers, threads, .. } = *settings;
    Orders { dataset: Sent(Arc::clone(dataset)), num_workers, threads, seed: plan.seed() }
}
