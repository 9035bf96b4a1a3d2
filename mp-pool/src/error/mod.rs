//! What can go wrong with a task, and with the pool itself.

pub(crate) mod attempts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Undecodable;
use mp_reduce::Unread;
use mp_spawn::{ExitDetail, ExitReport, ExitStatus, SpawnError};
use serde::{Deserialize, Serialize};

use crate::error::attempts::{Attempts, TaskRaised};

/// Why a task has no result.
///
/// ```
/// use mp_pool::{Pool, TaskError};
///
/// fn parse(text: String) -> Result<u32, std::num::ParseIntError> {
///     text.parse()
/// }
///
/// let pool = Pool::new(1)?;
/// match pool.apply(parse, "x7".to_string()) {
///     Err(TaskError::Raised(raised)) => assert_eq!(raised.message, "invalid digit found in string"),
///     other => panic!("unexpected: {other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What a failure looks like
///
/// | what happens | the task that runs | tasks that wait | the worker |
/// |---|---|---|---|
/// | the function returns `Err`, or panics | [`Raised`](Self::Raised): message, sources, place of the panic | go on | goes on |
/// | the worker is killed, crashes, aborts, calls `exit` | [`WorkerLost`](Self::WorkerLost), or another attempt ([`Call::retry_if`](crate::Call::retry_if), as after the other failures of a task that has begun) | go on, in another worker | is replaced |
/// | the worker is killed between two tasks | – | go on, in another worker | is replaced |
/// | the worker is stopped (SIGSTOP, a debugger) | waits, for as long as it takes or [`Call::timeout`](crate::Call::timeout) says: then [`TimedOut`](Self::TimedOut), also for the one that it would begin next | go on, in another worker that has nothing to do, once: the stopped one can't begin them any more | is waited for, or killed and replaced when a time is over |
/// | the function takes longer than [`Call::timeout`](crate::Call::timeout) | [`TimedOut`](Self::TimedOut) | go on, in another worker | is killed and replaced |
/// | the initializer or what makes the worker's [state](crate::StatePool) fails, the worker dies in it, or is killed since it takes [too long](crate::PoolBuilder::start_timeout) | – | wait | is tried again, later each time, up to a second; from the fifth time on, as long as another worker is ready, up to a minute, and is told once on the standard error |
/// | so it goes five times in a row with all workers; once one has worked, for ten seconds | – | [`Broken`](Self::Broken), with the reason and how often | – |
/// | a worker, or this process, has no descriptors to spare for those in arguments, or in a result | [`Arguments`](Self::Arguments), [`Value`](Self::Value), which [have them](Self::unread) | go on | goes on |
/// | arguments, a result or what a closure captures can't be encoded, or not be decoded | [`Arguments`](Self::Arguments), [`Value`](Self::Value), which have the bytes of what can't be decoded | go on | goes on |
/// | [`AsyncResult::cancel`](crate::AsyncResult::cancel) | goes on | those of that call: [`Cancelled`](Self::Cancelled) | goes on |
/// | SIGINT (Ctrl-C) or SIGTERM, and workers [are informed](crate::PoolBuilder::interrupt) | ends as it likes | [`Interrupted`](Self::Interrupted) | ends after its task, and is replaced |
/// | [`Pool::terminate`](crate::Pool::terminate), the pool is dropped | [`Terminated`](Self::Terminated) | [`Terminated`](Self::Terminated) | is ended |
/// | the program that has the pool dies, however | – | – | ends with it |
///
/// It can be sent: it arrives as the same variant, with all that it says and its sources, without [what was not read](Self::unread).
///
/// A worker takes one task at a time, so the one that it has is what can be lost with it. (A rare exception: tasks that it took
/// ahead of their function, because the pool took that function's note back in the same moment, are lost together.) What is lost
/// was begun, or was just being taken; what it did before it was lost, it did. (If worker after worker dies while it reads what
/// a closure captures, from the fifth on each of them costs a task of that closure.)
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TaskError {
    /// The function returned an error or panicked.
    Raised(Box<TaskRaised>),
    /// The process that had the task ended.
    WorkerLost(Box<WorkerLost>),
    /// It took too long, and its worker was killed for it.
    TimedOut {
        /// The number of the worker.
        worker: usize,
        /// Its process id.
        pid: u32,
        /// The [name](crate::PoolBuilder::name) of its pool, if it has one.
        #[serde(with = "mp_core::sent::shared::text")]
        pool: Option<Arc<str>>,
        /// How long it was given.
        timeout: Duration,
        /// Its last [note](crate::note()), if it had one.
        note: Option<u64>,
        /// How often it was begun, and how that went.
        attempts: Attempts,
    },
    /// It was taken back before it had begun.
    Cancelled,
    /// The program was interrupted (SIGINT, SIGTERM) before the task had begun, and [is informed of that](crate::PoolBuilder::interrupt).
    Interrupted,
    /// The pool was ended before the task was done; or this process was forked from the one that has the pool.
    Terminated,
    /// The pool takes no tasks any more.
    Closed {
        /// Its [name](crate::PoolBuilder::name), if it has one.
        #[serde(with = "mp_core::sent::shared::text")]
        pool: Option<Arc<str>>,
    },
    /// No worker could be started, or none lived; why, and how often it was tried.
    Broken(#[serde(with = "mp_core::sent::shared")] Arc<Broken>),
    /// The arguments could not be encoded here, or not be decoded in the worker.
    Arguments {
        /// Why.
        why: String,
        /// What refused them, to be matched: here, too little memory, or a tensor that can't be sent; in the worker, which type they
        /// were read as, the place in it that could not be read, and their bytes, so that they are not lost
        /// ([`undecodable`](Self::undecodable)). `None` if the function could not be read, or if they
        /// can't be kept for [another attempt](crate::Call::retry_if).
        #[serde(with = "mp_core::sent::shared::option")]
        cause: Option<Arc<mp_reduce::Error>>,
        /// The arguments, where the worker had no descriptors to spare for those in them: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
        /// How often the task was begun, and how that went.
        attempts: Attempts,
    },
    /// What the function returned could not be encoded in the worker, or not be decoded here.
    Value {
        /// Why.
        why: String,
        /// If it arrived and could not be decoded: its type, the place in it that could not be read, and its bytes, so that it is
        /// not lost. See [`bytes`](Self::bytes), too.
        #[serde(with = "mp_core::sent::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
        /// The result, where this process has no descriptors to spare for those in it: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
        /// How often the task was begun, and how that went.
        attempts: Attempts,
    },
}

impl TaskError {
    /// A value that did not arrive.
    pub(crate) fn value(why: impl Into<String>) -> Self {
        TaskError::Value { why: why.into(), undecodable: None, unread: None, attempts: Attempts::default() }
    }

    /// Arguments that were not sent, or not read.
    pub(crate) fn arguments(Unsendable { why, cause }: Unsendable) -> Self {
        TaskError::Arguments { why, cause, unread: None, attempts: Attempts::default() }
    }

    /// Arguments that came back, since their worker had no descriptors to spare.
    pub(crate) fn unread_arguments(why: String, unread: Unread) -> Self {
        let cause = Some(Arc::new(mp_core::Error::OutOfDescriptors(why.clone()).into()));
        TaskError::Arguments { why, cause, unread: Some(unread), attempts: Attempts::default() }
    }

    /// A result that this process has no descriptors to spare for.
    pub(crate) fn unread_value(error: mp_core::Error, unread: Unread) -> Self {
        let why = error.to_string();
        TaskError::Value { why, undecodable: None, unread: Some(unread), attempts: Attempts::default() }
    }

    /// What could not be read for lack of descriptors ([`RLIMIT_NOFILE`](mp_core::Error::OutOfDescriptors)): the arguments, as the worker
    /// has given them back, or the result, which is here. It is whole, and can be read when some descriptors were closed; the
    /// arguments are for another task, then.
    ///
    /// ```no_run
    /// use std::fs::File;
    ///
    /// use mp_pool::Pool;
    /// use mp_reduce::Fd;
    ///
    /// fn open(path: String) -> std::io::Result<Fd<File>> {
    ///     File::open(path).map(Fd)
    /// }
    ///
    /// # fn close_some() {}
    /// let pool = Pool::new(1)?;
    /// let file = pool.apply(open, "/etc/hostname".to_string()).or_else(|error| {
    ///     close_some();
    ///     error.unread().map_or(Err(error.clone().into()), |unread| unread.read::<Fd<File>>().map_err(Box::<dyn std::error::Error>::from))
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn unread(&self) -> Option<&Unread> {
        match self {
            TaskError::Arguments { unread, .. } | TaskError::Value { unread, .. } => unread.as_ref(),
            _ => None,
        }
    }

    /// What could not be read, arguments in the worker or the result here: type, place, reason. `None` when that is not what went
    /// wrong.
    pub fn undecodable(&self) -> Option<&Undecodable> {
        match self {
            TaskError::Arguments { cause, .. } => cause.as_ref()?.undecodable(),
            TaskError::Value { undecodable, .. } => undecodable.as_deref(),
            _ => None,
        }
    }

    /// The bytes of arguments or of a result that could not be read, as those of a message ([`Undecodable::bytes`]).
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Grade(#[serde(deserialize_with = "up_to_100")] u8);
    ///
    /// fn up_to_100<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u8, D::Error> {
    ///     let points = u8::deserialize(d)?;
    ///     if points <= 100 { Ok(points) } else { Err(serde::de::Error::custom("above 100 points")) }
    /// }
    ///
    /// let pool = Pool::new(1)?;
    /// let grades = |points: u8| Ok::<_, String>((Grade(100), Grade(points)));
    /// let Err(error) = pool.apply(grades, 120) else { panic!("it can't be read") };
    /// let undecodable = error.undecodable().expect("it arrived");
    /// assert_eq!(undecodable.path(), "[1]");
    /// assert!(undecodable.type_name().contains("Grade") && error.to_string().contains("above 100 points"));
    /// // Two, in MessagePack: what another type might be read from.
    /// assert_eq!(error.bytes(), Some(&[3, 0x92, 100, 120][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> Option<&[u8]> {
        self.undecodable().map(Undecodable::bytes)
    }
}

/// A pool has no workers left: none could be started, or none lived until it was ready.
///
/// ```
/// use mp_pool::{Pool, TaskError};
/// use mp_spawn::SpawnError;
///
/// let pool = Pool::builder().processes(1).initializer(|(): ()| Err::<(), _>("no device"), ()).build()?;
/// let Err(TaskError::Broken(broken)) = pool.apply(|x: u32| x, 1) else { panic!("it can't begin") };
/// assert_eq!(broken.starts, 5);
/// assert!(matches!(&broken.cause, Some(SpawnError::ProcessRaised(raised)) if raised.message == "no device"));
/// // the pool has no workers left: 5 starts have failed, the last so: worker 0 (pool-worker-0, pid 77) … no device
/// println!("{broken}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// The [name](crate::PoolBuilder::name) of the pool, if it has one.
    #[serde(with = "mp_core::sent::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Why the last start failed, or what else broke the pool.
    pub why: String,
    /// How many starts have failed, of all workers, since each was ready; 0 if that is not what broke the pool.
    pub starts: u32,
    /// How the last process ended, or why it could not be started, if that is known.
    pub cause: Option<SpawnError>,
}

