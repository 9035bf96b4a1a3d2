//! # Safety
//! Tensors as arrays of `ndarray`, without copying. Unsafe, because arrays are created from pointers. Sound,
//! because
//! - the view is within the storage, which is borrowed while the array lives. Strides are never negative, and
//!   both libraries count in elements;
//! - reading: in a [`Readable`] mode the elements are not written. A read-only array may have overlapping
//!   elements;
//! - writing: in a [`Writable`] mode, mutably borrowed, no other code accesses the elements, and no two
//!   indices refer to the same element ([`RawTensor`](crate::tensor::raw::RawTensor)). No index refers to an
//!   element of another view.
#![allow(unsafe_code)]

use ndarray::{ArrayBase, ArrayViewD, ArrayViewMutD, Data, Dimension, IxDyn, ShapeBuilder, StrideShape};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Readable, Writable};
use mp_core::Result;

fn shape(shape: &[usize], strides: &[isize]) -> StrideShape<IxDyn> {
    let strides: Vec<usize> = strides.iter().map(|s| s.unsigned_abs()).collect();
    IxDyn(shape).strides(IxDyn(&strides))
}

impl<T: Element, M: Readable> Tensor<T, M> {
    /// Returns the tensor as a read-only array of `ndarray`, without copying.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let x = Tensor::<f32>::from_fn(&[2, 3], |i| i as f32)?.freeze();
    /// let a = x.as_ndarray()?;
    /// assert_eq!(a.sum_axis(ndarray::Axis(0)).into_raw_vec_and_offset().0, [3.0, 5.0, 7.0]);
    /// assert_eq!(a.as_ptr(), x.as_slice()?.as_ptr());
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    #[doc(alias = "numpy")]
    pub fn as_ndarray(&self) -> Result<ArrayViewD<'_, T>> {
        self.raw.here()?;
        if self.is_empty() {
            // Without strides: `ndarray` would check even unused ones.
            return Ok(ArrayViewD::from_shape(IxDyn(self.shape()), &[]).unwrap_or_else(|_| nothing()));
        }
        let first = self.storage().at::<T>(self.offset(), 1);
        // SAFETY: see above; the array borrows `self`.
        Ok(unsafe { ArrayViewD::from_shape_ptr(shape(self.shape(), self.strides()), first.as_ptr()) })
    }
}

/// Returns an empty array, for shapes that `ndarray` can't represent.
fn nothing<'a, T>() -> ArrayViewD<'a, T> {
    ndarray::ArrayView1::from(&[]).into_dyn()
}

impl<T: Element, M: Writable> Tensor<T, M> {
    /// Returns the tensor as a writable array of `ndarray`, without copying.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let mut t = Tensor::<i32>::zeros(&[2, 2])?;
    /// t.as_mut_ndarray()?.index_axis_mut(ndarray::Axis(1), 1).fill(7);
    /// assert_eq!(t.as_slice()?, [0, 7, 0, 7]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn as_mut_ndarray(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        self.raw.here()?;
        if self.is_empty() {
            let none = ArrayViewMutD::from_shape(IxDyn(self.shape()), &mut []);
            return Ok(none.unwrap_or_else(|_| ndarray::ArrayViewMut1::from(&mut []).into_dyn()));
        }
        let first = self.storage().at::<T>(self.offset(), 1);
        // SAFETY: see above; the array borrows `self` mutably.
        Ok(unsafe { ArrayViewMutD::from_shape_ptr(shape(self.shape(), self.strides()), first.as_ptr()) })
    }
}

impl<T: Element> Tensor<T> {
    /// Copies an array or an array view into contiguous shared memory. Each element is copied once.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let a = ndarray::arr2(&[[1.0, 2.0], [3.0, 4.0]]);
    /// let t = Tensor::from_ndarray(&a.t())?;
    /// assert_eq!((t.shape(), t.as_slice()?), (&[2, 2][..], &[1.0, 3.0, 2.0, 4.0][..]));
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::empty`]; [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) for more than
    /// [`MAX_RANK`](crate::MAX_RANK) dimensions.
    #[doc(alias = "from_numpy")]
    pub fn from_ndarray<S: Data<Elem = T>, D: Dimension>(array: &ArrayBase<S, D>) -> Result<Self> {
        match array.as_slice() {
            Some(all) => Self::from_slice(all, array.shape()),
            None => {
                let mut t = Self::empty(array.shape())?;
                t.as_mut_slice()?.iter_mut().zip(array.iter()).for_each(|(to, v)| *to = *v);
                Ok(t)
            }
        }
    }
}
