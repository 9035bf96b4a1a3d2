//! How processes are started.

use std::path::PathBuf;
use std::time::Duration;

/// How many processes to start, and how.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{OnFailure, Options};
///
/// let options = Options::nprocs(4)
///     .name("trainer")
///     .on_failure(OnFailure::Continue)
///     .grace_period(Duration::from_secs(2));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) nprocs: usize,
    pub(crate) name: String,
    pub(crate) grace_period: Option<Duration>,
    pub(crate) executable: Option<PathBuf>,
    pub(crate) on_failure: OnFailure,
    pub(crate) handshake: Duration,
}

/// What becomes of the other processes when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// `join` ends them.
    #[default]
    EndAll,
    /// They run on; `join` reports the first failure when all have ended.
    Continue,
}

/// How long a process may take to say that it is a worker.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Options {
    /// Starts this many processes, with ranks from 0.
    pub fn nprocs(nprocs: usize) -> Options {
        Options {
            nprocs,
            name: "rank".to_string(),
            grace_period: None,
            executable: None,
            on_failure: OnFailure::EndAll,
            handshake: HANDSHAKE,
        }
    }

    /// Names the processes: rank 3 is called `rank-3`, or with the prefix that is given here. The main thread
    /// of a process has this name too, so that `ps` and `top` show it.
    pub fn name(mut self, prefix: impl Into<String>) -> Options {
        self.name = prefix.into();
        self
    }

    /// How much time the other processes get after a failure: once to end by themselves, before a SIGTERM, and
    /// once to obey it, before a SIGKILL. Without this they get none before the SIGTERM and 5 seconds after it.
    pub fn grace_period(mut self, grace: Duration) -> Options {
        self.grace_period = Some(grace);
        self
    }

    /// Starts another program instead of the running one. It must be the same build: the function is looked up
    /// in it. This helps where the running program is not what `/proc/self/exe` says, as under a loader.
    #[doc(alias = "set_executable")]
    pub fn executable(mut self, program: impl Into<PathBuf>) -> Options {
        self.executable = Some(program.into());
        self
    }

    /// What becomes of the other processes when one fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Options {
        self.on_failure = on_failure;
        self
    }

    /// How long a process may take until it has loaded and reported as a worker; 10 seconds without this. The
    /// time of a process that is stopped does not run.
    pub fn handshake_timeout(mut self, time: Duration) -> Options {
        self.handshake = time;
        self
    }
}

impl Default for Options {
    /// One process.
    fn default() -> Options {
        Options::nprocs(1)
    }
}
