//! Cost of a message with a CUDA tensor for its sender and receiver, compared with a tensor in host memory,
//! without calls of the driver. A relay calls no driver (`tools/cuda-sim/tests/processes/driver_calls.rs`
//! counts the calls of other processes: two for each send, two for each receive).
//!
//! ```sh
//! cargo build --release -p mp-cuda-sim
//! cargo build --release --manifest-path benches/Cargo.toml --features cuda --bin cuda_messages
//! # On a machine with a GPU, without the first word.
//! target/release/mp-cuda-sim-run benches/target/release/cuda_messages [ROUNDS]
//! ```
//!
//! A single thread puts a tensor into a queue and gets it, like a relay that forwards tensors without reading
//! them. So the figures include neither wake-ups nor the time of another process. In each round, a tensor in
//! host memory and a CUDA tensor take turns. Each figure is the median of the rounds. The elements are
//! checked at the end.

use std::time::Instant;

use mp::cuda::{CudaStream, CudaTensor, Device, FrozenCudaTensor};
use mp::{FrozenTensor, Message, Queue, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Default number of rounds.
const ROUNDS: usize = 31;
const MESSAGES: u32 = 20_000;
/// Goal: maximum ratio to a tensor in host memory.
const GOAL: f64 = 1.5;

/// Returns the nanoseconds of each message that is put and got.
fn relay<T: Message>(queue: &Queue<T>, value: T) -> Result<(f64, T)> {
    let mut value = Some(value);
    let started = Instant::now();
    for _ in 0..MESSAGES {
        queue.put(value.take().ok_or("no value")?).map_err(|e| e.to_string())?;
        value = queue.get()?;
    }
    let each = started.elapsed().as_nanos() as f64 / f64::from(MESSAGES);
    Ok((each, value.ok_or("no value")?))
}

/// Measures a host tensor and a device tensor in turns. Prints the median of each, and the median ratio of
/// the two figures of a round with half of its spread (p90 − p10).
fn pair<A: Message, B: Message>(name: &str, rounds: usize, mut host: A, mut device: B) -> Result<(A, B)> {
    let (hosts, devices) = (Queue::bounded(4)?, Queue::bounded(4)?);
    let mut found = Vec::new();
    for round in 0..=rounds {
        let (a, b);
        (a, host) = relay(&hosts, host)?;
        (b, device) = relay(&devices, device)?;
        // The first one warms up.
        if round > 0 {
            found.push((a, b, b / a));
        }
    }
    let sorted = |of: fn(&(f64, f64, f64)) -> f64| {
        let mut all: Vec<f64> = found.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (a, b, ratios) = (sorted(|r| r.0), sorted(|r| r.1), sorted(|r| r.2));
    let at = |all: &[f64], percent: usize| all[all.len() * percent / 100];
    let ratio = at(&ratios, 50);
    println!(
        "{name}: in host memory {:.0} ns, of a device {:.0} ns, ratio {ratio:.2} ±{:.2}, goal {GOAL}: {}",
        at(&a, 50),
        at(&b, 50),
        (at(&ratios, 90) - at(&ratios, 10)) / 2.0,
        if ratio <= GOAL { "met" } else { "missed" },
    );
    Ok((host, device))
}

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?.max(1);
    let stream = CudaStream::new(&Device::new(0)?)?;
    let values: Vec<f32> = (0_u8..100).map(f32::from).collect();
    let host = Tensor::from_slice(&values, [100])?;
    let device = CudaTensor::from_slice(&values, [100], &stream)?;
    let (host, device) = pair("exclusive", rounds, host, device)?;
    let (host, device): (FrozenTensor<f32>, FrozenCudaTensor<f32>) = (host.freeze(), device.freeze());
    let (host, device) = pair("frozen", rounds, host, device)?;
    assert_eq!((host.to_vec(), device.to_vec(&stream)?), (values.clone(), values));
    Ok(())
}
