//! Datasets that write one sample at a time.

use mp_tensor::{Element, FrozenTensor, Tensor};

use crate::plan::SampleRng;
use crate::{AnyResult, Batch, Context, Dataset, Item};

/// Row of one sample in a batch of a dataset.
pub type RowOf<'r, D> = <<D as Dataset>::Batch as Batch>::Row<'r>;

/// Shapes of the rows of a dataset's batches.
pub type ShapesOf<'s, D> = <<D as Dataset>::Batch as Batch>::Shapes<'s>;

/// Dataset that writes its samples one at a time, as torch's `__getitem__` makes one sample.
/// [`ConcatDataset`](crate::ConcatDataset) and [`StackDataset`](crate::StackDataset) are made of such
/// datasets.
///
/// ```
/// use mp_data::plan::SampleRng;
/// use mp_data::{AnyResult, ConcatDataset, Context, DataLoader, Dataset, Item, Tensor};
/// use mp_data::{RowDataset, RowOf, ShapesOf};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Multiples { of: i64, len: usize }
///
/// impl Dataset for Multiples {
///     type Batch = (Tensor<i64>, Tensor<f32>);
///
///     fn len(&self) -> usize {
///         self.len
///     }
///
///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
///         cx.rows_of(self, items)
///     }
/// }
///
/// impl RowDataset for Multiples {
///     fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
///         Ok((&[], &[2]))
///     }
///
///     fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()> {
///         let (number, noise) = row; // `&mut` slices of the batch, in shared memory
///         number[0] = self.of * item.index as i64;
///         noise.fill_with(|| rng.f32());
///         Ok(())
///     }
/// }
///
/// let both = ConcatDataset::new(vec![Multiples { of: 2, len: 3 }, Multiples { of: 5, len: 4 }])?;
/// let loader = DataLoader::builder(both).batch_size(4).num_workers(1).build()?;
/// let batches = loader.epoch(0).map(|batch| Ok(batch?.0.to_vec())).collect::<AnyResult<Vec<_>>>()?;
/// assert_eq!(batches, [vec![0, 2, 4, 0], vec![5, 10, 15]]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A [`FrozenTensor`](mp_tensor::FrozenTensor) is such a dataset: its samples are its entries along dimension
/// 0.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not write samples row by row",
    label = "a dataset of this type can't be part of another one",
    note = "implement `RowDataset` for it: `row_shapes` and `write_row`",
    note = "its `fetch` is `cx.rows_of(self, items)` then"
)]
pub trait RowDataset: Dataset {
    /// Returns the shapes of a sample's row, as [`Context::rows`] takes them. Called in a worker, after
    /// [`init`](Dataset::init), for each batch; in a [`ConcatDataset`](crate::ConcatDataset) for each sample.
    ///
    /// # Errors
    /// Any error that leaves the shapes unknown.
    fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>>;

    /// Writes one sample into its row of a batch. Several threads may call it at once.
    ///
    /// # Errors
    /// Any error if the sample can't be made.
    #[doc(alias = "__getitem__")]
    fn write_row(&self, item: Item, rng: &mut SampleRng, row: RowOf<'_, Self>) -> AnyResult<()>;
}

impl<B: Batch> Context<B> {
    /// Makes a batch of a dataset that writes its samples row by row: the `fetch` of a [`RowDataset`].
    ///
    /// # Errors
    /// The errors of [`rows`](Self::rows) and of [`RowDataset::row_shapes`].
    ///
    /// # Panics
    /// In the cases of [`rows`](Self::rows).
    pub fn rows_of<D: RowDataset<Batch = B>>(&mut self, dataset: &D, items: &[Item]) -> AnyResult<B> {
        self.rows(items, dataset.row_shapes()?, |item, rng, row| dataset.write_row(item, rng, row))
    }
}

/// The samples are the tensor's entries along dimension 0. Workers share the tensor's memory.
impl<T: Element> Dataset for FrozenTensor<T> {
    type Batch = Tensor<T>;

    fn len(&self) -> usize {
        self.shape().first().copied().unwrap_or(0)
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<T>>) -> AnyResult<Tensor<T>> {
        cx.rows_of(self, items)
    }
}

impl<T: Element> RowDataset for FrozenTensor<T> {
    fn row_shapes(&self) -> AnyResult<ShapesOf<'_, Self>> {
        Ok(self.shape().get(1..).ok_or("a tensor without dimensions has no rows")?)
    }

    fn write_row(&self, item: Item, _: &mut SampleRng, row: &mut [T]) -> AnyResult<()> {
        let from = self.view().select(0, item.index)?;
        match from.as_slice() {
            Ok(from) if from.len() == row.len() => row.copy_from_slice(from),
            _ if from.len() != row.len() => {
                return Err(format!("a row of {} elements for a sample of {}", row.len(), from.len()).into());
            }
            _ => row.iter_mut().zip(from.iter()).for_each(|(to, from)| *to = from),
        }
        Ok(())
    }
}
