//! States and failures of this process's children, by process id. The layer that starts processes records
//! them. Errors and reports caused by the end of a child include the child's own failure.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::process::mutex::{Condvar, Mutex};
use crate::process::{PerProcess, per_process};

/// Maximum number of stored failures; the oldest are removed first.
const MOST_FAILURES: usize = 256;
/// Maximum time that a waiter waits for a child to report its failure. The child drops its handles before the
/// report.
const REPORTED_WITHIN: Duration = Duration::from_millis(250);

/// Running or ended child.
#[derive(Debug)]
struct Child {
    pid: u32,
    ended: bool,
    failure: Option<Arc<str>>,
    /// `true` if a waiter has already waited for the report.
    awaited: bool,
}

#[derive(Debug)]
struct Children {
    all: Mutex<VecDeque<Child>>,
    changed: Condvar,
}

impl Children {
    const fn new() -> Self {
        Self { all: Mutex::new(VecDeque::new()), changed: Condvar::new() }
    }

    fn change(&self, pid: u32, change: impl FnOnce(&mut Child)) {
        if let Some(child) = self.all.lock().iter_mut().rev().find(|child| child.pid == pid) {
            change(child);
        }
        self.changed.notify_all();
    }
}

static CHILDREN: PerProcess<Children> = per_process!(Children::new());

/// Records a running child.
pub fn record_start(pid: u32) {
    let mut all = CHILDREN.all.lock();
    // An older process with this id has ended.
    all.retain(|child| child.pid != pid);
    all.push_back(Child { pid, ended: false, failure: None, awaited: false });
    let failed = |child: &Child| child.ended && child.failure.is_some();
    if all.iter().filter(|child| failed(child)).count() > MOST_FAILURES
        && let Some(oldest) = all.iter().position(failed)
    {
        all.remove(oldest);
    }
}

/// Records the failure of a child.
pub fn record_failure(pid: u32, failure: &str) {
    CHILDREN.change(pid, |child| child.failure = Some(failure.into()));
}

/// Records the end of a child. No failure is reported after that.
pub fn record_end(pid: u32) {
    CHILDREN.change(pid, |child| child.ended = true);
    CHILDREN.all.lock().retain(|child| !child.ended || child.failure.is_some());
}

/// Returns the failure of a child, if it is known. Does not block.
pub fn failure_of(pid: u32) -> Option<Arc<str>> {
    let all = CHILDREN.all.lock();
    all.iter().rev().find(|child| child.pid == pid).and_then(|child| child.failure.clone())
}

/// Returns the latest failures in order. Does not block.
pub fn last_failures(most: usize) -> Vec<Arc<str>> {
    let all = CHILDREN.all.lock();
    let mut last: Vec<_> = all.iter().rev().filter_map(|child| child.failure.clone()).take(most).collect();
    last.reverse();
    last
}

/// Blocks until the failure or the end of a child is known, at most for 250 ms and until `until`. Blocks only
/// once for each child: a child that has dropped its handles may continue to run without a limit.
pub fn wait_for_failure(pid: u32, until: Option<Instant>) {
    let last = Instant::now() + REPORTED_WITHIN;
    let until = until.map_or(last, |until| until.min(last));
    let mut all = CHILDREN.all.lock();
    let mut is_first = true;
    loop {
        let Some(child) = all.iter_mut().rev().find(|child| child.pid == pid) else { return };
        if child.ended || child.failure.is_some() || (is_first && child.awaited) || Instant::now() >= until {
            return;
        }
        (child.awaited, is_first) = (true, false);
        CHILDREN.changed.wait_until(&mut all, until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_child_is_found_by_its_process_id() {
        for pid in [1 << 30, (1 << 30) + 1] {
            record_start(pid);
            assert_eq!(failure_of(pid), None);
        }
        record_failure(1 << 30, "it burned");
        record_end(1 << 30);
        record_end((1 << 30) + 1);
        assert_eq!(failure_of(1 << 30).as_deref(), Some("it burned"));
        assert_eq!(failure_of((1 << 30) + 1), None);
        assert!(last_failures(9).iter().any(|failure| &**failure == "it burned"));
        record_start(1 << 30);
        assert_eq!(failure_of(1 << 30), None, "another process has the id now");
        record_end(1 << 30);
    }

    #[test]
    fn second_wait_for_a_childs_failure_returns_at_once() {
        let pid = (1 << 30) + 2;
        record_start(pid);
        wait_for_failure(pid, None);
        let again = Instant::now();
        wait_for_failure(pid, Some(again + Duration::from_secs(600)));
        assert!(again.elapsed() < REPORTED_WITHIN);
        record_end(pid);
    }
}
