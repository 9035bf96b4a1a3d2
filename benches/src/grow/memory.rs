//! Tensors: allocated while many are alive, and sent at every size.

use std::any::Any;
use std::hint::black_box;

use mp::Queue;

use super::effort::{Effort, Times, histogram, same};
use crate::ours::alloc::Arena;
use crate::peers::{iceoryx2, ipc_channel};
use crate::work::alloc::{Heap, Private};
use crate::work::tensor;
use crate::{Result, limits, ours};

/// Number of bytes of each live tensor.
pub(super) const LIVE: usize = 64;

/// Allocates `size` tensors of [`LIVE`] bytes, and returns them.
pub(super) fn live(size: u64) -> Result<Box<dyn Any>> {
    let tensors = (0..size).map(|_| Arena::take(LIVE)).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(tensors))
}

/// Measures allocation and release.
fn pairs<H: Heap>(effort: &Effort, bytes: usize) -> Result<Times> {
    effort.each(|_| Ok(drop(black_box(H::take(bytes)?))))
}

pub(super) fn alloc_64(effort: &Effort, _: u64) -> Result<Times> {
    pairs::<Arena>(effort, LIVE)
}

/// Measures the limit: an allocation by malloc, while `size` other allocations are alive.
pub(super) fn alloc_64_limit(effort: &Effort, size: u64) -> Result<Times> {
    let _live = (0..size).map(|_| Private::take(LIVE)).collect::<Result<Vec<_>>>()?;
    pairs::<Private>(effort, LIVE)
}

pub(super) fn alloc_1k(effort: &Effort, _: u64) -> Result<Times> {
    pairs::<Arena>(effort, 1 << 10)
}

pub(super) fn alloc_1k_limit(effort: &Effort, _: u64) -> Result<Times> {
    pairs::<Private>(effort, 1 << 10)
}

/// Returns the histogram of measured times, or an error if the contender has no figures.
fn times(times: tensor::Times) -> Result<Times> {
    histogram(&times?.ok_or("no figures")?)
}

/// Returns the number of elements of a tensor of `bytes` bytes.
fn elements(bytes: u64) -> usize {
    bytes as usize / size_of::<u64>()
}

pub(super) fn fresh(effort: &Effort, size: u64) -> Result<Times> {
    times(ours::fresh_times(&effort.plan, elements(size), effort.tensors(size)))
}

pub(super) fn fresh_limit(effort: &Effort, size: u64) -> Result<Times> {
    times(limits::fresh_times(&effort.plan, elements(size), effort.tensors(size)))
}

pub(super) fn fresh_services(effort: &Effort, size: u64) -> Result<Times> {
    times(iceoryx2::fresh_times(&effort.plan, elements(size), effort.tensors(size)))
}

pub(super) fn fresh_sockets(effort: &Effort, size: u64) -> Result<Times> {
    let amount = effort.tensors(8 * size);
    times(ipc_channel::fresh_times(&effort.plan, elements(size), amount, ipc_channel::POLLING))
}

/// Size in bytes that determines the number of repetitions in the curves of tensors that are sent again: as
/// many as for fresh tensors of this size.
const AGAIN: u64 = 1 << 18;

pub(super) fn again(effort: &Effort, size: u64) -> Result<Times> {
    times(ours::again_times(&effort.plan, elements(size), effort.tensors(AGAIN)))
}

pub(super) fn again_limit(effort: &Effort, size: u64) -> Result<Times> {
    times(limits::again_times(&effort.plan, elements(size), effort.tensors(AGAIN)))
}

pub(super) fn again_sockets(effort: &Effort, size: u64) -> Result<Times> {
    times(ipc_channel::again_times(&effort.plan, elements(size), effort.tensors(AGAIN)))
}

/// Measures a put and a get of a vector of bytes: two copies.
pub(super) fn bytes(effort: &Effort, size: u64) -> Result<Times> {
    let queue = Queue::bounded(2)?;
    let mut value = Some(vec![1_u8; size as usize]);
    effort.each(|number| {
        let mut sent = value.take().ok_or("no value")?;
        sent[0] = number as u8;
        queue.put(sent)?;
        let got: Vec<u8> = queue.get()?.ok_or("closed")?;
        same((size as usize, number as u8, Some(&1)), (got.len(), got[0], got.last()))?;
        value = Some(got);
        Ok(())
    })
}

/// Measures the limit: a copy of bytes to warm memory, and a copy from there into a new vector.
pub(super) fn bytes_limit(effort: &Effort, size: u64) -> Result<Times> {
    let mut warm = vec![1_u8; size as usize];
    let mut value = warm.clone();
    effort.each(|number| {
        value[0] = number as u8;
        warm.copy_from_slice(&value);
        value = black_box(&warm).to_vec();
        same((number as u8, Some(&1)), (value[0], value.last()))
    })
}
