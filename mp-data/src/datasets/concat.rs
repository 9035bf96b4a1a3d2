//! Concatenation of datasets.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DatasetError, RowDataset, RowOf, ShapesOf};
use crate::plan::{SampleRng, checksum};
use crate::{AnyResult, Context, Dataset, Item, WorkerInfo};

/// Concatenation of datasets of one type: the samples of the first dataset, then the samples of the second,
/// and so on. For datasets of different types, write an enum that forwards all calls, including methods with
/// a default such as [`selection_checksum`](Dataset::selection_checksum).
///
/// ```
/// use mp_data::{AnyResult, ConcatDataset, DataLoader, Tensor};
///
/// let (first, second) = (Tensor::<i64>::full([3], 1)?.freeze(), Tensor::<i64>::full([2], 2)?.freeze());
/// let all = ConcatDataset::new([first, second])?;
/// let loader = DataLoader::builder(all).batch_size(4).num_workers(1).build()?;
/// let batches = loader.epoch(0).map(|batch| Ok(batch?.to_vec())).collect::<AnyResult<Vec<_>>>()?;
/// assert_eq!(batches, [vec![1, 1, 1, 2], vec![2]]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors of batches
/// A sample fails if the shapes of its dataset's rows differ from the shapes of the first dataset that is not
/// empty.
#[derive(Clone, Serialize, Deserialize)]
pub struct ConcatDataset<D> {
    datasets: Vec<D>,
    /// For each dataset, the index after its last sample.
    ends: Vec<usize>,
}

impl<D> fmt::Debug for ConcatDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.ends.last().copied().unwrap_or(0);
        write!(f, "ConcatDataset({} datasets, {len} samples)", self.datasets.len())
    }
}

impl<D: RowDataset> ConcatDataset<D> {
    /// Concatenates datasets, and calls `len` of each once.
    ///
    /// # Errors
    /// [`DatasetError::Empty`] without a dataset, [`DatasetError::TooLong`] with too many samples.
    pub fn new(datasets: impl Into<Vec<D>>) -> Result<Self, DatasetError> {
        let datasets = datasets.into();
        if datasets.is_empty() {
            return Err(DatasetError::Empty);
        }
        let mut end = 0usize;
        let ends = datasets.iter().map(|dataset| {
            end = end.checked_add(dataset.len())?;
            Some(end)
        });
        let ends = ends.collect::<Option<_>>().ok_or(DatasetError::TooLong)?;
        Ok(ConcatDataset { datasets, ends })
    }

    /// Returns the datasets, in their order.
    #[must_use]
    pub fn datasets(&self) -> &[D] {
        &self.datasets
    }

    /// Returns the dataset that has a sample, and the index of the sample in that dataset.
    fn find(&self, index: usize) -> Option<(&D, usize)> {
        let number = self.ends.partition_point(|end| *end <= index);
        let before = number.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        Some((self.datasets.get(number)?, index.checked_sub(before)?))
    }
}

impl<D: RowDataset> Dataset for ConcatDataset<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows_of(self, items)
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        self.datasets.iter_mut().try_for_each(|dataset| dataset.init(worker))
    }

    fn describe(&self, index: usize) -> Option<String> {
        let (dataset, index) = self.find(index)?;
        dataset.describe(index)
    }

    fn selection_checksum(&self) -> Option<u64> {
        let checksums: Vec<_> = self.datasets.iter().map(Dataset::selection_checksum).collect();
        let words = checksums.iter().map(|checksum| checksum.unwrap_or_default());
        checksums.iter().any(Option::is_some).then(|| checksum(words))
    }
}

impl<D: RowDataset> RowDataset for ConcatDataset<D> {
    fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
        let first = self.ends.iter().position(|end| *end > 0).unwrap_or(0);
        self.datasets.get(first).ok_or(DatasetError::Empty)?.row_shapes()
    }

    fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()> {
        let outside = || format!("sample {} of {}", item.index, self.len());
        let (dataset, index) = self.find(item.index).ok_or_else(outside)?;
        let (shapes, first) = (dataset.row_shapes()?, self.row_shapes()?);
        if shapes != first {
            let why =
                format!("its dataset has rows of the shapes {shapes:?}, and the first dataset {first:?}");
            return Err(why.into());
        }
        dataset.write_row(Item { index, ..item }, rng, row)
    }
}
