//! Selection of samples of a dataset.

use std::fmt;
use std::sync::Arc;

use mp_tensor::{FrozenTensor, Tensor};
use serde::{Deserialize, Serialize};

use super::{DatasetError, RowDataset, RowOf, ShapesOf};
use crate::plan::{SampleRng, checksum};
use crate::{AnyResult, Context, Dataset, Item, WorkerInfo};

/// Dataset of the samples that another dataset has at some indices, in the order of these indices. The list
/// of indices is in shared memory once, for any number of workers.
///
/// ```
/// use mp_data::{DataLoader, Subset, Tensor};
///
/// let squares = Tensor::<i64>::from_fn([10], |i| (i * i) as i64)?.freeze();
/// let some = Subset::new(squares, [7, 2, 2])?;
/// let loader = DataLoader::builder(some).batch_size(3).num_workers(1).build()?;
/// assert_eq!(loader.epoch(0).next().unwrap()?.to_vec(), [49, 4, 4]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A saved state is refused by a loader whose subset has other indices
/// ([`allow_changed_dataset`](crate::DataLoaderBuilder::allow_changed_dataset)). Indices in
/// [`BatchInfo`](crate::BatchInfo) and in errors are indices in the subset, not in the dataset.
///
/// [`Sampler::Subset`](crate::plan::Sampler::Subset) draws from a part of a dataset without another dataset.
#[derive(Clone, Serialize, Deserialize)]
pub struct Subset<D> {
    dataset: D,
    indices: FrozenTensor<u64>,
    /// Checksum of the indices.
    check: u64,
}

impl<D> fmt::Debug for Subset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subset({} samples)", self.indices.len())
    }
}

impl<D: Dataset> Subset<D> {
    /// Takes the samples of a dataset at these indices.
    ///
    /// # Errors
    /// [`DatasetError::Index`] if an index is not below the dataset's length, [`DatasetError::Memory`]
    /// without memory for the list.
    pub fn new(dataset: D, indices: impl IntoIterator<Item = usize>) -> Result<Self, DatasetError> {
        let len = dataset.len();
        let mut taken = Vec::new();
        for index in indices {
            if index >= len {
                return Err(DatasetError::Index { index, len });
            }
            taken.try_reserve(1).map_err(|why| DatasetError::Memory(why.to_string()))?;
            taken.push(index as u64);
        }
        Subset::of(dataset, &taken)
    }

    /// Creates a subset without checking the indices.
    pub(super) fn of(dataset: D, indices: &[u64]) -> Result<Self, DatasetError> {
        let check = checksum(indices.iter().copied());
        let indices = Tensor::from_slice(indices, [indices.len()]);
        let indices = indices.map_err(|why| DatasetError::Memory(why.to_string()))?.freeze();
        Ok(Subset { dataset, indices, check })
    }

    /// Returns the dataset from which the samples are taken.
    #[must_use]
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// Returns the indices of the samples in [`dataset`](Self::dataset).
    #[must_use]
    pub fn indices(&self) -> &FrozenTensor<u64> {
        &self.indices
    }

    /// Returns the item of the same sample in the inner dataset.
    fn inner(&self, item: Item) -> AnyResult<Item> {
        let index = self.indices.as_slice()?.get(item.index);
        let index = index.ok_or_else(|| format!("sample {} of {}", item.index, self.indices.len()))?;
        Ok(Item { index: usize::try_from(*index)?, ..item })
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        let inner: Arc<[Item]> = items.iter().map(|item| self.inner(*item)).collect::<AnyResult<_>>()?;
        cx.with_items(items, &inner, |cx| self.dataset.fetch(&inner, cx))
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        self.dataset.init(worker)
    }

    fn describe(&self, index: usize) -> Option<String> {
        let item = self.inner(Item { index, position: 0 }).ok()?;
        self.dataset.describe(item.index)
    }

    fn selection_checksum(&self) -> Option<u64> {
        let inner = self.dataset.selection_checksum();
        Some(inner.map_or(self.check, |inner| checksum([inner, self.check].into_iter())))
    }
}

impl<D: RowDataset> RowDataset for Subset<D> {
    fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
        self.dataset.row_shapes()
    }

    fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()> {
        self.dataset.write_row(self.inner(item)?, rng, row)
    }
}
