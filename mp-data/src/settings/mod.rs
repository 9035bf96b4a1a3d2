//! Settings of a loader.

pub(crate) mod affinity;
pub(crate) mod saved_state_kind;
#[cfg(feature = "net")]
pub(crate) mod served;

use std::time::Duration;

use mp_spawn::{CallFailure, StartMethod};

use crate::error::failure::panic_error;
use crate::{Affinity, BuildError};

/// Treatment of a batch that can't be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Returns the error in the place of the batch. The iterator continues with the next batch, unless the
    /// caller ends its loop, for example by `?`.
    #[default]
    Report,
    /// Makes the batch without the sample at which it failed, and adds the sample to
    /// [`BatchInfo::skipped`](crate::BatchInfo::skipped). If the sample is unknown, works like `Report`.
    SkipSample,
    /// Skips the batch, and adds the error to [`Batches::skipped_batches`](crate::Batches::skipped_batches).
    /// The iterator ends with an error if all batches of a pass over the data are skipped and another pass
    /// would follow, or if a stream skips 1024 batches in a row: its shards may have no end.
    SkipBatch,
}

/// Calls code of the user that belongs to a setting, such as a sampler. A panic becomes an error of that
/// setting.
pub(crate) fn call_user<R>(setting: &'static str, ask: impl FnOnce() -> R) -> Result<R, BuildError> {
    CallFailure::catch(ask)
        .map_err(|panic| BuildError::Setting { setting, reason: panic_error(*panic).to_string() })
}

/// Default name of a loader.
const NAME: &str = "data loader";

/// Settings that do not affect the order.
#[derive(Clone, Debug)]
pub(crate) struct LoaderSettings {
    pub(crate) name: String,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    /// Prefetched batches per worker. `None` selects the value of
    /// [`LoaderMeter::prefetch`](crate::loader::metrics::LoaderMeter::prefetch).
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
    /// Cluster with loaders of other hosts that also make batches for this loader.
    #[cfg(feature = "net")]
    pub(crate) hosts: Option<mp_net::Cluster>,
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
            #[cfg(feature = "net")]
            hosts: None,
        }
    }

    /// Checks that the name is valid for processes.
    pub(crate) fn check_name(&self) -> Result<(), BuildError> {
        if !self.name.is_empty() && !self.name.chars().any(char::is_control) {
            return Ok(());
        }
        let reason = format!("{:?} is not a valid name: it is empty or has a control character", self.name);
        Err(BuildError::Setting { setting: "name", reason })
    }
}

