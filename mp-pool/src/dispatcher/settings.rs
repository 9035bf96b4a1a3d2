//! Settings of a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_spawn::{Interrupt, InterruptSignals, Limits, ProcessBuilder, StartMethod, Stdio};

use crate::child::main_loop::Initializer;
use crate::child::user_state::StateInit;

type Configure = Arc<dyn Fn(usize, ProcessBuilder) -> ProcessBuilder + Send + Sync>;

/// User code that each worker runs before its first task.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerStartup {
    pub(crate) initializer: Option<Initializer>,
    pub(crate) state: Option<StateInit>,
}

/// Settings of a pool and its workers.
#[derive(Clone)]
pub(crate) struct PoolSettings {
    pub(crate) processes: Option<usize>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) most_tasks: u64,
    /// Moved to [`PoolShared`](crate::dispatcher::shared::PoolShared) when the pool is created.
    pub(crate) startup: WorkerStartup,
    pub(crate) start_timeout: Option<Duration>,
    /// Time for running tasks when the pool is terminated.
    pub(crate) finish: Duration,
    pub(crate) grace: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    pub(crate) limits: Limits,
    pub(crate) method: Option<StartMethod>,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) configure: Option<Configure>,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            processes: None,
            name: None,
            most_tasks: 0,
            startup: WorkerStartup::default(),
            start_timeout: None,
            finish: Duration::ZERO,
            grace: Duration::from_millis(500),
            max_waiting: usize::MAX,
            interrupt: Interrupt::Default,
            interrupt_signals: InterruptSignals::Both,
            limits: Limits::new(),
            method: None,
            stdout: Stdio::Inherit,
            stderr: Stdio::Inherit,
            configure: None,
        }
    }
}

impl fmt::Debug for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("processes", &self.processes)
            .field("name", &self.name)
            .field("max_tasks_per_child", &self.most_tasks)
            .field("initializer", &self.startup.initializer)
            .field("state", &self.startup.state)
            .field("start_timeout", &self.start_timeout)
            .field("finish_period", &self.finish)
            .field("grace_period", &self.grace)
            .field("max_waiting", &self.max_waiting)
            .field("interrupt", &self.interrupt)
            .field("start_method", &self.method)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .finish_non_exhaustive()
    }
}

impl PoolSettings {
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
        let builder = builder.stdout(self.stdout.clone()).stderr(self.stderr.clone());
        let builder = builder
            .interrupt(self.interrupt)
            .interrupt_signals(self.interrupt_signals)
            .limits(self.limits.clone());
        let builder = match self.method {
            Some(method) => builder.start_method(method),
            None => builder,
        };
        match &self.configure {
            Some(configure) => configure(worker, builder),
            None => builder,
        }
    }
}
