//! Batches that count their bytes in flight.

use mp_data::{AnyResult, Context, Dataset, Item, IterableDataset, Samples, ShardPosition};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

/// Dataset whose batches have one sample each. `sizes` has the number of bytes of each sample.
#[derive(Clone, Serialize, Deserialize)]
pub struct Measured {
    pub sizes: Vec<usize>,
    /// Bytes of batches that were begun and not delivered, and their maximum.
    counts: SharedTensor<i64>,
}

impl Measured {
    pub fn new(sizes: impl IntoIterator<Item = usize>) -> Self {
        Measured { sizes: sizes.into_iter().collect(), counts: Tensor::zeros([2]).unwrap().share() }
    }

    fn begun(&self, bytes: usize) {
        let bytes = bytes as i64;
        let now = self.counts.fetch_add(0, bytes) + bytes;
        self.counts.fetch_max(1, now);
    }

    /// Records that the trainer received a batch of this size.
    pub fn given(&self, bytes: usize) {
        self.counts.fetch_sub(0, bytes as i64);
    }

    /// Returns the number of bytes of the batches in flight.
    pub fn now(&self) -> i64 {
        self.counts.load(0)
    }

    /// Returns the maximum number of bytes in flight since the last call, and resets it.
    pub fn most(&self) -> i64 {
        let most = self.counts.load(1);
        self.counts.fetch_min(1, 0);
        most
    }
}

impl Dataset for Measured {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.sizes.len()
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let bytes = self.sizes[items[0].index];
        self.begun(bytes);
        cx.rows(items, &[bytes], |item, _, row| {
            row.fill(item.index as u8);
            Ok(())
        })
    }
}

/// Dataset [`Measured`] as n shards: shard s has samples s, s + n, s + 2n and so on.
#[derive(Serialize, Deserialize)]
pub struct InShards(pub Measured, pub usize);

impl IterableDataset for InShards {
    type Batch = Tensor<u8>;
    type Reader = std::vec::IntoIter<AnyResult<usize>>;

    fn shards(&self) -> usize {
        self.1
    }

    fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Self::Reader> {
        let samples = (shard..self.0.sizes.len()).step_by(self.1);
        Ok(samples.map(Ok).collect::<Vec<_>>().into_iter())
    }

    fn fetch(&mut self, samples: Samples<usize>, cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let bytes = self.0.sizes[samples.as_slice()[0]];
        self.0.begun(bytes);
        cx.rows_from(samples, &[bytes], |sample, _, row| {
            // The byte is never the fill byte of unwritten rows, because such a batch would be made twice.
            row.fill((sample % 100) as u8);
            Ok(())
        })
    }
}
