//! Instructions per message, as callgrind counts them: small messages that one thread puts and gets.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --bin instructions [CASE…]`, with
//! `--features cuda` also for tensors in the memory of a device. Without a device, put
//! `target/release/mp-cuda-sim-run` before the program's name, which simulates one.
//!
//! Times of a few hundred nanoseconds vary by more than the effect of a code change. Numbers of instructions
//! don't. Each case runs twice in a separate process under valgrind, with different numbers of repetitions.
//! The difference is the cost of the repetitions, without start, warm-up and end. The result is exact to
//! about one instruction.

use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};

use bytemuck::{Pod, Zeroable};
use mp::{Bundle, Lock, Queue, Tensor};
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// First word of the command line of a counted process.
const COUNTED: &str = "__counted";
/// Smaller and larger number of repetitions.
const REPETITIONS: [u64; 2] = [1_000, 3_000];

/// Name of a case, and function that repeats it.
type Case = (&'static str, fn(u64) -> Result<()>);

const CASES: &[Case] = &[
    ("u64", |n| there_and_back(n, 7_u64)),
    ("u64_large", |n| there_and_back(n, u64::MAX - 7)),
    ("option_u32", |n| there_and_back(n, Some(7_u32))),
    ("option_tuple", |n| there_and_back(n, Some((7_u32, 1_000_000_u64)))),
    ("string_31", |n| there_and_back(n, "x".repeat(31))),
    ("string_8", |n| there_and_back(n, "x".repeat(8))),
    ("tuple_variant", |n| there_and_back(n, Step::Move(7, 1_000_000))),
    ("pack_and_unpack", pack_and_unpack),
    ("struct_200b", |n| there_and_back(n, Record::new(7))),
    ("plain_200b", |n| there_and_back(n, Reading { id: 7, time: 0.007, values: [0.5; 23] })),
    ("pairs_16", |n| there_and_back(n, [(-7_i32, 0.5_f32); 16])),
    ("tensor", |n| there_and_back(n, Tensor::<f32>::full([8], 1.5)?)),
    ("frozen_tensor", |n| there_and_back(n, Tensor::<f32>::full([8], 1.5)?.freeze())),
    #[cfg(feature = "cuda")]
    ("cuda_tensor", |n| there_and_back(n, on_a_device()?)),
    #[cfg(feature = "cuda")]
    ("frozen_cuda_tensor", |n| there_and_back(n, on_a_device()?.freeze())),
    ("bundle_of_tensors", |n| there_and_back(n, Bundle((Tensor::<f32>::full([8], 1.5)?, 7_u64)))),
    ("lock", lock),
];

/// Typical enum of commands.
#[derive(Serialize, Deserialize)]
enum Step {
    Move(u32, u64),
    Stop,
}

/// Message of about 200 bytes, as in the row `struct_200b`.
#[derive(Serialize, Deserialize)]
struct Record {
    id: u64,
    time: f64,
    name: String,
    tags: [String; 2],
    values: [f64; 12],
    valid: Option<bool>,
}

/// Plain data of 200 bytes.
#[derive(Clone, Copy, Pod, Zeroable, mp::Message)]
#[repr(C)]
#[message(as_bytes)]
struct Reading {
    id: u64,
    time: f64,
    values: [f64; 23],
}

impl Record {
    fn new(id: u64) -> Self {
        Self {
            id,
            time: id as f64 / 1000.0,
            name: "a sensor on the northern roof".to_owned(),
            tags: ["temperature".to_owned(), "calibrated".to_owned()],
            values: [0.5 + id as f64; 12],
            valid: Some(true),
        }
    }
}

/// Returns a tensor in the memory of a device. Messages with it call no driver.
#[cfg(feature = "cuda")]
fn on_a_device() -> Result<mp::cuda::CudaTensor<f32>> {
    let stream = mp::cuda::CudaStream::new(&mp::cuda::Device::new(0)?)?;
    Ok(mp::cuda::CudaTensor::from_slice(&[1.5; 8], [8], &stream)?)
}

/// Puts a value and gets it, again and again.
fn there_and_back<T: mp::Message>(repetitions: u64, mut value: T) -> Result<()> {
    let queue = Queue::<T>::bounded(64)?;
    // Many laps of the ring, so that rare work is included.
    for _ in 0..repetitions {
        queue.put(black_box(value)).map_err(|_| "a message was not put")?;
        value = queue.get()?.ok_or("the queue is closed")?;
    }
    black_box(&value);
    Ok(())
}

/// Packs a value and unpacks it repeatedly, without a queue.
fn pack_and_unpack(repetitions: u64) -> Result<()> {
    let mut value = Step::Move(7, 1_000_000);
    for _ in 0..repetitions {
        value = mp::message::unpack(
            mp::message::pack(black_box(value)).map_err(|_| "a message was not packed")?,
        )?;
    }
    black_box(&value);
    Ok(())
}

/// Locks and unlocks repeatedly.
fn lock(repetitions: u64) -> Result<()> {
    let lock = Lock::new(7_u64)?;
    for _ in 0..repetitions {
        black_box(&*lock.lock()?);
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ended = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [COUNTED, name, repetitions] => be_counted(name, repetitions),
        _ => count_all(&words),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn be_counted(name: &str, repetitions: &str) -> Result<()> {
    let (_, case) = CASES.iter().find(|(case, _)| *case == name).ok_or("there is no such case")?;
    case(repetitions.parse()?)
}

/// Counts the cases with these names, or all.
fn count_all(names: &[String]) -> Result<()> {
    if let Some(name) = names.iter().find(|name| CASES.iter().all(|(case, _)| case != name)) {
        let all = CASES.iter().map(|(case, _)| *case).collect::<Vec<_>>().join(", ");
        return Err(format!("there is no case {name:?}; there are {all}").into());
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("not measured: valgrind isn't installed");
        return Ok(());
    }
    for (name, _) in CASES.iter().filter(|(case, _)| names.is_empty() || names.iter().any(|n| n == case)) {
        let [fewer, more] = REPETITIONS.map(|repetitions| count(name, repetitions));
        let [fewer_repetitions, repetitions] = REPETITIONS;
        println!("{name:<20} {:>8.1}", (more? - fewer?) as f64 / (repetitions - fewer_repetitions) as f64);
    }
    Ok(())
}

/// Returns all instructions of a process that repeats a case.
fn count(name: &str, repetitions: u64) -> Result<i64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    let output = command.args([COUNTED, name, &repetitions.to_string()]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{name}: {}\n{said}", output.status).into());
    }
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = collected.ok_or_else(|| format!("{name}: callgrind counted nothing:\n{said}"))?;
    Ok(count.trim().parse()?)
}
