//! Copies from and to the host, copies on devices, and filling.
//!
//! A view that isn't contiguous is copied in several runs. A run consists of elements that are adjacent in
//! the source and in the destination.
//!
//! # Safety
//! Unsafe, because addresses are passed to the driver. Sound, because
//! - an address of the device belongs to a use of the piece that lasts until the copy is submitted, and the
//!   view's elements lie within the piece;
//! - an address of the host belongs to a slice with the same number of elements, for which all bit patterns
//!   are valid. The stream has run the copy when the call returns.
#![allow(unsafe_code)]

use std::ops::Range;

use mp_core::Error as CoreError;
use mp_core::bytemuck::{self, Pod};
use mp_tensor::parts::View;
use mp_tensor::{Element, Exclusive, Shared, Tensor};

use super::CudaTensor;
use super::mode::CudaMode;
use super::raw::{RawCudaTensor, TensorUse};
use crate::driver::context::BoundContext;
use crate::error::Result;
use crate::memory::Piece;
use crate::stream::CudaStream;

/// Run of adjacent elements: index of the first element, counted from the view's offset, and number of
/// elements.
type CopyRun = (usize, usize);

/// Returns the runs of a view, in row-major order.
fn runs(view: &View) -> Vec<CopyRun> {
    let first = view.offset();
    if view.is_contiguous() {
        return if view.is_empty() { Vec::new() } else { vec![(0, view.len())] };
    }
    let mut runs: Vec<CopyRun> = Vec::new();
    for at in view.positions().map(|at| at - first) {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == at => *len += 1,
            _ => runs.push((at, 1)),
        }
    }
    runs
}

/// Returns the runs that two views of equal length have in common: index in the first view, index in the
/// second view, and number of elements.
fn common(one: &View, other: &View) -> Vec<(usize, usize, usize)> {
    let (mut one, mut other) = (runs(one).into_iter(), runs(other).into_iter());
    let (mut a, mut b) = (one.next(), other.next());
    let mut all = Vec::new();
    while let (Some((x, m)), Some((y, n))) = (a, b) {
        let len = m.min(n);
        all.push((x, y, len));
        a = if m == len { one.next() } else { Some((x + len, m - len)) };
        b = if n == len { other.next() } else { Some((y + len, n - len)) };
    }
    all
}

fn other_shape(asked: &[usize], found: usize) -> CoreError {
    CoreError::Shape(format!("{found} elements for a tensor of shape {asked:?}"))
}

/// Returns the address of the element with this index, counted from the view's offset.
fn at<T>(used: &TensorUse<'_>, index: usize) -> u64 {
    used.address + (index * size_of::<T>()) as u64
}

