//! Copies of private memory in shared memory.

use crate::element::{Bool, Element};
use crate::tensor::Tensor;
use mp_core::{Error, Result};

/// Copies slices, vectors and arrays into shared memory, once and at the speed of `memcpy`.
///
/// ```
/// use mp_tensor::ShareMemory;
///
/// let t = vec![1.0_f32, 2.0, 3.0].share_memory()?; // one dimension
/// assert_eq!((t.shape(), t.is_shared()), (&[3][..], true));
/// let m = [[1_u8, 2, 3], [4, 5, 6]].share_memory()?; // two dimensions
/// assert_eq!((m.shape(), m[[1, 0]]), (&[2, 3][..], 4));
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Tensors are always in shared memory. A tensor that is created there ([`Tensor::empty`],
/// [`zeros`](Tensor::zeros), [`from_fn`](Tensor::from_fn), [`from_iter`](Tensor::from_iter)) needs no copy.
#[doc(alias = "share_memory_")]
#[doc(alias = "share_memory")]
pub trait ShareMemory {
    /// Element type.
    type Element: Element;

    /// Copies the elements into a new tensor, which the caller owns.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`].
    fn share_memory(&self) -> Result<Tensor<Self::Element>>;
}

impl<T: Element> ShareMemory for [T] {
    type Element = T;
    fn share_memory(&self) -> Result<Tensor<T>> {
        Tensor::from_slice(self, [self.len()])
    }
}

impl<T: Element, const N: usize, const M: usize> ShareMemory for [[T; N]; M] {
    type Element = T;
    fn share_memory(&self) -> Result<Tensor<T>> {
        Tensor::from_slice(self.as_flattened(), [M, N])
    }
}

/// Each `bool` is a byte that is 0 or 1, so this is a plain copy as well.
impl ShareMemory for [bool] {
    type Element = Bool;
    fn share_memory(&self) -> Result<Tensor<Bool>> {
        let bytes: &[u8] = bytemuck::cast_slice(self);
        Tensor::from_slice(bytemuck::cast_slice(bytes), [self.len()])
    }
}

macro_rules! by_slice {
    ($([$($parameters:tt)*] $t:ty, $element:ty;)*) => {$(
        impl<$($parameters)*> ShareMemory for $t {
            type Element = $element;
            fn share_memory(&self) -> Result<Tensor<$element>> {
                self[..].share_memory()
            }
        }
    )*};
}

by_slice! {
    [T: Element] Vec<T>, T;
    [T: Element, const N: usize] [T; N], T;
    [] Vec<bool>, Bool;
    [const N: usize] [bool; N], Bool;
}

impl<T: Element> Tensor<T> {
    /// Creates a one-dimensional tensor from an iterator. Elements of an iterator with an exact size hint are
    /// written in place. Otherwise they are collected first.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let squares = Tensor::from_iter((0..5).map(|i| i * i))?;
    /// assert_eq!(squares.as_slice()?, [0, 1, 4, 9, 16]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::empty`], and [`Error::Shape`] if the size hint was wrong.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn from_iter(all: impl IntoIterator<Item = T>) -> Result<Self> {
        let mut all = all.into_iter();
        let (n, most) = all.size_hint();
        if most != Some(n) {
            return all.collect::<Vec<T>>().share_memory();
        }
        let mut t = Self::empty([n])?;
        let mut written = 0;
        for (to, v) in t.as_mut_slice()?.iter_mut().zip(&mut all) {
            *to = v;
            written += 1;
        }
        if written < n || all.next().is_some() {
            return Err(Error::Shape(format!(
                "an iterator of {n} elements, by its size hint, has {written} or more"
            )));
        }
        Ok(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_from_iterator_with_wrong_hint_is_an_error() {
        struct WrongHint(u8, usize);
        impl Iterator for WrongHint {
            type Item = u8;
            fn next(&mut self) -> Option<u8> {
                self.0 = self.0.checked_sub(1)?;
                Some(self.0)
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                (self.1, Some(self.1))
            }
        }
        assert!(Tensor::from_iter(WrongHint(3, 4)).is_err());
        assert!(Tensor::from_iter(WrongHint(3, 2)).is_err());
        assert_eq!(Tensor::from_iter(WrongHint(3, 3)).unwrap().to_vec(), [2, 1, 0]);
        assert!(Tensor::from_iter(WrongHint(3, usize::MAX)).is_err());
        assert_eq!(Tensor::from_iter((0..9_u64).filter(|i| i % 4 == 0)).unwrap().to_vec(), [0, 4, 8]);
    }
}
