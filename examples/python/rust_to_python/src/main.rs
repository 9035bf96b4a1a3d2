//! Rust and Python exchange named messages with tensors.
//!
//! ```text
//! cargo run --manifest-path examples/python/rust_to_python/Cargo.toml    # Rust starts worker.py
//! ```
//!
//! `host.py` starts this program.

use std::path::Path;
use std::process::{Command, ExitCode};

use mp::{AnyResult, Message, Process, Queue, Tensor};

const SIDE: usize = 28;

/// Images, and the text that describes them.
#[derive(Message)]
#[message(name = "vision/batch/1")]
struct Batch {
    pixels: Tensor<f32>,
    class: Tensor<i64>,
    path: String,
}

/// Brightness of each image of a batch.
#[derive(Message)]
#[message(name = "vision/answer/1")]
struct Answer {
    path: String,
    brightness: Tensor<f32>,
    highest: Option<f64>,
}

/// Arguments of the worker.
#[derive(Message)]
#[message(name = "vision/job/1")]
struct Job {
    batches: Queue<Batch>,
    answers: Queue<Answer>,
    scale: f64,
}

/// Starts a Python program, and sends it batches.
fn host() -> AnyResult<()> {
    let (batches, answers) = (Queue::bounded(4)?, Queue::bounded(4)?);
    let job = Job { batches: batches.clone(), answers: answers.clone(), scale: 2.0 };
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let import = Command::new(&python).args(["-c", "import multiproc, numpy"]).output();
    if !import.is_ok_and(|done| done.status.success()) {
        let remedy = "pip install ./mp-python numpy, or name another interpreter by the variable PYTHON";
        return Err(format!("{python} can't import multiproc and numpy: {remedy}").into());
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("worker.py");
    let worker = Process::builder().name("worker").guest([python.into(), program.into_os_string()], job)?;
    for number in 0..3_usize {
        let pixels = Tensor::from_fn([4, SIDE, SIDE], |i| (number + i / (SIDE * SIDE)) as f32)?;
        let class = Tensor::from_fn([4], |i| i as i64)?;
        // The worker gets the memory of both tensors.
        batches.put(Batch { pixels, class, path: format!("images/{number}") })?;
    }
    batches.close();
    for number in 0..3_usize {
        let answer = answers.get()?.ok_or("the worker ended early")?;
        println!("{}: {:?}, at most {:?}", answer.path, answer.brightness.to_vec(), answer.highest);
        assert_eq!(answer.path, format!("images/{number}"));
        assert_eq!(answer.brightness.to_vec(), [0, 1, 2, 3].map(|i| 2.0 * (number + i) as f32));
        assert_eq!(answer.highest, Some(2.0 * (number + 3) as f64));
    }
    worker.join()?;
    println!("the worker has ended");
    Ok(())
}

/// Runs this program as a guest: works for the Python program that has started it.
fn guest() -> AnyResult<()> {
    let job: Job = mp::process::guest()?;
    while let Some(batch) = job.batches.get()? {
        let images = batch.pixels.as_slice()?.chunks_exact(SIDE * SIDE);
        let means = images.map(|image| image.iter().sum::<f32>() / image.len() as f32 * job.scale as f32);
        let means: Vec<f32> = means.collect();
        let highest = means.iter().copied().reduce(f32::max).map(f64::from);
        let brightness = Tensor::from_slice(&means, [means.len()])?;
        job.answers.put(Answer { path: batch.path, brightness, highest })?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => host(),
        Some("guest") => guest(),
        Some(other) => Err(format!("{other} is not a word that this program knows: guest, or none").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rust_to_python: {error}");
            ExitCode::FAILURE
        }
    }
}
