//! Public handle of a pool.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mp_core::message::IntoOutcome;
use mp_core::mutex::Mutex;
use mp_core::quantity;
use mp_core::waits::wait_at;
use mp_queue::Queue;
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, Closure};

use crate::api::call::Call;
use crate::api::call_methods::call_methods;
use crate::api::imap::Imap;
use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::TaskStream;
use crate::api::tuple_fn::TupleFn;
use crate::child::journal_words::{PoolWords, WorkerWords};
use crate::dispatcher::settings::{MOST_PROCESSES, PoolSettings};
use crate::dispatcher::shared::PoolShared;
use crate::dispatcher::start;
use crate::dispatcher::thread::Dispatcher;
use crate::error::{PoolError, TaskError};
use crate::metrics::meter::Meter;
use crate::metrics::running::RunningTask;
use crate::metrics::snapshot::PoolMetrics;
use crate::slots::slot::{QUEUE_CAPACITY, WorkerSlot};
use crate::slots::state::{PoolPhase, PoolState};
use crate::tasks::call_state::FunctionOwner;

/// Number of replies that can wait for the pool's thread before workers block.
const REPLIES: usize = 1024;

/// Processes that run functions for this process, each task once.
///
/// ```
/// use mp_pool::Pool;
///
/// let pool = Pool::new(2)?;
/// assert_eq!(pool.map(|x: u64| x * x, [1, 2, 3])?, [1, 4, 9]);
/// let later = pool.apply_async(|name: String| format!("hello, {name}"), "you".to_string());
/// assert_eq!(later.get()?, "hello, you");
/// pool.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Functions
/// Tasks are function items and closures without captures; a pool runs any number of different functions. For
/// closures with captures see [`task_closure`](Self::task_closure). Return types implement [`IntoOutcome`].
/// Arguments and results travel as messages: tensors in them are not copied.
///
/// # When something goes wrong
/// An error or a panic of a task is the result of that task. When a worker dies, only its running task is
/// lost. The worker is replaced, and its other tasks move to other workers. [`TaskError`] has a table of all
/// cases.
///
/// # Shutdown
/// [`join`](Self::join) waits until all tasks are done. Dropping the pool [terminates](Self::terminate) it:
/// unfinished tasks end with [`TaskError::Terminated`], so callers that wait for them return. `join` and the
/// drop return when the workers have ended. If a worker is in an uninterruptible system call, they return ten
/// seconds after the SIGKILL.
///
/// A pool can be used and dropped in a task of another pool, in a callback and while a panic unwinds. In a
/// fork of the process that created it, the pool is closed, and dropping it does nothing.
#[doc(alias = "multiprocessing.Pool")]
pub struct Pool {
    pub(crate) shared: Arc<PoolShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = quantity(self.shared.workers(), "worker");
        if let Err(error) = self.shared.check_owner() {
            return write!(f, "Pool({workers}: {error})");
        }
        let state = self.shared.state.lock();
        let (tasks, phase) = (quantity(state.unsettled, "task"), &state.phase);
        f.write_str("Pool(")?;
        if let Some(name) = &self.shared.settings.name {
            write!(f, "{name:?}, ")?;
        }
        write!(f, "{workers}, {tasks}, {phase:?})")
    }
}

/// Checks that a pool can have this many workers.
pub(super) fn check_processes(processes: usize) -> Result<(), PoolError> {
    if processes == 0 || processes > MOST_PROCESSES {
        let why = format!("a pool of {processes} processes: 1 to {MOST_PROCESSES} are possible");
        return Err(PoolError::Settings(why));
    }
    Ok(())
}

/// Creates a slot for a worker.
pub(super) fn new_slot() -> Result<WorkerSlot, PoolError> {
    Ok(WorkerSlot::new(Queue::bounded(QUEUE_CAPACITY)?, WorkerWords::new()?))
}

