//! Limits of waits.

use std::time::{Duration, Instant};

/// Maximum time that a call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Does not wait.
    Never,
    /// Waits until this time.
    Until(Instant),
    /// Waits without a time limit.
    Forever,
}

impl Wait {
    /// Waits at most for `timeout`. A timeout that is too long for the clock means no time limit.
    pub fn at_most(timeout: Duration) -> Self {
        Instant::now().checked_add(timeout).map_or(Self::Forever, Self::Until)
    }

    #[doc(hidden)]
    pub fn is_over_at(self, now: Instant) -> bool {
        match self {
            Self::Never => true,
            Self::Until(t) => now >= t,
            Self::Forever => false,
        }
    }

    /// Returns `true` if the time has expired.
    pub fn is_over(self) -> bool {
        self.is_over_at(Instant::now())
    }

    /// Returns the earlier of the deadline and `then`.
    pub(crate) fn or_until(self, then: Instant) -> Instant {
        match self {
            Self::Until(t) => t.min(then),
            Self::Never | Self::Forever => then,
        }
    }
}
