//! Durations of single events, in seconds: the first batch, the death of a worker, a resume.

use std::time::{Duration, Instant};

use mp::Tensor;
use mp::data::plan::Batching;
use mp::data::{BatchInfo, DataLoader, DataLoaderBuilder, Dataset, LoaderState};

use super::datasets::{Filled, Numbers, Takes};
use super::{WORKERS, filled, numbers, take};
use crate::run::{Contender, Round};
use crate::{Result, stats};

/// Number of samples in a batch of the row `kill`, and the time that each sample takes.
const SLOW: (u64, Duration) = (5, Duration::from_millis(2));

/// Returns a contender that measures the time from the creation of a loader until its first batch arrives.
fn to_the_first<D: Dataset>(
    builder: impl Fn() -> DataLoaderBuilder<D> + 'static,
    look: fn(D::Batch, &BatchInfo) -> Result<u64>,
) -> Contender {
    Contender::new("", move || {
        let start = Instant::now();
        let loader = builder().num_workers(WORKERS).build()?;
        let batch = loader.epoch(0).next().ok_or("no batch")??;
        let figure = start.elapsed().as_secs_f64();
        let planned = loader.plan().epoch(0).batch(0)?.ok_or("no batch is planned")?;
        let (batch, info) = batch.into_parts();
        if info.items != planned.items {
            return Err("the first batch has other samples".into());
        }
        Ok(Round::Figure { figure, check: look(batch, &info)? })
    })
}

/// Returns mp's contender for the row `first`, whose batches have 4 numbers.
pub(crate) fn first() -> Contender {
    to_the_first(|| DataLoader::builder(Numbers(1000, Takes::Nothing)).batch_size(4), numbers)
}

/// Returns mp's contender for the row `first_38m`, whose batches have 64 images.
pub(crate) fn first_large(batches: usize) -> Contender {
    to_the_first(move || DataLoader::builder(Filled(64 * batches)).batch_size(64), filled)
}

/// Returns mp's contender for the row `kill`, in which a worker is killed. The figure is the longest wait for
/// a batch, minus the time that making a batch takes.
pub(crate) fn kill(batches: usize) -> Contender {
    let (size, each) = SLOW;
    Contender::new("", move || {
        let dataset = Numbers(size as usize * batches, Takes::Each(each));
        let loader = DataLoader::builder(dataset).batch_size(size).num_workers(WORKERS).build()?;
        let (longest, last) = (std::cell::Cell::new(Duration::ZERO), std::cell::Cell::new(Instant::now()));
        let look = |batch: Tensor<i64>, info: &BatchInfo| {
            if info.number > 10 {
                longest.set(longest.get().max(last.get().elapsed()));
            }
            last.set(Instant::now());
            if info.number == 20 {
                let pid = rustix::process::Pid::from_raw(info.pid as i32).ok_or("no process")?;
                rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            }
            numbers(batch, info)
        };
        let given = take(Instant::now(), loader.epoch(0), look)?;
        given.is_of(loader.plan(), 0, true)?;
        if loader.metrics().restarts != 1 {
            return Err(format!("{} workers were replaced", loader.metrics().restarts).into());
        }
        let figure = longest.get().as_secs_f64() - each.as_secs_f64() * size as f64;
        Ok(Round::Figure { figure, check: given.check })
    })
}

/// Returns the checksum of a run of the row `kill` in which no batch is missing.
pub(crate) fn kill_check(batches: usize) -> u64 {
    let size = SLOW.0;
    (0..batches as u64).map(|k| (k + 1) * (size * k..size * (k + 1)).sum::<u64>()).sum()
}

/// Returns mp's contender for the rows `resume` and `resume_tokens` (`by_tokens`). The figure is the time
/// until the first batch arrives when a shuffled epoch is resumed at the batch `next`.
pub(crate) fn resume(next: u64, by_tokens: bool) -> Result<Contender> {
    const LEN: usize = 8 * 200_000;
    let numbers = Numbers(LEN, Takes::Nothing);
    let builder = DataLoader::builder(numbers).shuffle(true).seed(5).num_workers(WORKERS);
    let builder = if by_tokens {
        let lengths = (0..LEN as u32).map(|i| 1 + i * 7 % 101).collect();
        builder.batching(Batching::MaxTokens { lengths, tokens: 800, window: 1000 })
    } else {
        builder.batch_size(8)
    };
    let loader = builder.build()?;
    let order = loader.plan().epoch(0);
    if by_tokens {
        // State of a trainer that has received all batches before it.
        for batch in 0..next {
            order.batch(batch)?.ok_or("no such batch")?;
        }
    }
    let wanted = order.batch(next)?.ok_or("no such batch")?;
    let mut state = serde_json::to_value(loader.epoch(0).state())?;
    state["plan"] = serde_json::to_value(order.state(next))?;
    let state = serde_json::from_value::<LoaderState>(state)?.sealed();
    Ok(Contender::new("", move || {
        let mut times = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            let batch = loader.resume(&state)?.next().ok_or("no batch")??;
            times.push(start.elapsed().as_secs_f64());
            let got: Vec<usize> = batch.iter().map(|number| number as usize).collect();
            if got != wanted.items.iter().map(|item| item.index).collect::<Vec<_>>() {
                return Err(format!("other samples than those of batch {next}").into());
            }
        }
        Ok(Round::Figure { figure: stats::median(&times), check: 0 })
    }))
}
