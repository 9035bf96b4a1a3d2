//! Measurements of mp's loader. Each row of a batch is compared with the samples that the loader reports for
//! the batch. After the clock has stopped, the reported samples are compared with the plan, batch by batch.

mod costs;
mod datasets;
mod memory;
mod moments;
mod rates;

use std::time::{Duration, Instant};

use mp::Tensor;
use mp::data::plan::Plan;
use mp::data::{BatchInfo, Batches, DataLoader, DataLoaderBuilder, Dataset, Item};

pub(crate) use costs::details;
pub(crate) use datasets::Takes;
pub(crate) use memory::{memory, one_copy, paths, private};
pub(crate) use moments::{first, first_large, kill, kill_check, resume};
pub(crate) use rates::{decode, large_items, list_of_strings, small, stream, strings, transfer, uneven};

use crate::Result;
use crate::run::{Contender, Round};

const WORKERS: usize = 2;

/// Duration, checksum and batches of an epoch.
struct EpochResult {
    took: Duration,
    /// Sum of the checksums of all batches, each multiplied by the number of its batch from 1.
    check: u64,
    /// Number and samples of each batch, in the order of arrival.
    batches: Vec<(u64, Vec<Item>)>,
}

impl EpochResult {
    /// Returns the batches per second.
    fn rate(&self) -> f64 {
        self.batches.len() as f64 / self.took.as_secs_f64()
    }

    /// Returns an error if the batches differ from the plan: a batch is missing, was delivered twice or has
    /// other samples. With `in_order`, the order of the batches must be the planned one, too.
    fn is_of(&self, plan: &Plan, epoch: u64, in_order: bool) -> Result<()> {
        let order = plan.epoch(epoch);
        let mut batches: Vec<_> = self.batches.iter().collect();
        if !in_order {
            batches.sort_unstable_by_key(|batch| batch.0);
        }
        if order.batches() != Some(batches.len() as u64) {
            return Err(format!("{} batches, not {:?}", batches.len(), order.batches()).into());
        }
        for (place, (number, items)) in batches.into_iter().enumerate() {
            let planned = order.batch(place as u64)?.ok_or("no such batch in the plan")?;
            if (planned.number, &planned.items) != (*number, items) {
                return Err(format!("batch {number} is in the place of {place}, or has other samples").into());
            }
        }
        Ok(())
    }
}

/// Receives all batches of an epoch. `look` compares a batch with its samples, and returns its checksum.
fn take<D: Dataset>(
    start: Instant,
    batches: Batches<D>,
    look: impl Fn(D::Batch, &BatchInfo) -> Result<u64>,
) -> Result<EpochResult> {
    let (mut check, mut given) = (0, Vec::new());
    for batch in batches {
        let (batch, info) = batch?.into_parts();
        check += (info.number + 1) * look(batch, &info)?;
        given.push((info.number, info.items));
    }
    Ok(EpochResult { took: start.elapsed(), check, batches: given })
}

/// Returns a contender that runs one epoch in each round, and checks it against the plan. `figure` computes
/// the figure of the round.
fn epochs<D: Dataset>(
    name: String,
    builder: DataLoaderBuilder<D>,
    (workers, in_order): (usize, bool),
    look: impl Fn(D::Batch, &BatchInfo) -> Result<u64> + 'static,
    figure: impl Fn(&DataLoader<D>, &EpochResult) -> Result<f64> + 'static,
) -> Result<Contender> {
    let (loader, mut epoch) = (builder.num_workers(workers).in_order(in_order).build()?, 0);
    Ok(Contender::new(name, move || {
        let given = take(Instant::now(), loader.epoch(epoch), &look)?;
        given.is_of(loader.plan(), epoch, in_order)?;
        epoch += 1;
        Ok(Round::Figure { figure: figure(&loader, &given)?, check: given.check })
    }))
}

/// Checks that `numbers` are the indices of the batch's samples, in order.
fn each_is_of(info: &BatchInfo, numbers: impl ExactSizeIterator<Item = u64>) -> Result<()> {
    let number = info.number;
    if numbers.len() != info.items.len() {
        return Err(format!("batch {number} has {} rows", numbers.len()).into());
    }
    match numbers.zip(&info.items).find(|(number, item)| *number != item.index as u64) {
        None => Ok(()),
        Some((got, item)) => Err(format!("batch {number} has {got} for sample {}", item.index).into()),
    }
}

/// Checks the first and the last value of each row in a batch of [`Filled`](datasets::Filled), and returns
/// its checksum.
fn filled(batch: Tensor<f32>, info: &BatchInfo) -> Result<u64> {
    let values = batch.as_slice()?;
    let rows = values.chunks_exact(values.len() / info.items.len());
    each_is_of(info, rows.clone().map(|row| row[0] as u64))?;
    each_is_of(info, rows.map(|row| row[row.len() - 1] as u64))?;
    Ok((values[0] + values[values.len() - 1]) as u64)
}

/// Checks each value in a batch of [`Numbers`](datasets::Numbers), and returns its checksum.
fn numbers(batch: Tensor<i64>, info: &BatchInfo) -> Result<u64> {
    let values = batch.as_slice()?;
    each_is_of(info, values.iter().map(|value| *value as u64))?;
    Ok(values.iter().sum::<i64>() as u64)
}
