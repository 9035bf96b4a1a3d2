//! Processors that a thread may run on: `sched_setaffinity(2)`.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::environment;

/// Returns the number of processors of the machine.
fn online_processors() -> Option<u32> {
    let list = environment::online()?;
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    ranges.sum()
}

/// Returns `true` if the machine has several processors and `allowed` contains all of them.
fn may_run_everywhere(allowed: &CpuSet) -> bool {
    allowed.count() >= 2 && online_processors() == Some(allowed.count())
}

/// Moves this thread to another processor. Returns `false` if the thread may not run on all processors.
pub(crate) fn leave_processor() -> bool {
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    if !may_run_everywhere(&allowed) {
        return false;
    }
    let mut others = allowed;
    others.unset(environment::current_processor() as usize);
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    // The kernel moves the thread before the first call returns. The second call allows all processors, so
    // that later changes of the machine's or the group's set still apply to the thread.
    sched_setaffinity(None, &others).is_ok() && sched_setaffinity(None, &all).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test uses a thread of its own, because it pins that thread, and a pinned thread does not move.
    #[test]
    fn leave_processor_moves_a_thread_and_keeps_affinity() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            if !may_run_everywhere(&before) {
                environment::pin_to_current();
                assert!(!leave_processor());
                return;
            }
            let moved = (0..50).any(|_| {
                let here = environment::current_processor();
                assert!(leave_processor());
                // Under load, the kernel may move the thread back.
                environment::current_processor() != here
            });
            assert!(moved, "the thread is still on the same processor");
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            environment::pin_to_current();
            assert!(!leave_processor(), "a pinned thread stays");
        })
        .join()
        .unwrap();
    }
}
