//! Errors of tasks and of the pool itself.

pub(crate) mod attempts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Undecodable;
use mp_reduce::Unread;
use mp_spawn::{ExitDetail, ExitReport, ExitStatus, SpawnError};
use serde::{Deserialize, Serialize};

use crate::error::attempts::{Attempts, TaskRaised};

/// Error with which a task ends.
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
/// # Effects of failures
///
/// | event | running task | waiting tasks | worker |
/// |---|---|---|---|
/// | the function returns `Err`, or panics | [`Raised`](Self::Raised): message, sources, location of the panic | continue | continues |
/// | the worker is killed, crashes, aborts, calls `exit` | [`WorkerLost`](Self::WorkerLost), or another attempt ([`Call::retry_if`](crate::Call::retry_if), as after the other failures of a task that has begun) | continue in another worker | is replaced |
/// | the worker is killed between two tasks | – | continue in another worker | is replaced |
/// | the worker is stopped (SIGSTOP, a debugger) | waits, without limit or until [`Call::timeout`](crate::Call::timeout), then [`TimedOut`](Self::TimedOut); the same for the next task of this worker | continue in an idle worker, once: the stopped worker can't begin them afterwards | resumes later, or is killed and replaced after a time-out |
/// | the function takes longer than [`Call::timeout`](crate::Call::timeout) | [`TimedOut`](Self::TimedOut) | continue in another worker | is killed and replaced |
/// | the initializer or the function that creates the worker's [state](crate::StatePool) fails, the worker dies in it, or is killed because it takes [too long](crate::PoolBuilder::start_timeout) | – | wait | is started again, with a delay that grows up to a second; from the fifth time on, while another worker is ready, up to a minute, with one report on stderr |
/// | all workers fail to start five times in a row; if one has worked before, for ten seconds | – | [`Broken`](Self::Broken), with the reason and the number of starts | – |
/// | a worker, or this process, has no free descriptors for those in arguments or in a result | [`Arguments`](Self::Arguments) or [`Value`](Self::Value), which [contain them](Self::unread) | continue | continues |
/// | arguments, a result or the captures of a closure can't be encoded or decoded | [`Arguments`](Self::Arguments) or [`Value`](Self::Value), with the bytes that can't be decoded | continue | continues |
/// | [`AsyncResult::cancel`](crate::AsyncResult::cancel) | continues | tasks of that call: [`Cancelled`](Self::Cancelled) | continues |
/// | SIGINT (Ctrl-C) or SIGTERM, if workers [are notified](crate::PoolBuilder::interrupt) | ends as its function decides | [`Interrupted`](Self::Interrupted) | ends after its task, and is replaced |
/// | [`Pool::terminate`](crate::Pool::terminate), the pool is dropped | [`Terminated`](Self::Terminated) | [`Terminated`](Self::Terminated) | is ended |
/// | the program that owns the pool dies, for any reason | – | – | ends with it |
///
/// The error can be sent between processes: the variant, all fields and the sources arrive, except [unread
/// values](Self::unread).
///
/// A worker takes one task at a time, so at most that task is lost with it. (A rare exception: if the pool
/// withdrew a message with a function at the moment when a worker took tasks of that function, these tasks
/// are lost together.) A lost task was begun, or was just being taken; its side effects remain. (If worker
/// after worker dies while it reads the captures of a closure, from the fifth on each death costs a task of
/// that closure.)
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TaskError {
    /// The function returned an error or panicked.
    Raised(Box<TaskRaised>),
    /// The worker process of the task ended.
    WorkerLost(Box<WorkerLost>),
    /// The task exceeded its time-out, and its worker was killed.
    TimedOut {
        /// Number of the worker.
        worker: usize,
        /// Process id of the worker.
        pid: u32,
        /// [Name](crate::PoolBuilder::name) of the pool, if any.
        #[serde(with = "mp_core::serde_with::shared::text")]
        pool: Option<Arc<str>>,
        /// Time-out of the task.
        timeout: Duration,
        /// Last [note](crate::note()) of the task, if any.
        note: Option<u64>,
        /// Attempts at the task.
        attempts: Attempts,
    },
    /// The task was cancelled before it had begun.
    Cancelled,
    /// The program was interrupted (SIGINT, SIGTERM) before the task had begun, and [is
    /// notified](crate::PoolBuilder::interrupt).
    Interrupted,
    /// The pool ended before the task was done, or this process is a fork of the process that owns the pool.
    Terminated,
    /// The pool accepts no more tasks.
    Closed {
        /// [Name](crate::PoolBuilder::name) of the pool, if any.
        #[serde(with = "mp_core::serde_with::shared::text")]
        pool: Option<Arc<str>>,
    },
    /// No worker could be started or stay alive. Contains the reason and the number of starts.
    Broken(#[serde(with = "mp_core::serde_with::shared")] Arc<Broken>),
    /// The arguments could not be encoded in this process or decoded in the worker.
    Arguments {
        /// Description of the cause.
        why: String,
        /// Cause, for matching. In this process: lack of memory, or a tensor that can't be sent. In the
        /// worker: the type, the path of the part that could not be decoded, and the bytes, so that no data
        /// is lost ([`undecodable`](Self::undecodable)). `None` if the function could not be decoded, or if
        /// the arguments can't be kept for [another attempt](crate::Call::retry_if).
        #[serde(with = "mp_core::serde_with::shared::option")]
        cause: Option<Arc<mp_reduce::Error>>,
        /// The arguments, if the worker had no free descriptors for those in them: see
        /// [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
        /// Attempts at the task.
        attempts: Attempts,
    },
    /// The return value could not be encoded in the worker or decoded in this process.
    Value {
        /// Description of the cause.
        why: String,
        /// If the value arrived and could not be decoded: its type, the path of the part that could not be
        /// decoded, and its bytes, so that no data is lost. See also [`bytes`](Self::bytes).
        #[serde(with = "mp_core::serde_with::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
        /// The result, if this process had no free descriptors for those in it: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
        /// Attempts at the task.
        attempts: Attempts,
    },
}

impl TaskError {
    /// Creates the error for a value that did not arrive.
    pub(crate) fn value(why: impl Into<String>) -> Self {
        TaskError::Value { why: why.into(), undecodable: None, unread: None, attempts: Attempts::default() }
    }

    /// Creates the error for arguments that were not sent or not decoded.
    pub(crate) fn arguments(Unsendable { why, cause }: Unsendable) -> Self {
        TaskError::Arguments { why, cause, unread: None, attempts: Attempts::default() }
    }

    /// Creates the error for arguments that the worker returned because it had no free descriptors.
    pub(crate) fn unread_arguments(why: String, unread: Unread) -> Self {
        let cause = Some(Arc::new(mp_core::Error::OutOfDescriptors(why.clone()).into()));
        TaskError::Arguments { why, cause, unread: Some(unread), attempts: Attempts::default() }
    }

    /// Creates the error for a result for which this process has no free descriptors.
    pub(crate) fn unread_value(error: mp_core::Error, unread: Unread) -> Self {
        let why = error.to_string();
        TaskError::Value { why, undecodable: None, unread: Some(unread), attempts: Attempts::default() }
    }

    /// Returns the value that could not be read for lack of descriptors
    /// ([`RLIMIT_NOFILE`](mp_core::Error::OutOfDescriptors)): the arguments, returned by the worker, or the
    /// result, in this process. The value is complete and can be read after some descriptors were closed.
    /// Arguments can then be used for another task.
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

    /// Returns the type, path and reason if arguments (in the worker) or the result (in this process) could
    /// not be decoded. Returns `None` for other errors.
    pub fn undecodable(&self) -> Option<&Undecodable> {
        match self {
            TaskError::Arguments { cause, .. } => cause.as_ref()?.undecodable(),
            TaskError::Value { undecodable, .. } => undecodable.as_deref(),
            _ => None,
        }
    }

    /// Returns the bytes of arguments or of a result that could not be decoded, as those of a message
    /// ([`Undecodable::bytes`]).
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
    /// // Two values in MessagePack, which another type might be decoded from.
    /// assert_eq!(error.bytes(), Some(&[3, 0x92, 100, 120][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&self) -> Option<&[u8]> {
        self.undecodable().map(Undecodable::bytes)
    }
}

