//! Memory of mp, as a contender of the work in [`crate::work::alloc`].

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use mp::{FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};

use crate::process::DEADLINE;
use crate::work::alloc::{self, Heap, Private};
use crate::work::{Outcome, Plan, now};
use crate::{Result, stats};

/// Memory of mp's arena.
pub(crate) struct Arena;

impl Heap for Arena {
    type Piece = Tensor<u8>;

    fn take(bytes: usize) -> Result<Tensor<u8>> {
        Ok(Tensor::empty([bytes])?)
    }
}

/// Defines the rows for one size and one number of live tensors: mp's figure, and malloc's as the limit.
macro_rules! beside {
    ($($ours:ident $limit:ident $bytes:expr, $live:expr;)*) => {$(
        pub(crate) fn $ours(plan: &Plan) -> Outcome {
            alloc::beside::<Arena>(plan, $bytes, $live)
        }
        pub(crate) fn $limit(plan: &Plan) -> Outcome {
            alloc::beside::<Private>(plan, $bytes, $live)
        }
    )*};
}

beside! {
    b64_at_1k b64_at_1k_limit 64, 1_000;
    b64_at_1m b64_at_1m_limit 64, 1_000_000;
    k1_at_1k k1_at_1k_limit 1 << 10, 1_000;
    k1_at_1m k1_at_1m_limit 1 << 10, 1_000_000;
    m1_at_1k m1_at_1k_limit 1 << 20, 1_000;
    m64_at_1 m64_at_1_limit 64 << 20, 1;
}

/// Arguments of a competing process: queues for its readiness, for the start and for its figure, and the
/// number of allocations, each with its release.
type Race = (Queue<u64>, Queue<u64>, Queue<f64>, u64);

fn compete<H: Heap>(_: usize, (ready, go, figures, pairs): Race) -> Result<()> {
    // Warm-up: the first allocations of a process take longer.
    alloc::competing::<H>(1 << 10, 2_000)?;
    ready.put(0)?;
    go.get()?;
    Ok(figures.put(alloc::competing::<H>(1 << 10, pairs)?)?)
}

/// Runs `processes` processes at once, each of which allocates and releases memory. Returns the mean time of
/// an allocation and its release over all processes, including waits for a processor.
fn race<H: Heap + 'static>(plan: &Plan, processes: usize) -> Outcome {
    let pairs = plan.repetitions(400_000);
    let (ready, go, figures) =
        (Queue::bounded(processes)?, Queue::bounded(processes)?, Queue::bounded(processes)?);
    let race: Race = (ready.clone(), go.clone(), figures.clone(), pairs);
    let group = start_processes(compete::<H>, race, SpawnOptions::nprocs(processes))?;
    for _ in 0..processes {
        ready.get()?;
    }
    for _ in 0..processes {
        go.put(0)?;
    }
    if !group.join_timeout(DEADLINE)? {
        return Err(format!("the processes didn't end within {DEADLINE:?}").into());
    }
    let mut all = Vec::new();
    while let Ok(Some(figure)) = figures.try_get() {
        all.push(figure);
    }
    if all.len() != processes {
        return Err(format!("wrong result: {} figures of {processes} processes", all.len()).into());
    }
    Ok(Some(stats::mean(&all)))
}

pub(crate) fn two_compete(plan: &Plan) -> Outcome {
    race::<Arena>(plan, 2)
}

pub(crate) fn two_compete_limit(plan: &Plan) -> Outcome {
    race::<Private>(plan, 2)
}

pub(crate) fn eight_compete(plan: &Plan) -> Outcome {
    race::<Arena>(plan, 8)
}

pub(crate) fn eight_compete_limit(plan: &Plan) -> Outcome {
    race::<Private>(plan, 8)
}

/// Runs a round of the row `view`: a view of a tensor that is created and dropped.
pub(crate) fn view(plan: &Plan) -> Outcome {
    let tensor: FrozenTensor<f32> = Tensor::zeros([64, 64])?.freeze();
    let figure = plan.batches(4_000_000).time(|number| {
        black_box(tensor.select(0, number as usize % 64)?);
        Ok(())
    })?;
    Ok(Some(figure))
}

/// Runs a round of the limit in the row `view`: clone and drop of an `Arc`.
pub(crate) fn view_limit(plan: &Plan) -> Outcome {
    let shared = Arc::new(0_u64);
    let figure = plan.batches(4_000_000).time(|_| {
        black_box(Arc::clone(&shared));
        Ok(())
    })?;
    Ok(Some(figure))
}

