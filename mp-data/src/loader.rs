//! The loader: a plan, a dataset, and the workers that make its batches.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use mp_pool::{Pool, TaskError};
use mp_spawn::{Interrupt, ProcessBuilder};

use crate::batches::Batches;
use crate::inner::{Inner, Workers, orders};
use crate::metrics::{LoaderMetrics, Meter};
use crate::plan::{Plan, PlanError};
use crate::settings::{PlanSettings, Settings};
use crate::state::{FORMAT, LoaderState};
use crate::worker::{Worker, make};
use crate::{BuildError, Dataset};

/// What libraries read once, how many threads they begin.
const THREADS: [&str; 4] =
    ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];

/// Makes batches of a dataset in worker processes, in shared memory, in an order that is a function of a seed and an epoch.
///
/// Example: at [`Dataset`].
///
/// The workers are the loader's, and live from epoch to epoch; they end when it and its [`Batches`] are dropped, or this process ends,
/// however. They ignore Ctrl-C: what it does to this process decides.
///
/// | what happens | then |
/// |---|---|
/// | `fetch` returns an error or panics | the batch's [`LoadError`](crate::LoadError) names the sample; the epoch goes on ([`on_error`](crate::DataLoaderBuilder::on_error)) |
/// | a worker is killed, crashes, takes too long | it is replaced, and its batch is made again by another, [a few times](crate::DataLoaderBuilder::retries); then as above |
/// | a worker is stopped (SIGSTOP, a debugger) | its batch waits for it, or for the [time-out](crate::DataLoaderBuilder::timeout); others go on |
/// | there is no shared memory for a batch | it is tried again when another was taken, or, if none is on its way, once more; then it is an error |
/// | no worker can begin: `init` fails five times | the error of a batch says so, and the iteration ends |
pub struct DataLoader<D: Dataset> {
    pub(crate) inner: Arc<Inner<D>>,
    plan: PlanSettings,
}

impl<D: Dataset> fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { plan, settings, .. } = &*self.inner;
        write!(f, "DataLoader({} samples, {} workers)", plan.len(), settings.num_workers)
    }
}

fn environment(threads: usize, process: ProcessBuilder) -> ProcessBuilder {
    let unset = THREADS.into_iter().filter(|name| std::env::var_os(name).is_none());
    unset.fold(process, |process, name| process.env(name, threads.to_string()))
}

impl<D: Dataset> DataLoader<D> {
    pub(crate) fn start(dataset: Arc<D>, plan: PlanSettings, settings: Settings) -> Result<Self, BuildError> {
        let order = plan.plan(dataset.len())?;
        let workers = if settings.num_workers == 0 {
            Workers::Here(Mutex::new(None))
        } else {
            let threads = settings.threads;
            let mut builder = Pool::builder()
                .processes(settings.num_workers)
                .name("data loader")
                .interrupt(Interrupt::Ignore)
                .max_tasks_per_child(settings.most_tasks)
                .stderr(mp_spawn::Stdio::Tee)
                .per_worker(move |_, process| environment(threads, process));
            if let Some(method) = settings.method {
                builder = builder.start_method(method);
            }
            let orders = orders(&dataset, &order, &settings);
            let pool = builder.try_state(Worker::<D>::begin, orders).build()?;
            // What several threads were at when they died, one makes again: another task.
            let times = if threads > 1 { 0 } else { settings.retries };
            let times = if mp_core::mutant!("loader.retry.without-limit") { u32::MAX } else { times };
            let again =
                |error: &TaskError| matches!(error, TaskError::WorkerLost(_) | TaskError::TimedOut { .. });
            let mut call = pool.task(make::<D>).chunksize(1).retry_if(times, again);
            if let Some(timeout) = settings.timeout {
                call = call.timeout(timeout);
            }
            Workers::Pool { pool, call }
        };
        let meter = Mutex::new(Meter::new());
        Ok(DataLoader { inner: Arc::new(Inner { dataset, plan: order, settings, workers, meter }), plan })
    }

    /// The batches of an epoch. Workers begin with them now, and the results of one that was dropped before its end are not waited for.
    pub fn epoch(&self, epoch: u64) -> Batches<D> {
        self.epochs(epoch..epoch.saturating_add(1))
    }

    /// The batches of several epochs, one after the other: workers begin with the next epoch while the trainer has the last batches of
    /// the one before. [`Info::epoch`](crate::Info::epoch) says where one ends.
    pub fn epochs(&self, epochs: Range<u64>) -> Batches<D> {
        Batches::new(Arc::clone(&self.inner), (epochs.start, 0), epochs.end, Vec::new())
    }

    /// The batches of an epoch that come after those that a trainer was given when it took this state; also with another number of
    /// workers, and with another number of ranks that divides the same global batch.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(usize);
    /// # impl Dataset for Numbers {
    /// #     type Batch = Tensor<i64>;
    /// #     fn len(&self) -> usize { self.0 }
    /// #     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    /// #         cx.rows(items, &[], |item, _, row| { row[0] = item.index as i64; Ok(()) })
    /// #     }
    /// # }
    /// use mp_data::{DataLoader, LoaderState};
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(2).build()?;
    /// let mut batches = loader.epoch(3);
    /// assert_eq!(batches.next().unwrap()?.to_vec(), [0, 1]);
    /// let saved = serde_json::to_string(&batches.state())?; // beside the weights
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(1).build()?; // another day
    /// let state: LoaderState = serde_json::from_str(&saved)?;
    /// let mut batches = loader.resume(&state)?;
    /// assert_eq!((state.epoch(), batches.next().unwrap()?.to_vec()), (3, vec![2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The state is of another plan: the error names what differs.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<D>, PlanError> {
        self.resume_until(state, state.epoch().saturating_add(1))
    }

    /// As [`resume`](Self::resume), and the epochs after that one, up to `end`, as of [`epochs`](Self::epochs).
    ///
    /// # Errors
    /// As of [`resume`](Self::resume).
    pub fn resume_until(&self, state: &LoaderState, end: u64) -> Result<Batches<D>, PlanError> {
        if state.format != FORMAT {
            let (state, plan) = (state.format.to_string(), FORMAT.to_string());
            return Err(PlanError::StateDiffers { what: "format", state, plan });
        }
        let at = self.inner.plan.position(&state.plan)?;
        Ok(Batches::new(Arc::clone(&self.inner), at, end, state.beyond.clone()))
    }

    /// The dataset.
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.inner.dataset
    }

    /// Which samples are in which batch.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Another dataset from now on, with the same settings and new workers. [`Batches`] that are there keep the old ones.
    ///
    /// # Errors
    /// Those of [`build`](crate::DataLoaderBuilder::build); then nothing has changed.
    pub fn set_dataset(&mut self, dataset: D) -> Result<(), BuildError> {
        *self = Self::start(Arc::new(dataset), self.plan.clone(), self.inner.settings.clone())?;
        Ok(())
    }

    /// How it is doing: whether the trainer waits for batches, and what went wrong.
    #[must_use]
    pub fn metrics(&self) -> LoaderMetrics {
        let settings = &self.inner.settings;
        let mut metrics = self.inner.meter().metrics(settings.num_workers, settings.threads);
        if let Workers::Pool { pool, .. } = &self.inner.workers {
            let of_pool = pool.pool().metrics();
            (metrics.restarts, metrics.retried) = (of_pool.restarts, of_pool.retried);
        }
        metrics
    }

    /// The process ids of the workers.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        match &self.inner.workers {
            Workers::Pool { pool, .. } => pool.pool().pids(),
            Workers::Here(_) => Vec::new(),
        }
    }
}
