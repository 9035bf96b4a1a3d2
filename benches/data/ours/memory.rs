//! Measurements of the memory of workers, in bytes.

use std::cell::Cell;
use std::time::Instant;

use mp::data::{BatchInfo, DataLoader, FrozenStrings};

use super::datasets::{Filled, PATH, Paths, path};
use super::{WORKERS, epochs, filled, numbers, take};
use crate::Result;
use crate::run::{Contender, Round};

/// Returns mp's contender for the row `memory`: the private memory of a worker.
pub(crate) fn memory(batches: usize) -> Result<Contender> {
    let builder = DataLoader::builder(Filled(64 * batches)).batch_size(64);
    epochs(String::new(), builder, (WORKERS, true), filled, |loader, _| {
        private(*loader.pids().first().ok_or("no worker")?)
    })
}

/// Mappings whose sizes [`sum_of`] adds up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MappingKind {
    All,
    Private,
    Shared,
}

/// Returns the sum of a field of `/proc/PID/smaps` over the selected mappings of a process.
fn sum_of(field: &str, pid: u32, of: MappingKind) -> Result<f64> {
    let (mut counts, mut bytes) = (false, 0.0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(name), Some(kib)) if name == field && counts => bytes += kib.parse::<f64>()? * 1024.0,
            // `rw-p`: the permissions of a mapping begin its part.
            (Some(range), Some(permissions)) if range.contains('-') && !range.ends_with(':') => {
                counts = match of {
                    MappingKind::All => true,
                    MappingKind::Private => permissions.ends_with('p'),
                    MappingKind::Shared => permissions.ends_with('s'),
                };
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Returns the bytes of the pages that a process has written in its private mappings. Shared mappings don't
/// count.
///
/// # Errors
/// Returns an error if the process does not exist.
pub(crate) fn private(pid: u32) -> Result<f64> {
    sum_of("Private_Dirty:", pid, MappingKind::Private)
}

const LIST_WORKERS: usize = 8;

/// Runs a shuffled epoch of `len` samples, which 8 workers read from these paths. Returns the sum of the
/// samples, and a number of bytes: all memory of the workers, plus the shared memory of the trainer. A page
/// that n processes share counts 1/n for each of these processes.
fn list(paths: &FrozenStrings, len: usize, epoch: u64) -> Result<(u64, f64)> {
    let builder = DataLoader::builder(Paths(paths.clone(), len)).batch_size(4096).shuffle(true);
    let loader = builder.num_workers(LIST_WORKERS).build()?;
    let (whole, sum) = (paths.len() == len, Cell::new(0));
    let look = |batch, info: &BatchInfo| {
        // A list of one path returns another number for most samples.
        sum.set(if whole { sum.get() + numbers(batch, info)? } else { 0 });
        Ok(0)
    };
    take(Instant::now(), loader.epoch(epoch), look)?.is_of(loader.plan(), epoch, true)?;
    let mut bytes = sum_of("Pss:", std::process::id(), MappingKind::Shared)?;
    for pid in loader.pids() {
        bytes += sum_of("Pss:", pid, MappingKind::All)?;
    }
    Ok((sum.get(), bytes))
}

/// Returns mp's contender for the row `paths`. Its figure is the size of the list in the trainer, plus the
/// memory that workers need in addition to workers with a list of one path.
pub(crate) fn paths(len: usize) -> Result<Contender> {
    let (one, all, mut epoch) = (FrozenStrings::new([path(0)])?, FrozenStrings::new((0..len).map(path))?, 0);
    Ok(Contender::new("FrozenStrings", move || {
        epoch += 1;
        let (_, before) = list(&one, len, epoch)?;
        let (check, after) = list(&all, len, epoch)?;
        Ok(Round::Figure { figure: all.nbytes() as f64 + after - before, check })
    }))
}

/// Returns the contender `one copy` of the row `paths`: the size of the paths and their end offsets, stored
/// once.
pub(crate) fn one_copy(len: usize) -> Contender {
    let figure = (len * (PATH + size_of::<u64>())) as f64;
    Contender::new("", move || Ok(Round::Figure { figure, check: (0..len as u64).sum() }))
}
