//! The settings of a loader.

pub(crate) mod affinity;
pub(crate) mod format;

use std::sync::Arc;
use std::time::Duration;

use mp_spawn::{CallFailure, StartMethod};

use crate::error::failure::panic_error;
use crate::plan::{Plan, PlanBuilder};
use crate::{Affinity, BuildError, Dataset};

/// Treatment of a batch that can't be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The iterator gives the error in the place of the batch, and goes on with the next one: `?` in the loop
    /// ends the training.
    #[default]
    Report,
    /// Makes the batch without the sample at which it failed;
    /// [`BatchInfo::skipped`](crate::BatchInfo::skipped) names that. If it isn't known which it was, as
    /// `Report`.
    SkipSample,
    /// Leaves the batch out; [`Batches::skipped_batches`](crate::Batches::skipped_batches) has the error. If
    /// all batches of a pass over the data are left out and another pass would follow, the iterator ends with
    /// an error.
    SkipBatch,
}

/// Asks code of the user for what it was set to say; a panic is an error of that setting.
pub(crate) fn call_user<R>(setting: &'static str, ask: impl FnOnce() -> R) -> Result<R, BuildError> {
    CallFailure::catch(ask)
        .map_err(|panic| BuildError::Setting { setting, reason: panic_error(*panic).to_string() })
}

/// Name of a loader without a name.
const NAME: &str = "data loader";

type PlanOption = Arc<dyn Fn(PlanBuilder) -> PlanBuilder + Send + Sync>;

/// The settings that are no matter of the order.
#[derive(Clone, Debug)]
pub(crate) struct LoaderSettings {
    pub(crate) name: String,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    /// `None` if it was not set: as many as
    /// [`LoaderMeter::prefetch`](crate::loader::metrics::LoaderMeter::prefetch) says.
    pub(crate) prefetch: Option<usize>,
    pub(crate) budget: Option<usize>,
    pub(crate) in_order: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) on_error: OnError,
    pub(crate) method: Option<StartMethod>,
    pub(crate) max_tasks: u64,
    pub(crate) allow_changed_dataset: bool,
    pub(crate) affinity: Affinity,
    pub(crate) keep_freed_memory: bool,
}

impl LoaderSettings {
    pub(crate) fn new() -> LoaderSettings {
        LoaderSettings {
            name: NAME.into(),
            num_workers: 0,
            threads: 1,
            prefetch: None,
            budget: None,
            in_order: true,
            timeout: None,
            retries: 2,
            on_error: OnError::Report,
            method: None,
            max_tasks: 0,
            allow_changed_dataset: false,
            affinity: Affinity::Inherit,
            keep_freed_memory: true,
        }
    }

    /// Checks that processes can have the name.
    pub(crate) fn check_name(&self) -> Result<(), BuildError> {
        if !self.name.is_empty() && !self.name.chars().any(char::is_control) {
            return Ok(());
        }
        let reason = format!("{:?} is none: it is empty, or has a control character", self.name);
        Err(BuildError::Setting { setting: "name", reason })
    }
}

