//! Measured work, written once: every carrier of messages ([`Link`]) or tensors ([`tensor`]) does the same
//! work.

pub(crate) mod alloc;
pub(crate) mod files;
pub(crate) mod lock;
pub(crate) mod record;
pub(crate) mod retained;
pub(crate) mod small;
pub(crate) mod tensor;

use crate::process::{self, Cores};
use crate::{Result, stats};

/// Figure of a round in the unit of its row. NaN if the round doesn't count. `None` if the contender has no
/// figure.
pub(crate) type Outcome = Result<Option<f64>>;

/// Function that runs one round of a contender, including the start and the end of its peer process.
pub(crate) type Round = fn(&Plan) -> Outcome;

/// A link in both directions between two processes that carries `u64` messages, each exactly once and in
/// order.
pub(crate) trait Link {
    /// Sends one message.
    fn send(&mut self, message: u64) -> Result<()>;

    /// Waits for one message.
    fn receive(&mut self) -> Result<u64>;
}

/// Amount of work in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// `true` for fewer and shorter rounds.
    pub(crate) quick: bool,
    /// Processors of the two processes, if they are pinned.
    pub(crate) cores: Option<Cores>,
    /// Number of available processors.
    pub(crate) processors: usize,
    /// Exact number of repetitions without warm-up, instead of the contender's number. Used to count system
    /// calls.
    pub(crate) exactly: Option<u64>,
}

/// Repetitions in batches: the median over the batches is robust against disturbances by other programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batches {
    /// Number of repetitions that warm up and don't count.
    pub(crate) warm_up: u64,
    /// Number of batches that count.
    pub(crate) count: u64,
    /// Number of repetitions in each batch.
    pub(crate) each: u64,
}

impl Plan {
    /// Creates a plan, and pins this process to the processor in `cores`.
    ///
    /// # Errors
    /// Returns an error if there are fewer than two processors, or the processors in `cores` are not
    /// available.
    pub(crate) fn new(quick: bool, cores: Option<Cores>) -> Result<Self> {
        let processors = std::thread::available_parallelism()?.get();
        match cores {
            Some(cores) => process::pin(cores.parent)?,
            None if processors < 2 => return Err("two busy processes need two processors".into()),
            None => {}
        }
        Ok(Self { quick, cores, processors, exactly: None })
    }

    /// Returns `full` repetitions, or a quarter of them in a quick round.
    pub(crate) fn repetitions(&self, full: u64) -> u64 {
        if let Some(exactly) = self.exactly {
            return exactly;
        }
        if self.quick { full.div_ceil(4) } else { full }
    }

    /// Returns about `full` repetitions in 20 batches.
    pub(crate) fn batches(&self, full: u64) -> Batches {
        if let Some(each) = self.exactly {
            return Batches { warm_up: 0, count: 1, each };
        }
        let each = self.repetitions(full).div_ceil(20);
        Batches { warm_up: each, count: 20, each }
    }
}

impl Batches {
    /// Runs `step` for every repetition, numbered from 0, and returns the median time of one in ns.
    ///
    /// # Errors
    /// Returns the first error of `step`.
    pub(crate) fn time(self, mut step: impl FnMut(u64) -> Result<()>) -> Result<f64> {
        let mut number = 0;
        for _ in 0..self.warm_up {
            step(number)?;
            number += 1;
        }
        let mut times = Vec::with_capacity(self.count as usize);
        for _ in 0..self.count {
            let start = now();
            for _ in 0..self.each {
                step(number)?;
                number += 1;
            }
            times.push((now() - start) as f64 / self.each as f64);
        }
        Ok(stats::median(&times))
    }
}

/// Returns nanoseconds of a clock that all processes share.
#[inline]
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
