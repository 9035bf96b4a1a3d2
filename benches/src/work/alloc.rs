//! Repeated allocation and release of memory, while other allocations are alive or other processes compete.
//!
//! The figure is the time of one allocation and its release in steady state. The memory is not written: the
//! rows about fresh tensors measure writes.

use std::hint::black_box;

use super::{Outcome, Plan, now};
use crate::{Result, stats};

/// A source of memory.
pub(crate) trait Heap {
    /// Piece of memory, freed on drop.
    type Piece;

    /// Allocates a piece of `bytes` bytes.
    fn take(bytes: usize) -> Result<Self::Piece>;
}

/// Memory of the C library through Rust's allocator, private to the process.
#[derive(Debug)]
pub(crate) struct Private;

impl Heap for Private {
    type Piece = Vec<u8>;

    fn take(bytes: usize) -> Result<Vec<u8>> {
        Ok(black_box(Vec::with_capacity(bytes)))
    }
}

/// Measures pairs of an allocation and a release of `bytes` bytes, while `live` other pieces of that size are
/// alive.
///
/// # Errors
/// Returns an error if no memory is left.
pub(crate) fn beside<H: Heap>(plan: &Plan, bytes: usize, live: usize) -> Outcome {
    let others = (0..live).map(|_| H::take(bytes)).collect::<Result<Vec<_>>>()?;
    let figure = plan.batches(400_000).time(|_| {
        black_box(H::take(bytes)?);
        Ok(())
    })?;
    drop(others);
    Ok(Some(figure))
}

/// Measures pairs of an allocation and a release, in one of several competing processes.
///
/// # Errors
/// Returns an error if no memory is left.
pub(crate) fn competing<H: Heap>(bytes: usize, pairs: u64) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let start = now();
        for _ in 0..pairs / 20 {
            black_box(H::take(bytes)?);
        }
        times.push((now() - start) as f64 / (pairs / 20) as f64);
    }
    // The mean and not the median of the batches, since waits for a processor are part of the figure.
    Ok(stats::mean(&times))
}
