//! Columns of tensors, and of values of any serde type.

use std::ops::Deref;

use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues};
use mp_tensor::{Element, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::rows::{ColumnInfo, UnwrittenRow, UnwrittenRowError};
use super::traits::{Batch, ColumnData, Fill};
use crate::AnyResult;

impl<T: Element> Batch for Tensor<T> {
    type Shapes<'s> = &'s [usize];
    type Builder = (Tensor<T>, usize);
    type Row<'r> = &'r mut [T];

    fn begin(rows: usize, shape: &[usize], fill: Fill) -> AnyResult<(Tensor<T>, usize)> {
        let whole: Vec<usize> = std::iter::once(rows).chain(shape.iter().copied()).collect();
        let mut tensor = Tensor::empty(whole)?;
        if let Fill::Byte(byte) = fill {
            bytemuck::cast_slice_mut::<T, u8>(tensor.as_mut_slice()?).fill(byte);
        }
        Ok((tensor, rows))
    }

    fn rows((tensor, rows): &mut (Tensor<T>, usize)) -> AnyResult<Vec<&mut [T]>> {
        let all = tensor.as_mut_slice()?;
        match all.len() / (*rows).max(1) {
            // Rows without elements.
            0 => Ok((0..*rows).map(|_| <&mut [T]>::default()).collect()),
            length => Ok(all.chunks_exact_mut(length).collect()),
        }
    }

    fn unwritten(builder: &mut (Tensor<T>, usize), byte: u8) -> AnyResult<Vec<UnwrittenRow>> {
        let is_all = |row: &[T]| {
            let bytes: &[u8] = bytemuck::cast_slice(row);
            !bytes.is_empty() && bytes.iter().all(|one| *one == byte)
        };
        let rows = Self::rows(builder)?.into_iter().enumerate();
        Ok(rows.filter(|(_, row)| is_all(row)).map(|(row, _)| UnwrittenRow::row(row)).collect())
    }

    fn finish((tensor, _): (Tensor<T>, usize)) -> AnyResult<Self> {
        Ok(tensor)
    }

    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        self.encode::<C>(out)
    }

    fn get_back(&mut self, back: &mut UnsentValues) {
        self.take_back(back);
    }

    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        Self::decode::<C>(inc)
    }

    fn bytes(&self) -> usize {
        self.nbytes()
    }

    fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>> {
        let copy;
        let all = match self.as_slice() {
            Ok(all) => all,
            Err(_) => {
                copy = self.to_vec();
                &copy[..]
            }
        };
        let bytes: &[u8] = bytemuck::cast_slice(all);
        let length = bytes.len() / rows.max(1);
        // If the tensor can't be divided evenly into `rows` rows, the last row has the remaining bytes.
        let end = if row + 1 == rows { bytes.len() } else { (row + 1) * length };
        vec![bytes.get(row * length..end).unwrap_or_default().to_vec()]
    }

    fn columns(&self) -> Vec<ColumnInfo> {
        vec![ColumnInfo::new(self.shape().first().copied())]
    }

    fn into_column(self) -> AnyResult<ColumnData> {
        Ok(ColumnData::Numbers(self.into()))
    }
}

/// Column of values of any serde type, one for each sample. The worker encodes the values and the trainer
/// decodes them. For numbers use a `Tensor`, and for text [`Strings`](crate::Strings), which are not encoded.
///
/// ```
/// use mp_data::Objects;
///
/// let boxes: Objects<Vec<(u32, u32)>> = vec![vec![(1, 2)], vec![]].into();
/// assert_eq!(boxes[0], [(1, 2)]);
/// assert_eq!(boxes.into_inner().len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects<T>(Vec<T>);

impl<T> Objects<T> {
    /// Returns the values.
    #[must_use]
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<T> From<Vec<T>> for Objects<T> {
    fn from(values: Vec<T>) -> Self {
        Objects(values)
    }
}

impl<T> Deref for Objects<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Batch for Objects<T> {
    type Shapes<'s> = ();
    type Builder = Vec<Option<T>>;
    type Row<'r> = &'r mut Option<T>;

    fn begin(rows: usize, (): (), _: Fill) -> AnyResult<Vec<Option<T>>> {
        Ok((0..rows).map(|_| None).collect())
    }

    fn rows(builder: &mut Vec<Option<T>>) -> AnyResult<Vec<&mut Option<T>>> {
        Ok(builder.iter_mut().collect())
    }

    fn finish(builder: Vec<Option<T>>) -> AnyResult<Self> {
        if let Some(row) = builder.iter().position(Option::is_none) {
            return Err(UnwrittenRowError::no_value(row).into());
        }
        Ok(Objects(builder.into_iter().flatten().collect()))
    }

    fn send<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        C::write_whole(out, &self.0)
    }

    fn get_back(&mut self, _: &mut UnsentValues) {}

    fn receive<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        C::read(inc).map(Objects)
    }

    fn bytes(&self) -> usize {
        0
    }

    fn row_bytes(&self, row: usize, _: usize) -> Vec<Vec<u8>> {
        // Values that contain tensors can't be encoded in one byte string. They all count as equal.
        let encode = |value: &T| {
            let mut out = Outgoing::in_band();
            mp_reduce::MessagePack::write(&mut out, value).ok()?;
            out.plain().map(<[u8]>::to_vec)
        };
        vec![self.0.get(row).and_then(encode).unwrap_or_default()]
    }

    fn columns(&self) -> Vec<ColumnInfo> {
        vec![ColumnInfo::new(Some(self.0.len()))]
    }

    fn into_column(self) -> AnyResult<ColumnData> {
        let encode = |value: &T| {
            let mut out = Outgoing::in_band();
            mp_reduce::MessagePack::write(&mut out, value)?;
            let plain = out.plain().map(<[u8]>::to_vec);
            AnyResult::Ok(plain.ok_or("the value has memory of its own, which an object can't have here")?)
        };
        Ok(ColumnData::Objects(self.0.iter().map(encode).collect::<AnyResult<_>>()?))
    }
}
