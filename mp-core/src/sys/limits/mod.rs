//! Limits of this process's address space, files and memory. References: `getrlimit(2)`, `proc(5)`.

pub(in crate::sys) mod cgroup;

use rustix::process::{Resource, getrlimit};

/// Returns the present soft limit of a resource; `u64::MAX` if there is none.
fn soft(r: Resource) -> u64 {
    getrlimit(r).current.unwrap_or(u64::MAX)
}

/// Returns the number of bytes of address space that this process may still map (RLIMIT_AS minus the mapped
/// bytes).
pub(crate) fn address_space() -> (u64, &'static str) {
    let limit = soft(Resource::As);
    if limit == u64::MAX {
        return (limit, "no limit");
    }
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    (limit.saturating_sub(pages * crate::sys::sleep::clock::page_size()), "RLIMIT_AS (ulimit -v)")
}

/// Returns the largest size of a file of this process. Beyond it `ftruncate` raises SIGXFSZ, which kills the
/// process.
pub(crate) fn file_size() -> (u64, &'static str) {
    (soft(Resource::Fsize), "RLIMIT_FSIZE (ulimit -f)")
}

/// Returns the maximum number of open descriptors of this process (RLIMIT_NOFILE).
pub(crate) fn open_files() -> u64 {
    soft(Resource::Nofile)
}

/// Returns the number of bytes available in huge pages of this size.
pub(crate) fn huge_pages_left(size: u64) -> u64 {
    let read = |what: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{what}", size / 1024);
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    let (free, reserved) = (read("free_hugepages"), read("resv_hugepages").unwrap_or(0));
    let more = read("nr_overcommit_hugepages").unwrap_or(0);
    let surplus = read("surplus_hugepages").unwrap_or(0);
    let pages =
        |free: u64| (free.saturating_sub(reserved) + more.saturating_sub(surplus)).saturating_mul(size);
    free.map_or(u64::MAX, pages)
}

/// Returns the number of bytes that can be committed without out-of-memory kills, and the limiting resource.
pub(crate) fn memory_left() -> (u64, String) {
    let available = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|s| {
            let line = s.lines().find(|l| l.starts_with("MemAvailable:"))?;
            line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(u64::MAX, |kib| kib * 1024);
    let cgroup = cgroup::memory_left().unwrap_or((u64::MAX, String::new()));
    if cgroup.0 < available { cgroup } else { (available, "memory of this machine (MemAvailable)".into()) }
}
