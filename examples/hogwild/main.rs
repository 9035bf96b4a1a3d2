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
mod train;

use data::Data;
use options::Options;
use train::{BATCH, train};

fn run(options: &Options) -> mp::AnyResult<()> {
    let data = Data::load(options.data.as_deref())?;
    let batches = (0..data.train.len()).step_by(BATCH).collect();
    train(options, &data, batches)?.report(&data)
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