/// Number of elements of a shared tensor that one pass changes: few enough for the L1 cache.
const ELEMENTS: usize = 4096;

/// Returns the time for each element of passes over a shared tensor, each of which adds to all elements by a
/// load and a store.
fn passes(plan: &Plan, mut pass: impl FnMut(f32), sum: impl FnOnce() -> f32) -> Outcome {
    let (mut expected, full) = (0.0_f32, 40_000);
    let figure = plan.batches(full).time(|number| {
        let by = (number % 3) as f32 - 1.0;
        pass(by);
        expected += by;
        Ok(())
    })?;
    let sum = sum();
    if sum != expected * ELEMENTS as f32 {
        return Err(
            format!("wrong result: the elements sum to {sum}, not to {expected} times {ELEMENTS}").into()
        );
    }
    Ok(Some(figure / ELEMENTS as f64))
}

/// Runs a round of the row `shared_slice`: a loop over a slice of a shared tensor's elements.
pub(crate) fn shared_slice(plan: &Plan) -> Outcome {
    let tensor = Tensor::<f32>::zeros([ELEMENTS])?.share();
    let elements = tensor.as_atomics()?;
    passes(plan, |by| black_box(elements).iter().for_each(|e| e.store(e.load() + by)), || tensor.iter().sum())
}

/// Runs a round of the row `shared_at`: a loop that indexes a shared tensor.
pub(crate) fn shared_at(plan: &Plan) -> Outcome {
    let tensor = Tensor::<f32>::zeros([ELEMENTS])?.share();
    let pass = |by| {
        let tensor = black_box(&tensor);
        (0..tensor.len()).for_each(|i| tensor.store(i, tensor.load(i) + by));
    };
    passes(plan, pass, || tensor.iter().sum())
}

/// Returns private memory, as atomics of the standard library.
fn own() -> Vec<AtomicU32> {
    (0..ELEMENTS).map(|_| AtomicU32::new(0)).collect()
}

fn add(to: &AtomicU32, by: f32) {
    to.store((f32::from_bits(to.load(Relaxed)) + by).to_bits(), Relaxed);
}

fn sum(all: &[AtomicU32]) -> f32 {
    all.iter().map(|a| f32::from_bits(a.load(Relaxed))).sum()
}

pub(crate) fn shared_slice_limit(plan: &Plan) -> Outcome {
    let all = own();
    passes(plan, |by| black_box(&all[..]).iter().for_each(|a| add(a, by)), || sum(&all))
}

pub(crate) fn shared_at_limit(plan: &Plan) -> Outcome {
    let all = own();
    let pass = |by| {
        let all = black_box(&all);
        (0..all.len()).for_each(|i| add(&all[i], by));
    };
    passes(plan, pass, || sum(&all))
}

fn beside_a_million<R>(work: impl FnOnce() -> R) -> Result<R> {
    let live = (0..1_000_000).map(|_| Arena::take(64)).collect::<Result<Vec<_>>>()?;
    let result = work();
    drop(live);
    Ok(result)
}

/// Runs a round of the row `spawn_exec_at_1m_live`: start and end of a process while a million tensors are
/// alive.
pub(crate) fn spawn_at_1m_live(plan: &Plan) -> Outcome {
    beside_a_million(|| super::spawn_exec(plan))?
}

/// Returns the median time in ns that a new process needs to become a member of the arena.
fn attach(plan: &Plan) -> Outcome {
    Ok(Some(stats::median(&attach_times(plan.repetitions(20))?)))
}

/// Starts `count` processes, and returns the time in ns that each needs to become a member of the arena.
pub(crate) fn attach_times(count: u64) -> Result<Vec<f64>> {
    fn member(_: usize, (): ()) -> Result<f64> {
        let start = now();
        mp::Arena::current()?;
        Ok((now() - start) as f64)
    }
    let mut times = Vec::new();
    for _ in 0..count {
        times.extend(start_processes(member, (), SpawnOptions::nprocs(1))?.join()?);
    }
    Ok(times)
}

pub(crate) fn attach_at_1m_live(plan: &Plan) -> Outcome {
    beside_a_million(|| attach(plan))?
}

/// Runs a round of the limit in the row `attach_at_1m_live`, with an almost empty arena.
pub(crate) fn attach_limit(plan: &Plan) -> Outcome {
    let _one = Arena::take(64)?;
    attach(plan)
}
