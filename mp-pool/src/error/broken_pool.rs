//! Error of a pool without workers.

use std::fmt;
use std::sync::Arc;

use mp_spawn::SpawnError;
use serde::{Deserialize, Serialize};

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

impl BrokenPool {
    /// Creates an error with only a description.
    pub(crate) fn with_reason(pool: Option<Arc<str>>, why: impl Into<String>) -> Self {
        BrokenPool { pool, why: why.into(), starts: 0, cause: None }
    }
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
