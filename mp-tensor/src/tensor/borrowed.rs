//! View methods that consume a mutably borrowed tensor.

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::BorrowedMut;
use crate::view::View;
use crate::view_methods;
use mp_core::Result;

/// View methods that consume a view, and return the new view.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let mut t = Tensor::<i32>::zeros(&[3, 3])?;
/// t.view_mut().diagonal(0, 0, 1)?.fill(1)?;
/// t.view_mut().slice(0, .., 2)?.select(1, 1)?.fill(7)?;
/// assert_eq!(t.as_slice()?, [1, 7, 0, 0, 1, 0, 0, 7, 1]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// `expand` and `unfold` are missing, because no element may appear twice in a writable view.
impl<T: Element> Tensor<T, BorrowedMut<'_>> {
    view_methods!();

    fn viewed(self, change: impl FnOnce(&mut View) -> Result<()>) -> Result<Self> {
        let view = self.raw.view.with(change)?;
        Ok(Self::of(self.raw.viewed(view)))
    }
}
