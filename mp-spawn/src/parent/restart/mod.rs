//! Supervision: processes that are restarted after they have ended.
//!
//! A supervised process is a [`ChildGroup`](crate::parent::group::ChildGroup) of one rank for its whole life.
//! The state of the rank describes its present process, or the last one. The group is over when the process
//! is not restarted. So waits, callbacks, the sentinel (an eventfd here) and the exit of this program refer
//! to that end, and need no special case for restarts.
//!
//! | [`RestartPhase`](supervision::RestartPhase) | process | next phase | when |
//! |---|---|---|---|
//! | starting | none, or about to exist | running | the supervisor watches the process |
//! | | | waiting, or done | the start has failed |
//! | running | exists | waiting | it was reaped, and is restarted |
//! | | | done | it was reaped, and is not restarted |
//! | waiting | none | starting | the delay has passed |
//! | | | done | the program kills or terminates it, or exits; Ctrl-C |
//! | done | none | | |
//!
//! All transitions happen under the lock of the group's ranks. Under the same lock, `kill`, `terminate` and
//! the exit handler forbid further starts before they check the process: a waiting process is done at once, a
//! running one gets the signal, and for a starting one the signal is stored until the process exists. So no
//! start can follow one of these calls.
//!
//! | killed | left | cleaned up by |
//! |---|---|---|
//! | the process, at any time | as with any process | its death is declared, and its memory reclaimed, before a restart |
//! | this program, while the process runs or is being started | the process | the kernel, as with any child |
//! | this program, while the process waits | nothing: the stored arguments belong to this process | the reclaim of this process |

pub(crate) mod backoff;
pub(crate) mod event;
pub(crate) mod failure_reports;
pub(crate) mod history;
pub(crate) mod restarter;
pub(crate) mod supervision;

use std::time::Duration;

use crate::parent::restart::backoff::Backoff;

/// Policy for the restart of a process after its end: see
/// [`ProcessBuilder::restart`](crate::ProcessBuilder::restart).
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{Backoff, Restart};
///
/// // Up to five times in a row, after 100 ms, 200 ms, and so on.
/// let crashing = Restart::on_failure(5);
/// // The same, always at once.
/// let quick = Restart::OnFailure { max: 5, backoff: Duration::ZERO.into() };
/// // For ever, also when its function returns; half a minute apart at most.
/// let backoff = Backoff::new(Duration::from_secs(1)).max(Duration::from_secs(30));
/// let service = Restart::Always { backoff };
/// # let _ = (crashing, quick, service);
/// ```
///
/// | the process | `Never` | `OnFailure` | `Always` |
/// |---|---|---|---|
/// | returns, or calls `exit(0)` and no result is awaited | over | over | restarted |
/// | fails in any way that [`SpawnError`](crate::SpawnError) lists: an error, a panic, an exit code, a signal, no report in time | over | restarted, or [given up](crate::SpawnError::GaveUp) | restarted |
/// | can't be restarted now | | counts as a failure | counts as a failure |
/// | was killed or terminated by its [handle](crate::Process::kill) | over | over | over |
/// | ends by SIGINT, or after a SIGINT or SIGTERM of which this program is notified ([`interrupted`](crate::interrupted)) | over | over | over |
/// | is stopped (SIGSTOP) | waited for | waited for | waited for |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Restart {
    /// No restarts.
    #[default]
    Never,
    /// Restart after a failure.
    OnFailure {
        /// Maximum number of consecutive restarts. The count begins anew after a process that was
        /// [healthy](crate::ProcessBuilder::healthy_after) before it failed.
        max: u32,
        /// Delay before a restart. The first consecutive restart counts as the second attempt.
        backoff: Backoff,
    },
    /// Restart after any end, without a limit.
    Always {
        /// Delay before a restart, as for `OnFailure`. A process that always ends at once is restarted as
        /// often as this delay allows.
        backoff: Backoff,
    },
}

/// Delay before the first consecutive restart.
const FIRST: Duration = Duration::from_millis(100);

impl Restart {
    /// Creates a policy that restarts after a failure, at most `max` times in a row. The first delay is 100
    /// ms, and each further delay twice as long, up to a minute.
    #[must_use]
    pub fn on_failure(max: u32) -> Restart {
        Restart::OnFailure { max, backoff: Backoff::new(FIRST) }
    }

    /// Creates a policy that always restarts, with the same delays as `on_failure`.
    #[must_use]
    pub fn always() -> Restart {
        Restart::Always { backoff: Backoff::new(FIRST) }
    }
}
