//! Error with which a task ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Undecodable;
use mp_reduce::Unread;
use mp_spawn::RaisedKind;
use serde::{Deserialize, Serialize};

use crate::error::attempts::{Attempts, FailureKind};
use crate::error::encode_error::EncodeError;
use crate::error::pool_error::{BrokenPool, of_pool, the_pool};
use crate::error::worker_lost::{TaskRaised, WorkerLost};

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
/// | the worker is stopped (SIGSTOP, a debugger) | waits without limit; with a [`Call::timeout`](crate::Call::timeout), ends with [`TimedOut`](Self::TimedOut). If no other worker is idle, the next task of the stopped worker is treated the same | continue in an idle worker, once: the stopped worker can't begin them afterwards | resumes later, or is killed and replaced after a time-out |
/// | the function takes longer than [`Call::timeout`](crate::Call::timeout) | [`TimedOut`](Self::TimedOut) | continue in another worker | is killed and replaced |
/// | the initializer or the function that creates the worker's [state](crate::StatePool) fails, the worker dies in it, or is killed because it takes [too long](crate::PoolBuilder::start_timeout) | – | wait | is started again, with a delay that grows up to a second; from the fifth time on, while another worker is ready, up to a minute, with one report on stderr |
/// | all workers fail to start five times in a row; if one has worked before, for ten seconds | – | [`Broken`](Self::Broken), with the reason and the number of starts | – |
/// | a worker, or this process, has too few free descriptors to receive the descriptors in arguments or in a result | [`Arguments`](Self::Arguments) or [`Value`](Self::Value), which [contain](Self::unread) the arguments or the result | continue | continues |
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
/// are lost together.) A lost task was begun, or was just being taken; its side effects remain. (If several
/// workers in a row die while they read the captures of a closure, each death from the fifth on costs a task
/// of that closure.)
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
    /// The program was interrupted (SIGINT, SIGTERM) before the task had begun, and the pool [is
    /// notified](crate::PoolBuilder::interrupt) of interrupts.
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
    Broken(#[serde(with = "mp_core::serde_with::shared")] Arc<BrokenPool>),
    /// The arguments could not be encoded in this process or decoded in the worker.
    Arguments {
        /// Description of the cause.
        why: String,
        /// Cause, for matching. If encoding in this process failed: lack of memory, or a tensor that can't be
        /// sent. If decoding in the worker failed: the type, the path of the undecodable part, and the bytes,
        /// so that no data is lost ([`undecodable`](Self::undecodable)). `None` if the function could not be
        /// decoded, or if the arguments can't be kept for [another attempt](crate::Call::retry_if).
        #[serde(with = "mp_core::serde_with::shared::option")]
        cause: Option<Arc<mp_reduce::Error>>,
        /// The arguments, if the worker had too few free descriptors to receive the descriptors in them: see
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
        /// The result, if this process had too few free descriptors to receive the descriptors in it: see
        /// [`unread`](Self::unread).
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
    pub(crate) fn arguments(EncodeError { why, cause }: EncodeError) -> Self {
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
    ///     let read = |unread: &mp_reduce::Unread| unread.read::<Fd<File>>();
    ///     error.unread().map(read).ok_or(error.clone())?.map_err(Box::<dyn std::error::Error>::from)
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

    /// Returns the bytes of arguments or of a result that could not be decoded, in the form of a message
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
                write!(f, "{} is closed: it accepts no more tasks", the_pool(pool))
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
                write!(f, "the result of the task can't be sent: {why}{attempts}")
            }
            TaskError::Value { why, attempts, .. } => {
                write!(f, "the result of the task can't be received: {why}{attempts}")
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

impl TaskError {
    /// Returns the attempts at the task. Several attempts are recorded only if the task was
    /// [retried](crate::Call::retry_if). No attempt is recorded if the task was cancelled or ended with its
    /// pool.
    #[must_use]
    pub fn attempts(&self) -> &Attempts {
        match self {
            TaskError::Raised(raised) => &raised.attempts,
            TaskError::WorkerLost(lost) => &lost.attempts,
            TaskError::TimedOut { attempts, .. }
            | TaskError::Arguments { attempts, .. }
            | TaskError::Value { attempts, .. } => attempts,
            _ => Attempts::NONE,
        }
    }

    /// Records this failure after the failures `before`, and returns all of them.
    pub(crate) fn record_attempt(&mut self, before: Option<Attempts>) -> Attempts {
        let mut all = before.unwrap_or_default();
        self.failure_kind().into_iter().for_each(|failure| all.add(failure));
        if let Some(attempts) = self.attempts_mut() {
            attempts.clone_from(&all);
        }
        all
    }

    fn attempts_mut(&mut self) -> Option<&mut Attempts> {
        match self {
            TaskError::Raised(raised) => Some(&mut raised.attempts),
            TaskError::WorkerLost(lost) => Some(&mut lost.attempts),
            TaskError::TimedOut { attempts, .. }
            | TaskError::Arguments { attempts, .. }
            | TaskError::Value { attempts, .. } => Some(attempts),
            _ => None,
        }
    }

    /// Returns the index of the failed item, for calls of many items such as `map` and `imap`. The error's
    /// text begins with this index.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(2)?;
    /// let error = pool.map(|x: u32| 7_u32.checked_rem(x).ok_or("zero"), [2, 0, 1]).unwrap_err();
    /// assert_eq!(error.index(), Some(1));
    /// assert!(error.to_string().starts_with("item 1: worker "), "{error}");
    /// assert_eq!(pool.apply(|x: u32| 7_u32.checked_rem(x).ok_or("zero"), 0).unwrap_err().index(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Returns `None` for a call of one item, for a [`TaskStream`](crate::TaskStream), whose outcomes have
    /// tickets, and for a task that did not begin because its call was cancelled or its pool ended.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.attempts().index()
    }

    /// Returns the error with the index of its item.
    pub(crate) fn with_index(mut self, index: usize) -> Self {
        if let Some(attempts) = self.attempts_mut() {
            attempts.set_index(index);
        }
        self
    }

    /// Returns the kind of a failed attempt, or `None` if the error is not the failure of an attempt.
    fn failure_kind(&self) -> Option<FailureKind> {
        match self {
            TaskError::Raised(raised) if raised.kind == RaisedKind::Panic => Some(FailureKind::Panic),
            TaskError::Raised(_) => Some(FailureKind::Error),
            TaskError::WorkerLost(_) => Some(FailureKind::Death),
            TaskError::TimedOut { .. } => Some(FailureKind::TimeOut),
            TaskError::Arguments { .. } => Some(FailureKind::Arguments),
            TaskError::Value { .. } => Some(FailureKind::Value),
            _ => None,
        }
    }
}
