//! Which tasks are tried again, how often, and when.
//!
//! A task that a worker has begun and that has failed is offered to its call's [`Retry`] before it has an outcome, by the pool's
//! thread, which holds no lock then. It has one of these states, and moves on under the lock of `workers::state`:
//!
//! | where | it goes to | when |
//! |---|---|---|
//! | has failed | settled with its error | it was tried as often as it may, it is not to be tried again, its call is cancelled or the pool is ended, or its arguments could not be kept |
//! | | `later`, or its job at once | else |
//! | `later`: its arguments, and a time; no worker knows of it | its job, from which it is given out as any task is | the time is over |
//! | | settled: `Cancelled`, `Terminated`, `Broken` | its call is cancelled, or the pool is ended |
//!
//! What a death leaves: a worker's leaves all of that as it is, and the pool's takes all of it along.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use mp_core::user_code::{Apart, caught};

use crate::error::TaskError;

/// How long a task waits before it is [tried again](crate::Call::retry_if): longer each time, and not all tasks equally long, so
/// that those which failed together don't come back together.
///
/// ```
/// use std::time::Duration;
/// use mp_pool::Backoff;
///
/// let patient = Backoff::new(Duration::from_millis(100)).factor(3.0).max(Duration::from_secs(5)).jitter(0.5);
/// // Before the second attempt 50 to 100 ms, before the third 150 to 300, and 5 s at most.
/// # _ = patient;
/// ```
///
/// A [`Duration`] is a back-off as well, which is always as long as that. Meanwhile the task is with the pool, and no worker is
/// occupied by it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backoff {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl Default for Backoff {
    /// None: a task is tried again at once.
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
    /// `first` before the second attempt, twice as long each time, up to a minute, and up to a quarter of that less, by chance.
    #[must_use]
    pub fn new(first: Duration) -> Backoff {
        Backoff { first, factor: 2.0, max: Duration::from_secs(60).max(first), jitter: 0.25 }
    }

    /// How many times as long it is each time; at least 1.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Backoff {
        // Also for one that is no number.
        self.factor = factor.max(1.0);
        self
    }

    /// The longest.
    #[must_use]
    pub fn max(mut self, max: Duration) -> Backoff {
        self.max = max;
        self
    }

    /// How much shorter it may be by chance, as a part of it: from 0, never, to 1, down to nothing.
    #[must_use]
    pub fn jitter(mut self, part: f64) -> Backoff {
        self.jitter = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// How long to wait before attempt number `attempt`, the first of which is 1; `chance` is from 0 to 1.
    fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let power = i32::try_from(attempt.saturating_sub(2)).unwrap_or(i32::MAX);
        let most = self.max.as_secs_f64();
        let grown = (self.first.as_secs_f64() * self.factor.powi(power)).min(most);
        Duration::try_from_secs_f64(grown * (1.0 - self.jitter * chance)).unwrap_or(self.max)
    }
}

type When = dyn Fn(&TaskError) -> bool + Send + Sync;

/// Which tasks of a call are tried again.
#[derive(Clone, Default)]
pub(crate) struct Retry {
    /// How often at most.
    pub(crate) times: u32,
    /// After which errors.
    when: Option<Arc<Apart<Box<When>>>>,
    pub(crate) backoff: Backoff,
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("times", &self.times)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

impl Retry {
    /// So often, after the errors that `when` says.
    pub(crate) fn set(&mut self, times: u32, when: impl Fn(&TaskError) -> bool + Send + Sync + 'static) {
        self.times = times;
        self.when = Some(Arc::new(Apart::new(Box::new(when))));
    }

    /// How long to wait before a task is tried again that was begun `tries` times; `None` if it is not. Code of the user runs here: if it
    /// panics, the task is not tried again.
    pub(crate) fn wait(&self, tries: u32, error: &TaskError) -> Option<Duration> {
        let tries_left = tries <= self.times && self.times > 0 && !mp_core::mutant!("pool.retry.none");
        let wanted = || self.when.as_deref().and_then(Apart::get).is_some_and(|when| when(error));
        if !tries_left || !caught(wanted).unwrap_or(false) {
            return None;
        }
        let random = RandomState::new().build_hasher().finish();
        Some(self.backoff.delay(tries + 1, random as f64 / u64::MAX as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_grows_up_to_its_longest_and_is_shorter_by_chance() {
        let ms = Duration::from_millis;
        let backoff = Backoff::new(ms(100)).factor(3.0).max(ms(1000)).jitter(0.5);
        let longest: Vec<_> = (2..7).map(|attempt| backoff.delay(attempt, 0.0)).collect();
        assert_eq!(longest, [ms(100), ms(300), ms(900), ms(1000), ms(1000)]);
        assert_eq!((backoff.delay(2, 1.0), backoff.delay(9, 0.5)), (ms(50), ms(750)));
        assert_eq!(backoff.delay(u32::MAX, 0.0), ms(1000));
        assert_eq!(Backoff::from(ms(7)).delay(5, 1.0), ms(7));
        assert_eq!(Backoff::default().delay(5, 0.0), Duration::ZERO);
        let odd = Backoff::new(Duration::MAX).factor(f64::NAN).jitter(f64::NAN);
        assert_eq!(odd.delay(2, 1.0), Duration::MAX);
        assert_eq!(Backoff::new(ms(1)).factor(f64::INFINITY).max(ms(9)).jitter(7.0).delay(3, 1.0), ms(0));
    }
}