/// Calls `copy` for each run of a view, with the address of the run and its range among the `len` elements of
/// the host. Then waits for the stream.
fn copy_runs<T: Pod, M: CudaMode>(
    raw: &RawCudaTensor<M>,
    len: usize,
    stream: &CudaStream,
    writes: bool,
    mut copy: impl FnMut(&BoundContext<'_>, u64, Range<usize>) -> Result<()>,
) -> Result<()> {
    if len != raw.view.len() {
        return Err(other_shape(raw.view.shape(), len).into());
    }
    if len == 0 {
        return Ok(());
    }
    let used = raw.lend(size_of::<T>(), stream, writes)?;
    let bound = stream.device().bind()?;
    let mut done = 0;
    for (start, len) in runs(&raw.view) {
        let copied = copy(&bound, at::<T>(&used, start), done..done + len);
        if copied.is_err() {
            // Earlier runs may be pending.
            stream.synchronize()?;
        }
        copied?;
        done += len;
    }
    used.synchronize()
}

/// Copies elements from the host to a tensor.
fn write<T: Pod, M: CudaMode>(raw: &RawCudaTensor<M>, from: &[T], stream: &CudaStream) -> Result<()> {
    copy_runs::<T, M>(raw, from.len(), stream, true, |bound, to, run| {
        // SAFETY: the run lies within the piece, which this use may write; the stream is waited for.
        unsafe { bound.copy_to_device(to, bytemuck::cast_slice(&from[run]), stream.handle()) }
    })
}

/// Copies elements of a tensor to the host.
fn read<T: Pod, M: CudaMode>(raw: &RawCudaTensor<M>, to: &mut [T], stream: &CudaStream) -> Result<()> {
    copy_runs::<T, M>(raw, to.len(), stream, false, |bound, from, run| {
        // SAFETY: the run lies within the piece, which this use may read; the stream is waited for.
        unsafe { bound.copy_to_host(bytemuck::cast_slice_mut(&mut to[run]), from, stream.handle()) }
    })
}

/// Returns the range of bytes in the tensor's piece that the tensor's view spans.
fn span<M: CudaMode>(raw: &RawCudaTensor<M>, element: usize) -> Range<usize> {
    raw.view.offset() * element..raw.view.end().unwrap_or(0) * element
}

/// Copies elements from a tensor to another tensor.
fn copy<T: Pod, M: CudaMode, N: CudaMode>(
    to: &RawCudaTensor<M>,
    from: &RawCudaTensor<N>,
    stream: &CudaStream,
) -> Result<()> {
    if to.view.shape() != from.view.shape() {
        let (to, from) = (to.view.shape(), from.view.shape());
        return Err(
            CoreError::Shape(format!("a tensor of shape {from:?} copied to one of shape {to:?}")).into()
        );
    }
    if to.view.is_empty() {
        return Ok(());
    }
    let (a, b) = (span(to, size_of::<T>()), span(from, size_of::<T>()));
    let same = to.piece.as_ref().map(Piece::id) == from.piece.as_ref().map(Piece::id);
    if same && a.start < b.end && b.start < a.end {
        let why = "a tensor copied to another view of the same memory, which overlaps it: copy it by \
                   to_device() first";
        return Err(CoreError::InvalidArgument(why.into()).into());
    }
    let source = from.lend(size_of::<T>(), stream, false)?;
    let target = to.lend(size_of::<T>(), stream, true)?;
    let bound = stream.device().bind()?;
    for (x, y, len) in common(&to.view, &from.view) {
        let bytes = len * size_of::<T>();
        // SAFETY: both runs lie within their pieces, which these uses may write and read; they do not
        // overlap, as checked.
        unsafe { bound.copy_on_device(at::<T>(&target, x), at::<T>(&source, y), bytes, stream.handle()) }?;
    }
    Ok(())
}

/// Fills a tensor with one value.
fn fill<T: Element, M: CudaMode>(raw: &RawCudaTensor<M>, value: T, stream: &CudaStream) -> Result<()> {
    let bytes = bytemuck::bytes_of(&value);
    let word = <[u8; 4]>::try_from(bytes).map(u32::from_ne_bytes);
    let same = bytes.iter().all(|byte| *byte == bytes[0]);
    if !same && word.is_err() {
        // The driver has no pattern of this size.
        return write(raw, &vec![value; raw.view.len()], stream);
    }
    let used = raw.lend(size_of::<T>(), stream, true)?;
    let bound = stream.device().bind()?;
    for (start, len) in runs(&raw.view) {
        let to = at::<T>(&used, start);
        match word {
            // SAFETY: the run lies within the piece, which this use may write, and begins at an element of
            // four bytes.
            Ok(word) if !same => unsafe { bound.fill_words(to, word, len, stream.handle()) }?,
            // SAFETY: the run lies within the piece, which this use may write.
            _ => unsafe { bound.fill_bytes(to, bytes[0], len * size_of::<T>(), stream.handle()) }?,
        }
    }
    Ok(())
}

impl<T: Element> CudaTensor<T, Exclusive> {
    /// Creates a tensor on the stream's device, with all elements equal to `value`. Does not wait for the
    /// stream if elements have 1 or 4 bytes, or all bytes of the value are equal.
    ///
    /// # Errors
    /// Errors of [`empty`](Self::empty).
    pub fn full(shape: impl AsRef<[usize]>, value: T, stream: &CudaStream) -> Result<Self> {
        let t = Self::empty(shape, stream)?;
        fill(&t.raw, value, stream)?;
        Ok(t)
    }

    /// Creates a tensor of zeros on the stream's device. Does not wait for the stream.
    ///
    /// # Errors
    /// Errors of [`empty`](Self::empty).
    pub fn zeros(shape: impl AsRef<[usize]>, stream: &CudaStream) -> Result<Self> {
        Self::full(shape, T::zeroed(), stream)
    }

    /// Copies `data`, in row-major order, to a new tensor on the stream's device. Waits until the stream has
    /// made the copy.
    ///
    /// # Errors
    /// Errors of [`empty`](Self::empty); [`mp_core::Error::Shape`] if `data` has another number of elements
    /// than `shape`.
    #[doc(alias = "cuda")]
    pub fn from_slice(data: &[T], shape: impl AsRef<[usize]>, stream: &CudaStream) -> Result<Self> {
        let shape = shape.as_ref();
        if mp_tensor::parts::count(shape)? != data.len() {
            return Err(other_shape(shape, data.len()).into());
        }
        let t = Self::empty(shape, stream)?;
        write(&t.raw, data, stream)?;
        Ok(t)
    }
}

macro_rules! writes {
    ($mode:ty, $($mutable:tt)*) => {
        impl<T: Element> CudaTensor<T, $mode> {
            /// Fills the tensor with one value, in the order of `stream`.
            ///
            /// # Errors
            /// Errors of [`on`](Self::on).
            #[doc(alias = "fill_")]
            pub fn fill($($mutable)* self, value: T, stream: &CudaStream) -> Result<()> {
                fill(&self.raw, value, stream)
            }

            /// Copies `data` to the tensor, in row-major order. Waits until the stream has made the copy.
            ///
            /// # Errors
            /// Errors of [`on`](Self::on); [`mp_core::Error::Shape`] if the tensor has another number of
            /// elements.
            pub fn write_from($($mutable)* self, data: &[T], stream: &CudaStream) -> Result<()> {
                write(&self.raw, data, stream)
            }

            /// Copies another tensor of the same shape to this tensor, on the device, in the order of
            /// `stream`.
            ///
            /// # Errors
            /// Errors of [`on`](Self::on) for either tensor; [`mp_core::Error::Shape`] if the shapes differ;
            /// [`mp_core::Error::InvalidArgument`] if the tensors overlap in memory.
            #[doc(alias = "copy_")]
            pub fn copy_from<M: CudaMode>(
                $($mutable)* self,
                from: &CudaTensor<T, M>,
                stream: &CudaStream,
            ) -> Result<()> {
                copy::<T, _, _>(&self.raw, &from.raw, stream)
            }
        }
    };
}
writes!(Exclusive, &mut);
writes!(Shared, &);

impl<T: Element, M: CudaMode> CudaTensor<T, M> {
    /// Returns the elements, in row-major order. Waits until the stream has made the copy.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on).
    #[doc(alias("tolist", "cpu"))]
    pub fn to_vec(&self, stream: &CudaStream) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); self.len()];
        read(&self.raw, &mut all, stream)?;
        Ok(all)
    }

    /// Copies the elements to `to`, in row-major order. Waits until the stream has made the copy.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on); [`mp_core::Error::Shape`] if `to` has another number of elements.
    pub fn read_into(&self, to: &mut [T], stream: &CudaStream) -> Result<()> {
        read(&self.raw, to, stream)
    }

    /// Copies the tensor to shared memory on the host. Waits until the stream has made the copy.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on) and of [`Tensor::empty`].
    #[doc(alias = "cpu")]
    pub fn to_host(&self, stream: &CudaStream) -> Result<Tensor<T>> {
        let mut t = Tensor::<T>::empty(self.shape())?;
        read(&self.raw, t.as_mut_slice()?, stream)?;
        Ok(t)
    }

    /// Copies the tensor to contiguous memory of the stream's device. The stream's device may differ from the
    /// tensor's device, but must be able to access the tensor's memory. Does not wait for the stream.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on) and of [`empty`](CudaTensor::empty).
    #[doc(alias("to", "clone", "contiguous"))]
    pub fn to_device(&self, stream: &CudaStream) -> Result<CudaTensor<T>> {
        let t = CudaTensor::<T>::empty(self.shape(), stream)?;
        copy::<T, _, _>(&t.raw, &self.raw, stream)?;
        Ok(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_tensor_elements_are_one_device_copy() {
        let whole = View::contiguous(&[3, 4]).unwrap();
        assert_eq!(runs(&whole), [(0, 12)]);
        assert_eq!(runs(&whole.with(|v| v.narrow(1, 1, 2)).unwrap()), [(0, 2), (4, 2), (8, 2)]);
        assert_eq!(runs(&whole.with(|v| v.narrow(0, 1, 0)).unwrap()), []);
        assert_eq!(runs(&whole.with(|v| v.select(1, 3)).unwrap()), [(0, 1), (4, 1), (8, 1)]);
        let rows = View::contiguous(&[3, 2]).unwrap();
        assert_eq!(
            common(&rows, &whole.with(|v| v.narrow(1, 1, 2)).unwrap()),
            [(0, 0, 2), (2, 4, 2), (4, 8, 2)]
        );
        let column = View::contiguous(&[2, 3]).unwrap().with(|v| v.t()).unwrap();
        assert_eq!(common(&column, &rows).len(), 6);
    }
}
