//! Supervision: processes that are restarted after they have ended.
//!
//! A supervised process is a [`ChildGroup`](crate::parent::group::ChildGroup) of one rank for its whole life.
//! The state of the rank describes its present process, or the last one. The group has ended when the process
//! is not restarted. So waits, callbacks, the sentinel (an eventfd here) and the exit of this program refer
//! to the end of the group, and need no special case for restarts.
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
//! | killed | remains | cleaned up by |
//! |---|---|---|
//! | the process, at any time | as with any process | its death is declared, and its memory reclaimed, before a restart |
//! | this program, while the process runs or is being started | the process | the kernel, as with any child |
//! | this program, while the process waits | nothing: the stored arguments belong to this process | the reclaim of this process |

pub(crate) mod event;
pub(crate) mod history;
pub(crate) mod restarter;
pub(crate) mod supervision;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Policy for the restart of a process after its end: see
/// [`ProcessBuilder::restart`](crate::ProcessBuilder::restart).
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{Backoff, Restart};
///
/// // Up to five times in a row, after 100 ms, 200 ms, and so on.
/// let crashing = Restart::on_failure(5);
/// // The same, without delays.
/// let quick = Restart::OnFailure { max: 5, backoff: Duration::ZERO.into() };
/// // For ever, also when its function returns; half a minute apart at most.
/// let backoff = Backoff::new(Duration::from_secs(1)).max(Duration::from_secs(30));
/// let service = Restart::Always { backoff };
/// # let _ = (crashing, quick, service);
/// ```
///
/// | the process | `Never` | `OnFailure` | `Always` |
/// |---|---|---|---|
/// | returns, or calls `exit(0)` and no result is awaited | no restart | no restart | restarted |
/// | fails in any way that [`SpawnError`](crate::SpawnError) lists: an error, a panic, an exit code, a signal, no report in time | no restart | restarted, or [given up](crate::SpawnError::GaveUp) | restarted |
/// | can't be started when a restart is due | | counts as a failure | counts as a failure |
/// | was killed or terminated by its [handle](crate::Process::kill) | no restart | no restart | no restart |
/// | ends by SIGINT, or after a SIGINT or SIGTERM of which this program is notified ([`interrupted`](crate::interrupted)) | no restart | no restart | no restart |
/// | is stopped (SIGSTOP) | waited for | waited for | waited for |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Restart {
    /// No restarts.
    #[default]
    Never,
    /// Restart after a failure.
    OnFailure {
        /// Maximum number of consecutive restarts. The count begins again after a process that was
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

/// Delay between attempts: it grows with each attempt and varies at random, so that processes that failed
/// together don't retry together. Used between the starts of a process ([`Restart`](crate::Restart)), and
/// between the attempts of a task of a pool.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::Backoff;
///
/// let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
/// let patient = Backoff::new(first).factor(3.0).max(longest).jitter(0.5);
/// // Before the second attempt 50 to 100 ms, before the third 150 to 300, and 5 s at most.
/// assert_eq!(patient.before(1), Duration::ZERO);
/// assert!((Duration::from_millis(50)..=Duration::from_millis(100)).contains(&patient.before(2)));
/// ```
///
/// A [`Duration`] converts into a constant back-off.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backoff {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl Default for Backoff {
    /// Returns a back-off without delays.
    fn default() -> Self {
        Duration::ZERO.into()
    }
}

impl From<Duration> for Backoff {
    fn from(always: Duration) -> Self {
        Backoff { first: always, factor: 1.0, max: always, jitter: 0.0 }
    }
}

impl Backoff {
    /// Creates a back-off that waits `first` before the second attempt, and twice as long each time, up to a
    /// minute. A random part of up to a quarter is subtracted.
    #[must_use]
    pub fn new(first: Duration) -> Backoff {
        Backoff { first, factor: 2.0, max: Duration::from_secs(60).max(first), jitter: 0.25 }
    }

    /// Sets the factor by which the delay grows with each attempt. Values below 1, and NaN, count as 1.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Backoff {
        // `max` also replaces NaN.
        self.factor = factor.max(1.0);
        self
    }

    /// Sets the longest delay.
    #[must_use]
    pub fn max(mut self, max: Duration) -> Backoff {
        self.max = max;
        self
    }

    /// Sets the largest part of the delay that is subtracted at random, from 0 (none) to 1 (all). Values
    /// outside that range are clamped, and NaN counts as 0.
    #[must_use]
    pub fn jitter(mut self, part: f64) -> Backoff {
        self.jitter = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// Returns the delay before attempt number `attempt`. Attempt 1 is the first and has no delay.
    #[must_use]
    pub fn before(&self, attempt: u32) -> Duration {
        if attempt < 2 {
            return Duration::ZERO;
        }
        let random = RandomState::new().build_hasher().finish();
        self.delay(attempt, random as f64 / u64::MAX as f64)
    }

    /// Returns the delay for a random number `chance` from 0 to 1.
    fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let power = i32::try_from(attempt.saturating_sub(2)).unwrap_or(i32::MAX);
        let most = self.max.as_secs_f64();
        // Zero stays zero, even if the power is infinite or NaN.
        let grown = match self.first {
            Duration::ZERO => 0.0,
            first => (first.as_secs_f64() * self.factor.powi(power)).min(most),
        };
        Duration::try_from_secs_f64(grown * (1.0 - self.jitter * chance)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_backoff_grows_to_a_maximum_less_jitter() {
        let ms = Duration::from_millis;
        let backoff = Backoff::new(ms(100)).factor(3.0).max(ms(1000)).jitter(0.5);
        let longest: Vec<_> = (2..7).map(|attempt| backoff.delay(attempt, 0.0)).collect();
        assert_eq!(longest, [ms(100), ms(300), ms(900), ms(1000), ms(1000)]);
        assert_eq!((backoff.delay(2, 1.0), backoff.delay(9, 0.5)), (ms(50), ms(750)));
        assert_eq!(backoff.delay(u32::MAX, 0.0), ms(1000));
        assert_eq!(Backoff::from(ms(7)).delay(5, 1.0), ms(7));
        assert_eq!(Backoff::default().delay(5, 0.0), Duration::ZERO);
        let none = Backoff::new(Duration::ZERO);
        assert!([2, 9, 1100, u32::MAX].iter().all(|attempt| none.delay(*attempt, 0.0).is_zero()));
        let odd = Backoff::new(Duration::MAX).factor(f64::NAN).jitter(f64::NAN);
        assert_eq!(odd.delay(2, 1.0), Duration::MAX);
        assert_eq!(Backoff::new(ms(1)).factor(f64::INFINITY).max(ms(9)).jitter(7.0).delay(3, 1.0), ms(0));
    }
}
