//! Row buffers of finished batches. The same thread reuses them for its next batch.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;

/// Maximum number of bytes that are retained for the rows of one column.
const MOST: usize = 16 << 20;

thread_local! {
    /// Lists of empty row buffers, by the type of the row.
    static SPARE: RefCell<HashMap<TypeId, Vec<Box<dyn Any>>>> = RefCell::default();
}

/// Returns this number of empty rows, with the buffers of an earlier batch if there are any.
pub(super) fn take<R: RowBuffer>(rows: usize) -> Vec<R> {
    let spare = SPARE.try_with(|spare| spare.borrow_mut().get_mut(&TypeId::of::<R>())?.pop());
    let spare = spare.ok().flatten().and_then(|spare| spare.downcast::<Vec<R>>().ok());
    let mut all = spare.map_or_else(Vec::new, |spare| *spare);
    all.resize_with(rows, R::default);
    all
}

/// Buffer of a row.
pub(super) trait RowBuffer: Default + 'static {
    /// Returns the capacity in bytes.
    fn capacity_bytes(&self) -> usize;
    fn clear(&mut self);
}

impl<T: 'static> RowBuffer for Vec<T> {
    fn capacity_bytes(&self) -> usize {
        self.capacity() * size_of::<T>()
    }

    fn clear(&mut self) {
        Vec::clear(self);
    }
}

impl RowBuffer for String {
    fn capacity_bytes(&self) -> usize {
        self.capacity()
    }

    fn clear(&mut self) {
        String::clear(self);
    }
}

/// Clears and retains row buffers for the next batch, unless they are large.
pub(super) fn keep<R: RowBuffer>(mut rows: Vec<R>) {
    if rows.iter().map(R::capacity_bytes).sum::<usize>() > MOST {
        return;
    }
    rows.iter_mut().for_each(R::clear);
    _ = SPARE.try_with(|spare| spare.borrow_mut().entry(TypeId::of::<R>()).or_default().push(Box::new(rows)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_batch_reuses_emptied_row_buffers() {
        let mut rows = take::<Vec<u16>>(3);
        rows.iter_mut().for_each(|row| row.extend(0..1000));
        let mut texts = take::<String>(1);
        texts[0].push_str("a text");
        let places: Vec<*const u16> = rows.iter().map(|row| row.as_ptr()).collect();
        keep(rows);
        keep(texts);
        // Each column takes its own buffers.
        let (mut fewer, mut more) = (take::<Vec<u16>>(2), take::<Vec<u16>>(5));
        assert_eq!(fewer.iter().map(|row| row.as_ptr()).collect::<Vec<_>>(), places[..2]);
        assert!(fewer.iter().chain(&more).all(Vec::is_empty));
        assert_eq!((fewer.len(), more.len(), take::<String>(2)), (2, 5, vec![String::new(); 2]));
        fewer[0].push(1);
        more[4].push(2);
        keep(fewer);
        keep(more);
        assert!(take::<Vec<u16>>(5).iter().all(Vec::is_empty));
    }

    #[test]
    fn large_row_buffers_are_not_kept_for_reuse() {
        keep(vec![Vec::<u64>::with_capacity(MOST / 8), Vec::with_capacity(1)]);
        assert!(take::<Vec<u64>>(2).iter().all(|row| row.capacity() == 0));
        keep(vec![Vec::<u64>::with_capacity(MOST / 8)]);
        assert!(take::<Vec<u64>>(1)[0].capacity() >= MOST / 8);
    }
}
