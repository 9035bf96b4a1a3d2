//! What a pool is made with.

use std::sync::Arc;
use std::time::Duration;

use mp_core::message::IntoOutcome;
use mp_spawn::{
    Capture, CapturesNothing, Closure, Interrupt, InterruptSignals, Limits, ProcessBuilder, StartMethod,
    Stdio,
};

use crate::api::pool::Pool;
use crate::api::state_pool::StatePoolBuilder;
use crate::dispatch::settings::Settings;
use crate::error::PoolError;
use crate::held::Failure;
use crate::held::make_with;

/// How a pool is made.
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
pub struct PoolBuilder(Settings);

impl PoolBuilder {
    pub(crate) fn new() -> PoolBuilder {
        PoolBuilder(Settings::default())
    }

    /// How many workers; as many as there are processors without this.
    pub fn processes(mut self, processes: usize) -> PoolBuilder {
        self.0.processes = Some(processes);
        self
    }

    /// Names the pool: in its `Debug`, its [metrics](crate::Pool::metrics), reports of waits for it (`MP_STALL`), and the errors of
    /// its tasks. Number 3 of its workers is called by this name and `-3`, without it `pool-worker-3`.
    ///
    /// ```
    /// let pool = mp_pool::Pool::builder().processes(1).name("resize").build()?;
    /// assert_eq!(format!("{pool:?}"), "Pool(\"resize\", 1 workers, 0 tasks, Open)");
    /// assert!(pool.metrics().to_string().starts_with("pool \"resize\": 0 running"));
    /// pool.close();
    /// let late = pool.apply(|x: u32| x, 1).unwrap_err();
    /// assert_eq!(late.to_string(), "pool \"resize\" is closed: it takes no tasks any more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> PoolBuilder {
        let name: String = name.into();
        self.0.name = Some(name.into());
        self
    }

    /// What each worker calls before its first task, with a copy of `args`; also one that takes the place of another.
    ///
    /// If it fails, or the worker dies in it, it is tried again in a new process, later each time, up to a second.
    /// When all workers have failed five times in a row, the pool is [`Broken`](crate::TaskError::Broken),
    /// and says why; a pool that has worked before, only when it has had no worker for ten seconds: memory
    /// may be short for a while.
    #[doc(alias = "initargs")]
    pub fn initializer<F, A, R>(mut self, function: F, args: A) -> PoolBuilder
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Capture + Clone,
        R: IntoOutcome,
    {
        self.0.at_start.initializer =
            Some(Closure::from_parts((args, ()), move |(args, ()): &(A, ()), (): ()| {
                function(args.clone()).into_result().map(drop)
            }));
        self
    }

    /// Each worker makes a state of its own with `init`, once, before its first task; tasks get it as `&mut S`. One that takes the
    /// place of another makes its own, and so does one after a task that panicked. It is the last option: the others come before it.
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
    /// What happens when that goes wrong: [`StatePool`](crate::StatePool).
    pub fn state<F, S>(self, init: F) -> StatePoolBuilder<S>
    where
        F: Fn() -> S + CapturesNothing,
        S: 'static,
    {
        self.try_state(move |(): ()| Ok::<S, Failure>(init()), ())
    }

    /// As [`state`](Self::state), by a function of `args` that may fail. The arguments are encoded here, once, however many workers
    /// read them; if tensors or queues are among them, once for each start, and those are not copied.
    ///
    /// ```
    /// use mp_pool::{Pool, TaskError};
    ///
    /// let read = |path: String| std::fs::read(path);
    /// let pool = Pool::builder().processes(1).try_state(read, "/no/such/file".to_string()).build()?;
    /// let Err(TaskError::Broken(broken)) = pool.apply(|bytes, (): ()| bytes.len(), ()) else { panic!("it can't") };
    /// assert_eq!(broken.starts, 5);
    /// assert!(broken.to_string().contains("No such file"), "{broken}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_state<F, A, S, E>(self, init: F, args: A) -> StatePoolBuilder<S>
    where
        F: Fn(A) -> Result<S, E> + CapturesNothing,
        A: Capture + Clone,
        S: 'static,
        E: Into<Failure>,
    {
        let PoolBuilder(mut settings) = self;
        StatePoolBuilder::new(make_with(init, args).map(|make| {
            settings.at_start.state = Some(make);
            settings
        }))
    }

    /// How long a worker may take until it is ready, with its initializer and its [state](Self::state); then it is killed, which is a
    /// failed start. Without this it may take for ever, and so may a task that waits for it. It counts from the start of its
    /// process, and from the panic of a task after which the state is made anew.
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

    /// After this many tasks a worker ends, and another one takes its place; 0 is never, as without this. For
    /// functions that leak.
    #[doc(alias = "maxtasksperchild")]
    pub fn max_tasks_per_child(mut self, tasks: u64) -> PoolBuilder {
        self.0.most_tasks = tasks;
        self
    }

    /// How workers come to be; what [`set_start_method`](mp_spawn::set_start_method) says without this.
    ///
    /// With [`StartMethod::Fork`], which needs [`allow_fork`](mp_spawn::allow_fork), workers have the static data of this
    /// process without reading or sending it. Each has it as it was when that worker was started: one that takes the place
    /// of another, as it is then.
    ///
    /// ```
    /// use std::sync::OnceLock;
    /// use mp_pool::Pool;
    /// use mp_spawn::{StartMethod, allow_fork};
    ///
    /// static WORDS: OnceLock<Vec<String>> = OnceLock::new();
    ///
    /// _ = WORDS.set(vec!["large".into(), "table".into()]);
    /// // SAFETY: what the tasks do needs no lock of other threads, and nothing that must be there only once.
    /// unsafe { allow_fork() };
    /// let pool = Pool::builder().processes(2).start_method(StartMethod::Fork).build()?;
    /// assert_eq!(pool.map(|at: usize| WORDS.get().map(|words| words[at].len()), [0, 1])?, [Some(5), Some(5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("context", "get_context"))]
    pub fn start_method(mut self, method: StartMethod) -> PoolBuilder {
        self.0.method = Some(method);
        self
    }

    /// Where the standard output of the workers goes; to where this process's goes without this.
    ///
    /// `{rank}` in the name of a [file](Stdio::File) stands for the number of the worker, `{name}` for its
    /// [name](Self::name), which is also what the lines of [`Stdio::Tee`] begin with. A worker that takes the place of
    /// another has its number and its name; it keeps what the other one wrote into its files, and writes behind that: so
    /// what went before a crash is there afterwards.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::Stdio;
    ///
    /// let logs = std::env::temp_dir().join(format!("pool-{}", std::process::id()));
    /// std::fs::create_dir_all(&logs)?;
    /// let pool = Pool::builder().processes(2).stdout(Stdio::file(logs.join("{rank}.txt"))).build()?;
    /// let worker = pool.apply(|(): ()| mp_pool::current_worker().inspect(|number| println!("I am {number}")), ())?;
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

    /// Where the standard error of the workers goes, as [`stdout`](Self::stdout).
    pub fn stderr(mut self, output: Stdio) -> PoolBuilder {
        self.0.stderr = output;
        self
    }

    /// Sets what the process of a worker is started with: `configure` gets the number of the worker, and what the other
    /// options say for all of them. One that takes the place of another is started with the same, but for
    /// [files](Self::stdout) that keep what is in them.
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
        self.0.configure = Some(Arc::new(configure));
        self
    }

    /// Limits each worker: resources, user, process group, control group. A worker that its limit of processor time ends fails its
    /// task with [`TaskError::WorkerLost`](crate::TaskError::WorkerLost), which names the limit, and is replaced.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::{Limits, ResourceLimit};
    ///
    /// let limits = Limits::new().resource(ResourceLimit::CpuSeconds, 60).resource(ResourceLimit::Data, 1 << 30);
    /// let pool = Pool::builder().processes(2).limits(limits).build()?;
    /// assert_eq!(pool.map(|x: u32| x + 1, [1, 2])?, [2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> PoolBuilder {
        self.0.limits = limits;
        self
    }

    /// How many tasks may be without an outcome before [`apply_async`](crate::Call::apply_async) and
    /// [`map_async`](crate::Call::map_async) wait, [`submit_async`](crate::Call::submit_async) does without blocking a thread, and [`try_apply_async`](crate::Call::try_apply_async) gives its arguments
    /// back. A `map` enters as a whole. Without this there is no bound, but the memory of this process: no more than a few
    /// hundred tasks for each worker are in shared memory.
    pub fn max_waiting(mut self, tasks: usize) -> PoolBuilder {
        self.0.max_waiting = tasks.max(1);
        self
    }

    /// Sets the effect of SIGINT, which a terminal sends to all processes of the program at Ctrl-C, and of SIGTERM, which a service
    /// manager sends to them. Without this they end the workers, as they end the program.
    ///
    /// With [`Interrupt::Ignore`] they have no effect on the workers: the program finishes what it has begun, and the workers end
    /// with it. This is the choice of a service: see docs/production.md. With [`Interrupt::Graceful`] the program is informed, and
    /// each worker:
    ///
    /// | | |
    /// |---|---|
    /// | a task that runs | sees [`interrupted`](mp_spawn::interrupted), its waits end with `Interrupted`, and what it returns is its result; an error of it has the kind [`RaisedKind::Interrupted`](mp_spawn::RaisedKind::Interrupted), and is not tried again |
    /// | tasks that have not begun, and those that are given to the pool as long as the program has not [taken note](mp_spawn::take_interrupt) of it | end with [`TaskError::Interrupted`](crate::TaskError::Interrupted) |
    /// | the worker | ends after its task, and is replaced |
    ///
    /// So a `map` returns soon, with one error, and once the program has taken note of it, the pool works as before. A second Ctrl-C
    /// before that ends the program. In a program that handles the signal by itself only the workers are informed: nothing is cancelled.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::{Interrupt, interrupted};
    ///
    /// let pool = Pool::builder().processes(2).interrupt(Interrupt::Graceful).build()?;
    /// let count = |to: u64| (0..to).take_while(|_| !interrupted()).count(); // what was counted until then
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

    /// Sets the time in which workers may finish the task that they run, when the pool is [terminated](Pool::terminate) or dropped, before
    /// they get a SIGTERM. Without this they get it at once.
    ///
    /// A task that is finished in this time has its result, and its worker drops its [state](Self::state) and ends by itself.
    pub fn finish_period(mut self, time: Duration) -> PoolBuilder {
        self.0.finish = time;
        self
    }

    /// Sets the time from the SIGTERM, which busy workers get when the pool is [terminated](Pool::terminate) or dropped, to the SIGKILL; half a
    /// second without this. Idle workers have it to drop their [states](Self::state). Time in which
    /// the whole program is stopped does not count.
    pub fn grace_period(mut self, grace: Duration) -> PoolBuilder {
        self.0.grace = grace;
        self
    }

    /// Starts the workers, about a millisecond each; they are initialised while this returns.
    ///
    /// # Errors
    /// [`PoolError::Start`] when the system refuses a process (the limit is named where it is known), [`PoolError::Settings`]
    /// when there are no processes or more than 1000, [`PoolError::Failed`] when there is no shared memory. Nothing is left then.
    pub fn build(self) -> Result<Pool, PoolError> {
        Pool::start(self.0)
    }
}
