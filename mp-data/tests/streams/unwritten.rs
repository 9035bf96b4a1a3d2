//! Rows of tensors that are not written.

use mp_data::{AnyResult, Context, IterableDataset, OnError, Samples, ShardPosition, StreamLoader};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::shards::next_of;

type Hundred = std::iter::Map<std::ops::Range<u8>, fn(u8) -> AnyResult<u8>>;

/// Dataset with two shards of numbers of one byte. One of the numbers is 0xa5, the fill byte of unwritten
/// rows.
#[derive(Serialize, Deserialize)]
struct Bytes {
    /// Number whose row is not written.
    leaves: Option<u8>,
}

impl IterableDataset for Bytes {
    type Batch = (Tensor<u8>, Tensor<u8>);
    type Reader = Hundred;

    fn shards(&self) -> usize {
        2
    }

    fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Hundred> {
        Ok((100 * shard as u8..100 * (shard as u8 + 1)).map(Ok as fn(u8) -> AnyResult<u8>))
    }

    fn fetch(&mut self, samples: Samples<u8>, cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows_from(samples, (&[], &[2]), |number, _, (one, two)| {
            one[0] = number;
            if self.leaves != Some(number) {
                two.fill(number);
            }
            Ok(())
        })
    }

    fn describe(&self, shard: usize) -> Option<String> {
        Some(format!("hundred {shard}"))
    }
}

fn loader(leaves: Option<u8>, workers: usize, threads: usize, how: OnError) -> StreamLoader<Bytes> {
    let loader = StreamLoader::builder(Bytes { leaves }).batch_size(16).lanes(2).shuffle_window(40).seed(3);
    loader.num_workers(workers).threads_per_worker(threads).on_error(how).build().unwrap()
}

const PLACES: [(usize, usize); 3] = [(0, 1), (1, 1), (2, 3)];

#[test]
#[cfg_attr(not(debug_assertions), ignore = "rows are filled beforehand in builds with debug assertions")]
fn unwritten_stream_row_is_an_error_of_its_column() {
    for (workers, threads) in PLACES {
        let reports = loader(Some(142), workers, threads, OnError::Report);
        let mut batches = reports.epoch(0);
        let (mut errors, mut samples) = (Vec::new(), 0);
        while let Some(batch) = next_of(&mut batches) {
            match batch {
                Ok(batch) => samples += batch.info.items.len(),
                Err(error) => errors.push(error),
            }
        }
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!((error.item.map(|item| item.index), error.shard, samples), (Some(42), Some(1), 184));
        let text = error.to_string();
        assert!(text.contains("sample 42 of shard 1 (hundred 1)"), "{text}");
        assert!(text.contains("its row of column 1 was not written"), "{text}");
        let skips = loader(Some(142), workers, threads, OnError::SkipSample);
        let mut batches = skips.epoch(0);
        let samples =
            std::iter::from_fn(|| next_of(&mut batches)).map(|batch| batch.unwrap().info.items.len());
        assert_eq!(samples.sum::<usize>(), 199);
    }
}

#[test]
fn stream_row_equal_to_the_fill_is_accepted() {
    for (workers, threads) in PLACES {
        let loader = loader(None, workers, threads, OnError::Report);
        let mut batches = loader.epoch(0);
        let rows = std::iter::from_fn(|| next_of(&mut batches)).flat_map(|batch| batch.unwrap().0.to_vec());
        let mut rows: Vec<u8> = rows.collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..200).collect::<Vec<u8>>());
    }
}
