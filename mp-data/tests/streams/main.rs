//! Streams: the same batches for any number of workers, deaths and resumes, losses by errors, states, and the
//! cases of torch's tests of iterable datasets.

#[path = "../common/mod.rs"]
mod common;
mod errors;
mod order;
#[cfg(feature = "indicatif")]
mod progress;
mod skipped;
mod torch_names;
mod unwritten;
mod windows;

use common::shards::{Shards, streaming};
use mp_data::StreamLoaderBuilder;

const SIZES: [u64; 7] = [9, 0, 14, 5, 8, 1, 11];

fn shuffled(workers: usize) -> StreamLoaderBuilder<Shards> {
    streaming(&SIZES, workers).lanes(3).shuffle_window(7)
}
