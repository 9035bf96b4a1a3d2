//! Training on one machine: worker processes that share the weights.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mp::process::OnFailure;
use mp::queue::Spin;
use mp::{FrozenTensor, Queue, SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::data::{Data, Shuffle};
use crate::model::{Model, Network};
use crate::options::Options;

/// Number of images in a batch.
pub(crate) const BATCH: usize = 32;
const HIDDEN: usize = 48;
/// Longest wait for the weights of another host.
const LIMIT: Duration = Duration::from_secs(60);

/// Some images and their labels, as views of the shared data set.
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

/// Runs in a worker process: trains batches until the queue is closed.
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

/// Sends the batches that begin at the images `starts`, once in each epoch, in another order each time.
fn feed(data: &Data, mut starts: Vec<usize>, queue: &Queue<Batch>, epochs: usize) -> mp::AnyResult<()> {
    let n = data.train.len();
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

/// Trained network, and the figures of its training.
pub(crate) struct Trained {
    network: Network,
    workers: usize,
    epochs: usize,
    images: usize,
    seconds: f64,
}

impl Trained {
    /// Returns a copy of the weights.
    #[allow(dead_code, reason = "`hosts.rs` uses it")]
    pub(crate) fn weights(&mut self) -> mp::AnyResult<Tensor<f32>> {
        let weights = self.network.weights();
        Ok(Tensor::from_slice(weights, [weights.len()])?)
    }

    /// Replaces the weights with the mean of `hosts` weight tensors, which are received from the queue.
    #[allow(dead_code, reason = "`hosts.rs` uses it")]
    pub(crate) fn average(&mut self, hosts: usize, all: &Queue<Tensor<f32>>) -> mp::AnyResult<&mut Self> {
        let mean = self.network.weights();
        mean.fill(0.0);
        for _ in 0..hosts {
            let weights = all.get_timeout(LIMIT)?.ok_or("the queue of the weights is closed")?;
            mean.iter_mut().zip(weights.as_slice()?).for_each(|(mean, w)| *mean += w / hosts as f32);
        }
        Ok(self)
    }

    /// Prints the accuracy.
    pub(crate) fn report(&mut self, data: &Data) -> mp::AnyResult<()> {
        let accuracy = self.network.accuracy(data.test.images.as_slice()?, data.test.labels.as_slice()?);
        let Self { workers, epochs, images, seconds, .. } = *self;
        println!(
            "{workers} worker{}, {} images, {epochs} epochs in {seconds:.2} s: test accuracy {accuracy:.3}, \
             {:.0} samples per second",
            if workers == 1 { "" } else { "s" },
            data.train.len() + data.test.len(),
            images as f64 / seconds
        );
        Ok(())
    }
}

/// Trains the batches that begin at the images `starts`.
pub(crate) fn train(options: &Options, data: &Data, starts: Vec<usize>) -> mp::AnyResult<Trained> {
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

    let in_epoch: usize = starts.iter().map(|start| BATCH.min(data.train.len() - start)).sum();
    let total = options.epochs * in_epoch;
    let bar = ProgressBar::new(total as u64).with_style(ProgressStyle::with_template(
        "training {bar:40} {percent:>3}%  {human_pos} of {human_len} images, loss {msg} [{elapsed}]",
    )?);
    // The workers need the processors more than this process does.
    let batches = batches.spinning(Spin::Never);
    let mut killed = false;
    let fed = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(data, starts, &batches, options.epochs).map_err(|e| e.to_string()));
        // Other workers continue after a failure. Failures are reported when all workers have ended.
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
            // Its queue was closed because no worker takes anything. `workers.failures()` has the cause.
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
    let (workers, epochs) = (options.workers, options.epochs);
    Ok(Trained { network, workers, epochs, images: trained, seconds })
}
