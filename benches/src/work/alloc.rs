//! Allocating and freeing, over and over, while others live or compete.
//!
//! The figure is the time of one allocation and its release, one after the other, in steady state. Nothing
//! writes the
//! memory: that is what the rows about fresh tensors are for.

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

/// The C library's, through Rust's allocator: private to the process, gone with it.
#[derive(Debug)]
pub(crate) struct Private;

impl Heap for Private {
    type Piece = Vec<u8>;

    fn take(bytes: usize) -> Result<Vec<u8>> {
        Ok(black_box(Vec::with_capacity(bytes)))
    }
}

/// Pairs of allocation and release of `bytes`, while `live` more pieces of that size live.
///
/// # Errors
/// There is no memory.
pub(crate) fn beside<H: Heap>(plan: &Plan, bytes: usize, live: usize) -> Outcome {
    let others = (0..live).map(|_| H::take(bytes)).collect::<Result<Vec<_>>>()?;
    let figure = plan.batches(400_000).time(|_| {
        black_box(H::take(bytes)?);
        Ok(())
    })?;
    drop(others);
    Ok(Some(figure))
}

/// The same in one of several processes that compete.
///
/// # Errors
/// There is no memory.
pub(crate) fn competing<H: Heap>(bytes: usize, pairs: u64) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let start = now();
        for _ in 0..pairs / 20 {
            black_box(H::take(bytes)?);
        }
        times.push((now() - start) as f64 / (pairs / 20) as f64);
    }
    // Not the median of the batches: waits for a processor count.
    Ok(stats::mean(&times))
}