impl Broken {
    /// In words alone.
    pub(crate) fn said(pool: Option<Arc<str>>, why: impl Into<String>) -> Self {
        Broken { pool, why: why.into(), starts: 0, cause: None }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { pool, why, starts, .. } = self;
        write!(f, "{} has no workers left: ", the_pool(pool))?;
        if *starts > 0 {
            write!(f, "{starts} starts have failed, the last so: ")?;
        }
        f.write_str(why)
    }
}

mp_core::readable_debug!(Broken);

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

/// A process ended while it had a task.
///
/// ```
/// use mp_pool::{Pool, TaskError};
/// use mp_spawn::Stdio;
///
/// fn solve(x: f64) -> f64 {
///     eprintln!("solving for {x}");
///     std::process::abort()
/// }
///
/// let pool = Pool::builder().processes(1).stderr(Stdio::Capture).build()?;
/// let Err(TaskError::WorkerLost(lost)) = pool.apply(solve, 0.5) else { panic!("it can't be solved") };
/// assert_eq!(lost.stderr.as_deref(), Some("solving for 0.5"));
/// // worker 0 (pid 77) had this task when it was killed by SIGABRT (signal 6)
/// //   the last lines of its stderr:
/// //     solving for 0.5
/// println!("{lost}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerLost {
    /// The number of the worker.
    pub worker: usize,
    /// The process id that it had.
    pub pid: u32,
    /// The [name](crate::PoolBuilder::name) of its pool, if it has one.
    #[serde(with = "mp_core::sent::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// What is known beyond that.
    pub detail: Option<ExitDetail>,
    /// The last lines of its standard error, if that is captured (see [`PoolBuilder::stderr`](crate::PoolBuilder::stderr))
    /// and there are any. What tasks before this one have written is among them.
    pub stderr: Option<String>,
    /// How often the task was begun, and how that went: more than once, if it was to be tried again.
    pub attempts: Attempts,
    /// Its last [note](crate::note()), if it had one: how far it was.
    pub note: Option<u64>,
}