impl Pool {
    pub(crate) fn start(settings: PoolSettings) -> Result<Pool, PoolError> {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let processes = settings.processes.unwrap_or_else(processors);
        check_processes(processes)?;
        let packer = Queue::bounded(QUEUE_CAPACITY)?;
        let mut workers = vec![WorkerSlot::new(packer.clone(), WorkerWords::new()?)];
        while workers.len() < processes {
            workers.push(new_slot()?);
        }
        let messages = mp_core::Arena::current()?.most_messages();
        workers.iter_mut().for_each(|worker| worker.set_share(processes, messages));
        let words = PoolWords::new(settings.name.as_deref())?;
        for (number, worker) in workers.iter().enumerate() {
            worker.shared_words.publish_place(&words, number);
        }
        let (replies, mut state) = (Queue::bounded(REPLIES)?, PoolState::new(workers));
        state.words = Some(words);
        state.publish();
        let shared = Arc::new(PoolShared::new(settings, replies, packer, state));
        // From here on, dropping the pool ends the processes that were started.
        let pool = Pool { shared: Arc::clone(&shared), thread: Mutex::new(None) };
        let started = (0..processes).try_for_each(|number| start::start(&shared, number));
        if started.is_err() {
            shared.stop(PoolPhase::Terminating);
        }
        let manager = Dispatcher::new(shared);
        let thread = std::thread::Builder::new().name("mp-pool".into()).spawn(move || manager.run());
        match thread {
            Ok(thread) => *pool.thread.lock() = Some(thread),
            Err(error) => {
                let mut state = pool.shared.state.lock();
                state.workers.iter_mut().filter_map(|w| w.process.take()).for_each(|p| _ = p.kill());
                return Err(mp_spawn::launch_error("the thread of the pool", None, error).into());
            }
        }
        started?;
        #[cfg(feature = "net")]
        if let Some(cluster) = pool.shared.settings.cluster.clone() {
            _ = pool.shared.places.set_local(processes);
            crate::dispatcher::hosts::follow(&pool.shared, &cluster)?;
        }
        Ok(pool)
    }

