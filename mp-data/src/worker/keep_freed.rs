//! Memory that a worker has freed, and keeps.
//!
//! A decoder of images allocates and frees some buffers of 100 KiB to some MiB for each. By itself glibc
//! gives the end of its heap back to the kernel as soon as more than a little of it is free, so the next
//! image gets it page by page.
//!
//! It is set in the worker, not in its environment: glibc reads the environment when a program is executed,
//! and workers that a fork server or a fork starts execute none.

use std::ffi::OsStr;

/// Bytes that stay at the end of a heap.
const MOST: usize = 64 << 20;
/// Size from which the kernel maps and unmaps a block by itself: the most that glibc allows.
const MAPPED: usize = 32 << 20;

/// From now on this process keeps what it frees, unless its environment says how much of that it keeps.
pub(crate) fn keep() {
    let is_set = is_set(|name| std::env::var_os(name));
    if !is_set {
        mp_core::set_malloc_thresholds(MOST, MAPPED);
    }
}

/// Returns `true` if the environment sets one of the two thresholds.
fn is_set<S: AsRef<OsStr>>(variable: impl Fn(&str) -> Option<S>) -> bool {
    let tunables = |list: S| {
        let list = list.as_ref().to_string_lossy();
        let names = list.split(':').filter_map(|one| one.split_once('=')).map(|(name, _)| name);
        names
            .into_iter()
            .any(|name| matches!(name, "glibc.malloc.trim_threshold" | "glibc.malloc.mmap_threshold"))
    };
    ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"].into_iter().any(|name| variable(name).is_some())
        || variable("GLIBC_TUNABLES").is_some_and(tunables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_sets_is_left_alone() {
        let with =
            |name: &'static str, value: &'static str| is_set(move |asked| (asked == name).then_some(value));
        assert!(with("MALLOC_TRIM_THRESHOLD_", "0") && with("MALLOC_MMAP_THRESHOLD_", "65536"));
        assert!(with("GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.malloc.trim_threshold=1"));
        assert!(with("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096"));
        assert!(!with("GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.cpu.hwcaps=x"));
        assert!(!with("MALLOC_ARENA_MAX", "1"));
    }
}
