//! Measurement of a point: duration, histogram, and necessary resources.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Result;
use crate::work::tensor::Amount;
use crate::work::{Link, Plan, now};

/// Times of single operations in ns.
pub(super) type Times = Histogram<u64>;

/// Amount of work for one point of a curve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) plan: Plan,
    /// Duration of the measurement of one point, without its warm-up.
    time: Duration,
}

/// Number of short steps that are measured together.
pub(super) const GROUP: u64 = 16;

impl Effort {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, time: Duration::from_millis(if plan.quick { 60 } else { 120 }) }
    }

    /// Returns the number of processes that are started for one point.
    pub(super) fn starts(&self) -> u64 {
        self.plan.repetitions(40)
    }

    /// Returns the number of tensors of `bytes` for one point.
    pub(super) fn tensors(&self, bytes: u64) -> Amount {
        Amount::exactly(6, self.plan.repetitions((1 << 30) / bytes.max(1)).clamp(6, 4_000))
    }

    /// Measures `step`, numbered from 0, until the time is over. Steps that take less than a microsecond are
    /// timed in groups of [`GROUP`], because reading the clock takes about as long as such a step. The
    /// recorded time is then the mean of the group.
    ///
    /// # Errors
    /// Returns the first error of `step`.
    pub(super) fn each(&self, mut step: impl FnMut(u64) -> Result<()>) -> Result<Times> {
        let mut number = 0;
        let mut mean_of = |steps: u64| -> Result<u64> {
            let start = now();
            for _ in 0..steps {
                step(number)?;
                number += 1;
            }
            Ok((now() - start) / steps)
        };
        let (start, mut quickest) = (Instant::now(), u64::MAX);
        for _ in 0..9 {
            quickest = quickest.min(mean_of(1)?);
            if start.elapsed() > self.time {
                break;
            }
        }
        let steps = if quickest < 1_000 { GROUP } else { 1 };
        self.sample(u64::MAX, || mean_of(steps))
    }

    /// Records the times that `sample` returns, until the time is over: at least three, and at most `most`.
    ///
    /// # Errors
    /// Returns the first error of `sample`.
    pub(super) fn sample(&self, most: u64, mut sample: impl FnMut() -> Result<u64>) -> Result<Times> {
        let mut times = empty()?;
        let start = Instant::now();
        while start.elapsed() < self.time / 8 {
            sample()?;
        }
        let start = Instant::now();
        while times.len() < 3 || (times.len() < most && start.elapsed() < self.time) {
            // 0 has no place on a logarithmic axis.
            times.record(sample()?.max(1))?;
        }
        Ok(times)
    }

    /// Measures one message at a time over a link that receives its own messages.
    ///
    /// # Errors
    /// Returns an error for a wrong message, or the link's error.
    pub(super) fn echo(&self, link: &mut impl Link) -> Result<Times> {
        self.each(|number| {
            link.send(number)?;
            same(number, link.receive()?)
        })
    }
}

/// Returns an empty histogram with three significant digits.
fn empty() -> Result<Times> {
    Ok(Histogram::new(3)?)
}

/// Returns the histogram of `times`.
///
/// # Errors
/// Returns an error if there are no times.
pub(super) fn histogram(times: &[f64]) -> Result<Times> {
    let mut all = empty()?;
    times.iter().try_for_each(|&time| all.record((time as u64).max(1)))?;
    if all.is_empty() { Err("no times".into()) } else { Ok(all) }
}

/// Compares a received value with the sent one.
///
/// # Errors
/// Returns an error if they differ.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(wanted: T, got: T) -> Result<()> {
    if wanted == got { Ok(()) } else { Err(format!("wrong result: {got:?} instead of {wanted:?}").into()) }
}

/// Resources that the measurements at one size need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub(super) bytes: u64,
    pub(super) processes: u64,
    pub(super) descriptors: u64,
}

impl Need {
    /// Returns a sentence about the first resource that this machine lacks, if any.
    pub(super) fn lacks(self) -> Option<String> {
        use rustix::process::{Resource, getrlimit};
        let limit = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
        let memory = crate::machine::available() / 2;
        let checks = [
            ("bytes of memory", self.bytes, memory),
            ("processes", self.processes, limit(Resource::Nproc)),
            ("descriptors", self.descriptors, limit(Resource::Nofile)),
        ];
        let (what, needed, there) = checks.into_iter().find(|(_, needed, there)| needed > there)?;
        Some(format!("it needs {needed} {what}, and {there} may be used"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn need_beyond_the_machines_memory_is_reported() {
        assert_eq!(Need::default().lacks(), None);
        let why = Need { bytes: u64::MAX, ..Need::default() }.lacks();
        assert!(why.is_some_and(|why| why.contains("bytes of memory")));
    }
}
