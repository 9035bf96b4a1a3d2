//! Tensors as datasets.

use mp_tensor::{Element, FrozenTensor, Tensor};

use super::{RowDataset, ShapesOf};
use crate::plan::SampleRng;
use crate::{AnyResult, Context, Dataset, Item};

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
