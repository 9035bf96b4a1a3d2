//! A million live tensors of 64 bytes, held by two processes: their cost in descriptors, mappings and bytes.
//!
//! `cargo run --release --example million_tensors -- 1000000`
//!
//! torch needs a mapping for each tensor, and a descriptor or a file. So its number of tensors is limited by
//! `vm.max_map_count` or `ulimit -n`.

use std::fs;
use std::time::Instant;

use mp::{Arena, FrozenTensor, Queue, SpawnOptions, Tensor};

const ELEMENTS: usize = 16;
const BYTES: u64 = (ELEMENTS * size_of::<f32>()) as u64;

/// Returns the numbers of open descriptors and mappings of this process.
fn footprint() -> std::io::Result<(usize, usize)> {
    Ok((fs::read_dir("/proc/self/fd")?.count() - 1, fs::read_to_string("/proc/self/maps")?.lines().count()))
}

type Ends = (Queue<FrozenTensor<f32>>, Queue<(f64, usize, usize)>, Queue<()>);

/// Takes all tensors, and holds them until the parent requests the end.
fn hold(_rank: usize, (tensors, report, end): Ends) -> mp::AnyResult<()> {
    let held = tensors.iter().collect::<Result<Vec<_>, _>>()?;
    let sum = held.iter().map(|t| Ok(f64::from(t.as_slice()?[ELEMENTS - 1]))).sum::<mp::AnyResult<f64>>()?;
    let (fds, mappings) = footprint()?;
    report.put((sum, fds, mappings))?;
    end.get()?;
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let count: usize = match std::env::args().nth(1) {
        Some(n) => n.parse().map_err(|e| format!("{n:?} is no number of tensors: {e}"))?,
        None => 1_000_000,
    };
    let (tensors, report, end) = (Queue::bounded(1024)?, Queue::bounded(1)?, Queue::bounded(1)?);
    let other =
        mp::start_processes(hold, (tensors.clone(), report.clone(), end.clone()), SpawnOptions::nprocs(1))?;

    let (fds_before, mappings_before) = footprint()?;
    let start = Instant::now();
    let mut held = Vec::with_capacity(count);
    for i in 0..count {
        let tensor = Tensor::full([ELEMENTS], i as f32)?.freeze();
        tensors.put(tensor.clone())?;
        held.push(tensor);
    }
    tensors.close();
    let (sum, fds, mappings) = report.get()?.ok_or("the other process ended early")?;
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(sum, (0..count).map(|i| f64::from(i as f32)).sum::<f64>(), "all of them arrived, whole");

    let (own_fds, own_mappings) = footprint()?;
    let reserved = Arena::current()?.memory_stats().reserved;
    let overhead = reserved.saturating_sub(count as u64 * BYTES) as f64 / count as f64;
    println!("{count} tensors of {BYTES} bytes, held by 2 processes, made and sent in {seconds:.2} s");
    println!("descriptors: {own_fds} here ({fds_before} before), {fds} there");
    println!("mappings: {own_mappings} here ({mappings_before} before), {mappings} there");
    println!("shared memory: {reserved} bytes, {overhead:.1} a tensor besides its own");
    drop(held);
    end.put(())?;
    other.join()?;
    Ok(())
}
