//! Data in shared memory: copied once from private memory, or created in shared memory without a copy.
//!
//! `cargo run --release --example share_memory`

use std::time::Instant;

use mp::tensor::dispatch;
use mp::{AnyTensor, DType, ShareMemory, SharedTensor, SpawnOptions, Tensor, start_processes};

/// Adds one to each element of this rank's half.
fn worker(rank: usize, counters: SharedTensor<u64>) -> mp::AnyResult<()> {
    let half = &counters.chunk(2, 0)?[rank];
    for i in 0..half.len() {
        half.fetch_add(i, 1);
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    // One copy: of a vector, a slice, an array of arrays.
    let ordinary: Vec<f32> = (0..16 << 20).map(|i| i as f32).collect();
    let warm = ordinary.share_memory()?; // its pages are given out again below
    drop(warm);
    let start = Instant::now();
    let shared = ordinary.share_memory()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{} MiB copied at {:.1} GB/s", shared.nbytes() >> 20, shared.nbytes() as f64 / seconds / 1e9);
    assert!(shared.is_shared() && shared.as_slice()? == ordinary);

    let table = [[1_i64, 2, 3], [4, 5, 6]].share_memory()?;
    println!("{table}");
    assert_eq!(table.shape(), [2, 3]);
    let mask = [true, false, true].share_memory()?;
    assert_eq!(mask.dtype(), DType::Bool);

    // No copy: created in shared memory.
    let squares = Tensor::from_iter((0..6_u64).map(|i| i * i))?;
    println!("{squares}");
    assert_eq!(squares.as_slice()?, [0, 1, 4, 9, 16, 25]);

    // With a type chosen at run time.
    let dtype: DType = std::env::args().nth(1).as_deref().unwrap_or("bfloat16").parse()?;
    let any = AnyTensor::zeros([2, 2], dtype)?;
    println!("{any}");
    assert_eq!(any.nbytes(), 4 * dispatch!(dtype, T => size_of::<T>()));

    // Every holder may write it, element by element.
    let counters = squares.share();
    start_processes(worker, counters.clone(), SpawnOptions::nprocs(2))?.join()?;
    println!("{counters}");
    assert_eq!(counters.to_vec(), [1, 2, 5, 10, 17, 26]);
    Ok(())
}
