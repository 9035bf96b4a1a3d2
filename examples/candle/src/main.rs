//! A tensor that is converted to a tensor of candle, doubled by candle, and converted back. A queue then
//! sends it to a second process, whose candle sums it up.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml` (examples/candle/README.md lists the
//! requirements)

use candle_core::Device;
use mp::cuda::CudaTensor;
use mp::{AnyResult, Process, Queue};
use mp_candle_example::{from_candle, stream_of, to_candle};

const COUNT: u16 = 1000;
const SHAPE: [usize; 2] = [20, 50];

type Tensors = Queue<CudaTensor<f32>>;

fn double(to: Tensors) -> AnyResult<f32> {
    let device = Device::new_cuda_with_stream(0)?;
    let stream = stream_of(&device)?;
    let numbers: Vec<f32> = (1..=COUNT).map(f32::from).collect();
    let ours = CudaTensor::from_slice(&numbers, SHAPE, &stream)?;
    let theirs = (to_candle(&ours, &device, &stream)? * 2.0)?;
    to.put(from_candle(&theirs, &stream)?)?; // the copy may not have run: its receiver's stream waits for it
    let back = from_candle(&theirs, &stream)?.to_vec(&stream)?; // and once more, to look at it here
    assert!(back.iter().zip(&numbers).all(|(doubled, number)| *doubled == number * 2.0));
    Ok(back.iter().sum())
}

fn sum(from: Tensors) -> AnyResult<f32> {
    let device = Device::new_cuda_with_stream(0)?;
    let stream = stream_of(&device)?;
    let ours = from.get()?.ok_or("no tensor came")?;
    assert_eq!(ours.shape(), SHAPE);
    Ok(to_candle(&ours, &device, &stream)?.sum_all()?.to_scalar()?)
}

/// Returns the GPU's name. Runs in a separate process: a process that has called the driver must not fork.
fn gpu(_: ()) -> AnyResult<String> {
    Ok(match mp::cuda::Device::new(0) {
        Ok(device) => device.name()?,
        Err(error) => {
            println!("SKIPPED: no GPU: {error}");
            String::new()
        }
    })
}

fn main() -> AnyResult<()> {
    let name = Process::spawn(gpu, ())?.join()?;
    if name.is_empty() {
        return Ok(());
    }
    let doubled = Tensors::unbounded()?;
    let doubler = Process::spawn(double, doubled.clone())?;
    let (there, here) = (Process::spawn(sum, doubled)?.join()?, doubler.join()?);
    println!(
        "f32 {SHAPE:?}, doubled by candle on {name}: sum {here}, and by candle in a second process {there}"
    );
    // Whole numbers below 2^24: exact in any order.
    let expected = (1..=COUNT).map(|number| 2.0 * f32::from(number)).sum::<f32>();
    assert_eq!((here, there), (expected, expected));
    Ok(())
}
