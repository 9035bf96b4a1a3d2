//! Trains a classifier on handwritten digits: several processes, one set of weights, no lock.
//!
//! `cargo run --release --example hogwild -- --workers 2`
//!
//! The images are stored in shared memory once. Batches are views of them, sent through a queue without being
//! copied. Every worker adds its gradients to the same weights, through relaxed atomics ("Hogwild", Niu et
//! al. 2011).

mod data;
mod model;
mod options;

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mp::process::OnFailure;
use mp::queue::Spin;
use mp::{FrozenTensor, Queue, SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use data::{Data, Shuffle};
use model::{Model, Network};
use options::Options;

const BATCH: usize = 32;
const HIDDEN: usize = 48;

/// Some images and their labels: views of the data set in every process.
#[derive(Serialize, Deserialize)]
struct Batch {
    images: FrozenTensor<f32>,
    labels: FrozenTensor<u32>,
    rate: f32,
}

/// Arguments of every worker.
#[derive(Serialize, Deserialize)]
struct Job {
    model: Model,
    weights: SharedTensor<f32>,
    batches: Queue<Batch>,
    /// Number of images trained so far.
    trained: SharedTensor<u64>,
    /// Mean loss of the latest batch.
    loss: SharedTensor<f32>,
}

/// Runs in a worker process.
fn worker(_rank: usize, job: Job) -> mp::AnyResult<()> {
    let mut network = Network::new(job.model);
    let weights = job.weights.as_atomics()?;
    while let Some(batch) = job.batches.get()? {
        job.weights.read_into(network.weights())?;
        let loss = network.gradients(batch.images.as_slice()?, batch.labels.as_slice()?);
        let step = batch.rate / batch.labels.len() as f32;
        for (w, &g) in weights.iter().zip(network.gradient()) {
            if g != 0.0 {
                w.add_lossy(-step * g);
            }
        }
        job.trained.fetch_add(0, batch.labels.len() as u64);
        job.loss.store(0, loss / batch.labels.len() as f32);
    }
    Ok(())
}

/// Sends every batch once in each epoch, in another order each time.
fn feed(data: &Data, queue: &Queue<Batch>, epochs: usize) -> mp::AnyResult<()> {
    let n = data.train.len();
    let mut starts: Vec<usize> = (0..n).step_by(BATCH).collect();
    let mut shuffle = Shuffle::new(7);
    for epoch in 0..epochs {
        shuffle.run(&mut starts);
        let rate = 0.25 / (1.0 + epoch as f32 / 10.0);
        for &start in &starts {
            let len = BATCH.min(n - start);
            queue.put(Batch {
                images: data.train.images.narrow(0, start, len)?,
                labels: data.train.labels.narrow(0, start, len)?,
                rate,
            })?;
        }
    }
    queue.close();
    Ok(())
}

fn train(options: &Options, data: &Data) -> mp::AnyResult<()> {
    let model = Model { inputs: data.inputs, hidden: HIDDEN, classes: data.classes };
    let weights = Tensor::from_slice(&model.initial_weights(), [model.len()])?.share();
    let batches = Queue::bounded(4 * options.workers)?;
    let trained = Tensor::zeros([1])?.share();
    let loss = Tensor::zeros([1])?.share();

    let job = Job {
        model,
        weights: weights.clone(),
        batches: batches.clone(),
        trained: trained.clone(),
        loss: loss.clone(),
    };
    let settings = mp::SpawnOptions::nprocs(options.workers).name("hogwild").on_failure(OnFailure::Continue);
    let begin = Instant::now();
    let workers = mp::start_processes(worker, job, settings)?;

    let total = options.epochs * data.train.len();
    let bar = ProgressBar::new(total as u64).with_style(ProgressStyle::with_template(
        "training {bar:40} {percent:>3}%  {human_pos} of {human_len} images, loss {msg} [{elapsed}]",
    )?);
    // The workers need the processors more than this process does.
    let batches = batches.spinning(Spin::Never);
    let mut killed = false;
    let fed = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(data, &batches, options.epochs).map_err(|e| e.to_string()));
        // A failure is reported when all have ended: the others continue.
        while let Ok(false) = workers.join_timeout(Duration::from_millis(20)) {
            bar.set_position(trained.load(0));
            bar.set_message(format!("{:.3}", loss.load(0)));
            if options.kill_one && !killed && trained.load(0) > total as u64 / 2 {
                killed = true;
                workers.kill(options.workers - 1)?;
            }
        }
        // If all workers failed, the feeder must not wait for room.
        batches.close();
        match feeder.join() {
            Ok(Ok(())) => Ok(()),
            // Its queue was closed because no worker takes anything. The workers' failures have the reason.
            Ok(Err(_)) if workers.failures().len() == options.workers => Ok(()),
            Ok(Err(e)) => Err(e.into()),
            Err(_) => Err("the feeding thread panicked".into()),
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    bar.finish_and_clear();
    fed.map_err(|e: Box<dyn std::error::Error + Send + Sync>| e)?;

    let failures = workers.failures();
    for failure in &failures {
        eprintln!("{failure}");
    }
    let trained = trained.load(0) as usize;
    if failures.len() == options.workers {
        return Err("all workers failed".into());
    }
    if !failures.is_empty() {
        eprintln!(
            "the other {} went on: {trained} of {total} images trained ({} lost with what was being worked \
             on)",
            options.workers - failures.len(),
            total - trained
        );
    }
    let mut network = Network::new(model);
    weights.read_into(network.weights())?;
    let accuracy = network.accuracy(data.test.images.as_slice()?, data.test.labels.as_slice()?);
    println!(
        "{} worker{}, {} images, {} epochs in {seconds:.2} s: test accuracy {accuracy:.3}, {:.0} samples \
         per second",
        options.workers,
        if options.workers == 1 { "" } else { "s" },
        data.train.len() + data.test.len(),
        options.epochs,
        trained as f64 / seconds
    );
    Ok(())
}

fn main() -> std::process::ExitCode {
    let result = Options::from_args().and_then(|options| match options {
        None => Ok(()),
        Some(options) => {
            let data = Data::load(options.data.as_deref())?;
            train(&options, &data)
        }
    });
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hogwild: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