impl fmt::Display for WorkerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerLost { worker, pid, pool, exit, detail, stderr, attempts, note } = self;
        let end = ExitReport { exit: *exit, detail: detail.as_ref(), stderr: stderr.as_deref() };
        write!(f, "worker {worker} (pid {pid}){} had this task", of_pool(pool))?;
        attempts.fmt(f)?;
        if let Some(note) = note {
            write!(f, ", at note {note},")?;
        }
        write!(f, " when it {end}")
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.index() {
            write!(f, "item {index}: ")?;
        }
        match self {
            TaskError::Raised(raised) => raised.fmt(f),
            TaskError::WorkerLost(lost) => lost.fmt(f),
            TaskError::TimedOut { worker, pid, pool, timeout, note, attempts } => {
                write!(f, "the task took more than {timeout:?}; its worker {worker} (pid {pid})")?;
                write!(f, "{} was killed", of_pool(pool))?;
                note.map_or(Ok(()), |note| write!(f, ", at note {note}"))?;
                attempts.fmt(f)
            }
            TaskError::Cancelled => f.write_str("the task was cancelled before it began"),
            TaskError::Interrupted => {
                f.write_str("the program was interrupted (Ctrl-C or SIGTERM) before the task had begun")
            }
            TaskError::Terminated => f.write_str("the pool was ended before the task was done"),
            TaskError::Closed { pool } => {
                write!(f, "{} is closed: it takes no tasks any more", the_pool(pool))
            }
            TaskError::Broken(broken) => broken.fmt(f),
            TaskError::Arguments { why, attempts, .. }
                if self.undecodable().is_some() || self.unread().is_some() =>
            {
                write!(f, "the arguments of the task can't be received by the worker: {why}{attempts}")
            }
            TaskError::Arguments { why, attempts, .. } => {
                write!(f, "the arguments of the task can't be sent: {why}{attempts}")
            }
            TaskError::Value { why, undecodable: None, unread: None, attempts } => {
                write!(f, "what the task returned can't be sent: {why}{attempts}")
            }
            TaskError::Value { why, attempts, .. } => {
                write!(f, "what the task returned can't be received: {why}{attempts}")
            }
        }
    }
}

