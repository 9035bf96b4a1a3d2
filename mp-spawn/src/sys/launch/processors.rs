//! Processors that a process can use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors on which a process that this one starts can run on request: those that are online
/// and in this process's cpuset. Returns `None` if they are unknown.
#[must_use]
pub fn usable_processors() -> Option<Vec<usize>> {
    let look = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|number| all.set(number));
        // Affects only this thread, which ends. The kernel leaves out processors that the thread can't have.
        sched_setaffinity(None, &all).ok()?;
        let usable = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number)).collect())
    };
    std::thread::Builder::new().name("mp-processors".into()).spawn(look).ok()?.join().ok()?
}
