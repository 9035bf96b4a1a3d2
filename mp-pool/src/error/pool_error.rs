//! Error of the pool itself.

use std::sync::Arc;

use mp_spawn::SpawnError;
use serde::{Deserialize, Serialize};

/// Error returned when a pool can't be created, or ended with a failure.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PoolError {
    /// The workers could not be started.
    #[error("the workers of the pool could not be started: {0}")]
    Start(#[from] SpawnError),
    /// Operation on shared memory failed: the memory is full or unavailable, or belongs to another process.
    #[error("{0}")]
    Failed(#[from] mp_reduce::Error),
    /// A setting of the builder is invalid: no workers, or too many, or the
    /// [closure](crate::PoolBuilder::per_worker) that configures workers panicked.
    #[error("{0}")]
    Settings(String),
    /// No worker could be started or stay alive. Contains the reason and the number of starts.
    #[error(transparent)]
    Broken(#[serde(with = "mp_core::serde_with::shared")] Arc<BrokenPool>),
    /// The pool belongs to another process, from which this process was forked.
    #[error("the pool belongs to process {owner}, from which this one was forked")]
    OtherProcess {
        /// Process that created the pool.
        owner: u32,
    },
    /// The pool is closed or terminating, and can't be changed.
    #[error("{} is closed: its workers end, and their number can't be changed", the_pool(pool))]
    Closed {
        /// [Name](crate::PoolBuilder::name) of the pool, if any.
        #[serde(with = "mp_core::serde_with::shared::text")]
        pool: Option<Arc<str>>,
    },
    /// A [callback](crate::AsyncResult::on_done) of the pool can't wait for the pool's end, because it runs
    /// in the pool's thread.
    #[error(
        "a callback of the pool can't wait for the pool's end: it runs in the thread that it would wait for"
    )]
    InCallback,
    /// The cluster refused an operation, or rank 0 is lost.
    #[error("{0}")]
    Cluster(String),
}

#[cfg(feature = "net")]
impl From<mp_net::NetError> for PoolError {
    fn from(error: mp_net::NetError) -> Self {
        PoolError::Cluster(error.to_string())
    }
}

mp_core::readable_debug!(PoolError);

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
/// // the pool has no workers left: 5 starts have failed, the last one:
/// // worker 0 (pool-worker-0, pid 77) … no device
/// println!("{broken}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, thiserror::Error, Serialize, Deserialize)]
#[error("{} has no workers left: {}{why}", the_pool(pool), failed_starts(*starts))]
#[non_exhaustive]
pub struct BrokenPool {
    /// [Name](crate::PoolBuilder::name) of the pool, if any.
    #[serde(with = "mp_core::serde_with::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Description of the last failed start, or of another cause.
    pub why: String,
    /// Number of failed starts, added over all workers. For each worker, counted since it was last ready. 0
    /// if the cause was not a failed start.
    pub starts: u32,
    /// Exit of the process that was started last, or the error of its start, if known.
    #[source]
    pub cause: Option<SpawnError>,
}

mp_core::readable_debug!(BrokenPool);

/// Returns the beginning of an error text, with the number of failed starts, or nothing if the number is 0.
fn failed_starts(starts: u32) -> String {
    if starts > 0 { format!("{starts} starts have failed, the last one: ") } else { String::new() }
}

/// Returns `pool "resize"`, or `the pool`.
pub(super) fn the_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(|| "the pool".to_owned(), |name| format!("pool {name:?}"))
}

/// Returns ` of pool "resize"`, or nothing.
pub(super) fn of_pool(name: &Option<Arc<str>>) -> String {
    name.as_ref().map_or_else(String::new, |name| format!(" of pool {name:?}"))
}
