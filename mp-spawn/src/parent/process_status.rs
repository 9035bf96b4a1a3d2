//! Status of a process, for users.

use serde::{Deserialize, Serialize};

use crate::error::SpawnError;
use crate::error::exit_status::Signal;

/// Status of a process.
///
/// ```
/// use mp_spawn::{SpawnOptions, ProcessStatus, start_processes};
///
/// let context = start_processes(|_rank: usize, (): ()| {}, (), SpawnOptions::nprocs(1))?;
/// context.wait()?;
/// assert!(matches!(context.status(0)?, ProcessStatus::Ended));
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProcessStatus {
    /// The process runs.
    Running,
    /// The process ended without a failure: its function returned, or it called `exit(0)`.
    Ended,
    /// The process failed. It may not have exited yet.
    Failed(SpawnError),
    /// The process has ended and waits for a restart, or is being started: see [`Restart`](crate::Restart).
    Restarting {
        /// Number of the next start. The first start was 1.
        attempt: u32,
        /// Failure of its last process, if that failed.
        error: Option<SpawnError>,
    },
    /// The process was ended because another one failed, or because it was no longer needed. Has the last
    /// signal that was sent.
    Terminated(Signal),
}
