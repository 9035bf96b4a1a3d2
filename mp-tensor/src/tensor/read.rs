//! # Safety
//! Reading through slices and references. Unsafe, because it makes `&[T]` of memory that other processes map; sound,
//! because
//! - this is for [`Readable`] modes only, which are sealed: of an exclusive tensor there is one handle, which is borrowed;
//!   of a frozen one no handle that writes exists in any process, nor can one be made again; a borrowed view has an
//!   exclusive tensor borrowed as long as it lives; a mutably borrowed one is the only view of its elements;
//! - the view lies within the storage ([`Raw`](crate::tensor::raw::Raw)), and a slice is made only of a contiguous one.
#![allow(unsafe_code)]

use std::ops::Index;

use crate::element::Element;
use crate::storage::StorageElements as _;
use crate::tensor::mode::{Borrowed, Mode, Readable};
use crate::{Tensor, TensorView};
use mp_core::Result;
use mp_core::Storage;

/// Elements of a slice, or of a storage at positions.
enum Elements<S, P> {
    Slice(S),
    Apart(P),
}

impl<T, S: ExactSizeIterator<Item = T>, P: ExactSizeIterator<Item = T>> Iterator for Elements<S, P> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match self {
            Self::Slice(s) => s.next(),
            Self::Apart(p) => p.next(),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Slice(s) => s.size_hint(),
            Self::Apart(p) => p.size_hint(),
        }
    }
    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(self, init: B, f: F) -> B {
        match self {
            Self::Slice(s) => s.fold(init, f),
            Self::Apart(p) => p.fold(init, f),
        }
    }
}
impl<T, S: ExactSizeIterator<Item = T>, P: ExactSizeIterator<Item = T>> ExactSizeIterator for Elements<S, P> {}

// Bounds of the methods, and not of the block: so that the compiler says what to do in place of a call that a mode has not.
impl<T: Element, M: Mode> Tensor<T, M> {
    /// Its elements, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) when it is not contiguous (a column of a matrix, say);
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy of the process.
    #[inline]
    pub fn as_slice(&self) -> Result<&[T]>
    where
        M: Readable,
    {
        self.raw.contiguous()?;
        // SAFETY: a readable mode, and the tensor is borrowed as long as the slice lives: no code writes.
        Ok(unsafe { self.storage().slice(self.offset(), self.len()) })
    }
}

