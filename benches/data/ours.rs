//! mp's loader, two workers.

use std::path::Path;
use std::time::{Duration, Instant};

use mp::data::plan::Batching;
use mp::data::{
    Batches, Context, DataLoader, DataLoaderBuilder, Dataset, FrozenStrings, Item, IterableDataset, Loaded,
    LoaderState, Position, Samples,
};
use mp::{AnyResult, Tensor};
use mp_bench_decoder::SIDE;
use serde::{Deserialize, Serialize};

use crate::images::Images;
use crate::references::BATCH;
use crate::run::{Contender, Round};
use crate::{Result, stats};

const WORKERS: usize = 2;
/// Of the row `kill`: how many samples a batch has, and how long each takes.
const SLOW: (u64, Duration) = (5, Duration::from_millis(2));

/// Images that are filled with their number.
#[derive(Serialize, Deserialize)]
struct Filled(usize);

impl Dataset for Filled {
    type Batch = Tensor<f32>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[3, SIDE as usize, SIDE as usize], |item, _, row| {
            row.fill(item.index as f32);
            Ok(())
        })
    }
}

/// The numbers themselves, each of which takes this long.
#[derive(Serialize, Deserialize)]
struct Numbers(usize, Duration);

impl Dataset for Numbers {
    type Batch = Tensor<i64>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            if !self.1.is_zero() {
                std::thread::sleep(self.1);
            }
            row[0] = item.index as i64;
            Ok(())
        })
    }
}

/// The middle of image files.
#[derive(Serialize, Deserialize)]
struct Files(FrozenStrings, usize);

impl Dataset for Files {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.1
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[SIDE as usize, SIDE as usize, 3], |item, _, row| {
            mp_bench_decoder::decode(Path::new(&self.0[item.index % self.0.len()]), row)
        })
    }
}

/// Shards of samples of 256 bytes.
#[derive(Serialize, Deserialize)]
struct Records(u64);

type Record = [u64; 32];

impl IterableDataset for Records {
    type Batch = Tensor<u64>;
    type Reader = std::iter::Map<std::ops::Range<u64>, fn(u64) -> AnyResult<Record>>;

    fn shards(&self) -> usize {
        16
    }

    fn open(&mut self, _: usize, _: Position) -> AnyResult<Self::Reader> {
        Ok((0..self.0).map(|i| Ok([i; 32])))
    }

    fn fetch(&mut self, samples: Samples<Record>, cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows_from(samples, &[32], |record, _, row| {
            row.copy_from_slice(&record);
            Ok(())
        })
    }
}

/// `stream`: what a batch of 64 of these takes, in seconds, with this many workers.
pub(crate) fn stream(workers: usize) -> Result<Contender> {
    const EACH: u64 = 6400;
    let builder = DataLoader::streaming(Records(EACH)).batch_size(64).prefetch_factor(4);
    let (loader, mut epoch) = (builder.num_workers(workers).build()?, 0);
    Ok(Contender::new(format!("{workers} workers"), move || {
        let (start, mut check, mut count) = (Instant::now(), 0, 0);
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            let (last, values) = (batch.info.items[63].index as u64, batch.as_slice()?);
            if values[values.len() - 1] != last {
                return Err(format!("a batch ends with {}, not with {last}", values[values.len() - 1]).into());
            }
            check += (batch.info.number + 1) * (values[0] + last);
            count += 1;
        }
        if count != 16 * EACH / 64 {
            return Err(format!("{count} batches").into());
        }
        epoch += 1;
        Ok(Round::Figure { figure: start.elapsed().as_secs_f64() / count as f64, check })
    }))
}

/// What the batches of an epoch add up to, and how many there are.
fn sum<D: Dataset>(batches: Batches<D>, check: impl Fn(&D::Batch) -> Result<u64>) -> Result<(u64, u64)> {
    let (mut total, mut count) = (0, 0);
    for batch in batches {
        let batch = batch?;
        total += (batch.info.number + 1) * check(&batch)?;
        count += 1;
    }
    Ok((total, count))
}

/// Batches a second of one epoch after the other.
fn rate<D: Dataset>(
    name: String,
    builder: DataLoaderBuilder<D>,
    check: impl Fn(&D::Batch) -> Result<u64> + 'static,
) -> Result<Contender> {
    let (loader, mut epoch) = (builder.num_workers(WORKERS).build()?, 0);
    Ok(Contender::new(name, move || {
        let start = Instant::now();
        let (check, count) = sum(loader.epoch(epoch), &check)?;
        epoch += 1;
        Ok(Round::Figure { figure: count as f64 / start.elapsed().as_secs_f64(), check })
    }))
}

fn ends(batch: &Tensor<f32>) -> Result<u64> {
    let values = batch.as_slice()?;
    Ok((values[0] + values[values.len() - 1]) as u64)
}

fn numbers(batch: &Tensor<i64>) -> Result<u64> {
    Ok(batch.as_slice()?.iter().sum::<i64>() as u64)
}

/// `transfer`.
pub(crate) fn transfer(batches: usize) -> Result<Contender> {
    rate("prefetch_factor 2".into(), DataLoader::builder(Filled(64 * batches)).batch_size(64), ends)
}

/// `decode`.
pub(crate) fn decode(images: &Images, batches: usize) -> Result<Contender> {
    let paths = FrozenStrings::new(images.paths().map(|path| path.display().to_string()))?;
    let builder = DataLoader::builder(Files(paths, BATCH * batches)).batch_size(BATCH as u64);
    rate("prefetch_factor 2".into(), builder, |batch| Ok(crate::references::ends(batch.as_slice()?)))
}

