//! Loaders that make batches for other hosts.

use std::any::Any;
use std::fmt;

/// Workers of a loader that make batches for a loader of another host, until this value is dropped.
#[must_use = "the loader is served until this is dropped"]
pub struct ServedLoader {
    served: mp_pool::ServedPool,
    _pool: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for ServedLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServedLoader").field(&self.served).finish()
    }
}

impl ServedLoader {
    pub(crate) fn new(served: mp_pool::ServedPool, pool: Box<dyn Any + Send + Sync>) -> Self {
        Self { served, _pool: pool }
    }

    /// Blocks until rank 0 has left the cluster or was lost, or this process is interrupted. Returns `false`
    /// if rank 0 was lost, like [`ServedPool::wait`](mp_pool::ServedPool::wait).
    pub fn wait(&self) -> bool {
        self.served.wait()
    }
}