mp_core::readable_debug!(TaskError);

impl std::error::Error for TaskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TaskError::Arguments { cause: Some(cause), .. } => Some(&**cause),
            TaskError::Value { undecodable: Some(undecodable), .. } => Some(&**undecodable),
            TaskError::Broken(broken) => std::error::Error::source(&**broken),
            _ => None,
        }
    }
}

/// `pool "resize"`, or `the pool`.
fn the_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(|| "the pool".to_owned(), |name| format!("pool {name:?}"))
}

/// ` of pool "resize"`, or nothing.
fn of_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" of pool {name:?}"))
}

/// Why something is not sent.
#[derive(Debug)]
pub(crate) struct Unsendable {
    pub(crate) why: String,
    pub(crate) cause: Option<Arc<mp_reduce::Error>>,
}

impl Unsendable {
    /// In words alone.
    pub(crate) fn said(why: impl Into<String>) -> Self {
        Self { why: why.into(), cause: None }
    }

    /// Whether it can be sent when others that are on their way have arrived.
    pub(crate) fn is_for_lack_of_room(&self) -> bool {
        use mp_reduce::Error::Memory;
        matches!(self.cause.as_deref(), Some(Memory(why)) if why.is_out_of_envelopes())
    }
}

impl From<mp_reduce::Error> for Unsendable {
    fn from(error: mp_reduce::Error) -> Self {
        Self { why: error.to_string(), cause: Some(Arc::new(error)) }
    }
}

