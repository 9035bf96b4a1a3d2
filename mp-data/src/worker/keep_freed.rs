//! Retention of freed memory in workers.
//!
//! A decoder of images allocates and frees some buffers of 100 KiB to some MiB for each image. By default,
//! glibc returns the free end of its heap to the kernel soon, so the next image faults in each page again.
//!
//! The thresholds are set by a call in the worker, not in its environment. glibc reads the environment when a
//! program is executed, and workers of a fork server or a fork execute no program.

use std::ffi::OsStr;

/// Number of free bytes that are retained at the end of a heap.
const MOST: usize = 64 << 20;
/// Size from which glibc maps and unmaps each block separately: the largest possible value.
const MAPPED: usize = 32 << 20;

/// Makes malloc retain freed memory in this process, unless the environment sets one of the thresholds.
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
    fn malloc_settings_of_the_environment_are_kept() {
        let with =
            |name: &'static str, value: &'static str| is_set(move |asked| (asked == name).then_some(value));
        assert!(with("MALLOC_TRIM_THRESHOLD_", "0") && with("MALLOC_MMAP_THRESHOLD_", "65536"));
        assert!(with("GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.malloc.trim_threshold=1"));
        assert!(with("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096"));
        assert!(!with("GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.cpu.hwcaps=x"));
        assert!(!with("MALLOC_ARENA_MAX", "1"));
    }
}
