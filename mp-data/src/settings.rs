//! The settings of a loader.

use std::sync::Arc;
use std::time::Duration;

use mp_spawn::StartMethod;

use crate::BuildError;
use crate::plan::{Plan, PlanBuilder};

/// What becomes of a batch that can't be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The trainer gets the error in its place, and may go on with the next.
    #[default]
    Stop,
    /// It is made without the sample at which it failed; [`Info::skipped`](crate::Info::skipped) names that. If it isn't known which it
    /// was, as `Stop`.
    SkipSample,
    /// It is left out; [`Batches::left_out`](crate::Batches::left_out) has the error.
    SkipBatch,
}

type PlanSetting = Arc<dyn Fn(PlanBuilder) -> PlanBuilder + Send + Sync>;

/// The settings that are no matter of the order.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    pub(crate) prefetch: usize,
    pub(crate) budget: Option<usize>,
    pub(crate) in_order: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) on_error: OnError,
    pub(crate) method: Option<StartMethod>,
    pub(crate) most_tasks: u64,
}

/// How the order is made; again for another dataset.
#[derive(Clone)]
pub(crate) struct PlanSettings(pub(crate) Vec<PlanSetting>);

impl PlanSettings {
    pub(crate) fn plan(&self, len: usize) -> Result<Plan, BuildError> {
        let builder = self.0.iter().fold(Plan::builder(len as u64), |builder, set| set(builder));
        Ok(builder.build()?)
    }
}