    /// Creates a `Call` of a function, for options such as the chunk size, a time-out or retries.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let pool = mp_pool::Pool::new(2)?;
    /// let lengths = pool.task(|text: String| text.len()).retries(2).timeout(Duration::from_secs(60));
    /// assert_eq!(lengths.map(["a".to_string(), "bc".to_string()])?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task<F, A, R>(&self, function: F) -> Call<A, R::Value>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        Call::new(&self.shared, self.shared.function(function))
    }

    /// Creates a `Call` of a closure with captures, made by [`closure!`](mp_spawn::closure!). The captures
    /// are sent to each worker once.
    ///
    /// ```
    /// use mp_spawn::closure;
    ///
    /// let pool = mp_pool::Pool::new(2)?;
    /// let factor = 3;
    /// let scaled = pool.task_closure(closure!([factor] |x: u64| factor * x)).map(0..4)?;
    /// assert_eq!(scaled, [0, 3, 6, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task_closure<A, R>(&self, closure: Closure<A, R>) -> Call<A, R::Value>
    where
        A: Message + Send,
        R: IntoOutcome,
    {
        Call::new(&self.shared, self.shared.closure(closure))
    }

    call_methods! {
        TupleFn;
        imap {
            /// Calls a function for each item, and returns an iterator over the results in the order of the
            /// items. Items are taken as results are requested, a bounded number in advance, so the source
            /// may be endless.
            ///
            /// ```
            /// let pool = mp_pool::Pool::new(2)?;
            /// let first: Vec<u64> = pool.imap(|x: u64| x * x, 1..).take(4).collect::<Result<_, _>>()?;
            /// assert_eq!(first, [1, 4, 9, 16]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
        }
        stream {
            /// Calls a function for each item that is pushed, until the stream is closed. Results can be
            /// taken as they complete: see [`TaskStream`], which does not borrow the pool, and
            /// [`Call::stream`] for a stream with options.
            ///
            /// ```
            /// let pool = mp_pool::Pool::new(2)?;
            /// let stream = pool.stream(|x: u64| x * x);
            /// let tickets = [stream.push(3)?, stream.push(4)?];
            /// assert_eq!(stream.take(tickets[1]).transpose()?, Some(16));
            /// stream.close();
            /// assert_eq!(stream.next().map(|(ticket, _)| ticket), Some(tickets[0]));
            /// assert!(stream.next().is_none());
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
        }
        starmap {
            /// Like [`map`](Self::map), for a function of up to six arguments. Each item is a tuple of the
            /// arguments.
            ///
            /// ```
            /// fn power(base: u64, exponent: u32) -> u64 {
            ///     base.pow(exponent)
            /// }
            ///
            /// let pool = mp_pool::Pool::new(2)?;
            /// assert_eq!(pool.starmap(power, [(2, 3), (3, 2)])?, [8, 9]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            /// Same as [`map`](Self::map).
        }
    }

    /// Returns the number of workers, as set by the builder or by the last [`resize`](Self::resize). Workers
    /// of other hosts are counted, too.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.shared.workers()
    }

    /// Returns the process ids of the live workers, indexed by worker number. The id is 0 for a worker that
    /// is being replaced, and for all workers in a fork of the process that created the pool. After
    /// [`resize`](Self::resize) has made the pool smaller, surplus workers are listed until they have ended.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        if self.shared.check_owner().is_err() {
            return vec![0; self.shared.workers()];
        }
        let state = self.shared.state.lock();
        let places = state.workers.iter().take(state.slot_count());
        places.map(|worker| if worker.process.is_some() { worker.pid } else { 0 }).collect()
    }

    /// Returns statistics for display or monitoring: numbers of tasks by outcome, waiting and run times, and
    /// the activity of each worker.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(2)?;
    /// pool.map(|x: u64| x * x, 0..100)?;
    /// let metrics = pool.metrics();
    /// assert_eq!((metrics.done, metrics.failed, metrics.queued + metrics.running), (100, 0, 0));
    /// assert!(metrics.waiting.count == 100 && metrics.running_time.p50 <= metrics.running_time.max);
    /// // 0 running, 0 queued, 100 done, 0 failed, 0 lost, 0 cancelled; 0 tried again, 0 workers replaced
    /// // waiting: p50 3.7ms, p90 3.9ms, p99 3.9ms, longest 3.9ms
    /// // running: p50 6.1µs, p90 1.3ms, p99 1.3ms, longest 1.4ms
    /// // worker 0 (pid 77): idle
    /// // worker 1 (pid 78): idle
    /// println!("{metrics}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The numbers are counted in this process, from the replies of workers. A task whose reply the pool has
    /// not yet received counts as running. Blocks only on a lock that is held briefly. In a fork of the
    /// process that created the pool, all numbers are zero, and no workers are listed.
    #[must_use]
    pub fn metrics(&self) -> PoolMetrics {
        if self.shared.check_owner().is_err() {
            return PoolMetrics::of(&Meter::default(), &PoolState::new(Vec::new()));
        }
        // Tasks are settled under the same lock, so each task is counted once.
        let meter = self.shared.meter.lock();
        let name = self.shared.settings.name.as_deref().map(String::from);
        PoolMetrics { name, ..PoolMetrics::of(&meter, &self.shared.state.lock()) }
    }

    /// Returns the running tasks, by worker number, with their run time and their last [note](crate::note()).
    /// Shows the activity of a slow pool.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_queue::Queue;
    ///
    /// let step = |(done, go): (Queue<()>, Queue<()>)| {
    ///     mp_pool::note(7);
    ///     _ = done.put(());
    ///     go.get().map(drop)
    /// };
    /// let pool = Pool::new(2)?;
    /// let (done, go) = (Queue::bounded(1)?, Queue::bounded(1)?);
    /// let result = pool.apply_async(step, (done.clone(), go.clone()));
    /// done.get()?;
    /// let running = pool.running();
    /// assert_eq!((running.len(), running[0].task, running[0].note), (1, 0, Some(7)));
    /// println!("{}", running[0]); // worker 0 (pid 77): task 0, for 1.2ms, at note 7
    /// go.put(())?;
    /// result.get()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The result is a snapshot and may be outdated when it is read. Blocks only on a lock that is held
    /// briefly. In a fork of the process that created the pool, the list is empty.
    #[must_use]
    pub fn running(&self) -> Vec<RunningTask> {
        if self.shared.check_owner().is_err() {
            return Vec::new();
        }
        self.shared.state.lock().running_of(None)
    }

    /// Stops accepting tasks. The workers finish the submitted tasks, and then end.
    pub fn close(&self) {
        if self.shared.check_owner().is_ok() {
            self.shared.close();
        }
    }

    /// Stops accepting tasks, drops the submitted tasks, and ends the workers. Returns at once.
    ///
    /// An idle worker ends by itself and drops its [state](crate::PoolBuilder::state), even if it ignores or
    /// handles SIGTERM. A worker that runs a task receives a SIGTERM after the [finish
    /// period](crate::PoolBuilder::finish_period); if it handles the signal, it ends after its task. Workers
    /// that are alive after the [grace period](crate::PoolBuilder::grace_period) receive a SIGKILL.
    pub fn terminate(&self) {
        if self.shared.check_owner().is_ok() {
            self.shared.stop(PoolPhase::Terminating);
        }
    }

    /// Stops accepting tasks, and blocks until the submitted tasks are done and the workers have ended.
    ///
    /// # Errors
    /// [`PoolError::Broken`] if no worker was alive, [`PoolError::OtherProcess`] in a forked process,
    /// [`PoolError::InCallback`] in a callback of this pool. The pool is consumed in each case: in a callback
    /// it is dropped, and so [terminated](Self::terminate).
    #[track_caller]
    pub fn join(self) -> Result<(), PoolError> {
        self.check_wait()?;
        self.close();
        self.wait(None);
        match &self.shared.state.lock().phase {
            PoolPhase::Broken(why) => Err(PoolError::Broken(Arc::clone(why))),
            _ => Ok(()),
        }
    }

    /// Like [`join`](Self::join), but waits for at most `timeout`. Returns `true` if the workers have ended.
    ///
    /// # Errors
    /// [`PoolError::OtherProcess`] in a forked process. [`PoolError::InCallback`] in a callback of this pool.
    /// The pool then continues as before.
    #[track_caller]
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.check_wait()?;
        self.close();
        Ok(self.wait(Instant::now().checked_add(timeout)))
    }

    /// Checks that this thread may wait for the end of the pool.
    pub(super) fn check_wait(&self) -> Result<(), PoolError> {
        self.shared.check_owner()?;
        if self.shared.thread.get() == Some(&std::thread::current().id()) {
            return Err(PoolError::InCallback);
        }
        Ok(())
    }

    /// Waits until the workers have ended. Returns `false` at the time limit.
    #[track_caller]
    fn wait(&self, until: Option<Instant>) -> bool {
        let thread = self.thread.lock().as_ref().map(|thread| thread.thread().id());
        if thread.is_none_or(|id| id == std::thread::current().id()) {
            // A callback can't wait for its own thread.
            return false;
        }
        let subject = || {
            let tasks = quantity(self.shared.state.lock().unsettled, "task");
            self.shared.describe(None, &format!(", for its end: {tasks}"))
        };
        let (changed, mut state) = (&self.shared.changed, self.shared.state.lock());
        wait_at(changed, &mut state, until, |state| state.over, subject)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.check_owner().is_err() {
            return;
        }
        self.terminate();
        self.wait(None);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // The thread does not panic.
            _ = thread.join();
        }
    }
}
