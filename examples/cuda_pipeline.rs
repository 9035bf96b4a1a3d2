//! Tensors on a GPU go through three processes: one fills them, one multiplies, one looks at the result. None is copied, and no host
//! waits for another process's kernels: each stream does, on the device.
//!
//! `cargo run --release --features cuda --example cuda_pipeline`

mod cuda;

use mp::cuda::CudaTensor;
use mp::{AnyResult, Queue};
use serde::{Deserialize, Serialize};

use cuda::Gpu;

const BATCHES: usize = 20;
const ELEMENTS: usize = 1 << 18;

#[derive(Clone, Serialize, Deserialize)]
struct Belt {
    filled: Queue<CudaTensor<f32>>,
    multiplied: Queue<CudaTensor<f32>>,
}

/// The process in the middle.
fn multiply(belt: Belt) -> AnyResult<()> {
    let gpu = Gpu::new()?;
    while let Some(batch) = belt.filled.get()? {
        let mut result = CudaTensor::empty(batch.shape(), &gpu.stream)?;
        // The stream waits, on the device, for what the sender's stream does with the batch.
        let from = batch.on_cudarc(&gpu.stream)?;
        gpu.multiply(&mut result.on_cudarc_mut(&gpu.stream)?, &from, 3.0)?;
        drop(from);
        belt.multiplied.put(result)?;
        // Dropped here, the batch's memory is the sender's again when the kernel has run.
    }
    belt.multiplied.close();
    Ok(())
}

fn fill(belt: Belt) -> AnyResult<()> {
    let gpu = Gpu::new()?;
    for number in 0..BATCHES {
        belt.filled.put(CudaTensor::full([ELEMENTS], number as f32, &gpu.stream)?)?;
    }
    belt.filled.close();
    // Its memory lives on where it is used, and what it was still doing is waited for.
    Ok(())
}

fn main() -> AnyResult<()> {
    let Some(name) = cuda::gpu_or_skipped() else { return Ok(()) };
    let belt = Belt { filled: Queue::bounded(4)?, multiplied: Queue::bounded(4)? };
    let source = mp::Process::builder().name("fill").spawn(fill, belt.clone())?;
    let middle = mp::Process::builder().name("multiply").spawn(multiply, belt.clone())?;
    let gpu = Gpu::new()?;
    let mut sum = 0.0;
    while let Some(batch) = belt.multiplied.get()? {
        let values = gpu.stream.cudarc().clone_dtoh(&batch.on_cudarc(&gpu.stream)?)?;
        assert!(values.iter().all(|value| *value == values[0]));
        sum += f64::from(values[0]);
    }
    source.join()?;
    middle.join()?;
    assert_eq!(sum, 3.0 * (BATCHES * (BATCHES - 1) / 2) as f64);
    println!("{name}: {BATCHES} batches of {ELEMENTS} floats through three processes, sum {sum}");
    Ok(())
}
