//! Processes that this process has started and that may still run, and their treatment at its exit.

use std::io::Write as _;
use std::sync::{Arc, Once, Weak};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::error::SpawnError;
use crate::io::reader;
use crate::parent::control::GRACE;
use crate::parent::group::ChildGroup;
use crate::parent::supervisor;
use crate::sys;

/// Processes of one start, which the parent tracks independently of the handles.
enum TrackedGroup {
    /// Processes of a [`ProcessContext`](crate::ProcessContext), which ends them when it is dropped.
    Owned { group: Weak<ChildGroup>, daemon: bool },
    /// Processes that continue without a handle: the process of a [`Process`](crate::Process), or the
    /// processes of a context that was detached.
    Detached { group: Arc<ChildGroup>, daemon: bool },
    /// Failure of a process without a handle that was not returned to the program. Printed at the exit.
    Failed(SpawnError),
}

/// Maximum number of failures that are stored for processes without a handle.
const MAX_FAILED: usize = 100;

static TRACKED: PerProcess<Mutex<Vec<TrackedGroup>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Process that was started by this process and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveChild {
    /// Name of the process.
    pub name: String,
    /// Process id.
    pub pid: u32,
}

/// Returns the running processes that this process has started, with or without a handle. Does not block.
///
/// ```
/// use mp_spawn::{Process, active_children};
///
/// let child = Process::builder().name("sleeper").spawn(
///     |(): ()| std::thread::sleep(std::time::Duration::from_secs(60)),
///     (),
/// )?;
/// assert_eq!(active_children()[0].name, "sleeper");
/// child.kill()?;
/// child.wait_timeout(std::time::Duration::from_secs(10));
/// assert!(active_children().is_empty());
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[must_use]
pub fn active_children() -> Vec<ActiveChild> {
    let mut family = TRACKED.lock();
    remove_ended(&mut family);
    let groups: Vec<_> = family.iter().filter_map(TrackedGroup::group).collect();
    drop(family);
    groups
        .iter()
        .filter(|group| group.check_owner().is_ok())
        .flat_map(|group| group.active())
        .map(|(name, pid)| ActiveChild { name, pid })
        .collect()
}

impl TrackedGroup {
    /// Returns `true` if the context of this group owns these processes.
    fn is_owned(&self, group: &Arc<ChildGroup>) -> bool {
        matches!(self, TrackedGroup::Owned { group: owned, .. } if owned.as_ptr() == Arc::as_ptr(group))
    }

    fn group(&self) -> Option<Arc<ChildGroup>> {
        match self {
            TrackedGroup::Owned { group, .. } => group.upgrade(),
            TrackedGroup::Detached { group, .. } => Some(Arc::clone(group)),
            TrackedGroup::Failed(_) => None,
        }
    }
}

/// Adds processes that end with their context. If the context still exists when this process exits, the
/// processes are ended (`daemon`) or waited for.
pub(crate) fn register(group: &Arc<ChildGroup>, daemon: bool) {
    register_exit_handler();
    add(TrackedGroup::Owned { group: Arc::downgrade(group), daemon });
}

/// Adds processes that continue without their handle. When this process exits, they are ended (`daemon`) or
/// waited for.
pub(crate) fn adopt(group: &Arc<ChildGroup>, daemon: bool) {
    register_exit_handler();
    add(TrackedGroup::Detached { group: Arc::clone(group), daemon });
}

/// Lets the processes of a context continue after the context is dropped.
pub(crate) fn release(group: &Arc<ChildGroup>, daemon: bool) {
    TRACKED.lock().retain(|member| !member.is_owned(group));
    adopt(group, daemon);
}

/// Registers an exit handler, once: it ends or waits for processes, and writes their output.
pub(crate) fn register_exit_handler() {
    static AT_EXIT: PerProcess<Once> = mp_core::per_process!(Once::new());
    AT_EXIT.call_once(|| {
        sys::at_exit(|| {
            end_processes();
            reader::write_at_exit();
        });
    });
}

fn add(member: TrackedGroup) {
    let mut family = TRACKED.lock();
    remove_ended(&mut family);
    family.push(member);
}

/// Removes processes that have ended. Processes with a failure that was not returned to the program stay, so
/// that it is printed at the exit. For a process without a handle, only the error is stored.
fn remove_ended(family: &mut Vec<TrackedGroup>) {
    let mut failed = family.iter().filter(|member| matches!(member, TrackedGroup::Failed(_))).count();
    family.retain_mut(|member| match member {
        TrackedGroup::Failed(_) => true,
        TrackedGroup::Owned { group, .. } => {
            group.upgrade().is_some_and(|group| !group.all_over() || group.unreported_failure().is_some())
        }
        TrackedGroup::Detached { group, .. } if !group.all_over() => true,
        TrackedGroup::Detached { group, .. } => {
            let Some(error) = group.unreported_failure() else { return false };
            if Arc::strong_count(group) == 1 {
                failed += 1;
                *member = TrackedGroup::Failed(error);
            }
            failed <= MAX_FAILED
        }
    });
}

/// Prints a failure with a single write. `eprintln!` would write it in pieces, and other processes could
/// write between them.
fn print_failure(error: &SpawnError) {
    let line = format!("mp: {error}\n");
    // The write fails if the reader has closed the pipe. The caller continues.
    _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Runs at exit: forbids restarts, ends daemonic processes, waits for all processes, and prints failures that
/// were not returned to the program.
fn end_processes() {
    // A blocked thread could hold the lock forever. The lock is released during the wait, because other
    // threads may still send data to the processes, and callbacks query the processes.
    let family = {
        let Some(mut family) = TRACKED.try_lock_for(GRACE) else { return };
        std::mem::take(&mut *family)
    };
    let free = family.into_iter().filter_map(|member| match member {
        TrackedGroup::Detached { group, daemon } => Some((group, daemon)),
        TrackedGroup::Owned { group, daemon } => group.upgrade().map(|group| (group, daemon)),
        TrackedGroup::Failed(error) => {
            print_failure(&error);
            None
        }
    });
    let free: Vec<_> = free.filter(|(group, _)| group.check_owner().is_ok()).collect();
    // Done before any process is ended or waited for, so that none is restarted and none waits for its next
    // start.
    free.iter().for_each(|(group, _)| group.forbid_restarts());
    let (daemons, others): (Vec<_>, Vec<_>) = free.into_iter().partition(|(_, daemon)| *daemon);
    ChildGroup::end_together(&daemons.iter().map(|(group, _)| group.as_ref()).collect::<Vec<_>>(), GRACE);
    // `exit` was called in a callback of `on_exit`, on the thread that reaps, which can't wait for itself.
    let others = if supervisor::is_this_thread() { Vec::new() } else { others };
    for (group, _) in others.iter() {
        group.wait(None, false);
    }
    daemons.iter().chain(&others).for_each(|(group, _)| print_unreported_failure(group));
}

/// Prints the first failure of a group that was not returned to the program.
pub(crate) fn print_unreported_failure(group: &ChildGroup) {
    if let Some(error) = group.unreported_failure() {
        print_failure(&error);
    }
}