/// Methods of the builders of both kinds of loaders, for the settings in a field `settings`.
macro_rules! settings {
    () => {
        /// Sets the name of the loader: its workers are the processes `name-0`, `name-1` and so on, in what
        /// they print, in errors and in lists of processes (`ps`, whose kernel keeps 15 bytes). "data loader"
        /// without this; a program with a loader for training and one for validation calls them so.
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.settings.name = name.into();
            self
        }

        /// Sets the number of processes that make batches. With 0, as without this, the caller makes them
        /// when it asks for them: the same batches, bit by bit. An error of `fetch` is the value itself then,
        /// and `downcast_ref` of [`LoadError::source`](crate::LoadError::source) finds its type; from a
        /// worker come its text and those of its sources.
        pub fn num_workers(mut self, workers: usize) -> Self {
            self.settings.num_workers = workers;
            self
        }

        /// Sets the number of threads of a worker that write rows of one batch at the same time; 1 without
        /// this and at least, 1024 at most (0 is taken as 1). `OMP_NUM_THREADS`, `RAYON_NUM_THREADS`,
        /// `MKL_NUM_THREADS` and `OPENBLAS_NUM_THREADS` of the workers are set to this number, unless this
        /// process has them set.
        pub fn threads_per_worker(mut self, threads: usize) -> Self {
            self.settings.threads = threads.max(1);
            self
        }

        /// Sets the number of batches that are planned, running or ready for each worker; 1 at least, and for
        /// all workers 65,536 at most: 0 is taken as 1, as of threads. Without this 2, and 8 for as long as
        /// batches are made in less than 200 µs, as a rule, and have tensors of no more than 64 KiB: with 2
        /// of these, threads sleep between two batches, and a sleep takes longer than such a batch.
        pub fn prefetch_factor(mut self, batches: usize) -> Self {
            self.settings.prefetch = Some(batches.max(1));
            self
        }

        /// Limits the bytes of shared memory of the batches that are planned, running or ready, each
        /// counted as the largest so far. One batch always may be. What the trainer keeps isn't counted.
        pub fn memory_budget(mut self, bytes: usize) -> Self {
            self.settings.budget = Some(bytes);
            self
        }

        /// Sets whether batches are given in the order of their numbers, as without this. If not, a slow one
        /// holds up no other, until 1024 behind it were given (of a stream: its lane); they are the same
        /// batches, and their `state` is as exact.
        pub fn in_order(mut self, in_order: bool) -> Self {
            self.settings.in_order = in_order;
            self
        }

        /// Limits the time of a worker for a batch. Then it is killed, and the batch is made again by
        /// another, as if it had died. `init` may take as long as it does.
        #[doc(alias = "batch_timeout")]
        pub fn timeout(mut self, time: std::time::Duration) -> Self {
            self.settings.timeout = Some(time);
            self
        }

        /// Sets how often a batch is made again whose worker died or took too long; 2 without this. What
        /// `fetch` returns or panics with is not tried again.
        pub fn retries(mut self, times: u32) -> Self {
            self.settings.retries = times;
            self
        }

        /// Sets the treatment of a batch that can't be made.
        pub fn on_error(mut self, on_error: crate::OnError) -> Self {
            self.settings.on_error = on_error;
            self
        }

        /// Sets the start method of the workers.
        #[doc(alias = "multiprocessing_context")]
        pub fn start_method(mut self, method: mp_spawn::StartMethod) -> Self {
            self.settings.method = Some(method);
            self
        }

        /// On which processors the workers run. Without workers it does nothing.
        pub fn affinity(mut self, affinity: crate::Affinity) -> Self {
            self.settings.affinity = affinity;
            self
        }

        /// Sets whether a worker keeps freed memory for later allocations, as without this: up to
        /// 64 MiB at the end of each heap of the C library's allocator (glibc; others are left alone). If
        /// not, what decoders of images free goes back to the kernel after each image, and comes back page by
        /// page, which was a quarter of the time of such workers. Where the environment sets
        /// `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, or either in `GLIBC_TUNABLES`, that decides.
        pub fn keep_freed_memory(mut self, keep: bool) -> Self {
            self.settings.keep_freed_memory = keep;
            self
        }

        /// After this many batches a worker is replaced; 0 is never, as without this. For decoders that leak.
        pub fn max_tasks_per_child(mut self, batches: u64) -> Self {
            self.settings.max_tasks = batches;
            self
        }
    };
}
pub(crate) use settings;

/// Settings of the order, which are applied again to another dataset.
#[derive(Clone)]
pub(crate) struct PlanSettings(pub(crate) Vec<PlanOption>);

impl PlanSettings {
    /// Dataset and samplers of the user say how many samples there are, and what they are called.
    pub(crate) fn plan<D: Dataset>(&self, dataset: &D) -> Result<Plan, BuildError> {
        let (len, selection_checksum) =
            call_user("dataset", || (dataset.len(), dataset.selection_checksum()))?;
        let builder = Plan::builder(len as u64).selection_checksum(selection_checksum);
        let builder = self.0.iter().fold(builder, |builder, set| set(builder));
        Ok(call_user("sampler", || builder.build())??)
    }
}
