//! Whether the kernel has killed a process for want of memory. It doesn't say which: a SIGKILL that nobody here has sent,
//! and a count that has grown meanwhile, is as close as it gets (`memory.events` of control groups of version 2,
//! `memory.oom_control` of version 1).

use std::fs;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

/// The count at the last look; `None` before the first one, and where nobody counts.
static LAST: PerProcess<Mutex<Option<u64>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// Notes how many there were, before any process is started.
pub(crate) fn begin() {
    *LAST.lock() = count();
}

/// Whether there was another one since the last look.
pub(crate) fn killed_somebody() -> bool {
    let now = count();
    let before = std::mem::replace(&mut *LAST.lock(), now);
    before.zip(now).is_some_and(|(before, now)| now > before)
}

/// How many processes of this one's control group were killed.
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
    fn the_kernels_format() {
        assert_eq!(of_events("low 0\nhigh 0\nmax 71\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(of_events("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(of_events("low 0\n"), None);
    }
}
