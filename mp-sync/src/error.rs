//! How waiting fails.

use std::fmt;

use mp_core::Error;
use mp_core::words::Member;
use serde::{Deserialize, Serialize};

use crate::steps::barrier::How;

/// A process that has what another one waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerProcess {
    /// Its tag.
    pub member: Member,
    /// Its process id; 0 if it is not known any more.
    pub pid: u32,
}

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.member.process(self.pid).fmt(f)
    }
}

/// All of them, with commas.
fn list(f: &mut fmt::Formatter<'_>, holders: &[PeerProcess]) -> fmt::Result {
    for (i, holder) in holders.iter().enumerate() {
        write!(f, "{}{holder}", if i == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// Why a permit was not had, or not given back.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum AcquireError {
    /// All permits are taken, and stayed so until this call's time was over.
    Held {
        /// The processes that have them: each once. A stopped process keeps its permits.
        holders: Vec<PeerProcess>,
    },
    /// The semaphore has as many permits as it can have.
    TooMany {
        /// How many.
        limit: u32,
    },
    /// This process keeps no permit that it could release.
    NotKept,
    /// Shared memory can't be used.
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
                "the semaphore has {limit} permits already, which is its limit; make it with a higher one (with_limit)"
            ),
            Self::NotKept => f.write_str(
                "this process keeps no permit of the semaphore: it was released more often than acquired. A Permit releases when it is \
                 dropped; release() is for one that was kept by Permit::keep()",
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

/// Why a barrier was not passed.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum BarrierError {
    /// The caller's time was over; the barrier is broken now, for all.
    TimedOut {
        /// How many had arrived, the caller included.
        arrived: u32,
        /// How many there have to be.
        parties: u32,
        /// The parties that are [enrolled](crate::Barrier::enroll), and had not arrived. Of others it is not
        /// known that they were to come.
        missing: Vec<PeerProcess>,
    },
    /// A party died, so the barrier can't fill any more. It is broken until a process resets it.
    MemberDied {
        /// The process that died, if it is still known.
        who: Option<PeerProcess>,
    },
    /// Another party broke the barrier, since its time was over.
    Broken,
    /// A process called [`abort`](crate::Barrier::abort), or panicked in its
    /// [action](crate::Barrier::wait_then).
    Aborted,
    /// A process called [`reset`](crate::Barrier::reset) while this one waited.
    Reset,
    /// As many processes are enrolled as there are parties.
    TooMany {
        /// How many.
        parties: u32,
    },
    /// Shared memory can't be used.
    Failed(Error),
}

impl BarrierError {
    /// Whether the barrier stays broken until a process [resets](crate::Barrier::reset) it.
    #[doc(alias = "BrokenBarrierError")]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::MemberDied { .. } | Self::Broken | Self::Aborted)
    }

    pub(crate) fn broken(how: Option<How>, who: impl FnOnce() -> Option<PeerProcess>) -> Self {
        match how {
            None => Self::Reset,
            Some(How::Aborted) => Self::Aborted,
            Some(How::TimedOut) => Self::Broken,
            Some(How::Died) => Self::MemberDied { who: who() },
        }
    }
}

impl fmt::Display for BarrierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut { arrived, parties, .. } if arrived == parties => write!(
                f,
                "all {parties} arrived at the barrier, and what the last one does first took too long; it is broken until \
                 reset() is called"
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
                write!(f, "{who} died, which the barrier waited for; it is broken until reset() is called")
            }
            Self::MemberDied { who: None } => f.write_str(
                "a process died that the barrier waited for; it is broken until reset() is called",
            ),
            Self::Broken => f.write_str(
                "the barrier is broken: another party waited for too long; call reset() when all know of it",
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