/// Why there is no pool, or why it ended badly.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum PoolError {
    /// The workers could not be started.
    Start(SpawnError),
    /// Shared memory: none left, forked, and so on.
    Failed(mp_reduce::Error),
    /// A setting of the builder is impossible: no workers, or too many; or the [closure](crate::PoolBuilder::per_worker) that sets
    /// up the start of a worker panicked.
    Settings(String),
    /// No worker could be started, or none lived; why, and how often it was tried.
    Broken(#[serde(with = "mp_core::sent::shared")] Arc<Broken>),
    /// The pool belongs to another process: this one was forked from it.
    OtherProcess {
        /// The process that made it.
        owner: u32,
    },
    /// The pool is closed, or being terminated, and can't be changed any more.
    Closed {
        /// Its [name](crate::PoolBuilder::name), if it has one.
        #[serde(with = "mp_core::sent::shared::text")]
        pool: Option<Arc<str>>,
    },
    /// A [callback](crate::AsyncResult::on_done) of the pool can't wait for its end: it runs in the thread that it would wait
    /// for.
    InCallback,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Start(error) => write!(f, "the workers of the pool could not be started: {error}"),
            PoolError::Failed(error) => error.fmt(f),
            PoolError::Settings(why) => f.write_str(why),
            PoolError::Broken(broken) => broken.fmt(f),
            PoolError::OtherProcess { owner } => {
                write!(f, "the pool belongs to process {owner}, from which this one was forked")
            }
            PoolError::Closed { pool } => {
                write!(f, "{} is closed: its workers end, and their number can't be changed", the_pool(pool))
            }
            PoolError::InCallback => f.write_str(
                "a callback of the pool can't wait for the pool's end: it runs in the thread that it would wait for",
            ),
        }
    }
}

mp_core::readable_debug!(PoolError);

impl std::error::Error for PoolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PoolError::Start(error) => Some(error),
            PoolError::Failed(error) => Some(error),
            PoolError::Broken(broken) => std::error::Error::source(&**broken),
            _ => None,
        }
    }
}

impl From<SpawnError> for PoolError {
    fn from(error: SpawnError) -> Self {
        PoolError::Start(error)
    }
}

impl From<mp_reduce::Error> for PoolError {
    fn from(error: mp_reduce::Error) -> Self {
        PoolError::Failed(error)
    }
}

impl From<mp_core::Error> for PoolError {
    fn from(error: mp_core::Error) -> Self {
        PoolError::Failed(error.into())
    }
}
