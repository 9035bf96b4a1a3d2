//! Views on the heap, and a cache of the view that a thread created last. Most tensors have the same shape as
//! the previous one, and share its view.
//!
//! A view has 176 bytes and is allocated apart from its tensor. Without this cache, allocating, filling and
//! freeing it would cost a third of all other work for a small tensor. A million tensors of one shape would
//! have a million views. A disadvantage of the cache is that tensors of one shape that one thread has created
//! share a reference count, in whatever threads they are.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use crate::view::View;
use mp_core::Result;

/// View of a tensor, on the heap, because a view is large, and tensors are moved more often than created.
#[derive(Clone)]
pub(crate) enum ViewBox {
    /// View of this tensor alone. It has no reference count, so creating and dropping it takes no atomic
    /// operation.
    Own(Box<View>),
    /// View that tensors of the same shape share.
    Shared(Arc<View>),
}

impl ViewBox {
    pub(crate) fn into_shared(self) -> Arc<View> {
        match self {
            Self::Own(view) => Arc::from(view),
            Self::Shared(view) => view,
        }
    }
}

impl From<View> for ViewBox {
    fn from(view: View) -> Self {
        Self::Own(Box::new(view))
    }
}

impl From<Arc<View>> for ViewBox {
    fn from(view: Arc<View>) -> Self {
        Self::Shared(view)
    }
}

impl Deref for ViewBox {
    type Target = View;
    #[inline]
    fn deref(&self) -> &View {
        match self {
            Self::Own(view) => view,
            Self::Shared(view) => view,
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<Arc<View>>> = const { RefCell::new(None) };
    static NOTHING: Arc<View> = Arc::new(View::NONE);
}

/// Returns the view that this thread created last, if that view is row-major and has this shape and offset.
#[inline]
pub(crate) fn same(offset: usize, shape: impl ExactSizeIterator<Item = usize>) -> Option<Arc<View>> {
    // While the thread ends, there is no cache.
    LAST.try_with(|last| last.borrow().as_ref().filter(|view| view.is_row_major(offset, shape)).cloned())
        .ok()?
}

/// Returns an empty view.
#[inline]
pub fn nothing() -> Arc<View> {
    NOTHING.try_with(Clone::clone).unwrap_or_else(|_| Arc::new(View::NONE))
}

/// Returns a row-major view of this shape, from `offset` on.
///
/// # Errors
/// [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) for a shape that is too large or has too many
/// dimensions.
#[inline]
pub fn row_major(offset: usize, shape: &[usize]) -> Result<Arc<View>> {
    match same(offset, shape.iter().copied()) {
        Some(view) => Ok(view),
        None => another(offset, shape),
    }
}

#[inline(never)]
fn another(offset: usize, shape: &[usize]) -> Result<Arc<View>> {
    let view = Arc::new(View::row_major(offset, shape)?);
    _ = LAST.try_with(|last| last.replace(Some(view.clone())));
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_row_major_views_share_one_allocation() {
        let first = row_major(0, &[2, 3]).unwrap();
        assert!(Arc::ptr_eq(&first, &row_major(0, &[2, 3]).unwrap()));
        for (offset, shape) in [(1, &[2, 3][..]), (0, &[3, 2]), (0, &[2, 3, 1]), (0, &[2]), (0, &[])] {
            let other = row_major(offset, shape).unwrap();
            assert_eq!((other.offset(), other.shape()), (offset, shape));
            assert_eq!(other.len(), shape.iter().product::<usize>());
            assert!(Arc::ptr_eq(&other, &row_major(offset, shape).unwrap()));
        }
        assert!(row_major(0, &[usize::MAX, 2]).is_err() && row_major(0, &[1; 9]).is_err());
        // A row-major view that was transposed is not row-major.
        let column = View::contiguous(&[2, 3]).unwrap().with(|v| v.transpose(0, 1)).unwrap();
        assert!(!column.is_row_major(0, [3, 2].into_iter()));
    }
}
