//! Measurements of rates over successive epochs, mostly in batches per second.

use std::time::Instant;

use mp::data::{BatchInfo, DataLoader, DataLoaderBuilder, Dataset, FrozenStrings, StreamLoader, Strings};

use super::datasets::{self, Files, Filled, Large, Numbers, RECORD, Records, SHARDS, Takes, Texts};
use super::{WORKERS, epochs, filled, numbers};
use crate::Result;
use crate::images::Images;
use crate::references::{BATCH, ends};
use crate::run::{Contender, Round};

/// Returns a contender that measures batches per second, made by two workers and delivered in order.
fn rate<D: Dataset>(
    name: impl Into<String>,
    builder: DataLoaderBuilder<D>,
    look: impl Fn(D::Batch, &BatchInfo) -> Result<u64> + 'static,
) -> Result<Contender> {
    epochs(name.into(), builder, (WORKERS, true), look, |_, given| Ok(given.rate()))
}

/// Returns mp's contender for the row `transfer`.
pub(crate) fn transfer(batches: usize) -> Result<Contender> {
    rate("", DataLoader::builder(Filled(64 * batches)).batch_size(64), filled)
}

/// Returns mp's contender for the row `decode`. The first and the last image of each batch are compared with
/// their files.
pub(crate) fn decode(images: &Images, batches: usize) -> Result<Contender> {
    let paths = FrozenStrings::new(images.paths().map(|path| path.display().to_string()))?;
    let sums = images.sums()?;
    let builder = DataLoader::builder(Files(paths, BATCH * batches)).batch_size(BATCH as u64);
    rate("", builder, move |batch, info| {
        let got = ends(batch.as_slice()?);
        let sum = |item: Option<&mp::data::Item>| item.map_or(0, |item| sums[item.index % sums.len()]);
        if got != [sum(info.items.first()), sum(info.items.last())] {
            return Err(format!("batch {} has other images than those of its samples", info.number).into());
        }
        Ok(got.iter().sum())
    })
}

/// Returns mp's contender for the rows `numbers_256` and `number`, whose batches have `size` numbers.
pub(crate) fn small(size: usize, batches: usize, prefetch: Option<usize>) -> Result<Contender> {
    let builder = DataLoader::builder(Numbers(size * batches, Takes::Nothing)).batch_size(size as u64);
    match prefetch {
        None => rate("", builder, numbers),
        Some(factor) => rate(format!("prefetch_factor {factor}"), builder.prefetch_factor(factor), numbers),
    }
}

fn texts(batches: usize, at_once: bool) -> Result<(&'static str, DataLoaderBuilder<Texts>)> {
    let paths = FrozenStrings::new((0..256 * batches).map(datasets::path))?;
    let builder = DataLoader::builder(Texts { paths, at_once }).batch_size(256);
    Ok((if at_once { "at-once" } else { "rows" }, builder))
}

/// Checks that each text is the path with the index of its sample. Returns the sum of the bytes of the first
/// and the last text.
fn look<'t>(texts: impl ExactSizeIterator<Item = &'t [u8]> + Clone, info: &BatchInfo) -> Result<u64> {
    super::each_is_of(
        info,
        texts.clone().map(|text| datasets::number_of(text).map_or(u64::MAX, |n| n as u64)),
    )?;
    let sum = |text: &[u8]| text.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let mut all = texts;
    let first = all.next().ok_or("no text")?;
    Ok(sum(first) + sum(all.last().unwrap_or(first)))
}

/// Returns mp's contender for the row `strings`, in which the trainer reads the bytes and offsets of a batch.
pub(crate) fn strings(batches: usize, at_once: bool) -> Result<Contender> {
    let (name, builder) = texts(batches, at_once)?;
    rate(name, builder, |batch: Strings, info| {
        let (bytes, offsets) = batch.into_ragged().into_parts();
        let (bytes, offsets) = (bytes.as_slice()?, offsets.as_slice()?);
        let range = |ends: &[i64]| ends[0] as usize..ends[1] as usize;
        let texts = offsets.windows(2).map(|ends| bytes.get(range(ends)).unwrap_or_default());
        look(texts, info)
    })
}

/// Returns mp's contender for the row `strings_list`, in which the trainer converts a batch to a
/// `Vec<String>`.
pub(crate) fn list_of_strings(batches: usize, at_once: bool) -> Result<Contender> {
    let (name, builder) = texts(batches, at_once)?;
    rate(name, builder, |batch: Strings, info| {
        let texts = batch.to_vec()?;
        look(texts.iter().map(String::as_bytes), info)
    })
}

/// Returns mp's contender for the rows `uneven`, `uneven_two_ahead` and `uneven_any_order`, with four
/// workers. `takes` is the time that each batch of one number takes.
pub(crate) fn uneven(batches: usize, takes: Takes, in_order: bool, prefetch: usize) -> Result<Contender> {
    let builder = DataLoader::builder(Numbers(batches, takes)).prefetch_factor(prefetch);
    epochs(
        format!("prefetch_factor {prefetch}"),
        builder,
        (4, in_order),
        numbers,
        |_, given| Ok(given.rate()),
    )
}

/// Returns mp's contender for the row `items_32m`, in GB per second. One worker copies each item from its
/// private memory.
pub(crate) fn large_items(bytes: usize, count: usize) -> Result<Contender> {
    let look = move |batch: mp::Tensor<u8>, info: &BatchInfo| {
        let values = batch.as_slice()?;
        let number = |at: usize| -> Result<u64> {
            Ok(u64::from_le_bytes(values.get(at..at + 8).ok_or("too short")?.try_into()?))
        };
        let (first, last) = (number(0)?, number(bytes - 8)?);
        super::each_is_of(info, [first].into_iter())?;
        super::each_is_of(info, [last].into_iter())?;
        Ok(first + last)
    };
    let figure = move |_: &_, given: &super::EpochResult| Ok(given.rate() * bytes as f64 / 1e9);
    epochs(String::new(), DataLoader::builder(Large::new(bytes, count)), (1, true), look, figure)
}

/// Returns mp's contender for the row `stream`: seconds for a batch of 64 records, made by `workers` workers.
pub(crate) fn stream(workers: usize) -> Result<Contender> {
    const EACH: u64 = 6400;
    let builder = StreamLoader::builder(Records(EACH)).batch_size(64);
    let (loader, mut epoch) = (builder.num_workers(workers).build()?, 0);
    let setting = if workers == WORKERS { "2 workers" } else { "" };
    Ok(Contender::new(setting, move || {
        let (start, mut check, mut numbers) = (Instant::now(), 0, Vec::new());
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            let number = batch.info.number;
            // As many lanes as shards, in turn: the contents of a batch follow from its number.
            let (shard, first) = (number % SHARDS, 64 * (number / SHARDS));
            let mut rows = batch.as_slice()?.chunks_exact(RECORD).zip(first..);
            if batch.len() != 64 * RECORD || !rows.all(|(row, n)| (row[0], row[RECORD - 1]) == (shard, n)) {
                return Err(
                    format!("batch {number} has other samples than 64 from {first} of {shard}").into()
                );
            }
            check += (number + 1) * (shard + first);
            numbers.push(number);
        }
        let figure = start.elapsed().as_secs_f64() / numbers.len() as f64;
        if !numbers.into_iter().eq(0..SHARDS * EACH / 64) {
            return Err("a batch is missing, or out of turn".into());
        }
        epoch += 1;
        Ok(Round::Figure { figure, check })
    }))
}
