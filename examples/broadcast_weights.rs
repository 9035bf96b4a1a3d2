//! Shared weights that one process replaces repeatedly while other processes read them. Each reader gets
//! complete versions only, and never an older version than before. If the writer is killed during a write,
//! readers get an error.
//!
//! `cargo run --release --example broadcast_weights -- 3` (number of readers)

use std::time::Duration;

use mp::sync::RawValue;
use mp::{Array, LockError, SpawnOptions, start_processes};

const WEIGHTS: usize = 10_000;
const VERSIONS: u32 = 100;

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Shared {
    /// Weights. In version `v`, the value of each weight is `v`, so that a mixture of versions is detected.
    weights: Array<f32>,
    /// Number of versions that all readers together have read. A plain counter needs no lock.
    seen: mp::SharedTensor<u64>,
    written: RawValue<u32>,
}

/// Writes each version under the lock: a reader finds all weights changed, or none.
fn write(shared: &Shared) -> mp::AnyResult<()> {
    for version in 1..=VERSIONS {
        std::thread::sleep(Duration::from_millis(2)); // in place of some training
        shared.weights.lock()?.iter_mut().for_each(|w| *w = version as f32);
        shared.written.set(version);
    }
    Ok(())
}

fn read(shared: &Shared) -> mp::AnyResult<()> {
    let mut mine = vec![0.0; WEIGHTS];
    let mut last = 0.0;
    while last < VERSIONS as f32 {
        match shared.weights.lock() {
            Ok(weights) => mine.copy_from_slice(&weights),
            // The writer was killed during a write: stop instead of continuing with a partial version.
            Err(LockError::OwnerDied { pid, .. }) => {
                return Err(format!("the writer (pid {pid}) died").into());
            }
            Err(e) => return Err(e.into()),
        }
        if mine.iter().any(|w| *w != mine[0]) || mine[0] < last {
            return Err(format!("a torn version, or an old one: {} to {}", mine[0], mine[WEIGHTS - 1]).into());
        }
        if mine[0] > last {
            shared.seen.fetch_add(0, 1);
            last = mine[0];
        }
    }
    Ok(())
}

fn work(rank: usize, shared: Shared) -> mp::AnyResult<()> {
    if rank == 0 { write(&shared) } else { read(&shared) }
}

fn main() -> mp::AnyResult<()> {
    let readers: usize = std::env::args().nth(1).map_or(Ok(3), |n| n.parse())?;
    let shared = Shared {
        weights: Array::zeros(WEIGHTS)?,
        seen: mp::Tensor::zeros([1])?.share(),
        written: RawValue::new(0)?,
    };
    start_processes(work, shared.clone(), SpawnOptions::nprocs(1 + readers))?.join()?;
    println!(
        "{} versions of {WEIGHTS} weights written; {readers} readers saw {} of them, none torn",
        shared.written.get(),
        shared.seen.load(0)
    );
    Ok(())
}
