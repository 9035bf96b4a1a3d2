//! Processes that are started again when they have ended: supervision.
//!
//! A supervised process is one [`Group`](crate::parent::group::Group) of one rank for its whole life. What is known of the rank is
//! about its present process, or the last one; the group is over when it is not started again. So waits, callbacks, the sentinel
//! (an eventfd here) and the exit of this program mean that end, and need not know of restarts.
//!
//! | [`Phase`](supervised::Phase) | a process | it goes to | when |
//! |---|---|---|---|
//! | starting | none, or just about to be | running | the supervisor watches the process |
//! | | | waiting, or done | the start has failed |
//! | running | there | waiting | it was reaped, and is to be started again |
//! | | | done | it was reaped, and is not |
//! | waiting | none | starting | its time has come |
//! | | | done | the program kills or terminates it, or exits; Ctrl-C |
//! | done | none | | |
//!
//! All of these happen under the lock of the group's ranks. There, too, `kill`, `terminate` and the exit handler forbid further
//! starts, before they look at which process there is: one that is waiting is done at once, one that is running gets the signal,
//! and for one that is starting the signal is kept until it is there. So no start can follow one of these calls.
//!
//! | killed | left | cleaned up by |
//! |---|---|---|
//! | the process, at any time | as of any process | its death is declared, its memory swept, before it is started again |
//! | this program, while the process runs or is being started | the process | the kernel, as any child |
//! | this program, while the process waits | nothing: the kept arguments are this process's seats | the sweep of this process |

pub(crate) mod backoff;
pub(crate) mod event;
pub(crate) mod ledger;
pub(crate) mod reports;
pub(crate) mod supervised;
pub(crate) mod thread;

use std::time::Duration;

use crate::parent::restart::backoff::Backoff;

/// Whether a process is started again when it has ended: see [`ProcessBuilder::restart`](crate::ProcessBuilder::restart).
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
/// let service = Restart::Always { backoff: Backoff::new(Duration::from_secs(1)).max(Duration::from_secs(30)) };
/// # let _ = (crashing, quick, service);
/// ```
///
/// | it | `Never` | `OnFailure` | `Always` |
/// |---|---|---|---|
/// | returns, or calls `exit(0)` where no result is awaited | over | over | started again |
/// | fails in any way that [`SpawnError`](crate::SpawnError) lists: an error, a panic, an exit code, a signal, no report in time | over | started again, or [given up](crate::SpawnError::GaveUp) | started again |
/// | can't be started again now | | counts as a failure | counts as a failure |
/// | was killed or terminated by its [handle](crate::Process::kill) | over | over | over |
/// | ends by SIGINT, or after a SIGINT or SIGTERM of which this program is informed ([`interrupted`](crate::interrupted)) | over | over | over |
/// | is stopped (SIGSTOP) | waited for | waited for | waited for |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Restart {
    /// Never.
    #[default]
    Never,
    /// If it fails.
    OnFailure {
        /// At most as often as this in a row; a process that was [well](crate::ProcessBuilder::healthy_after) before it failed
        /// begins a new row.
        max: u32,
        /// How long it waits before that: before the first restart of a row as before a second attempt.
        backoff: Backoff,
    },
    /// However it ends, and as often as it does.
    Always {
        /// As for `OnFailure`. A process that ends at once each time is started as often as this allows.
        backoff: Backoff,
    },
}

/// Before the first restart in a row.
const FIRST: Duration = Duration::from_millis(100);

impl Restart {
    /// If it fails, at most as often as this in a row; after 100 ms, twice as long each time, and a minute at most.
    #[must_use]
    pub fn on_failure(max: u32) -> Restart {
        Restart::OnFailure { max, backoff: Backoff::new(FIRST) }
    }

    /// Always, after the same times.
    #[must_use]
    pub fn always() -> Restart {
        Restart::Always { backoff: Backoff::new(FIRST) }
    }
}