/// Error returned when a pool has no workers: none could be started, or none lived until it was ready.
///
/// ```
/// use mp_pool::{Pool, TaskError};
/// use mp_spawn::SpawnError;
///
/// let pool = Pool::builder().processes(1).initializer(|(): ()| Err::<(), _>("no device"), ()).build()?;
/// let Err(TaskError::Broken(broken)) = pool.apply(|x: u32| x, 1) else { panic!("it can't begin") };
/// assert_eq!(broken.starts, 5);
/// assert!(matches!(&broken.cause, Some(SpawnError::ProcessRaised(raised)) if raised.message == "no device"));
/// // the pool has no workers left: 5 starts have failed, the last so:
/// // worker 0 (pool-worker-0, pid 77) … no device
/// println!("{broken}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// [Name](crate::PoolBuilder::name) of the pool, if any.
    #[serde(with = "mp_core::serde_with::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Description of the last failed start, or of another cause.
    pub why: String,
    /// Number of failed starts of all workers since each was ready; 0 if the cause was not a failed start.
    pub starts: u32,
    /// Exit of the last process, or the reason why it could not be started, if known.
    pub cause: Option<SpawnError>,
}

impl Broken {
    /// Creates an error with only a description.
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

/// Error returned when a worker process ended while it had a task.
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
    /// Number of the worker.
    pub worker: usize,
    /// Process id of the worker.
    pub pid: u32,
    /// [Name](crate::PoolBuilder::name) of the pool, if any.
    #[serde(with = "mp_core::serde_with::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// Further details, if known.
    pub detail: Option<ExitDetail>,
    /// Last lines of the worker's stderr, if it is captured (see
    /// [`PoolBuilder::stderr`](crate::PoolBuilder::stderr)) and not empty. May include output of earlier
    /// tasks.
    pub stderr: Option<String>,
    /// Attempts at the task: more than one if it was retried.
    pub attempts: Attempts,
    /// Last [note](crate::note()) of the task, if any: its progress.
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

/// Returns `pool "resize"`, or `the pool`.
fn the_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(|| "the pool".to_owned(), |name| format!("pool {name:?}"))
}

