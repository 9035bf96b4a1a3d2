//! Datasets that the measured loaders read.

use std::path::Path;
use std::time::Duration;

use mp::data::{
    Context, Dataset, FrozenStrings, Item, IterableDataset, Samples, ShardPosition, Strings, WorkerInfo,
};
use mp::{AnyResult, Tensor};
use mp_bench_decoder::SIDE;
use serde::{Deserialize, Serialize};

/// Dataset of images. All values of an image are its index.
#[derive(Serialize, Deserialize)]
pub(super) struct Filled(pub(super) usize);

impl Dataset for Filled {
    type Batch = Tensor<f32>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[3, SIDE as usize, SIDE as usize], |item, _, row| {
            row.fill(item.index as f32);
            Ok(())
        })
    }
}

/// Time that making a sample takes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Takes {
    Nothing,
    Each(Duration),
    /// A sample takes this time, but every twentieth takes 20 times as long.
    Uneven(Duration),
}

impl Takes {
    /// Sleeps for the time that the sample with this index takes.
    pub(crate) fn wait(self, index: usize) {
        match self {
            Takes::Nothing => {}
            Takes::Each(time) => std::thread::sleep(time),
            Takes::Uneven(time) => std::thread::sleep(if is_slow(index) { 20 * time } else { time }),
        }
    }
}

/// Returns `true` for one index of each group of 20 consecutive indices. The position of that index in its
/// group varies, so that the slow samples are spread over all workers. torch_loader.py has the same function.
fn is_slow(index: usize) -> bool {
    index % 20 == index / 20 * 7 % 20
}

/// Dataset of numbers: each sample is its own index. The fields are the length and the time that a sample
/// takes.
#[derive(Serialize, Deserialize)]
pub(super) struct Numbers(pub(super) usize, pub(super) Takes);

impl Dataset for Numbers {
    type Batch = Tensor<i64>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            self.1.wait(item.index);
            row[0] = item.index as i64;
            Ok(())
        })
    }
}

/// Dataset of the middle parts of image files. The fields are the paths of the files and the length.
#[derive(Serialize, Deserialize)]
pub(super) struct Files(pub(super) FrozenStrings, pub(super) usize);

impl Dataset for Files {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.1
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[SIDE as usize, SIDE as usize, 3], |item, _, row| {
            mp_bench_decoder::decode(Path::new(&self.0[item.index % self.0.len()]), row)
        })
    }
}

/// Length of a path in bytes. The next constant is the range of the path's number.
pub(crate) const PATH: usize = 26;
const DIGITS: std::ops::Range<usize> = 16..22;

/// Returns the path that contains this number.
pub(super) fn path(index: usize) -> String {
    format!("train/n01440764/{index:06}.jpg")
}

/// Returns the number in a path, or `None` if the path has another form.
pub(super) fn number_of(path: &[u8]) -> Option<usize> {
    let digits = path.get(DIGITS).filter(|_| path.len() == PATH)?;
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| 10 * number + usize::from(digit - b'0')))
}

/// Dataset of texts: each sample is one path of a list. If `at_once` is set, a batch is made by one call,
/// otherwise row by row.
#[derive(Serialize, Deserialize)]
pub(super) struct Texts {
    pub(super) paths: FrozenStrings,
    pub(super) at_once: bool,
}

impl Dataset for Texts {
    type Batch = Strings;

    fn len(&self) -> usize {
        self.paths.len()
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        if self.at_once {
            let paths: Vec<&str> = items.iter().map(|item| &self.paths[item.index]).collect();
            return Strings::from_rows(&paths);
        }
        cx.rows(items, (), |item, _, text| {
            text.push_str(&self.paths[item.index]);
            Ok(())
        })
    }
}

/// Dataset of numbers: each sample is the number in one path of a list. The fields are the list and the
/// length.
#[derive(Serialize, Deserialize)]
pub(super) struct Paths(pub(super) FrozenStrings, pub(super) usize);

impl Dataset for Paths {
    type Batch = Tensor<i64>;

    fn len(&self) -> usize {
        self.1
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            let number =
                number_of(self.0[item.index % self.0.len()].as_bytes()).ok_or("not one of the paths")?;
            row[0] = number as i64;
            Ok(())
        })
    }
}

/// Dataset of items of `bytes` bytes, copied from memory of the worker. Each item begins and ends with its
/// index.
#[derive(Serialize, Deserialize)]
pub(super) struct Large {
    pub(super) bytes: usize,
    pub(super) count: usize,
    #[serde(skip)]
    item: Vec<u8>,
}

impl Large {
    pub(super) fn new(bytes: usize, count: usize) -> Self {
        Large { bytes, count, item: Vec::new() }
    }
}

impl Dataset for Large {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.count
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.item = vec![7; self.bytes];
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[self.bytes], |item, _, row| {
            row.copy_from_slice(&self.item);
            let (number, end) = ((item.index as u64).to_le_bytes(), row.len() - 8);
            row[..8].copy_from_slice(&number);
            row[end..].copy_from_slice(&number);
            Ok(())
        })
    }
}

/// Dataset of [`SHARDS`] shards with samples of 256 bytes. A sample begins with the index of its shard. All
/// its other words are its index in the shard.
#[derive(Serialize, Deserialize)]
pub(super) struct Records(pub(super) u64);

pub(super) const RECORD: usize = 32;
pub(super) const SHARDS: u64 = 16;

/// Reader of a shard of [`Records`].
pub(super) struct Shard(u64, std::ops::Range<u64>);

impl Iterator for Shard {
    type Item = AnyResult<[u64; RECORD]>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = [self.1.next()?; RECORD];
        record[0] = self.0;
        Some(Ok(record))
    }
}

impl IterableDataset for Records {
    type Batch = Tensor<u64>;
    type Reader = Shard;

    fn shards(&self) -> usize {
        SHARDS as usize
    }

    fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Self::Reader> {
        Ok(Shard(shard as u64, 0..self.0))
    }

    fn fetch(
        &mut self,
        samples: Samples<[u64; RECORD]>,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Self::Batch> {
        cx.rows_from(samples, &[RECORD], |record, _, row| {
            row.copy_from_slice(&record);
            Ok(())
        })
    }
}
