//! Tests of private views of storages, through which a process changes bytes without changing the storage.
#![cfg(all(not(mp_loom), not(miri)))]
#![allow(unsafe_code)]

use mp_core::fork::Fork;
use mp_core::{Arena, CopyOnWrite, SharingStrategy, Storage, set_sharing_strategy};

/// Returns a storage whose bytes are all `value`.
fn filled(len: usize, value: u8) -> Storage {
    let storage = Storage::new(Arena::current().unwrap(), len, 1).unwrap();
    // SAFETY: new memory of this length, of this thread alone.
    unsafe { storage.as_ptr().cast_mut().write_bytes(value, len) };
    storage
}

fn bytes_of(storage: &Storage) -> &[u8] {
    // SAFETY: no thread writes to the storage after it was filled.
    unsafe { std::slice::from_raw_parts(storage.as_ptr(), storage.len()) }
}

fn bytes(view: &mut CopyOnWrite) -> &mut [u8] {
    // SAFETY: the storage was filled before, so nothing else writes these bytes.
    unsafe { std::slice::from_raw_parts_mut(view.as_mut_ptr(), view.len()) }
}

/// Checks that writes to one of two views are not visible in the other view or in their storage.
fn check_writes(storage: &Storage, mapped: bool) {
    let mut one = storage.copy_on_write(1000, 20_000).unwrap();
    let mut other = storage.copy_on_write(0, storage.len()).unwrap();
    assert_eq!((one.is_mapped(), other.is_mapped()), (mapped, mapped));
    assert!(bytes(&mut one).iter().all(|&byte| byte == 7) && one.len() == 20_000);
    bytes(&mut one).fill(1);
    bytes(&mut other)[500..].fill(2);
    assert!(bytes(&mut one).iter().all(|&byte| byte == 1));
    assert!(bytes(&mut other)[..500].iter().all(|&byte| byte == 7));
    assert!(bytes(&mut other)[500..].iter().all(|&byte| byte == 2));
    assert!(bytes_of(storage).iter().all(|&byte| byte == 7));
}

#[test]
fn writes_to_copy_on_write_views_are_private() {
    check_writes(&filled(30_000, 7), true);
}

#[test]
fn copy_on_write_view_of_a_named_file_is_private() {
    let before = mp_core::get_sharing_strategy();
    set_sharing_strategy(SharingStrategy::FileSystem).unwrap();
    let storage = filled(30_000, 7);
    set_sharing_strategy(before).unwrap();
    check_writes(&storage, true);
}

#[test]
fn copy_on_write_view_keeps_block_of_dropped_storage() {
    let storage = filled(5000, 9);
    let hold = storage.hold().clone();
    let mut view = storage.copy_on_write(0, 5000).unwrap();
    drop(storage);
    assert_eq!(hold.count(), 2);
    assert_eq!(bytes(&mut view), [9; 5000]);
    drop(view);
    assert_eq!(hold.count(), 1);
}

#[test]
fn empty_copy_on_write_view_is_not_mapped() {
    let mut view = filled(100, 7).copy_on_write(100, 0).unwrap();
    assert!(view.is_empty() && !view.is_mapped() && bytes(&mut view).is_empty());
}

#[test]
#[should_panic(expected = "2 bytes from 99")]
fn copy_on_write_view_beyond_the_storage_panics() {
    _ = filled(100, 7).copy_on_write(99, 2);
}

/// Returns `true` if memory is mapped at an address.
fn is_in_use(address: *mut u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let at = unsafe { libc::mmap(address.cast(), 4096, libc::PROT_NONE, flags, -1, 0) };
    at == libc::MAP_FAILED
}

/// A forked copy has no access to the bytes of a view. The view's addresses stay reserved, so that no other
/// memory gets them.
#[test]
fn copy_on_write_addresses_stay_reserved_in_a_fork() {
    let mut view = filled(4096, 7).copy_on_write(0, 4096).unwrap();
    let address = view.as_mut_ptr().map_addr(|address| address & !4095);
    assert!(view.is_mapped());
    let prepared = Fork::prepare().unwrap();
    // SAFETY: the copy begins as one, and ends without running the exit functions of the original.
    let copy = unsafe { libc::fork() };
    if copy == 0 {
        // SAFETY: before anything else in the copy.
        unsafe { prepared.begin(&[]) }.unwrap();
        drop(view);
        // SAFETY: ends the copy.
        unsafe { libc::_exit(i32::from(!is_in_use(address))) };
    }
    drop(prepared);
    let mut status = 0;
    // SAFETY: a child of this test.
    assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
    assert_eq!(status, 0, "the copy's wait status");
    assert_eq!(bytes(&mut view), [7; 4096]);
}
