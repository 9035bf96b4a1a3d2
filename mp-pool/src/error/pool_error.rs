//! Error of the pool itself.

use std::fmt;
use std::sync::Arc;

use mp_spawn::SpawnError;
use serde::{Deserialize, Serialize};

use crate::error::broken_pool::{BrokenPool, the_pool};

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