/// Returns ` of pool "resize"`, or nothing.
fn of_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" of pool {name:?}"))
}

/// Reason why a value can't be sent.
#[derive(Debug)]
pub(crate) struct Unsendable {
    pub(crate) why: String,
    pub(crate) cause: Option<Arc<mp_reduce::Error>>,
}

impl Unsendable {
    /// Creates the reason with only a description.
    pub(crate) fn said(why: impl Into<String>) -> Self {
        Self { why: why.into(), cause: None }
    }

    /// Returns `true` if the value can be sent after other messages have been received.
    pub(crate) fn is_out_of_space(&self) -> bool {
        use mp_reduce::Error::Memory;
        matches!(self.cause.as_deref(), Some(Memory(why)) if why.is_out_of_envelopes())
    }
}

impl From<mp_reduce::Error> for Unsendable {
    fn from(error: mp_reduce::Error) -> Self {
        Self { why: error.to_string(), cause: Some(Arc::new(error)) }
    }
}

/// Error returned when a pool can't be created, or ended with a failure.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum PoolError {
    /// The workers could not be started.
    Start(SpawnError),
    /// Shared memory is unavailable, belongs to another process, or similar.
    Failed(mp_reduce::Error),
    /// A setting of the builder is invalid: no workers, or too many, or the
    /// [closure](crate::PoolBuilder::per_worker) that configures workers panicked.
    Settings(String),
    /// No worker could be started or stay alive. Contains the reason and the number of starts.
    Broken(#[serde(with = "mp_core::serde_with::shared")] Arc<Broken>),
    /// The pool belongs to another process, from which this process was forked.
    OtherProcess {
        /// Process that created the pool.
        owner: u32,
    },
    /// The pool is closed or terminating, and can't be changed.
    Closed {
        /// [Name](crate::PoolBuilder::name) of the pool, if any.
        #[serde(with = "mp_core::serde_with::shared::text")]
        pool: Option<Arc<str>>,
    },
    /// A [callback](crate::AsyncResult::on_done) of the pool can't wait for the pool's end, because it runs
    /// in the pool's thread.
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
