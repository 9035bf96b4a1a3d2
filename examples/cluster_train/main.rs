//! Trains a classifier on handwritten digits on several hosts.
//!
//! Start it once on each host, by any launcher that `mp::cluster::launcher` knows:
//!
//! ```bash
//! cargo build --release --features net --example cluster_train
//! torchrun --no-python --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint host-a:29500 \
//!     target/release/examples/cluster_train --workers 4
//! mpirun -x MP_ADDR=host-a -x MP_TLS_CA -x MP_TLS_CERT -x MP_TLS_KEY --host host-a,host-b \
//!     target/release/examples/cluster_train --workers 4
//! ```
//!
//! On several hosts, `MP_TLS_CA`, `MP_TLS_CERT` and `MP_TLS_KEY` name certificates: see
//! `docs/guide/cluster.md`.
//!
//! Rank 0 has the weights. It puts batches of images, with the weights of that moment, into a queue. The
//! workers of all ranks lease batches, and put gradients into another queue. The batches of a host that is
//! killed are delivered again, so all images are trained.

#[path = "../hogwild/data.rs"]
mod data;
#[path = "../hogwild/model.rs"]
mod model;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mp::cluster::{Cluster, ClusterConfig, ClusterEvent, RemoteQueue};
use mp::process::OnFailure;
use mp::{FrozenTensor, Message, Queue, Tensor};
use serde::{Deserialize, Serialize};

use data::{Data, Shuffle};
use model::{Model, Network};

const BATCH: usize = 32;
const HIDDEN: usize = 48;

/// Some images and their labels, and the weights at the time when the batch was sent.
#[derive(Serialize, Deserialize)]
struct Batch {
    number: u64,
    images: FrozenTensor<f32>,
    labels: FrozenTensor<u32>,
    weights: FrozenTensor<f32>,
}

/// Sum of the gradients of a batch.
#[derive(Message)]
struct Update {
    batch: u64,
    rank: usize,
    gradient: Tensor<f32>,
}

/// Arguments of every worker.
#[derive(Serialize, Deserialize)]
struct Job {
    rank: usize,
    model: Model,
    batches: RemoteQueue<Batch>,
    updates: RemoteQueue<Update>,
}

/// Runs in a worker process, on any host: leases batches, and puts their gradients into a queue.
fn worker(_number: usize, job: Job) -> mp::AnyResult<()> {
    let mut network = Network::new(job.model);
    while let Some(batch) = job.batches.get_lease()? {
        network.weights().copy_from_slice(batch.weights.as_slice()?);
        network.gradients(batch.images.as_slice()?, batch.labels.as_slice()?);
        let gradient = Tensor::from_slice(network.gradient(), [job.model.len()])?;
        job.updates.put(Update { batch: batch.number, rank: job.rank, gradient })?;
        batch.ack()?; // from here on, the batch is not delivered again
    }
    Ok(())
}

/// Queues of rank 0, and the weights.
struct Trainer {
    batches: Queue<Batch>,
    updates: Queue<Update>,
    weights: Mutex<FrozenTensor<f32>>,
}

/// Returns the learning rate in the epoch that contains the batch with this number.
fn rate(batch: u64, of_epoch: usize) -> f32 {
    0.25 / (1.0 + (batch as usize / of_epoch) as f32 / 10.0)
}

impl Trainer {
    fn new(weights: &[f32], ahead: usize) -> mp::AnyResult<Self> {
        let weights = Mutex::new(Tensor::from_slice(weights, [weights.len()])?.freeze());
        Ok(Self { batches: Queue::bounded(ahead)?, updates: Queue::bounded(ahead)?, weights })
    }

    fn weights(&self) -> FrozenTensor<f32> {
        self.weights.lock().unwrap().clone()
    }

    /// Puts every batch once in each epoch, in another order each time.
    fn feed(&self, data: &Data, epochs: usize) -> mp::AnyResult<()> {
        let mut starts: Vec<usize> = (0..data.train.len()).step_by(BATCH).collect();
        let (mut shuffle, mut number) = (Shuffle::new(7), 0);
        for _ in 0..epochs {
            shuffle.run(&mut starts);
            for &start in &starts {
                let len = BATCH.min(data.train.len() - start);
                self.batches.put(Batch {
                    number,
                    images: data.train.images.narrow(0, start, len)?.contiguous()?.freeze(),
                    labels: data.train.labels.narrow(0, start, len)?.contiguous()?.freeze(),
                    weights: self.weights(),
                })?;
                number += 1;
            }
        }
        self.batches.close();
        Ok(())
    }