/// Methods of the builders of both kinds of loaders, for the settings in a field `settings`.
macro_rules! settings {
    () => {
        /// Sets the name of the loader, "data loader" by default. Its workers are the processes `name-0`,
        /// `name-1` and so on in their output, in errors and in `ps` (which shows 15 bytes). Use it to
        /// distinguish the loaders for training and validation.
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.settings.name = name.into();
            self
        }

        /// Sets the number of processes that make batches. With 0, the default, the caller of `next` makes
        /// the batches. They are equal bit by bit to the batches of workers. Without workers,
        /// [`LoadError::source`](crate::LoadError::source) is the error value of `fetch`, which
        /// `downcast_ref` finds. A worker sends only the texts of an error and of its sources.
        pub fn num_workers(mut self, workers: usize) -> Self {
            self.settings.num_workers = workers;
            self
        }

        /// Uses workers of other hosts in addition to the workers of this host. Members of the cluster offer
        /// them by [`serve`](Self::serve), before or after this call, with a loader of the same
        /// [name](Self::name). [`num_workers`](Self::num_workers) is the number of workers of this host, at
        /// least 1.
        ///
        /// The batches are the same for any set of hosts. If a host is lost, other workers make its batches
        /// again. A batch crosses the network once, and is copied once on each side.
        #[cfg(feature = "net")]
        #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
        #[doc(alias("tf.data.service", "distribute"))]
        pub fn hosts(mut self, cluster: &mp_net::Cluster) -> Self {
            self.settings.hosts = Some(cluster.clone());
            self
        }

        /// Starts the workers, and offers them to loaders of other members that use this cluster as
        /// [hosts](Self::hosts), until the returned value is dropped. Blocks until rank 0 has replied.
        ///
        /// Both loaders need the same name, dataset and settings of the order. If the type or length of the
        /// dataset or the seed differs, the other member reports it once on stderr and does not use these
        /// workers. Other differences are not checked.
        ///
        /// # Errors
        /// The errors of [`build`](Self::build), and [`BuildError::Pool`](crate::BuildError::Pool) if this member
        /// already serves a loader of that name, or rank 0 is lost.
        #[cfg(feature = "net")]
        #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
        pub fn serve(
            self,
            cluster: &mp_net::Cluster,
        ) -> Result<crate::settings::served::ServedLoader, crate::BuildError> {
            self.build()?.inner.serve(cluster)
        }

        /// Sets the number of threads of a worker that write rows of one batch at the same time, from 1 (the
        /// default) to 1024. 0 means 1. The workers' environment variables `OMP_NUM_THREADS`,
        /// `RAYON_NUM_THREADS`, `MKL_NUM_THREADS` and `OPENBLAS_NUM_THREADS` get this number if they are
        /// unset.
        pub fn threads_per_worker(mut self, threads: usize) -> Self {
            self.settings.threads = threads.max(1);
            self
        }

        /// Sets the number of batches that are planned, running or ready for each worker. 0 means 1, and the
        /// maximum is 65,536 for all workers together. The default is 2, or 8 while batches are usually made
        /// in less than 200 µs and have at most 64 KiB of tensors. With only 2 small batches, threads would
        /// sleep between batches, and a sleep takes longer than a small batch.
        pub fn prefetch_factor(mut self, batches: usize) -> Self {
            self.settings.prefetch = Some(batches.max(1));
            self
        }

        /// Limits the bytes of shared memory of the batches that are planned, running or ready. Each batch
        /// counts with the size of the largest batch so far. One batch is always allowed. Delivered batches
        /// are not counted.
        pub fn memory_budget(mut self, bytes: usize) -> Self {
            self.settings.budget = Some(bytes);
            self
        }

        /// Sets whether batches are delivered in the order of their numbers, which is the default. With
        /// `false`, a slow batch delays no other batch until 1024 later batches were delivered. In a stream,
        /// a slow batch delays its lane. The contents of the batches don't change, and the saved `state`
        /// remains exact.
        pub fn in_order(mut self, in_order: bool) -> Self {
            self.settings.in_order = in_order;
            self
        }

        /// Limits the time that a worker may take for one batch. If the worker exceeds the limit, it is
        /// killed, and another worker makes the batch again. The limit does not apply to `init`.
        #[doc(alias = "batch_timeout")]
        pub fn timeout(mut self, time: std::time::Duration) -> Self {
            self.settings.timeout = Some(time);
            self
        }

        /// Sets the maximum number of times that a batch is made again after its worker died or exceeded the
        /// time-out, 2 by default. Errors and panics of `fetch` are not retried.
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

        /// Sets the processors of the workers. Has no effect without workers.
        pub fn affinity(mut self, affinity: crate::Affinity) -> Self {
            self.settings.affinity = affinity;
            self
        }

        /// Sets whether a worker keeps freed memory for later allocations, which is the default: up to 64 MiB
        /// at the end of each heap of glibc's allocator (other allocators are unchanged). With `false`, image
        /// decoders return memory to the kernel after each image and fault it in again page by page, which
        /// takes a quarter of the workers' time. `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, or
        /// either in `GLIBC_TUNABLES`, take precedence.
        pub fn keep_freed_memory(mut self, keep: bool) -> Self {
            self.settings.keep_freed_memory = keep;
            self
        }

        /// Replaces a worker after this many batches, for decoders that leak. 0, the default, means never.
        pub fn max_tasks_per_child(mut self, batches: u64) -> Self {
            self.settings.max_tasks = batches;
            self
        }
    };
}
pub(crate) use settings;
