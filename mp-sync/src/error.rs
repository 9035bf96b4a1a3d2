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

/// Writes the processes, separated by commas.
fn list(f: &mut fmt::Formatter<'_>, holders: &[PeerProcess]) -> fmt::Result {
    for (i, holder) in holders.iter().enumerate() {
        write!(f, "{}{holder}", if i == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// Error of acquiring or releasing a permit.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum AcquireError {
    /// All permits were taken until the caller's time-out.
    Held {
        /// Processes that hold the permits, each once. A stopped process keeps its permits.
        holders: Vec<PeerProcess>,
    },
    /// The semaphore has reached its maximum number of permits.
    TooMany {
        /// Maximum number of permits.
        limit: u32,
    },
    /// This process keeps no permit that it could release.
    NotKept,
    /// Shared memory is not usable.
    Failed(Error),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held { holders } if holders.is_empty() => {
                f.write_str("the semaphore has no permit to give")
            }
            Self::Held { holders } => {
                f.write_str("all permits are taken, by ")?;
                list(f, holders)?;
                f.write_str("; are they stopped, or slow?")
            }
            Self::TooMany { limit } => write!(
                f,
                "the semaphore has its limit of {limit} permits; create it with a higher one (with_limit)"
            ),
            Self::NotKept => f.write_str(
                "this process keeps no permit of the semaphore: it was released more often than acquired. \
                 A Permit is released when it is dropped; release() is for permits kept by Permit::keep()",
            ),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

mp_core::readable_debug!(AcquireError);

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(e) => std::error::Error::source(e),
            _ => None,
        }
    }
}

impl From<Error> for AcquireError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// Error of waiting at a barrier or of enrolling.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum BarrierError {
    /// The caller timed out. The barrier is now broken for all parties.
    TimedOut {
        /// Number of parties that had arrived, including the caller.
        arrived: u32,
        /// Number of parties of the barrier.
        parties: u32,
        /// [Enrolled](crate::Barrier::enroll) parties that had not arrived. Other missing parties are
        /// unknown.
        missing: Vec<PeerProcess>,
    },
    /// A party died, so that the barrier can't be passed. It is broken until a process resets it.
    MemberDied {
        /// The process that died, if it is known.
        who: Option<PeerProcess>,
    },
    /// Another party timed out and broke the barrier.
    Broken,
    /// A process called [`abort`](crate::Barrier::abort), or panicked in its
    /// [action](crate::Barrier::wait_then).
    Aborted,
    /// A process called [`reset`](crate::Barrier::reset) while the caller waited.
    Reset,
    /// The number of enrolled processes has reached the number of parties.
    TooMany {
        /// Number of parties.
        parties: u32,
    },
    /// Shared memory is not usable.
    Failed(Error),
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

impl fmt::Display for BarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { arrived, parties, .. } if arrived == parties => write!(
                f,
                "all {parties} parties arrived at the barrier, and the action of the last one took too long; \
                 the barrier is broken until reset() is called"
            ),
            Self::TimedOut { arrived, parties, missing } => {
                write!(f, "only {arrived} of {parties} arrived at the barrier in time")?;
                if !missing.is_empty() {
                    f.write_str(", and not ")?;
                    list(f, missing)?;
                    f.write_str(" (stopped, or slow?)")?;
                }
                f.write_str("; it is broken until reset() is called")
            }
            Self::MemberDied { who: Some(who) } => {
                write!(f, "{who}, a party of the barrier, died; it is broken until reset() is called")
            }
            Self::MemberDied { who: None } => f.write_str(
                "a process died that the barrier waited for; it is broken until reset() is called",
            ),
            Self::Broken => f.write_str(
                "the barrier is broken: another party timed out; call reset() after all got this error",
            ),
            Self::Aborted => f.write_str("the barrier was aborted; call reset() to use it again"),
            Self::Reset => f.write_str("the barrier was reset while this process waited at it"),
            Self::TooMany { parties } => {
                write!(f, "as many processes are enrolled as the barrier has parties: {parties}")
            }
            Self::Failed(e) => e.fmt(f),
        }
    }
}

mp_core::readable_debug!(BarrierError);

impl std::error::Error for BarrierError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(e) => std::error::Error::source(e),
            _ => None,
        }
    }
}

impl From<Error> for BarrierError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}
