//! Tuples of datasets of equal length.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DatasetError, RowDataset, RowOf, ShapesOf};
use crate::plan::{SampleRng, checksum};
use crate::{AnyResult, Context, Dataset, Item, WorkerInfo};

/// Dataset that combines up to six datasets of equal length. A sample consists of the samples with the same
/// index in all datasets. A batch is a tuple with one batch of each dataset.
///
/// ```
/// use mp_data::{DataLoader, StackDataset, Subset, Tensor};
///
/// let images = Tensor::<f32>::from_fn([10, 2, 2], |i| i as f32)?.freeze();
/// let classes = Tensor::<i64>::from_fn([20], |i| i as i64)?.freeze();
/// let even = Subset::new(classes, (0..20).step_by(2))?; // any dataset that writes rows
/// let loader = DataLoader::builder(StackDataset::new((images, even))?).batch_size(4).build()?;
/// let (images, classes) = loader.epoch(0).next().unwrap()?.into_inner();
/// assert_eq!((images.shape(), classes.to_vec()), (&[4, 2, 2][..], vec![0, 2, 4, 6]));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// The datasets share the random number generator of a sample, and use it one after the other. For a batch
/// with named fields, write a dataset of your own.
#[derive(Clone, Serialize, Deserialize)]
pub struct StackDataset<D>(D);

impl<D: DatasetTuple> fmt::Debug for StackDataset<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths = self.0.lengths();
        write!(
            f,
            "StackDataset({} datasets, {} samples)",
            lengths.len(),
            lengths.first().copied().unwrap_or(0)
        )
    }
}

/// [`StackDataset`] of tensors that have equal length along dimension 0. Sample `i` consists of entry `i` of
/// each tensor.
///
/// ```
/// use mp_data::{DataLoader, Tensor, TensorDataset};
///
/// let x = Tensor::<f32>::from_fn([100, 3], |i| i as f32)?.freeze(); // in memory once, for all workers
/// let y = Tensor::<i64>::from_fn([100], |i| (i % 10) as i64)?.freeze();
/// let dataset = TensorDataset::new((x, y))?;
/// let loader = DataLoader::builder(dataset).batch_size(8).shuffle(true).num_workers(2).build()?;
/// for batch in loader.epoch(0) {
///     let (x, y) = batch?.into_inner(); // Tensor<f32>, Tensor<i64>
///     assert_eq!(x.shape(), [y.len(), 3]);
/// }
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub type TensorDataset<T> = StackDataset<T>;

/// Tuples of datasets.
pub trait DatasetTuple {
    #[doc(hidden)]
    fn lengths(&self) -> Vec<usize>;
}

impl<D: DatasetTuple> StackDataset<D> {
    /// Stacks the datasets of a tuple, and calls `len` of each once.
    ///
    /// # Errors
    /// [`DatasetError::Lengths`] if the datasets have different lengths.
    pub fn new(datasets: D) -> Result<Self, DatasetError> {
        let lengths = datasets.lengths();
        if lengths.iter().any(|len| Some(len) != lengths.first()) {
            return Err(DatasetError::Lengths(lengths));
        }
        Ok(StackDataset(datasets))
    }

    /// Returns the datasets.
    #[must_use]
    pub fn datasets(&self) -> &D {
        &self.0
    }
}

macro_rules! tuples {
    ($($($dataset:ident $at:tt)+;)*) => {$(
        impl<$($dataset: RowDataset),+> DatasetTuple for ($($dataset,)+) {
            fn lengths(&self) -> Vec<usize> {
                vec![$(Dataset::len(&self.$at)),+]
            }
        }

        impl<$($dataset: RowDataset),+> Dataset for StackDataset<($($dataset,)+)> {
            type Batch = ($($dataset::Batch,)+);

            fn len(&self) -> usize {
                Dataset::len(&self.0.0)
            }

            fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
                cx.rows_of(self, items)
            }

            fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
                $(self.0.$at.init(worker)?;)+
                Ok(())
            }

            fn describe(&self, index: usize) -> Option<String> {
                let names: Vec<String> = [$(self.0.$at.describe(index)),+].into_iter().flatten().collect();
                (!names.is_empty()).then(|| names.join(", "))
            }

            fn selection_checksum(&self) -> Option<u64> {
                let checksums = [$(self.0.$at.selection_checksum()),+];
                let words = checksums.iter().map(|checksum| checksum.unwrap_or_default());
                checksums.iter().any(Option::is_some).then(|| checksum(words))
            }
        }

        impl<$($dataset: RowDataset),+> RowDataset for StackDataset<($($dataset,)+)> {
            fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
                Ok(($(self.0.$at.row_shapes()?,)+))
            }

            fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()> {
                $(self.0.$at.write_row(item, rng, row.$at)?;)+
                Ok(())
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
}
