//! Number of processors available to this process and its peers.

use std::sync::OnceLock;

/// Returns `true` if this process and all processes that it may wait for share one processor.
///
/// A process that is pinned to one processor waits for processes on other ones, so pinning does not count. A
/// machine with one processor, or a quota of one, does.
pub(crate) fn is_single() -> bool {
    // Looked up once, since it reads files.
    // fork: the machine and its quota are the same, and pinning does not matter. It is looked up before a
    // fork, so that no copy has it half looked up.
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| {
        let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pinned = rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1);
        usable == 1 && !(pinned && online().is_some_and(|list| is_several(&list)))
    })
}

/// Returns the processor that this thread runs on now.
pub(crate) fn current() -> u32 {
    if crate::sys::under_valgrind() {
        // Valgrind runs one thread at a time, and hides the kernel's code that reports the processor.
        return 0;
    }
    rustix::thread::sched_getcpu() as u32
}

/// Pins this thread, and the threads that it starts, to its present processor.
#[cfg(test)]
pub(crate) fn pin_to_current() {
    let mut only = rustix::thread::CpuSet::new();
    only.set(current() as usize);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

fn online() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()
}

/// Returns `true` if a list such as `0-3,5` has several processors.
fn is_several(list: &str) -> bool {
    list.trim().contains([',', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_are_parsed() {
        assert!(["0-1\n", "0,2", "0-3,5-7\n"].into_iter().all(is_several));
        assert!(!["0\n", "12", ""].into_iter().any(is_several));
    }
}
