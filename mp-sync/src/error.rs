//! Errors of waiting functions.

use std::fmt;

use mp_core::Error;
use mp_core::words::Member;
use serde::{Deserialize, Serialize};

use crate::steps::barrier::BreakCause;

/// Process that holds or delays the object for which a caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerProcess {
    /// Member tag of the process.
    pub member: Member,
    /// Process id, or 0 if it is unknown.
    pub pid: u32,
}

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.member.process(self.pid).fmt(f)
    }
}

/// Returns the processes, separated by commas, between two texts, or `none` if there are none.
fn list(before: &str, holders: &[PeerProcess], after: &str, none: &str) -> String {
    match holders {
        [] => none.to_owned(),
        _ => {
            let holders: Vec<String> = holders.iter().map(PeerProcess::to_string).collect();
            format!("{before}{}{after}", holders.join(", "))
        }
    }
}

/// Error of acquiring or releasing a permit.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AcquireError {
    /// All permits were taken until the caller's time-out.
    #[error(
        "{}",
        list(
            "all permits are taken, by ",
            holders,
            "; are they stopped, or slow?",
            "the semaphore has no permit to give"
        )
    )]
    Held {
        /// Processes that hold the permits, each once. A stopped process keeps its permits.
        holders: Vec<PeerProcess>,
    },
    /// The semaphore has reached its maximum number of permits.
    #[error(
        "the semaphore is at its limit of {}; create it with a higher limit (with_limit)",
        mp_core::quantity(limit, "permit")
    )]
    TooMany {
        /// Maximum number of permits.
        limit: u32,
    },
    /// This process keeps no permit that it could release.
    #[error(
        "this process keeps no permit of the semaphore: it was released more often than acquired. A Permit \
         is released when it is dropped; release() is for permits kept by Permit::keep()"
    )]
    NotKept,
    /// Shared memory is not usable.
    #[error(transparent)]
    Failed(#[from] Error),
}

mp_core::readable_debug!(AcquireError, BarrierError);

/// Error of waiting at a barrier or of enrolling.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BarrierError {
    /// The caller timed out. The barrier is now broken for all parties.
    #[error("{}", late_text(*arrived, *parties, missing))]
    TimedOut {
        /// Number of parties that had arrived, including the caller.
        arrived: u32,
        /// Number of parties of the barrier.
        parties: u32,
        /// [Enrolled](crate::Barrier::enroll) parties that had not arrived. Other missing parties are
        /// unknown.
        missing: Vec<PeerProcess>,
    },
    /// A party died, so that the barrier can't be passed. The barrier stays broken until a process resets it.
    #[error("{}; it is broken until reset() is called", match who {
        Some(who) => format!("{who}, a party of the barrier, died"),
        None => "a process died that the barrier waited for".to_owned(),
    })]
    MemberDied {
        /// The process that died, if it is known.
        who: Option<PeerProcess>,
    },
    /// Another party timed out and broke the barrier.
    #[error("the barrier is broken: another party timed out; call reset() after all got this error")]
    Broken,
    /// A process called [`abort`](crate::Barrier::abort), or panicked in its
    /// [action](crate::Barrier::wait_then).
    #[error("the barrier was aborted; call reset() to use it again")]
    Aborted,
    /// A process called [`reset`](crate::Barrier::reset) while the caller waited.
    #[error("the barrier was reset while this process waited at it")]
    Reset,
    /// The number of enrolled processes has reached the number of parties.
    #[error("as many processes are enrolled as the barrier has parties: {parties}")]
    TooMany {
        /// Number of parties.
        parties: u32,
    },
    /// Shared memory is not usable.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl BarrierError {
    /// Returns `true` if the barrier stays broken until a process [resets](crate::Barrier::reset) it.
    #[doc(alias = "BrokenBarrierError")]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::MemberDied { .. } | Self::Broken | Self::Aborted)
    }

    pub(crate) fn broken(how: Option<BreakCause>, who: impl FnOnce() -> Option<PeerProcess>) -> Self {
        match how {
            None => Self::Reset,
            Some(BreakCause::Aborted) => Self::Aborted,
            Some(BreakCause::TimedOut) => Self::Broken,
            Some(BreakCause::Died) => Self::MemberDied { who: who() },
        }
    }
}

/// Returns the text of [`BarrierError::TimedOut`].
fn late_text(arrived: u32, parties: u32, missing: &[PeerProcess]) -> String {
    if arrived == parties {
        return format!(
            "all {parties} parties arrived at the barrier, and the action of the last one took too long; \
             the barrier is broken until reset() is called"
        );
    }
    let missing = list(", and not ", missing, " (stopped, or slow?)", "");
    format!(
        "only {arrived} of {parties} arrived at the barrier in time{missing}; it is broken until reset() is \
         called"
    )
}
