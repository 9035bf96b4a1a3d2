//! A pipeline of three processes on one GPU, which load, crop and inspect images. Batches stay in the GPU's
//! memory while they move from process to process. The stream of each process waits on the GPU for the stream
//! of the previous process, so no host thread waits.
//!
//! `cargo run --release --features cuda --example cuda_pipeline`. Without a GPU, the program reports that and
//! ends. docs/reference/cuda-simulator.md describes a simulated GPU.

use mp::cuda::{CudaStream, CudaTensor, Device};
use mp::{Process, Queue};

const BATCHES: usize = 100;
const BATCH: usize = 16;
const SIDE: usize = 64;
const CROP: usize = 48;

type Batches = Queue<CudaTensor<u8>>;

fn load(to: Batches) -> mp::AnyResult<()> {
    let stream = CudaStream::new(&Device::new(0)?)?;
    for batch in 0..BATCHES {
        let images = vec![batch as u8; BATCH * SIDE * SIDE];
        to.put(CudaTensor::from_slice(&images, [BATCH, SIDE, SIDE], &stream)?)?; // it is gone here
    }
    to.close();
    Ok(())
}

fn crop((from, to): (Batches, Batches)) -> mp::AnyResult<()> {
    let stream = CudaStream::new(&Device::new(0)?)?;
    let at = (SIDE - CROP) / 2;
    while let Some(images) = from.get()? {
        let middle = images.narrow(1, at, CROP)?.narrow(2, at, CROP)?; // no byte is copied yet
        to.put(middle.to_device(&stream)?)?; // the copy may not have run: its receiver's stream waits for it
    }
    to.close();
    Ok(())
}

fn look(from: Batches) -> mp::AnyResult<u64> {
    let stream = CudaStream::new(&Device::new(0)?)?;
    let mut sum = 0;
    while let Some(images) = from.get()? {
        assert_eq!(images.shape(), [BATCH, CROP, CROP]);
        sum += images.to_vec(&stream)?.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(sum)
}

/// Returns the GPU's name. Runs in a separate process: a process that has called the driver must not fork.
fn gpu(_: ()) -> mp::AnyResult<String> {
    Ok(match Device::new(0) {
        Ok(device) => device.name()?,
        Err(error) => {
            println!("SKIPPED: {error}");
            String::new()
        }
    })
}

fn main() -> mp::AnyResult<()> {
    let name = Process::spawn(gpu, ())?.join()?;
    if name.is_empty() {
        return Ok(());
    }
    let (loaded, cropped) = (Batches::bounded(4)?, Batches::bounded(4)?);
    let loader = Process::spawn(load, loaded.clone())?;
    let cropper = Process::spawn(crop, (loaded, cropped.clone()))?;
    let sum = Process::spawn(look, cropped)?.join()?;
    loader.join()?;
    cropper.join()?;
    println!("{BATCHES} batches through three processes on {name}: sum {sum}");
    assert_eq!(sum, (0..BATCHES as u64).sum::<u64>() * (BATCH * CROP * CROP) as u64);
    Ok(())
}
