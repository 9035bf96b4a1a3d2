//! Functions for `cargo xtask fuzz`. They create tensors and ticks without a driver, and check received
//! tensors.

use mp_core::Arena;
use mp_core::clocks::{Clock, Tick};
use mp_tensor::parts::{Grad, row_major};
use mp_tensor::{Element, Exclusive};

use crate::memory::Piece;
use crate::stream::order::tick;
use crate::tensor::mode::CudaMode;
use crate::tensor::raw::RawCudaTensor;
use crate::{AnyCudaTensor, CudaTensor, Result, Uuid};

/// Number of bytes of each tensor's memory.
pub const BYTES: u64 = 4096;

/// Returns a tensor of one dimension that spans all of its memory, and whose receivers wait for this tick.
///
/// # Errors
/// Errors of the arena.
pub fn tensor<T: Element>(tick: Tick) -> Result<CudaTensor<T>> {
    let piece = Piece::without_driver(Uuid([7; 16]), BYTES)?;
    piece.uses().record_received(&[tick]);
    let elements = BYTES as usize / size_of::<T>();
    let view = row_major(0, &[elements])?;
    Ok(CudaTensor::of(RawCudaTensor::<Exclusive>::of(Some(piece), view, Grad::default())))
}

/// Returns a clock with a pending tick.
///
/// # Errors
/// Errors of the arena.
pub fn pending() -> Result<(Clock, Tick)> {
    let mut clock = Clock::claim(Arena::current()?)?;
    let tick = clock.next()?;
    clock.submitted(tick)?;
    Ok((clock, tick))
}

/// Checks that a tensor lies within its memory and waits only for submitted ticks.
///
/// # Panics
/// Panics if the tensor exceeds its memory, or waits for a tick that no stream has submitted.
pub fn check<T: Element, M: CudaMode>(tensor: &CudaTensor<T, M>) {
    checked(&tensor.raw, size_of::<T>());
}

/// Checks a tensor as [`check`] does.
///
/// # Panics
/// Panics as [`check`] does.
pub fn check_any<M: CudaMode>(tensor: &AnyCudaTensor<M>) {
    checked(&tensor.raw, tensor.dtype().size());
}

fn checked<M: CudaMode>(raw: &RawCudaTensor<M>, element: usize) {
    let Some(piece) = &raw.piece else {
        assert!(raw.view.is_empty(), "elements without memory: {:?}", raw.view);
        return;
    };
    let within = raw.view.within(piece.bytes() as usize / element);
    assert!(within.is_ok(), "beyond its {} bytes: {:?}", piece.bytes(), raw.view);
    for tick in piece.uses().cover(false).expect("no stream has a use") {
        assert!(
            !matches!(tick::is_complete(tick), Err(crate::Error::Malformed(_))),
            "{tick:?} was never made"
        );
    }
}
