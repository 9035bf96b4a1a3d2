//! Options of a pool.

use std::sync::Arc;
use std::time::Duration;

use mp_core::message::IntoOutcome;
use mp_spawn::{
    Capture, CapturesNothing, Closure, Interrupt, InterruptSignals, Limits, ProcessBuilder, StartMethod,
    Stdio,
};

use crate::api::pool::Pool;
use crate::api::state_pool::{StatePool, StatePoolBuilder};
use crate::child::user_state::{WorkerError, state_init};
use crate::dispatcher::settings::{Configure, PoolSettings};
use crate::error::PoolError;

/// Builder of a `Pool`.
///
/// ```
/// use std::time::Duration;
/// use mp_pool::Pool;
/// use mp_spawn::StartMethod;
///
/// let pool = Pool::builder()
///     .processes(2)
///     .initializer(|seed: u64| println!("worker {:?} begins with {seed}", mp_pool::current_worker()), 17)
///     .max_tasks_per_child(1000)
///     .start_method(StartMethod::Spawn)
///     .build()?;
/// assert_eq!(pool.map(|x: u32| 2 * x, 0..3)?, [0, 2, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until `build` is called"]
pub struct PoolBuilder(PoolSettings);

impl PoolBuilder {
    pub(crate) fn new() -> PoolBuilder {
        PoolBuilder(PoolSettings::default())
    }

    /// Sets the number of workers. The default is the number of processors.
    pub fn processes(mut self, processes: usize) -> PoolBuilder {
        self.0.processes = Some(processes);
        self
    }

