//! Detection of processes that the kernel's out-of-memory killer has ended. The kernel doesn't report which
//! processes it has ended. The nearest evidence is a SIGKILL that this process has not sent, and a counter
//! that has grown meanwhile (`memory.events` of control groups of version 2, `memory.oom_control` of version
//! 1).
//!
//! Each counted kill is attributed to one process. Several kills may be counted at once, before the ends of
//! their processes are detected one after another. The remaining kills are attributed to other processes that
//! end by a SIGKILL within [`NEAR`]. After that they are discarded, because they may have hit processes that
//! this one has not started.

use std::fs;
use std::time::{Duration, Instant};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

/// Maximum time between the count of a kill and the detected end of its process: releasing much memory takes
/// time.
const NEAR: Duration = Duration::from_secs(3);

/// Counter of the kernel's kills, with the kills that are not attributed to a process yet.
#[derive(Debug)]
struct OomCounter {
    /// Last value of the counter. `None` before the first read, and if the kernel doesn't count.
    last: Option<u64>,
    /// Kills that are not attributed yet, and the time at which they are discarded.
    left: Option<(u64, Instant)>,
}

static COUNTER: PerProcess<Mutex<OomCounter>> =
    mp_core::per_process!(Mutex::new(OomCounter { last: None, left: None }));

impl OomCounter {
    /// Returns `true`, and attributes a kill, if the kernel may have killed a process that ended just now.
    /// `count` is the present counter.
    fn attribute_one(&mut self, count: Option<u64>, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.last, count);
        let new = before.zip(count).map_or(0, |(before, count)| count.saturating_sub(before));
        let (old, until) = self.left.take().filter(|(_, until)| now < *until).unwrap_or((0, now));
        let until = if new > 0 { now + NEAR } else { until };
        let Some(left) = old.saturating_add(new).checked_sub(1) else { return false };
        self.left = Some((left, until));
        true
    }
}

/// Records the number of processes that the kernel has killed so far in this control group. Called before the
/// first process is started.
pub(crate) fn begin() {
    COUNTER.lock().last = count();
}

/// Returns `true` if the kernel may have killed a process that has just ended by a SIGKILL that this process
/// has not sent.
pub(crate) fn has_killed_process() -> bool {
    COUNTER.lock().attribute_one(count(), Instant::now())
}

/// Returns the number of killed processes in this process's control group.
fn count() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let first = groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|c| c == "memory").then_some(group)
    });
    let file = match first {
        Some(group) => format!("/sys/fs/cgroup/memory{group}/memory.oom_control"),
        None => {
            let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
            format!("/sys/fs/cgroup{group}/memory.events")
        }
    };
    of_events(&fs::read_to_string(file).ok()?)
}

fn of_events(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_are_counted_in_cgroup_memory_events() {
        assert_eq!(of_events("low 0\nhigh 0\nmax 71\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(of_events("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(of_events("low 0\n"), None);
    }

    #[test]
    fn each_oom_kill_is_attributed_once() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut tally = OomCounter { last: Some(7), left: None };
        assert!(!tally.attribute_one(Some(7), start));
        // Two kills at nearly the same time.
        assert!(tally.attribute_one(Some(9), after(10)) && tally.attribute_one(Some(9), after(20)));
        assert!(!tally.attribute_one(Some(9), after(30)));
        // Remaining kills are discarded, and don't outlast new ones.
        assert!(tally.attribute_one(Some(12), after(40)));
        assert!(!tally.attribute_one(Some(12), after(50) + NEAR));
        assert!(tally.attribute_one(Some(13), after(60) + NEAR));
        assert!(!tally.attribute_one(Some(13), after(70) + NEAR));
        // No counter.
        let mut none = OomCounter { last: None, left: None };
        assert!(!none.attribute_one(None, start) && !none.attribute_one(Some(3), start));
        assert!(none.attribute_one(Some(4), start));
    }
}
