//! State that a loader and its batches share: a plan, a dataset, and the pool or the caller that makes
//! batches.

use std::sync::Arc;
use std::time::Duration;

use mp_core::mutex::{Mutex, MutexGuard};
use mp_pool::{Call, Pool, PoolError, StatePool, TaskError};
use mp_spawn::{Interrupt, ProcessBuilder};

use crate::fork_local::ForkLocal;
use crate::loader::metrics::{LoaderMeter, LoaderMetrics};
use crate::loader::source::{BatchSource, DatasetOf, ReplyOf, TaskOf};
use crate::settings::LoaderSettings;
#[cfg(feature = "net")]
use crate::settings::served::ServedLoader;
use crate::worker::batch_maker::{BatchMaker, InitOf, SharedDataset, WorkerInit, make};
use crate::worker::in_process::InProcessWorker;
use crate::{AnyResult, BuildError};

/// Environment variables from which libraries take their number of threads.
const THREADS: [&str; 4] =
    ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];

/// Time that workers of a dropped loader get to finish their current batches.
const FINISH: Duration = Duration::from_secs(1);

/// Workers of a loader: a pool of processes, or the caller itself.
pub(crate) enum Workers<K: BatchSource> {
    Pool {
        pool: StatePool<K::Worker>,
        call: Call<TaskOf<K>, ReplyOf<K>>,
    },
    /// No worker processes: the caller of `next` makes the batches.
    InProcess(InProcessWorker<K::Worker>),
}

pub(crate) struct LoaderShared<K: BatchSource> {
    pub(crate) dataset: Arc<DatasetOf<K>>,
    pub(crate) plan: K::Plan,
    pub(crate) settings: LoaderSettings,
    pub(crate) workers: Workers<K>,
    meter: Mutex<LoaderMeter>,
    /// Process that made the loader.
    owner: ForkLocal<()>,
}

fn environment(threads: usize, process: ProcessBuilder) -> ProcessBuilder {
    let is_unset = |name: &&str| std::env::var_os(name).is_none();
    let unset = THREADS.into_iter().filter(is_unset);
    unset.fold(process, |process, name| process.env(name, threads.to_string()))
}

/// Start function of a pool's worker: opens the dataset and calls its `init`.
fn begin<W: BatchMaker>(worker_init: InitOf<W>) -> AnyResult<W> {
    if worker_init.keep_freed_memory {
        crate::worker::keep_freed::keep();
    }
    W::begin(worker_init)
}

impl<K: BatchSource> LoaderShared<K> {
    /// Starts the workers.
    pub(crate) fn start(
        dataset: Arc<DatasetOf<K>>,
        plan: K::Plan,
        settings: LoaderSettings,
    ) -> Result<Arc<Self>, BuildError> {
        check(&settings)?;
        let workers = if settings.num_workers == 0 {
            Workers::InProcess(InProcessWorker::new())
        } else {
            let threads = settings.threads;
            let processors = settings.affinity.processors()?;
            #[cfg(feature = "log")]
            crate::worker::dataset_size::warn_if_large(&SharedDataset(Arc::clone(&dataset)));
            let mut builder = Pool::builder()
                .processes(settings.num_workers)
                .name(settings.name.as_str())
                .interrupt(Interrupt::Ignore)
                .finish_period(FINISH)
                .max_tasks_per_child(settings.max_tasks)
                .stderr(mp_spawn::Stdio::Tee)
                .per_worker(move |_, process| {
                    let process = environment(threads, process);
                    match &processors {
                        Some(numbers) => process.processors(numbers.iter().copied()),
                        None => process,
                    }
                });
            builder = builder.kind(K::kind(&plan));
            #[cfg(feature = "net")]
            if let Some(cluster) = &settings.hosts {
                builder = builder.cluster(cluster);
            }
            if let Some(method) = settings.method {
                builder = builder.start_method(method);
            }
            let worker_init = worker_init::<K>(&dataset, &plan, &settings);
            let pool = builder.try_state(begin::<K::Worker>, worker_init).build()?;
            // After a death with several threads, a task with one thread makes the batch again.
            let by_one = threads > 1;
            let times = if by_one { 0 } else { settings.retries };
            let again =
                |error: &TaskError| matches!(error, TaskError::WorkerLost(_) | TaskError::TimedOut { .. });
            let mut call = pool.task(make::<K::Worker>).chunksize(1).retry_if(times, again);
            if let Some(timeout) = settings.timeout {
                call = call.timeout(timeout);
            }
            Workers::Pool { pool, call }
        };
        let (meter, owner) =
            (Mutex::new(LoaderMeter::new(settings.num_workers, settings.threads)), ForkLocal::default());
        Ok(Arc::new(LoaderShared { dataset, plan, settings, workers, meter, owner }))
    }

