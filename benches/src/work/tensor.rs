//! Work with tensors.
//!
//! `tensor_fresh_1k`, `_1m` and `_64m` send one tensor at a time. This process allocates a tensor, fills it
//! from a warm private source and sends it. The other process sums up all elements, drops the tensor, and
//! answers with the sum, which is checked. The figure is the latency of one tensor, as in ping-pong, not the
//! throughput of a pipeline. The limit does the same copy, sum and answer with shared buffers that are mapped
//! and warm.
//!
//! `tensor_stream_1k` does the same work with many tensors in flight at once. The other process answers after
//! every [`BATCH`] tensors, with the sum over all of them. The sender is never more than two batches ahead.
//! The figure is the time for one tensor in this pipeline.
//!
//! `tensor_again_64m` sends the same buffer repeatedly. The other process receives the handle, reads one
//! element, drops the handle, and answers with the element. The limit is a round trip of a cache line on
//! which both processes spin, and one read.

use super::{Plan, now};
use crate::{Result, stats};

/// Number of elements of a tensor of 64 MiB, each a `u64`.
pub(crate) const LARGE: usize = (64 << 20) / size_of::<u64>();
/// Number of elements of a tensor of 1 MiB.
pub(crate) const MEDIUM: usize = (1 << 20) / size_of::<u64>();
/// Number of elements of a tensor of 1 KiB.
pub(crate) const SMALL: usize = (1 << 10) / size_of::<u64>();
/// Number of tensors that `tensor_stream_1k` sends for one answer.
pub(crate) const BATCH: u64 = 64;
/// Maximum number of different elements that `tensor_again_64m` reads: one page.
const LOOKED_AT: usize = 512;
/// First answer of the child, sent when it is ready.
const READY: u64 = 0x5EAD_1E55;

/// End of a carrier of tensors that sends them.
pub(crate) trait Sender {
    /// Allocates a tensor, fills it from `source`, and sends it, without keeping a handle.
    fn send_fresh(&mut self, source: &[u64]) -> Result<()>;

    /// Sends the tensor given to [`Sender::keep`] once more.
    fn send_again(&mut self) -> Result<()>;

    /// Makes the tensor that [`Sender::send_again`] sends. Not timed.
    fn keep(&mut self, source: &[u64]) -> Result<()>;

    /// Waits for an answer.
    fn answer(&mut self) -> Result<u64>;
}

/// End of a carrier of tensors that receives them.
pub(crate) trait Receiver {
    /// Waits for a tensor, passes it to `look`, and drops it.
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64>;

    /// Sends an answer.
    fn answer(&mut self, message: u64) -> Result<()>;
}

/// Numbers of tensors that a round sends: tensors that warm up, and tensors that are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    warm_up: u64,
    count: u64,
}

impl Amount {
    /// Returns the amount of fresh tensors with `elements` elements: about 768 MiB in total, but at most
    /// 50,000 tensors. The warm-up uses each buffer of a small pool at least once.
    pub(crate) fn fresh(plan: &Plan, elements: usize) -> Self {
        let full = (LARGE / elements * 12).min(50_000) as u64;
        Self { warm_up: 6 + full / 20, count: plan.repetitions(full) }
    }

    /// Returns the amount for `tensor_stream_1k`, whose numbers are multiples of [`BATCH`].
    pub(crate) fn stream(plan: &Plan) -> Self {
        let full = 200_000;
        let whole = |tensors: u64| tensors.next_multiple_of(BATCH);
        Self { warm_up: whole(full / 20), count: whole(plan.repetitions(full)) }
    }

    /// Returns an amount of `count` measured tensors, after `warm_up` tensors that warm up.
    #[cfg(feature = "grow")]
    pub(crate) fn exactly(warm_up: u64, count: u64) -> Self {
        Self { warm_up, count }
    }

    /// Returns an amount of about `full` messages with the same tensor.
    pub(crate) fn again(plan: &Plan, full: u64) -> Self {
        let batches = plan.batches(full);
        Self { warm_up: batches.warm_up, count: batches.count * batches.each }
    }

    /// Returns the number of tensors that the child receives, including the warm-up.
    pub(crate) fn total(self) -> u64 {
        self.warm_up + self.count
    }
}

/// Times of single tensors in ns. `None` if the contender has no figure.
pub(crate) type Times = Result<Option<Vec<f64>>>;

/// Returns the median of the times.
///
/// # Errors
/// Returns the error in `times`.
pub(crate) fn median(times: Times) -> super::Outcome {
    Ok(times?.map(|times| stats::median(&times)))
}

/// Returns the sum of the values, which reads all of them. Never inlined, so that all contenders run the same
/// instructions.
#[inline(never)]
pub(crate) fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
}

