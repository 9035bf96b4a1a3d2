//! Weights on a GPU, created by one process and read by several other processes in the same memory, without a
//! copy. The readers still use the memory after its creator has ended.
//!
//! `cargo run --release --features cuda --example cuda_broadcast`

mod cuda;

use mp::cuda::{CudaTensor, FrozenCudaTensor};
use mp::{AnyResult, Queue};
use serde::{Deserialize, Serialize};

use cuda::Gpu;

const READERS: usize = 3;
const WEIGHTS: usize = 10_000;

#[derive(Clone, Serialize, Deserialize)]
struct Wires {
    weights: Queue<FrozenCudaTensor<f32>>,
    /// Messages that let the readers begin. They are sent after the creator of the weights has ended.
    begin: Queue<()>,
}

fn make(wires: Wires) -> AnyResult<()> {
    let gpu = Gpu::new()?;
    let values: Vec<f32> = (0..WEIGHTS).map(|i| i as f32).collect();
    let weights = CudaTensor::from_slice(&values, [WEIGHTS], &gpu.stream)?.freeze();
    for _ in 0..READERS {
        wires.weights.put(weights.clone())?;
    }
    Ok(())
}

fn read(rank: usize, wires: Wires) -> AnyResult<f64> {
    let gpu = Gpu::new()?;
    let weights = wires.weights.get()?.ok_or("there are no weights")?;
    wires.begin.get()?;
    let mut scaled = CudaTensor::empty(weights.shape(), &gpu.stream)?;
    let from = weights.on_cudarc(&gpu.stream)?;
    gpu.multiply(&mut scaled.on_cudarc_mut(&gpu.stream)?, &from, (rank + 1) as f32)?;
    drop(from);
    Ok(scaled.to_vec(&gpu.stream)?.into_iter().map(f64::from).sum())
}

fn main() -> AnyResult<()> {
    let Some(name) = cuda::gpu_or_skipped() else { return Ok(()) };
    // This process uses no GPU itself.
    let wires = Wires { weights: Queue::bounded(READERS)?, begin: Queue::bounded(READERS)? };
    let maker = mp::Process::builder().spawn(make, wires.clone())?;
    let readers = mp::start_processes(read, wires.clone(), mp::SpawnOptions::nprocs(READERS))?;
    maker.join()?;
    for _ in 0..READERS {
        wires.begin.put(())?;
    }
    let sums = readers.join()?;
    let sum = (WEIGHTS * (WEIGHTS - 1) / 2) as f64;
    for (rank, found) in sums.iter().enumerate() {
        assert_eq!(*found, sum * (rank + 1) as f64);
    }
    println!("{name}: {READERS} processes read {WEIGHTS} weights of a process that had ended, sum {sum}");
    Ok(())
}
