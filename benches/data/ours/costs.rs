//! Time and context switches that one batch costs the trainer and each worker.

use std::time::Instant;

use mp::data::DataLoader;

use super::datasets::{Numbers, Takes};
use super::{WORKERS, numbers, take};
use crate::Result;

/// Runs an epoch with batches of one number, two workers and a new loader. Returns a text with the time for
/// each batch. The text also has the voluntary and involuntary context switches of each process for each
/// batch.
pub(crate) fn details(batches: u64, prefetch: Option<usize>) -> Result<String> {
    let mut builder = DataLoader::builder(Numbers(batches as usize, Takes::Nothing)).num_workers(WORKERS);
    if let Some(factor) = prefetch {
        builder = builder.prefetch_factor(factor);
    }
    let loader = builder.build()?;
    drop(loader.epoch(0).next().ok_or("no batch")??);
    let processes: Vec<(&str, u32)> = [("trainer", std::process::id())]
        .into_iter()
        .chain(loader.pids().into_iter().map(|pid| ("worker", pid)))
        .collect();
    let look = || processes.iter().map(|process| switches(process.1)).collect::<Result<Vec<_>>>();
    let before = look()?;
    let given = take(Instant::now(), loader.epoch(1), numbers)?;
    given.is_of(loader.plan(), 1, true)?;
    let mut text = format!("{:.1} µs a batch", 1e6 / given.rate());
    for ((name, _), (after, before)) in processes.iter().zip(look()?.iter().zip(before)) {
        let [waits, preempted] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64 / batches as f64);
        text += &format!("; {name}: {waits:.2} waits, {preempted:.2} preemptions a batch");
    }
    Ok(text)
}

/// Returns the numbers of voluntary and of involuntary context switches of all threads of a process.
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