    /// Adds the gradients of all batches to the weights. Returns the number of batches that each rank has
    /// trained. `check` returns an error if no more gradients can arrive.
    fn apply(
        &self,
        of_epoch: usize,
        total: usize,
        check: &dyn Fn() -> mp::AnyResult<()>,
    ) -> mp::AnyResult<Vec<usize>> {
        let (mut seen, mut by_rank) = (HashSet::new(), Vec::new());
        let mut weights = self.weights().to_vec();
        while seen.len() < total {
            check()?;
            let Ok(Some(update)) = self.updates.get_timeout(Duration::from_millis(100)) else { continue };
            // The batch of a lost host may have been trained twice.
            if !seen.insert(update.batch) {
                continue;
            }
            let step = rate(update.batch, of_epoch) / BATCH as f32;
            for (w, g) in weights.iter_mut().zip(update.gradient.as_slice()?) {
                *w -= step * g;
            }
            *self.weights.lock().unwrap() = Tensor::from_slice(&weights, [weights.len()])?.freeze();
            by_rank.resize(by_rank.len().max(update.rank + 1), 0);
            by_rank[update.rank] += 1;
        }
        Ok(by_rank)
    }
}

fn main() -> mp::AnyResult<()> {
    let (mut workers, mut epochs) = (std::thread::available_parallelism().map_or(2, usize::from), 40);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|value| value.parse().ok()).filter(|number| *number > 0);
        match (arg.as_str(), number) {
            ("--workers", Some(number)) => workers = number,
            ("--epochs", Some(number)) => epochs = number,
            _ => return Err("cluster_train [--workers N] [--epochs N]: on each host, by a launcher".into()),
        }
    }
    let cluster = Cluster::join(&ClusterConfig::from_env()?)?;
    let (rank, events) = (cluster.rank(), cluster.events());
    let data = Data::load(None)?;
    let model = Model { inputs: data.inputs, hidden: HIDDEN, classes: data.classes };
    let trainer = match rank {
        0 => Some(Trainer::new(&model.initial_weights(), cluster.world_size())?),
        _ => None,
    };
    if let Some(Trainer { batches, updates, .. }) = &trainer {
        cluster.publish("batches", batches)?;
        cluster.publish("updates", updates)?;
    }
    let (batches, updates) =
        (RemoteQueue::connect(&cluster, "batches")?, RemoteQueue::connect(&cluster, "updates")?);
    let settings = mp::SpawnOptions::nprocs(workers).name("trainer").on_failure(OnFailure::Continue);
    let begin = Instant::now();
    let processes = mp::start_processes(worker, Job { rank, model, batches, updates }, settings)?;

    if let Some(trainer) = trainer {
        let of_epoch = data.train.len().div_ceil(BATCH);
        let by_rank = std::thread::scope(|scope| -> mp::AnyResult<_> {
            let feeder = scope.spawn(|| trainer.feed(&data, epochs).map_err(|error| error.to_string()));
            let check = || {
                for event in events.try_iter() {
                    match event {
                        ClusterEvent::Lost(member) => {
                            eprintln!("{member} was lost: its batches go to other workers");
                        }
                        ClusterEvent::Joined(member) => eprintln!("{member} has joined"),
                        _ => {}
                    }
                }
                let failures = processes.failures();
                if failures.len() == workers && cluster.members().len() == 1 {
                    return Err(format!("all workers failed: {}", failures[0]).into());
                }
                Ok(())
            };
            let by_rank = trainer.apply(of_epoch, epochs * of_epoch, &check);
            // Ends the feeder after an error.
            trainer.batches.close();
            let fed = feeder.join().map_err(|_| "the feeding thread panicked")?;
            by_rank.and_then(|by_rank| fed.map(|()| by_rank).map_err(Into::into))
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let mut network = Network::new(model);
        network.weights().copy_from_slice(trainer.weights().as_slice()?);
        let accuracy = network.accuracy(data.test.images.as_slice()?, data.test.labels.as_slice()?);
        println!(
            "batches by rank {by_rank:?} in {seconds:.2} s: test accuracy {accuracy:.3}, {:.0} images per \
             second",
            (epochs * data.train.len()) as f64 / seconds
        );
    }
    let joined = processes.join();
    if rank == 0 {
        // Workers of other hosts acknowledge their last batches.
        let until = Instant::now() + Duration::from_secs(10);
        while cluster.members().len() > 1 && Instant::now() < until {
            // sleep: members leave one by one, and this program has nothing else to do.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    joined?;
    cluster.leave()?;
    Ok(())
}
