//! Cost to write and read a value, compared with other codecs: time, and heap allocations.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --features codecs --bin codecs [CASE…]`
//!
//! mp's figures are `pack` into an envelope in shared memory and `unpack` from it, by one thread. The other
//! codecs write into a new `Vec` in private memory and read from it. Their figures don't include the copies
//! to another process and back. Other codecs encode tensors as vectors. Each figure is the median of the
//! rounds, without the time to create and drop the value.
//!
//! # Safety
//! The code is unsafe because it counts allocations in the global allocator. It is sound because that
//! allocator forwards every call unchanged to the system's allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use mp::{Arena, FrozenTensor, Message, Tensor};
use mp_core::Messages;
use mp_reduce::{TypeFingerprint, pack_as, unpack};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Allocator that counts calls, and forwards them to the system's allocator.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls go to the system's allocator with the same arguments, and so do their results.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Message of about 200 bytes, as in the row `struct_200b`.
#[derive(Serialize, Deserialize, Clone, PartialEq)]
struct Record {
    id: u64,
    time: f64,
    name: String,
    tags: [String; 2],
    values: [f64; 12],
    valid: Option<bool>,
}

fn record() -> Record {
    Record {
        id: 7,
        time: 0.007,
        name: "a sensor on the northern roof".to_owned(),
        tags: ["temperature".to_owned(), "calibrated".to_owned()],
        values: [7.5; 12],
        valid: Some(true),
    }
}

/// A batch with tensors, which are vectors for other codecs.
#[derive(Serialize, Deserialize, Clone)]
struct Batch<T> {
    id: u64,
    name: String,
    parts: Vec<T>,
}

fn batch<T: Clone>(part: T, count: usize) -> Batch<T> {
    Batch { id: 7, name: "a batch".to_owned(), parts: vec![part; count] }
}

/// Nanoseconds and allocations of one value.
#[derive(Clone, Copy)]
struct Cost(f64, f64);

fn timed<T>(count: usize, f: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
    let (before, start) = (ALLOCATIONS.load(Relaxed), Instant::now());
    let done = f()?;
    let (time, after) = (start.elapsed(), ALLOCATIONS.load(Relaxed));
    Ok((done, Cost(time.as_nanos() as f64 / count as f64, (after - before) as f64 / count as f64)))
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let allocations = costs.iter().map(|cost| cost.1).fold(f64::INFINITY, f64::min);
    Cost(costs[costs.len() / 2].0, allocations)
}

/// Number of values written and read in a round, and number of rounds.
#[derive(Clone, Copy)]
struct Plan(usize, usize);