    /// Returns `true` if this process is a forked copy of the loader's process. A forked copy lacks the
    /// threads of that process, so locks that they held stay locked. Therefore the copy locks nothing, and
    /// makes no batches.
    pub(crate) fn is_forked(&self) -> bool {
        self.owner.is_forked()
    }

    pub(crate) fn meter(&self) -> MutexGuard<'_, LoaderMeter> {
        self.meter.lock()
    }

    pub(crate) fn worker_init(&self) -> InitOf<K::Worker> {
        worker_init::<K>(&self.dataset, &self.plan, &self.settings)
    }

    pub(crate) fn metrics(&self) -> LoaderMetrics {
        let LoaderSettings { num_workers, threads, .. } = self.settings;
        if self.is_forked() {
            return LoaderMeter::new(num_workers, threads).metrics();
        }
        let mut metrics = self.meter().metrics();
        if let Workers::Pool { pool, .. } = &self.workers {
            let of_pool = pool.pool().metrics();
            (metrics.restarts, metrics.retried) = (of_pool.restarts, of_pool.retried);
            metrics.failed_starts = of_pool.failed_starts;
        }
        metrics
    }

    /// Returns the number of workers, including workers of other hosts.
    pub(crate) fn workers(&self) -> usize {
        match &self.workers {
            Workers::Pool { pool, .. } => pool.pool().processes(),
            Workers::InProcess(_) => 0,
        }
    }

    /// Lets a loader of another host use the workers.
    #[cfg(feature = "net")]
    pub(crate) fn serve(self: Arc<Self>, cluster: &mp_net::Cluster) -> Result<ServedLoader, BuildError> {
        // The loader is new, so `self` is its only handle.
        let Some(LoaderShared { workers: Workers::Pool { pool, .. }, .. }) = Arc::into_inner(self) else {
            return refused("num_workers", "it is 0, and `serve` is used".into());
        };
        Ok(ServedLoader::new(pool.pool().serve(cluster)?, Box::new(pool)))
    }

    pub(crate) fn close(&self) {
        match &self.workers {
            Workers::Pool { pool, .. } => pool.pool().close(),
            Workers::InProcess(_) if self.is_forked() => {}
            Workers::InProcess(here) => here.close(),
        }
    }

    /// Closes the loader, and waits until its workers have exited.
    pub(crate) fn join(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.close();
        match &self.workers {
            Workers::Pool { pool, .. } => pool.pool().join_timeout(timeout),
            Workers::InProcess(_) => Ok(true),
        }
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        match &self.workers {
            // A worker that is being replaced has no process.
            Workers::Pool { pool, .. } => pool.pool().pids().into_iter().filter(|pid| *pid != 0).collect(),
            Workers::InProcess(_) => Vec::new(),
        }
    }
}

fn refused<T>(setting: &'static str, reason: String) -> Result<T, BuildError> {
    Err(BuildError::Setting { setting, reason })
}

/// Checks that the settings are valid.
fn check(settings: &LoaderSettings) -> Result<(), BuildError> {
    let LoaderSettings { num_workers, threads, prefetch, timeout, .. } = *settings;
    #[cfg(feature = "net")]
    if num_workers == 0 && settings.hosts.is_some() {
        return refused("num_workers", "it is 0, and `hosts` is set: this host needs a worker, too".into());
    }
    if num_workers > 1000 {
        return refused("num_workers", format!("{num_workers} workers; at most 1000 are possible"));
    }
    if threads > 1024 {
        return refused("threads_per_worker", format!("{threads} threads; at most 1024 are possible"));
    }
    if let Some(prefetch) = prefetch
        && prefetch.saturating_mul(num_workers.max(1)) > 1 << 16
    {
        let reason = format!(
            "{prefetch} batches for each of {num_workers} workers; at most 65536 in all are possible"
        );
        return refused("prefetch_factor", reason);
    }
    if timeout.is_some_and(|time| time.is_zero()) {
        let reason = "it is zero; leave it out to wait without a limit";
        return refused("timeout", reason.into());
    }
    Ok(())
}

fn worker_init<K: BatchSource>(
    dataset: &Arc<DatasetOf<K>>,
    plan: &K::Plan,
    settings: &LoaderSettings,
) -> InitOf<K::Worker> {
    let LoaderSettings { num_workers, threads, keep_freed_memory, .. } = *settings;
    let (seed, plan) = K::worker_plan(plan);
    WorkerInit {
        dataset: SharedDataset(Arc::clone(dataset)),
        num_workers,
        threads,
        keep_freed_memory,
        seed,
        plan,
    }
}
