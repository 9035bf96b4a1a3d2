//! Training as in `main.rs`, on several hosts. Each host trains its part of the images, with several
//! processes that share one set of weights. At the end, rank 0 averages the weights of all hosts.
//!
//! `cargo build --release --features net --example hogwild_hosts`, and on each host by a launcher:
//! `torchrun --no-python --nnodes 2 … target/release/examples/hogwild_hosts --workers 4`

mod data;
mod model;
mod options;
mod train;

use data::Data;
use options::Options;
use train::{BATCH, train};

fn run(options: &Options) -> mp::AnyResult<()> {
    let data = Data::load(options.data.as_deref())?;
    let cluster = mp::cluster::Cluster::join(&mp::cluster::ClusterConfig::from_env()?)?;
    let (rank, hosts, all) = (cluster.rank(), cluster.world_size(), mp::Queue::bounded(100)?);
    cluster.publish(&format!("weights of rank {rank}"), &all)?;
    let batches = (rank * BATCH..data.train.len()).step_by(hosts * BATCH).collect();
    let mut trained = train(options, &data, batches)?;
    mp::cluster::RemoteQueue::connect(&cluster, "weights of rank 0")?.put(trained.weights()?)?;
    if rank == 0 {
        trained.average(hosts, &all)?.report(&data)?;
    }
    Ok(cluster.leave()?)
}

fn main() -> std::process::ExitCode {
    let result = Options::from_args().and_then(|options| options.as_ref().map_or(Ok(()), run));
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hogwild: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
