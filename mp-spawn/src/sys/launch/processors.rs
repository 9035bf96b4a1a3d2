//! Which processors there are for a process.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors on which a process that this one starts can run, if it asks for them: those that are online and in this process's
/// cpuset. `None` if the kernel does not say.
#[must_use]
pub fn usable_processors() -> Option<Vec<usize>> {
    let look = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|number| all.set(number));
        // Of this thread alone, which ends: the kernel leaves out those that it can't have.
        sched_setaffinity(None, &all).ok()?;
        let usable = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number)).collect())
    };
    std::thread::Builder::new().name("mp-processors".into()).spawn(look).ok()?.join().ok()?
}