impl<T: Element, M: Readable> Tensor<T, M> {
    /// One element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when there is no such element;
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy of the process.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        self.raw.here()?;
        Ok(self.storage().load(self.raw.view.position(index)?))
    }

    /// The element of a tensor that has only one.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) when it has none, or several.
    pub fn item(&self) -> Result<T> {
        let one = self.raw.view.reshape(&[])?;
        self.raw.here()?;
        Ok(self.storage().load(one.offset()))
    }

    /// Its elements, in row-major order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        match self.as_slice() {
            Ok(all) => Elements::Slice(all.iter().copied()),
            Err(_apart) => Elements::Apart(self.loads()),
        }
    }

    /// A copy of its elements in ordinary memory, in row-major order.
    #[doc(alias = "tolist")]
    pub fn to_vec(&self) -> Vec<T> {
        match self.as_slice() {
            Ok(all) => all.to_vec(),
            Err(_apart) => {
                let mut all = Vec::with_capacity(self.len());
                self.iter().for_each(|v| all.push(v));
                all
            }
        }
    }

    /// A copy in shared memory, contiguous and the caller's alone.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let x = Tensor::<i32>::from_fn(&[2, 3], |i| i as i32)?.freeze();
    /// let mut columns = x.t()?.contiguous()?;
    /// columns.as_mut_slice()?[0] = 10; // x stays as it is
    /// assert_eq!(columns.as_slice()?, [10, 3, 1, 4, 2, 5]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), [`Error::ArenaFull`](mp_core::Error::ArenaFull).
    #[doc(alias = "clone")]
    pub fn contiguous(&self) -> Result<Tensor<T>> {
        let mut copy = Tensor::empty(self.shape())?;
        copy.copy_from(self)?;
        copy.raw.grad = self.raw.grad.derived();
        Ok(copy)
    }

    /// The same as [`contiguous`](Self::contiguous): a copy in shared memory, the caller's alone.
    ///
    /// # Errors
    /// As [`contiguous`](Self::contiguous).
    pub fn try_clone(&self) -> Result<Tensor<T>> {
        self.contiguous()
    }

    /// A tensor of what a function makes of each element, contiguous and the caller's alone. It requires no gradients: of what
    /// the function does, nothing is known.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let x = Tensor::<i32>::from_fn(&[2, 2], |i| i as i32)?.freeze();
    /// let half = x.t()?.map(|v| 0.5 * v as f32)?;
    /// assert_eq!(half, Tensor::from_slice(&[0.0, 1.0, 0.5, 1.5], &[2, 2])?);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn map<U: Element>(&self, f: impl FnMut(T) -> U) -> Result<Tensor<U>> {
        self.raw.here()?;
        Tensor::made_of(self.shape(), self.iter().map(f))
    }

    /// A view to read, as long as the tensor is borrowed: of it, there may be several, and views of views.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let t = Tensor::<i32>::from_fn(&[2, 3], |i| i as i32)?;
    /// let (first, last) = (t.view().select(1, 0)?, t.view().select(1, 2)?);
    /// assert_eq!((first.to_vec(), last.to_vec()), (vec![0, 3], vec![2, 5]));
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    pub fn view(&self) -> TensorView<'_, T> {
        Tensor::of(crate::tensor::raw::Raw {
            keep: self.storage(),
            view: self.raw.view.clone(),
            grad: self.raw.grad.derived(),
        })
    }
}

/// Equal if they have the same shape and equal elements, wherever those are: as slices, so that a NaN makes them differ.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let t = Tensor::<i32>::from_fn(&[2, 2], |i| i as i32)?;
/// assert_eq!(t.view().t()?, t.view().t()?.contiguous()?);
/// assert_ne!(t.view().t()?, t);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Shared tensors are not compared, since other processes may write them meanwhile, so that one might differ
/// from itself: compare copies (`to_vec`, `contiguous`).
impl<T: Element, M: Readable, N: Readable> PartialEq<Tensor<T, N>> for Tensor<T, M> {
    fn eq(&self, other: &Tensor<T, N>) -> bool {
        if self.shape() != other.shape() {
            return false;
        }
        match (self.as_slice(), other.as_slice()) {
            (Ok(a), Ok(b)) => a == b,
            _ => self.iter().eq(other.iter()),
        }
    }
}

impl<'a, T: Element> Tensor<T, Borrowed<'a>> {
    /// Its elements, as long as what was borrowed lives, also beyond this view.
    ///
    /// # Errors
    /// As [`as_slice`](Self::as_slice).
    pub fn to_slice(&self) -> Result<&'a [T]> {
        self.raw.contiguous()?;
        let storage: &'a Storage = self.raw.keep;
        // SAFETY: what the view is of is borrowed for 'a: no code writes.
        Ok(unsafe { storage.slice(self.offset(), self.len()) })
    }
}

/// One element, as `t[[row, column]]`.
///
/// # Panics
/// If there is no such element, as indexing a slice.
impl<T: Element, M: Readable, const N: usize> Index<[usize; N]> for Tensor<T, M> {
    type Output = T;

    #[inline]
    fn index(&self, index: [usize; N]) -> &T {
        match self.raw.view.position(&index) {
            // SAFETY: as for `as_slice`; the position is the view's.
            Ok(at) => &(unsafe { self.storage().slice(at, 1) })[0],
            Err(e) => panic!("{e}"),
        }
    }
}
