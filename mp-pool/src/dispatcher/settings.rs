//! Settings of a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_spawn::{Interrupt, InterruptSignals, Limits, ProcessBuilder, StartMethod, Stdio};

use crate::child::main_loop::Initializer;
use crate::child::user_state::StateInit;

pub(crate) const MOST_PROCESSES: usize = 1000;

/// Function of the user that configures the process of a worker.
#[derive(Clone)]
pub(crate) struct Configure(pub(crate) Arc<dyn Fn(usize, ProcessBuilder) -> ProcessBuilder + Send + Sync>);

impl fmt::Debug for Configure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Configure")
    }
}

/// User code that each worker runs before its first task.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerStartup {
    pub(crate) initializer: Option<Initializer>,
    pub(crate) state: Option<StateInit>,
}

/// Settings of a pool and its workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolSettings {
    pub(crate) processes: Option<usize>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) most_tasks: u64,
    /// User code for the start of a worker. Moved to [`PoolShared`](crate::dispatcher::shared::PoolShared)
    /// when the pool is created.
    pub(crate) startup: WorkerStartup,
    pub(crate) start_timeout: Option<Duration>,
    /// Time that running tasks have to finish after the pool was terminated.
    pub(crate) finish: Duration,
    /// Time between SIGTERM and SIGKILL when the pool is terminated; the default if `None`.
    pub(crate) grace: Option<Duration>,
    /// Maximum number of tasks without an outcome, if it is limited.
    pub(crate) max_waiting: Option<usize>,
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    pub(crate) limits: Limits,
    pub(crate) method: Option<StartMethod>,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) configure: Option<Configure>,
    /// Description of the workers' state. Empty if they have none. Pools of a cluster that run each other's
    /// tasks have the same description.
    pub(crate) kind: String,
    /// Cluster whose served pools also run tasks of this pool.
    #[cfg(feature = "net")]
    pub(crate) cluster: Option<mp_net::Cluster>,
}

impl PoolSettings {
    pub(crate) fn grace(&self) -> Duration {
        self.grace.unwrap_or(Duration::from_millis(500))
    }

    /// Returns the name of a worker.
    pub(crate) fn worker_name(&self, worker: usize) -> String {
        format!("{}-{worker}", self.name.as_deref().unwrap_or("pool-worker"))
    }

    /// Returns the name of the pool for messages: `pool "resize"`, or `a pool`.
    pub(crate) fn pool_name(&self) -> String {
        self.name.as_ref().map_or_else(|| "a pool".to_owned(), |name| format!("pool {name:?}"))
    }

    /// Applies these settings to the builder of a worker's process.
    pub(crate) fn configured(&self, worker: usize, builder: ProcessBuilder) -> ProcessBuilder {
        let builder = builder
            .stdout(self.stdout.clone())
            .stderr(self.stderr.clone())
            .interrupt(self.interrupt)
            .interrupt_signals(self.interrupt_signals)
            .limits(self.limits.clone());
        let builder = match self.method {
            Some(method) => builder.start_method(method),
            None => builder,
        };
        match &self.configure {
            Some(Configure(configure)) => configure(worker, builder),
            None => builder,
        }
    }
}
