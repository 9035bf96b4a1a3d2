//! Test of the maximum number of mapped private views of storages. A test program of its own, since the views
//! of all threads of a process count.
#![cfg(all(not(mp_loom), not(miri)))]
#![allow(unsafe_code)]

use mp_core::{Arena, CopyOnWrite, Storage};

#[test]
fn copy_on_write_view_beyond_the_view_limit_is_copied() {
    let storage = Storage::new(Arena::current().unwrap(), 30_000, 1).unwrap();
    let byte = storage.as_ptr().wrapping_add(5);
    // SAFETY: within the storage, which no thread writes.
    let byte = || unsafe { byte.read() };
    let before = byte();
    let view = || storage.copy_on_write(5, 5).unwrap();
    let mut views: Vec<CopyOnWrite> = (0..16 << 10).map(|_| view()).collect();
    assert!(views.iter().all(CopyOnWrite::is_mapped));
    let mut copied = view();
    assert!(!copied.is_mapped());
    // SAFETY: the copy belongs to this thread alone, and nothing writes to the storage.
    unsafe { copied.as_mut_ptr().write(!before) };
    assert_eq!(byte(), before);
    views.pop();
    assert!(view().is_mapped());
}
