//! Workload with a data loader. The trainer and the workers of its loader are killed and stopped.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a worker, at any point | no batch is lost: each batch is delivered once, with the bytes that follow from seed, epoch and position |
//! | the trainer | its workers end, and the memory of all batches is freed |
//! | none, but the trainer drops an epoch | a saved state is exact: a resumed epoch begins with the next batch |

use std::time::Duration;

use mp::data::{Context, DataLoader, Dataset, Item, LoadedBatch};
use mp::{AnyResult, Tensor};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::random::mix;
use crate::rounds::copies;
use crate::workloads::pool::Torment;
use crate::workloads::work::Worker;

/// Number of worker processes of the data loader.
pub(crate) const LOADERS: usize = 2;
const SAMPLES: u64 = 64;
const BATCH: u64 = 8;

type Columns = (Tensor<u64>, Tensor<u32>);

/// Dataset whose rows are computed from index, epoch and position. `len` is the length of a row.
#[derive(Serialize, Deserialize)]
struct Rows {
    len: usize,
}

impl Dataset for Rows {
    type Batch = Columns;

    fn len(&self) -> usize {
        SAMPLES as usize
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let epoch = cx.epoch();
        cx.rows(items, (&[self.len], &[]), |item, rng, (row, random)| {
            row.fill(mix(item.index as u64 ^ epoch << 32));
            random[0] = rng.next_u32();
            // Some rows take a while, so that signals arrive during the row.
            for _ in 0..item.index % 40 {
                std::thread::yield_now();
            }
            Ok(())
        })
    }
}

/// Checks a batch, and returns the id of the process that made it.
fn check(loader: &DataLoader<Rows>, batch: &LoadedBatch<Columns>, epoch: u64, number: u64) -> AnyResult<u32> {
    let info = &batch.info;
    let planned = loader.plan().epoch(epoch).batch(number)?.ok_or("a batch that is in no plan")?;
    if (info.epoch, info.number) != (epoch, number) || info.items != planned.items {
        return Err(format!("torn: {info:?} came in the place of batch {number} of epoch {epoch}").into());
    }
    let (rows, random) = &**batch;
    let (rows, random) = (rows.as_slice()?, random.as_slice()?);
    let len = rows.len() / info.items.len();
    for ((item, row), random) in info.items.iter().zip(rows.chunks(len)).zip(random) {
        let expected = mix(item.index as u64 ^ epoch << 32);
        if let Some(found) = row.iter().find(|value| **value != expected) {
            return Err(format!("torn: the row of {item:?} of epoch {epoch} has {found:#x}").into());
        }
        if *random != loader.plan().rng(epoch, item.position).next_u32() {
            return Err(format!("torn: the random number of {item:?} of epoch {epoch} is {random:#x}").into());
        }
    }
    Ok(info.pid)
}

impl Worker {
    /// Loads batches until the round has ended. `copies` is `true` if worker processes may be forked from
    /// this process.
    pub(crate) fn own_loader(&mut self, copies: bool) -> AnyResult<()> {
        let method = self.random.pick(copies::methods(copies));
        let len = self.random.pick(&[1, 30, 3000]);
        let loader = DataLoader::builder(Rows { len })
            .batch_size(BATCH)
            .shuffle(true)
            .seed(self.mark)
            .num_workers(LOADERS)
            .threads_per_worker(self.random.pick(&[1, 2]))
            .prefetch_factor(self.random.pick(&[1, 2, 4]))
            .retries(u32::MAX)
            .start_method(method)
            .build()?;
        let mut torment = Torment::default();
        let mut epoch = 0;
        while !self.row.over() {
            let mut batches = loader.epoch(epoch);
            for number in 0..SAMPLES / BATCH {
                self.row.note(Op::Collect, number);
                if self.random.percent(10) {
                    // Batches in progress are dropped, and made again.
                    batches = loader.resume(&batches.state())?;
                }
                let batch = loop {
                    if self.row.over() {
                        // Other workers wait for this worker to end, so the rest of the epoch is dropped.
                        torment.let_go();
                        self.row.note(Op::Leave, epoch);
                        return Ok(());
                    }
                    torment.go_on(&mut self.random, &loader.pids());
                    // Pace of the torture.
                    if let Ok(batch) = batches.next_timeout(Duration::from_millis(1)) {
                        break batch;
                    }
                };
                let Some(batch) = batch else {
                    return Err(format!("lost: batch {number} of epoch {epoch} of a loader").into());
                };
                torment.has_done(check(&loader, &batch?, epoch, number)?);
            }
            if batches.next().is_some() {
                return Err(format!("torn: epoch {epoch} of a loader has more batches than it should").into());
            }
            torment.let_go();
            epoch += 1;
        }
        self.row.note(Op::Leave, epoch);
        Ok(())
    }
}