/// Writes `count` values, then reads them, in rounds.
fn measure<E, D>(
    Plan(count, rounds): Plan,
    mut write: impl FnMut() -> Result<E>,
    mut read: impl FnMut(E) -> Result<D>,
) -> Result<[Cost; 2]> {
    let (mut writing, mut reading) = (Vec::new(), Vec::new());
    for _ in 0..rounds + 1 {
        let (mut written, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let cost = timed(count, || {
            for _ in 0..count {
                written.push(write()?);
            }
            Ok(())
        })?;
        writing.push(cost.1);
        let cost = timed(count, || {
            for one in written.drain(..) {
                values.push(black_box(read(one)?));
            }
            Ok(())
        })?;
        reading.push(cost.1);
    }
    // The first round warms up.
    Ok([median(writing.split_off(1)), median(reading.split_off(1))])
}

fn ours<T: Message>(plan: Plan, mut value: T) -> Result<[Cost; 2]> {
    let (arena, fingerprint) = (Arena::current()?, TypeFingerprint::<T>::new().get());
    measure(
        plan,
        || {
            let (envelope, lent) =
                pack_as(black_box(&mut value), |out| Messages(arena).pack(out, fingerprint))?;
            lent.commit();
            Ok(envelope)
        },
        |envelope| Ok(unpack::<T>(envelope)?),
    )
}

#[cfg(feature = "codecs")]
fn theirs<T: Serialize + DeserializeOwned>(plan: Plan, value: &T) -> Result<Vec<(&'static str, [Cost; 2])>> {
    Ok(vec![
        (
            "rmp-serde",
            measure(
                plan,
                || Ok(rmp_serde::to_vec_named(black_box(value))?),
                |bytes| Ok((rmp_serde::from_slice::<T>(&bytes)?, bytes)),
            )?,
        ),
        (
            "postcard",
            measure(
                plan,
                || Ok(postcard::to_allocvec(black_box(value))?),
                |bytes| Ok((postcard::from_bytes::<T>(&bytes)?, bytes)),
            )?,
        ),
        (
            "bincode",
            measure(
                plan,
                || Ok(bincode::serialize(black_box(value))?),
                |bytes| Ok((bincode::deserialize::<T>(&bytes)?, bytes)),
            )?,
        ),
    ])
}

#[cfg(not(feature = "codecs"))]
fn theirs<T: Serialize + DeserializeOwned>(_: Plan, _: &T) -> Result<Vec<(&'static str, [Cost; 2])>> {
    Ok(Vec::new())
}

fn show(case: &str, all: impl IntoIterator<Item = (&'static str, [Cost; 2])>) {
    for (codec, [write, read]) in all {
        println!(
            "{case:<14} {codec:<12} {:>12.0} ns {:>6.1} {:>12.0} ns {:>6.1}",
            write.0, write.1, read.0, read.1
        );
    }
}

/// Measures a copy of memory: into warm memory, and into newly allocated memory.
fn copies(Plan(_, rounds): Plan, from: &[u8]) -> Result<[Cost; 2]> {
    let mut to = vec![1_u8; from.len()];
    let (mut warm, mut fresh) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(10) {
        let copy = || {
            black_box(&mut to).copy_from_slice(black_box(from));
            Ok(())
        };
        warm.push(timed(1, copy)?.1);
        fresh.push(timed(1, || Ok(black_box(black_box(from).to_vec())))?.1);
    }
    Ok([median(warm), median(fresh)])
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |case: &str| words.is_empty() || words.iter().any(|word| word == case);
    println!("{:<14} {:<12} {:>15} {:>6} {:>15} {:>6}", "case", "codec", "write", "allocs", "read", "allocs");
    let (few, many) = (Plan(1, 15), Plan(200, 200));
    if wanted("u64") {
        show("u64", [("mp", ours(many, u64::MAX - 7)?)]);
        show("u64", theirs(many, &(u64::MAX - 7))?);
    }
    if wanted("struct_200b") {
        show("struct_200b", [("mp", ours(many, record())?)]);
        show("struct_200b", theirs(many, &record())?);
    }
    for (case, count, plan) in [("tensors_1", 1, many), ("tensors_100", 100, Plan(20, 100))] {
        if wanted(case) {
            let tensor: FrozenTensor<f32> = Tensor::full([256], 1.5)?.freeze();
            show(case, [("mp", ours(plan, batch(tensor, count))?)]);
            show(case, theirs(plan, &batch(vec![1.5_f32; 256], count))?);
        }
    }
    for bytes in [1 << 8, 1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18] {
        let case = format!("bytes_{bytes}");
        if words.iter().any(|word| *word == case || word == "bytes") {
            show(&case, [("mp", ours(Plan(1, 2000), vec![3_u8; bytes])?)]);
        }
    }
    if wanted("f32_1m") {
        let value = vec![1.5_f32; 1 << 18];
        show("f32_1m", [("mp", ours(Plan(1, 100), value.clone())?)]);
        show("f32_1m", [("copies", copies(few, bytemuck::cast_slice(&value))?)]);
        show("f32_1m", theirs(Plan(1, 20), &value)?);
    }
    if wanted("u8_64m") {
        let value = vec![7_u8; 64 << 20];
        show("u8_64m", [("mp", ours(few, value.clone())?)]);
        show("u8_64m", [("copies", copies(few, &value)?)]);
        show("u8_64m", theirs(Plan(1, 3), &value)?);
    }
    Ok(())
}
