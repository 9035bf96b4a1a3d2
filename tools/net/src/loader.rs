//! Roles `loader` and `serve-loader`: make batches on all hosts, and serve a loader for them.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use mp_data::{AnyResult, Context, DataLoader, DataLoaderBuilder, Dataset, Item};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::{RoleResult, join, say};

/// Number of `f32` in a sample.
const WIDTH: usize = 16 << 10;

/// Samples that depend on index, seed and epoch.
#[derive(Serialize, Deserialize)]
struct Noise;

impl Dataset for Noise {
    type Batch = Tensor<f32>;

    fn len(&self) -> usize {
        400
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        // sleep: the time for a batch, so long that all workers are needed.
        std::thread::sleep(Duration::from_millis(30));
        cx.rows(items, &[WIDTH], |item, rng, row| {
            row.fill_with(|| item.index as f32 + rng.f32());
            Ok(())
        })
    }
}

fn builder(workers: usize) -> DataLoaderBuilder<Noise> {
    DataLoader::builder(Noise).num_workers(workers).batch_size(4).shuffle(true).seed(5).name("noise")
}

/// Reports a hash of each batch of an epoch. With `hosts`, workers of all hosts make the batches.
pub(crate) fn run(options: &Options) -> RoleResult {
    let hosts = options.number_or_zero::<u8>("hosts")? != 0;
    let cluster = if hosts { Some(join(options)?) } else { None };
    let loader = match &cluster {
        Some(cluster) => builder(1).hosts(cluster).build()?,
        None => builder(1).build()?,
    };
    say!("ready");
    let workers = options.number::<usize>("workers")?;
    while loader.pids().len() < workers {
        // sleep: waits until workers of other hosts are ready. The process has a time limit.
        std::thread::sleep(Duration::from_millis(20));
    }
    for batch in loader.epoch(0) {
        let batch = batch?;
        let mut hasher = DefaultHasher::new();
        batch.iter().for_each(|value| hasher.write_u32(value.to_bits()));
        say!("batch {} {:x}", batch.info.number, hasher.finish());
    }
    if let Some(cluster) = cluster {
        cluster.leave()?;
    }
    Ok(())
}

/// Serves a loader until rank 0 has left.
pub(crate) fn serve(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let served = builder(2).serve(&cluster)?;
    say!("ready");
    served.wait();
    Ok(())
}