/// What a batch of one number costs in one run of two workers with a loader of its own: how long it takes, and how often threads have waited or
/// were made to.
pub(crate) fn details(batches: u64) -> Result<String> {
    let builder = DataLoader::builder(Numbers(batches as usize, Duration::ZERO)).num_workers(WORKERS);
    let loader = builder.build()?;
    drop(loader.epoch(0).next().ok_or("no batch")??);
    let processes: Vec<(&str, u32)> = [("trainer", std::process::id())]
        .into_iter()
        .chain(loader.pids().into_iter().map(|pid| ("worker", pid)))
        .collect();
    let look = || processes.iter().map(|process| switches(process.1)).collect::<Result<Vec<_>>>();
    let (before, start) = (look()?, Instant::now());
    let (check, count) = sum(loader.epoch(1), numbers)?;
    let took = start.elapsed().as_secs_f64() / batches as f64;
    if (check, count) != ((0..batches).map(|k| (k + 1) * k).sum(), batches) {
        return Err(format!("{count} batches, which add up to {check}").into());
    }
    let mut text = format!("{:.1} µs a batch", took * 1e6);
    for ((name, _), (after, before)) in processes.iter().zip(look()?.iter().zip(before)) {
        let [waits, preempted] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64 / batches as f64);
        text += &format!("; {name}: {waits:.2} waits, {preempted:.2} preemptions a batch");
    }
    Ok(text)
}

/// Context switches of all threads of a process: by itself, and not.
fn switches(pid: u32) -> Result<[u64; 2]> {
    let mut sum = [0; 2];
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        for (name, sum) in ["voluntary_ctxt", "nonvoluntary_ctxt"].iter().zip(&mut sum) {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            *sum += line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Ok(sum)
}

/// `numbers_256`, `number`: with that many of them in a batch.
pub(crate) fn small(size: usize, batches: usize, prefetch: usize) -> Result<Contender> {
    let builder = DataLoader::builder(Numbers(size * batches, Duration::ZERO)).batch_size(size as u64);
    rate(format!("prefetch_factor {prefetch}"), builder.prefetch_factor(prefetch), numbers)
}

/// `first`, in seconds.
pub(crate) fn first() -> Contender {
    Contender::new("", || {
        let start = Instant::now();
        let builder = DataLoader::builder(Numbers(1000, Duration::ZERO)).batch_size(4);
        let loader = builder.num_workers(WORKERS).build()?;
        let batch: Loaded<_> = loader.epoch(0).next().ok_or("no batch")??;
        let figure = start.elapsed().as_secs_f64();
        Ok(Round::Figure { figure, check: numbers(&batch)? })
    })
}

/// `memory`: of a worker, in bytes.
pub(crate) fn memory(batches: usize) -> Result<Contender> {
    let (loader, mut epoch) =
        (DataLoader::builder(Filled(64 * batches)).batch_size(64).num_workers(WORKERS).build()?, 0);
    Ok(Contender::new("", move || {
        let (check, _) = sum(loader.epoch(epoch), ends)?;
        epoch += 1;
        let pid = *loader.pids().first().ok_or("no worker")?;
        Ok(Round::Figure { figure: private(pid)?, check })
    }))
}

/// Bytes that a process alone has, of memory that it does not share by intent: pages that it wrote, in mappings that are its own.
///
/// # Errors
/// There is no such process.
pub(crate) fn private(pid: u32) -> Result<f64> {
    let (mut own, mut bytes) = (false, 0.0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Private_Dirty:"), Some(kib)) if own => bytes += kib.parse::<f64>()? * 1024.0,
            // `rw-p`: the permissions of a mapping begin its part.
            (Some(range), Some(permissions)) if range.contains('-') => own = permissions.ends_with('p'),
            _ => {}
        }
    }
    Ok(bytes)
}

/// `kill`: how much longer than a batch takes the longest wait is, when a worker is killed, in seconds.
pub(crate) fn kill(batches: usize) -> Contender {
    let (size, each) = SLOW;
    Contender::new("", move || {
        let builder = DataLoader::builder(Numbers(size as usize * batches, each)).batch_size(size);
        let loader = builder.num_workers(WORKERS).build()?;
        let (mut longest, mut last, mut check) = (Duration::ZERO, Instant::now(), 0);
        for batch in loader.epoch(0) {
            let batch = batch?;
            if batch.info.number > 10 {
                longest = longest.max(last.elapsed());
            }
            last = Instant::now();
            check += (batch.info.number + 1) * numbers(&batch)?;
            if batch.info.number == 20 {
                let pid = rustix::process::Pid::from_raw(batch.info.pid as i32).ok_or("no process")?;
                rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            }
        }
        if loader.metrics().restarts != 1 {
            return Err(format!("{} workers were replaced", loader.metrics().restarts).into());
        }
        Ok(Round::Figure { figure: longest.as_secs_f64() - each.as_secs_f64() * size as f64, check })
    })
}

/// What `kill` adds up to if no batch is missing.
pub(crate) fn kill_check(batches: usize) -> u64 {
    let size = SLOW.0;
    (0..batches as u64).map(|k| (k + 1) * (size * k..size * (k + 1)).sum::<u64>()).sum()
}

/// `resume`, `resume_tokens`: to the first batch of a shuffled epoch from this batch on, in seconds.
pub(crate) fn resume(next: u64, by_tokens: bool) -> Result<Contender> {
    const LEN: usize = 8 * 200_000;
    let numbers = Numbers(LEN, Duration::ZERO);
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
        // The state of a trainer that was given all before it.
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
