//! Error of the pool itself.

use std::fmt;
use std::sync::Arc;

use mp_spawn::SpawnError;
use serde::{Deserialize, Serialize};

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
    Broken(#[serde(with = "mp_core::serde_with::shared")] Arc<BrokenPool>),
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
                "a callback of the pool can't wait for the pool's end: it runs in the thread that it would \
                 wait for",
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

/// Error returned when a pool has no workers: none could be started, or none lived until it was ready.
///
/// ```
/// use mp_pool::{Pool, TaskError};
/// use mp_spawn::SpawnError;
///
/// let pool = Pool::builder().processes(1).initializer(|(): ()| Err::<(), _>("no device"), ()).build()?;
/// let Err(TaskError::Broken(broken)) = pool.apply(|x: u32| x, 1) else { panic!("it can't begin") };
/// assert_eq!(broken.starts, 5);
/// let Some(SpawnError::ProcessRaised(raised)) = &broken.cause else { panic!("it returned an error") };
/// assert_eq!(raised.message, "no device");
/// // the pool has no workers left: 5 starts have failed, the last so:
/// // worker 0 (pool-worker-0, pid 77) … no device
/// println!("{broken}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BrokenPool {
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

impl fmt::Display for BrokenPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BrokenPool { pool, why, starts, .. } = self;
        write!(f, "{} has no workers left: ", the_pool(pool))?;
        if *starts > 0 {
            write!(f, "{starts} starts have failed, the last so: ")?;
        }
        f.write_str(why)
    }
}

mp_core::readable_debug!(BrokenPool);

impl std::error::Error for BrokenPool {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}

/// Returns `pool "resize"`, or `the pool`.
pub(super) fn the_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(|| "the pool".to_owned(), |name| format!("pool {name:?}"))
}

/// Returns ` of pool "resize"`, or nothing.
pub(super) fn of_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" of pool {name:?}"))
}