    /// Names the pool. The name is shown by the pool's `Debug` implementation, its
    /// [metrics](crate::Pool::metrics), reports of stalled waits (`MP_STALL`) and the errors of the pool's
    /// tasks. A worker's name is this name with the worker's number appended, such as `resize-3`. A worker of
    /// a pool without a name is called, for example, `pool-worker-3`.
    ///
    /// ```
    /// let pool = mp_pool::Pool::builder().processes(1).name("resize").build()?;
    /// assert_eq!(format!("{pool:?}"), "Pool(\"resize\", 1 worker, 0 tasks, Open)");
    /// assert!(pool.metrics().to_string().starts_with("pool \"resize\": 0 running"));
    /// pool.close();
    /// let late = pool.apply(|x: u32| x, 1).unwrap_err();
    /// assert_eq!(late.to_string(), "pool \"resize\" is closed: it accepts no more tasks");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        let name: String = name.into();
        self.0.name = Some(name.into());
        self
    }

    /// Sets a function that each worker, including each replacement, calls before its first task, with a copy
    /// of `args`.
    ///
    /// If the function fails or the worker dies in it, the pool starts a new process, with a delay that grows
    /// up to a second. When all workers have failed five times in a row, the pool is
    /// [`Broken`](crate::TaskError::Broken), with the reason. If the pool has worked before, it breaks only
    /// after ten seconds without a worker, because memory may be short for a while.
    #[doc(alias = "initargs")]
    pub fn initializer<F, A, R>(mut self, function: F, args: A) -> PoolBuilder
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Capture + Clone,
        R: IntoOutcome,
    {
        self.0.startup.initializer =
            Some(Closure::from_parts((args, ()), move |(args, ()): &(A, ()), (): ()| {
                function(args.clone()).into_result().map(drop)
            }));
        self
    }

    /// Sets a function that creates a state in each worker, once, before its first task. Tasks receive the
    /// state as `&mut S`. A replacement creates its own state, and a worker creates a new one after a task
    /// that panicked. Set all other options before this one.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use mp_pool::Pool;
    ///
    /// let pool = Pool::builder().processes(2).state(HashMap::<u64, u64>::new).build()?;
    /// let cached = |cache: &mut HashMap<u64, u64>, x: u64| *cache.entry(x).or_insert_with(|| x * x);
    /// assert_eq!(pool.map(cached, [3, 4, 3])?, [9, 16, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// For failures of `init`, see [`StatePool`].
    pub fn state<F, S>(self, init: F) -> StatePoolBuilder<S>
    where
        F: Fn() -> S + CapturesNothing,
        S: 'static,
    {
        self.try_state(move |(): ()| Ok::<S, WorkerError>(init()), ())
    }

    /// Like [`state`](Self::state), with a function of `args` that may fail. The arguments are encoded once,
    /// for all workers. If they contain tensors or queues, they are encoded for each start, and the tensors
    /// and queues are not copied.
    ///
    /// ```
    /// use mp_pool::{Pool, TaskError};
    ///
    /// let read = |path: String| std::fs::read(path);
    /// let pool = Pool::builder().processes(1).try_state(read, "/no/such/file".to_string()).build()?;
    /// let size = pool.apply(|bytes, (): ()| bytes.len(), ());
    /// let Err(TaskError::Broken(broken)) = size else { panic!("no such file") };
    /// assert_eq!(broken.starts, 5);
    /// assert!(broken.to_string().contains("No such file"), "{broken}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_state<F, A, S, E>(self, init: F, args: A) -> StatePoolBuilder<S>
    where
        F: Fn(A) -> Result<S, E> + CapturesNothing,
        A: Capture + Clone,
        S: 'static,
        E: Into<WorkerError>,
    {
        let PoolBuilder(mut settings) = self;
        if settings.kind.is_empty() {
            settings.kind = std::any::type_name::<S>().into();
        }
        StatePoolBuilder::new(state_init(init, args).map(|make| {
            settings.startup.state = Some(make);
            settings
        }))
    }

    /// Lets workers of other hosts run tasks, too. The pool uses the workers of all pools with this
    /// [name](Self::name) that members of the cluster [serve](Pool::serve), now or later.
    /// [`processes`](Self::processes) is the number of workers of this host.
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig};
    /// use mp_pool::Pool;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if true { return Ok(()) }
    /// // Every rank runs this program, for example by `torchrun` or `mpirun`.
    /// let cluster = Cluster::join(&ClusterConfig::from_env()?)?;
    /// if cluster.rank() > 0 {
    ///     Pool::builder().build()?.serve(&cluster)?.wait();
    ///     return Ok(());
    /// }
    /// let pool = Pool::builder().cluster(&cluster).build()?;
    /// assert_eq!(pool.map(|x: u64| x * x, 0..4)?, [0, 1, 4, 9]);
    /// cluster.leave()?; // else the other ranks report this one as lost
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All ranks run one build of a program. Arguments, results and captures of closures travel between hosts
    /// like the messages of a [`RemoteQueue`](mp_net::RemoteQueue). Shared tensors, queues, locks and
    /// descriptors can't be sent to another host: a task with one of them fails. Tasks run in the served
    /// pool, with its initializer and [state](Self::state). Both pools must have the same type of state.
    ///
    /// [`processes`](Pool::processes) counts the workers of all hosts, and [`resize`](Pool::resize) sets the
    /// number of workers of this host.
    ///
    /// On other hosts, too, the tasks of a [lane](crate::TaskStream#lanes) prefer the worker process that ran
    /// the lane last. If the host of this process is lost, the lane continues in another process, on any
    /// host. The tasks of a chunk that was sent to another host stay on that host while it is connected, even
    /// if workers elsewhere are idle.
    ///
    /// # When a process or a host dies
    /// The death of a worker on another host is reported like that of any worker. If a host is lost, or its
    /// pool ends, other workers start the host's unfinished tasks again, without an error. A task may run
    /// twice, so a task with side effects must allow a second run. If the served pool is terminated, tasks
    /// with tensors in their arguments end with [`WorkerLost`](crate::WorkerLost) instead.
    #[cfg(feature = "net")]
    #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
    #[doc(alias = "ray.util.multiprocessing")]
    pub fn cluster(mut self, cluster: &mp_net::Cluster) -> PoolBuilder {
        self.0.cluster = Some(cluster.clone());
        self
    }

    /// Sets the description of the workers' state. Pools of a cluster that run each other's tasks must have
    /// the same description. The default is the type of the [state](Self::state).
    #[doc(hidden)]
    pub fn kind(mut self, kind: String) -> PoolBuilder {
        self.0.kind = kind;
        self
    }

    /// Limits the time until a worker is ready, including its initializer and its [state](Self::state). A
    /// worker that exceeds the limit is killed, which counts as a failed start. By default there is no limit,
    /// and a task that needs the worker may wait forever. The time counts from the start of the process, or
    /// from the panic of the task after which the state is recreated.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_pool::{Pool, TaskError};
    ///
    /// let hang = || std::thread::park_timeout(Duration::from_secs(60));
    /// let builder = Pool::builder().processes(1).start_timeout(Duration::from_millis(50));
    /// let pool = builder.initializer(move |(): ()| hang(), ()).build()?;
    /// let Err(TaskError::Broken(broken)) = pool.apply(|x: u32| x, 1) else { panic!("it can't begin") };
    /// assert!(broken.to_string().contains("not ready within 50ms"), "{broken}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start_timeout(mut self, time: Duration) -> PoolBuilder {
        self.0.start_timeout = Some(time);
        self
    }

    /// Replaces each worker after this number of tasks, for functions that leak. 0, the default, means never.
    #[doc(alias = "maxtasksperchild")]
    pub fn max_tasks_per_child(mut self, tasks: u64) -> PoolBuilder {
        self.0.most_tasks = tasks;
        self
    }

    /// Sets the start method of the workers. The default is set by
    /// [`set_start_method`](mp_spawn::set_start_method).
    ///
    /// With [`StartMethod::Fork`], which needs [`allow_fork`](mp_spawn::allow_fork), workers share the static
    /// data of this process without reading or sending it. Each worker, including each replacement, has the
    /// data as they were when that worker was started.
    ///
    /// ```
    /// use std::sync::OnceLock;
    /// use mp_pool::Pool;
    /// use mp_spawn::{StartMethod, allow_fork};
    ///
    /// static WORDS: OnceLock<Vec<String>> = OnceLock::new();
    ///
    /// _ = WORDS.set(vec!["large".into(), "table".into()]);
    /// // SAFETY: the tasks need no lock of another thread, and no object that must exist only once.
    /// unsafe { allow_fork() };
    /// let pool = Pool::builder().processes(2).start_method(StartMethod::Fork).build()?;
    /// let length = |at: usize| WORDS.get().map(|words| words[at].len());
    /// assert_eq!(pool.map(length, [0, 1])?, [Some(5), Some(5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("context", "get_context"))]
    pub fn start_method(mut self, method: StartMethod) -> PoolBuilder {
        self.0.method = Some(method);
        self
    }

    /// Sets the destination of the workers' standard output. The default is that of this process.
    ///
    /// In the name of a [file](Stdio::File), `{rank}` stands for the number of the worker, and `{name}` for
    /// its [name](Self::name), which also begins each line of [`Stdio::Tee`]. A replacement has the same
    /// number and name, and appends to the files of the worker before it, so output from before a crash is
    /// preserved.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::Stdio;
    ///
    /// let logs = std::env::temp_dir().join(format!("pool-{}", std::process::id()));
    /// std::fs::create_dir_all(&logs)?;
    /// let pool = Pool::builder().processes(2).stdout(Stdio::file(logs.join("{rank}.txt"))).build()?;
    /// let print = |(): ()| mp_pool::current_worker().inspect(|number| println!("I am {number}"));
    /// let worker = pool.apply(print, ())?;
    /// let worker = worker.ok_or("a task runs in a worker")?;
    /// assert_eq!(std::fs::read_to_string(logs.join(format!("{worker}.txt")))?, format!("I am {worker}\n"));
    /// # drop(pool);
    /// # std::fs::remove_dir_all(&logs)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stdout(mut self, output: Stdio) -> PoolBuilder {
        self.0.stdout = output;
        self
    }

    /// Sets the destination of the workers' standard error, like [`stdout`](Self::stdout).
    pub fn stderr(mut self, output: Stdio) -> PoolBuilder {
        self.0.stderr = output;
        self
    }

    /// Configures the process of each worker: `configure` receives the number of the worker and a builder on
    /// which the other options are set. Replacements are started with the same settings, except that their
    /// [files](Self::stdout) are appended to.
    ///
    /// ```
    /// let pool = mp_pool::Pool::builder()
    ///     .processes(2)
    ///     .per_worker(|number, process| process.env("DEVICE", number.to_string()))
    ///     .build()?;
    /// let device = pool.apply(|(): ()| std::env::var("DEVICE").unwrap_or_default(), ())?;
    /// assert!(device == "0" || device == "1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn per_worker(
        mut self,
        configure: impl Fn(usize, ProcessBuilder) -> ProcessBuilder + Send + Sync + 'static,
    ) -> PoolBuilder {
        self.0.configure = Some(Configure(Arc::new(configure)));
        self
    }

    /// Limits each worker: resources, user, process group, control group. If a worker exceeds its limit of
    /// processor time, its task fails with [`TaskError::WorkerLost`](crate::TaskError::WorkerLost), which
    /// names the limit, and the worker is replaced.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::{Limits, ResourceLimit};
    ///
    /// let limits = Limits::new().resource(ResourceLimit::CpuSeconds, 60);
    /// let limits = limits.resource(ResourceLimit::Data, 1 << 30);
    /// let pool = Pool::builder().processes(2).limits(limits).build()?;
    /// assert_eq!(pool.map(|x: u32| x + 1, [1, 2])?, [2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> PoolBuilder {
        self.0.limits = limits;
        self
    }

    /// Limits the number of tasks without an outcome. At the limit, [`apply_async`](crate::Call::apply_async)
    /// and [`map_async`](crate::Call::map_async) block, [`submit_async`](crate::Call::submit_async) waits
    /// without blocking a thread, and [`try_apply_async`](crate::Call::try_apply_async) returns its
    /// arguments. A `map` waits for room once, and then submits all of its items. By default there is no
    /// limit: tasks wait in the private memory of this process, and at most a few hundred tasks for each
    /// worker are in shared memory.
    pub fn max_waiting(mut self, tasks: usize) -> PoolBuilder {
        self.0.max_waiting = Some(tasks.max(1));
        self
    }

    /// Sets the effect of SIGINT, which a terminal sends to all processes of the program at Ctrl-C, and of
    /// SIGTERM, which a service manager sends to them. By default both end the workers and the program.
    ///
    /// With [`Interrupt::Ignore`] they have no effect on the workers: the program finishes its work, and the
    /// workers end with it. Services use this setting: see docs/production.md. With [`Interrupt::Graceful`]
    /// the program is notified, and each worker reacts as follows:
    ///
    /// | | |
    /// |---|---|
    /// | a running task | reads `true` from [`interrupted`](mp_spawn::interrupted), its waits end with `Interrupted`, and its return value is its result; its error has the kind [`RaisedKind::Interrupted`](mp_spawn::RaisedKind::Interrupted) and is not retried |
    /// | tasks that have not begun, and tasks submitted before the program [acknowledges](mp_spawn::take_interrupt) the interrupt | end with [`TaskError::Interrupted`](crate::TaskError::Interrupted) |
    /// | the worker | ends after its task, and is replaced |
    ///
    /// So a `map` returns soon, with one error. After the program has acknowledged the interrupt, the pool
    /// works as before. A second Ctrl-C before the acknowledgement ends the program. If the program handles
    /// the signal itself, only the workers are notified: nothing is cancelled.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::{Interrupt, interrupted};
    ///
    /// let pool = Pool::builder().processes(2).interrupt(Interrupt::Graceful).build()?;
    /// let count = |to: u64| (0..to).take_while(|_| !interrupted()).count(); // the count until the interrupt
    /// assert_eq!(pool.map(count, [1000, 2000])?, [1000, 2000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn interrupt(mut self, interrupt: Interrupt) -> PoolBuilder {
        self.0.interrupt = interrupt;
        self
    }

    /// Restricts [`interrupt`](Self::interrupt) to one of the two signals.
    pub fn interrupt_signals(mut self, signals: InterruptSignals) -> PoolBuilder {
        self.0.interrupt_signals = signals;
        self
    }

    /// Sets the time in which workers may finish their running task after the pool is
    /// [terminated](Pool::terminate) or dropped, before they receive a SIGTERM. By default the SIGTERM is
    /// sent at once.
    ///
    /// A task that finishes in this time has its result, and its worker drops its [state](Self::state) and
    /// ends by itself.
    pub fn finish_period(mut self, time: Duration) -> PoolBuilder {
        self.0.finish = time;
        self
    }

    /// Sets the time between the SIGTERM, which busy workers receive when the pool is
    /// [terminated](Pool::terminate) or dropped, and the SIGKILL. The default is half a second. Idle workers
    /// drop their [states](Self::state) in this time. Time during which the whole program is stopped does not
    /// count.
    pub fn grace_period(mut self, grace: Duration) -> PoolBuilder {
        self.0.grace = Some(grace);
        self
    }

    /// Starts the workers, which takes about a millisecond each, and returns without waiting for their
    /// initializers.
    ///
    /// # Errors
    /// [`PoolError::Start`] if the system refuses a process (the limit is named if it is known),
    /// [`PoolError::Settings`] if the number of processes is zero or more than 1000, [`PoolError::Failed`] if
    /// shared memory is unavailable. After an error, no process and no memory of the pool remains.
    pub fn build(self) -> Result<Pool, PoolError> {
        Pool::start(self.0)
    }
}

impl Pool {
    /// Creates a pool with `processes` workers.
    ///
    /// # Errors
    /// Same as [`PoolBuilder::build`].
    pub fn new(processes: usize) -> Result<Pool, PoolError> {
        Pool::builder().processes(processes).build()
    }

    /// Creates a pool with `processes` workers, each of which creates a state with `init`. Tasks receive the
    /// state as `&mut S`: see [`StatePool`], and [`PoolBuilder::try_state`] for a state that needs arguments
    /// or may fail.
    ///
    /// ```
    /// let pool = mp_pool::Pool::with_state(1, || 0_u64)?;
    /// let sum = |sum: &mut u64, x: u64| {
    ///     *sum += x;
    ///     *sum
    /// };
    /// assert_eq!(pool.map(sum, [1, 2, 3])?, [1, 3, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`PoolBuilder::build`].
    pub fn with_state<F, S>(processes: usize, init: F) -> Result<StatePool<S>, PoolError>
    where
        F: Fn() -> S + CapturesNothing,
        S: 'static,
    {
        Pool::builder().processes(processes).state(init).build()
    }

    /// Returns a builder with default options.
    pub fn builder() -> PoolBuilder {
        PoolBuilder::new()
    }
}
