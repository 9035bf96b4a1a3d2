//! Whether another process can run while this one does.

use std::sync::OnceLock;

/// Whether there is one processor only for this process and all that it may wait for.
///
/// A process that is pinned to one processor waits for processes on other ones; a machine with one, or a
/// quota of one, is all there is.
pub(crate) fn only_one() -> bool {
    // Asked once: it reads files.
    // fork: the machine and its quota are the same, and whether a process is pinned is no matter. It is looked up before, so
    // that no copy has it half looked up.
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| {
        let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pinned = rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1);
        usable == 1 && !(pinned && online().is_some_and(|list| is_several(&list)))
    })
}

/// The processor that this thread runs on, now.
pub(crate) fn current() -> u32 {
    if crate::sys::under_valgrind() {
        // It runs one thread at a time, and the code of the kernel that knows the processor can't be found under it.
        return 0;
    }
    rustix::thread::sched_getcpu() as u32
}

/// Keeps this thread, and those that it starts, on the processor that it runs on now.
#[cfg(test)]
pub(crate) fn stay_on_this_one() {
    let mut only = rustix::thread::CpuSet::new();
    only.set(current() as usize);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

fn online() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()
}

/// Of a list such as `0-3,5`.
fn is_several(list: &str) -> bool {
    list.trim().contains([',', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert!(["0-1\n", "0,2", "0-3,5-7\n"].into_iter().all(is_several));
        assert!(!["0\n", "12", ""].into_iter().any(is_several));
    }
}
