//! Memory of this process that the engine accesses. The memory is in a file that this process has open, or
//! that this module creates.
//!
//! # Safety
//! Unsafe, because it borrows a descriptor of the process by its number, and maps memory. Sound, because
//! - the descriptor is only sent to the engine, while the caller keeps the registered file open;
//! - memory is unmapped with the length with which it was mapped, when its user frees it.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Lengths of the allocations of `cuMemHostAlloc`, by address.
static PINNED: Mutex<Option<HashMap<u64, usize>>> = Mutex::new(None);

/// Returns the file in which a range of this process's memory is mapped, and the offset of the range in the
/// file.
///
/// The descriptor is neither duplicated nor closed: closing any descriptor of a file releases the process's
/// POSIX locks of the file.
pub(crate) fn file_of(address: u64, bytes: u64) -> Option<(BorrowedFd<'static>, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (inode, offset) = maps.lines().find_map(|line| lies_in(line, address, bytes))?;
    let mut open = std::fs::read_dir("/proc/self/fd").ok()?.filter_map(Result::ok);
    let number: RawFd = open.find_map(|entry| {
        let found = std::fs::metadata(entry.path()).ok()?;
        if found.ino() == inode { entry.file_name().to_str()?.parse().ok() } else { None }
    })?;
    // SAFETY: the descriptor is open, and the caller keeps it open while it registers memory of the file.
    Some((unsafe { BorrowedFd::borrow_raw(number) }, offset))
}

/// Returns the descriptor with this number, which a caller of the driver passed, if it is open.
pub(crate) fn descriptor(number: RawFd) -> Option<BorrowedFd<'static>> {
    if number < 0 || std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err() {
        return None;
    }
    // SAFETY: the descriptor is open, and the caller keeps it open during the call.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Returns the inode and the offset of a range, if the mapping in this line of `maps` contains the whole
/// range.
fn lies_in(line: &str, address: u64, bytes: u64) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let is_shared = words.next()?.ends_with('s');
    let offset = hex(words.next()?)?;
    let inode: u64 = words.nth(1)?.parse().ok()?;
    let inside = start <= address && address.checked_add(bytes)? <= end;
    (inside && is_shared && inode != 0).then(|| (inode, offset + (address - start)))
}

/// Memory that was allocated for access by the device.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) address: u64,
    pub(crate) file: OwnedFd,
}

/// Allocates memory of this process in a new file.
pub(crate) fn pin(bytes: usize) -> std::io::Result<Pinned> {
    let file = rustix::fs::memfd_create("mp-cuda-sim", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0) }?;
    let address = at.expose_provenance() as u64;
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(address, bytes);
    Ok(Pinned { address, file })
}

impl Pinned {
    /// Frees memory that [`pin`] allocated. Returns `false` for any other address.
    pub(crate) fn free(address: u64) -> bool {
        let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bytes) = pinned.as_mut().and_then(|pinned| pinned.remove(&address)) else { return false };
        let at = ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0));
        // SAFETY: `pin` made the mapping, with this length. By freeing the memory, its user guarantees that
        // it is no longer used.
        _ = unsafe { munmap(at, bytes) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::lies_in;

    #[test]
    fn mapped_file_of_an_address_range_is_found() {
        let line = "7f00000000-7f00004000 rw-s 00001000 00:01 77                         /memfd:a (deleted)";
        assert_eq!(lies_in(line, 0x7f_0000_1000, 0x1000), Some((77, 0x2000)));
        assert_eq!(lies_in(line, 0x7f_0000_3000, 0x1001), None, "longer than the mapping");
        assert_eq!(lies_in(&line.replace("rw-s", "rw-p"), 0x7f_0000_1000, 1), None, "a copy of the file");
        assert_eq!(lies_in("7f00000000-7f00004000 rw-s 00000000 00:00 0", 0x7f_0000_1000, 1), None);
    }
}