fn source(elements: usize) -> Vec<u64> {
    (0..elements as u64).map(|index| index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

/// Measures `tensor_fresh_…` with tensors of `elements` elements. Returns the time of each tensor in ns.
///
/// # Errors
/// Returns an error for a wrong sum, or the sender's error.
pub(crate) fn fresh_times(sender: &mut impl Sender, elements: usize, amount: Amount) -> Result<Vec<f64>> {
    let mut source = source(elements);
    expect(READY, sender.answer()?)?;
    let mut times = Vec::new();
    for number in 0..amount.total() {
        // Each tensor differs from the one before, so that a stale tensor is detected.
        source[0] = number;
        let wanted = sum(&source);
        let start = now();
        sender.send_fresh(&source)?;
        let got = sender.answer()?;
        let time = now() - start;
        expect(wanted, got)?;
        if number >= amount.warm_up {
            times.push(time as f64);
        }
    }
    Ok(times)
}

/// Runs the other process of `tensor_fresh_…`.
///
/// # Errors
/// Returns the receiver's error.
pub(crate) fn answer_fresh(receiver: &mut impl Receiver, tensors: u64) -> Result<()> {
    receiver.answer(READY)?;
    for _ in 0..tensors {
        let sum = receiver.receive(sum)?;
        receiver.answer(sum)?;
    }
    Ok(())
}

/// Measures `tensor_stream_1k`. Returns the time for one tensor in ns.
///
/// # Errors
/// Returns an error for a wrong sum, or the sender's error.
pub(crate) fn stream(sender: &mut impl Sender, elements: usize, amount: Amount) -> Result<f64> {
    let mut source = source(elements);
    source[0] = 0;
    let rest = sum(&source);
    expect(READY, sender.answer()?)?;
    let mut start = now();
    let mut wanted = None;
    for batch in 0..amount.total() / BATCH {
        if batch * BATCH == amount.warm_up {
            start = now();
        }
        let mut sums = 0_u64;
        for number in batch * BATCH..(batch + 1) * BATCH {
            // Each tensor differs from the one before, so that a stale tensor is detected.
            source[0] = number;
            sums = sums.wrapping_add(rest).wrapping_add(number);
            sender.send_fresh(&source)?;
        }
        if let Some(wanted) = wanted.replace(sums) {
            expect(wanted, sender.answer()?)?;
        }
    }
    if let Some(wanted) = wanted {
        expect(wanted, sender.answer()?)?;
    }
    Ok((now() - start) as f64 / amount.count as f64)
}

/// Runs the other process of `tensor_stream_1k`.
///
/// # Errors
/// Returns the receiver's error.
pub(crate) fn answer_stream(receiver: &mut impl Receiver, tensors: u64) -> Result<()> {
    receiver.answer(READY)?;
    for _ in 0..tensors / BATCH {
        let mut sums = 0_u64;
        for _ in 0..BATCH {
            sums = sums.wrapping_add(receiver.receive(sum)?);
        }
        receiver.answer(sums)?;
    }
    Ok(())
}

/// Returns the number of different elements that `tensor_again_64m` reads.
fn looked_at(values: &[u64]) -> usize {
    values.len().min(LOOKED_AT)
}

/// Measures `tensor_again_64m`. Returns the time of one message and its answer in ns.
///
/// # Errors
/// Returns an error for a wrong element, or the sender's error.
pub(crate) fn again(sender: &mut impl Sender, plan: &Plan, full: u64) -> Result<f64> {
    let source = source(LARGE);
    sender.keep(&source)?;
    expect(READY, sender.answer()?)?;
    plan.batches(full).time(|number| {
        sender.send_again()?;
        expect(source[number as usize % looked_at(&source)], sender.answer()?)
    })
}

/// Returns the time in ns of each message with the same tensor of `elements`, and its answer.
///
/// # Errors
/// Returns an error for a wrong element, or the sender's error.
#[cfg(feature = "grow")]
pub(crate) fn again_times(sender: &mut impl Sender, elements: usize, amount: Amount) -> Result<Vec<f64>> {
    let source = source(elements);
    sender.keep(&source)?;
    expect(READY, sender.answer()?)?;
    let mut times = Vec::new();
    for number in 0..amount.total() {
        let start = now();
        sender.send_again()?;
        let got = sender.answer()?;
        let time = now() - start;
        expect(source[number as usize % looked_at(&source)], got)?;
        if number >= amount.warm_up {
            times.push(time as f64);
        }
    }
    Ok(times)
}

/// Runs the other process of `tensor_again_64m`.
///
/// # Errors
/// Returns the receiver's error.
pub(crate) fn answer_again(receiver: &mut impl Receiver, tensors: u64) -> Result<()> {
    receiver.answer(READY)?;
    for number in 0..tensors {
        let element = receiver.receive(|values| values[number as usize % looked_at(values)])?;
        receiver.answer(element)?;
    }
    Ok(())
}

fn expect(wanted: u64, got: u64) -> Result<()> {
    if wanted == got {
        return Ok(());
    }
    Err(format!("wrong result: the tensor's sum or element should be {wanted}, but is {got}").into())
}
