//! Measurement of the peak memory of an input.
//!
//! # Safety
//! Unsafe, because it counts in the global allocator. Sound, because the allocator
//! forwards every call unchanged to the system's allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Allocator that counts bytes, and forwards each call to the system's allocator.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn more(size: usize) {
    let live = LIVE.fetch_add(size, Relaxed).wrapping_add(size);
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: all calls go to the system's allocator with the same arguments, and return its results.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller guarantees the same to this function as `System.alloc` requires.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller guarantees the same to this function as `System.alloc_zeroed` requires.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        more(size);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller guarantees the same to this function as `System.realloc` requires.
        unsafe { System.realloc(p, layout, size) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller guarantees the same to this function as `System.dealloc` requires.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `f`. Returns the peak number of allocated bytes during the call, minus the number of bytes that were
/// allocated before the call.
pub(crate) fn most_during(f: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    f();
    PEAK.load(Relaxed).saturating_sub(before)
}
