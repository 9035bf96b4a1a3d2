//! Processes that this process has started and that may still run, and their treatment at its exit.

use std::io::Write as _;
use std::sync::{Arc, Once, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::error::SpawnError;
use crate::io::reader;
use crate::parent::group::{GRACE, Group};
use crate::parent::supervisor;
use crate::sys;

/// Processes of one start, which the parent tracks independently of the handles.
#[derive(Debug)]
enum Member {
    /// Processes of a [`ProcessContext`](crate::ProcessContext), which ends them when it is dropped.
    Held { group: Weak<Group>, daemon: bool },
    /// Processes that continue without a handle: the process of a [`Process`](crate::Process), or the
    /// processes of a context that was detached.
    Free { group: Arc<Group>, daemon: bool },
    /// Failure of a process without a handle that was not returned to the program. Printed at the exit.
    Failed(SpawnError),
}

/// Maximum number of stored failures without a handle.
const MOST_FAILED: usize = 100;

static FAMILY: PerProcess<Mutex<Vec<Member>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

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
    let mut family = FAMILY.lock();
    forget_the_done(&mut family);
    let groups: Vec<_> = family.iter().filter_map(Member::group).collect();
    drop(family);
    groups.iter().filter(|group| group.check_owner().is_ok()).flat_map(|group| group.active()).collect()
}

impl Member {
    /// Returns `true` if these are the processes of the context with this group.
    fn is_held(&self, group: &Arc<Group>) -> bool {
        matches!(self, Member::Held { group: held, .. } if held.as_ptr() == Arc::as_ptr(group))
    }

    fn group(&self) -> Option<Arc<Group>> {
        match self {
            Member::Held { group, .. } => group.upgrade(),
            Member::Free { group, .. } => Some(Arc::clone(group)),
            Member::Failed(_) => None,
        }
    }
}

/// Adds processes that end with their context. If the context still exists when this process exits, the
/// processes are ended (`daemon`) or waited for.
pub(crate) fn note(group: &Arc<Group>, daemon: bool) {
    care_at_exit();
    add(Member::Held { group: Arc::downgrade(group), daemon });
}

/// Adds processes that continue without their handle. When this process exits, they are ended (`daemon`) or
/// waited for.
pub(crate) fn adopt(group: &Arc<Group>, daemon: bool) {
    care_at_exit();
    add(Member::Free { group: Arc::clone(group), daemon });
}

/// Lets the processes of a context continue without it.
pub(crate) fn release(group: &Arc<Group>, daemon: bool) {
    FAMILY.lock().retain(|member| !member.is_held(group));
    adopt(group, daemon);
}

/// Registers the actions at exit, once.
pub(crate) fn care_at_exit() {
    static AT_EXIT: PerProcess<Once> = PerProcess::new([const { Once::new() }; GENERATIONS]);
    AT_EXIT.call_once(|| {
        sys::at_exit(|| {
            care();
            reader::pass_on_at_exit();
        });
    });
}

fn add(member: Member) {
    let mut family = FAMILY.lock();
    forget_the_done(&mut family);
    family.push(member);
}

/// Removes processes that have ended. Processes with a failure that was not returned to the program stay, so
/// that it is printed at the exit. Without a handle, only their error is stored.
fn forget_the_done(family: &mut Vec<Member>) {
    let mut failed = family.iter().filter(|member| matches!(member, Member::Failed(_))).count();
    family.retain_mut(|member| match member {
        Member::Failed(_) => true,
        Member::Held { group, .. } => {
            group.upgrade().is_some_and(|group| !group.all_over() || group.untold_failure().is_some())
        }
        Member::Free { group, .. } if !group.all_over() => true,
        Member::Free { group, .. } => {
            let Some(error) = group.untold_failure() else { return false };
            if Arc::strong_count(group) == 1 {
                failed += 1;
                *member = Member::Failed(error);
            }
            failed <= MOST_FAILED
        }
    });
}

/// Prints a failure with a single write. `eprintln!` would write it in pieces, and other processes could
/// write between them.
fn tell(error: &SpawnError) {
    let line = format!("mp: {error}\n");
    // The write fails if the reader has closed the pipe. The caller continues.
    _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Runs at exit: forbids restarts, ends daemonic processes, waits for all processes, and prints failures that
/// were not returned to the program.
fn care() {
    // A blocked thread could hold the lock for ever. The lock is released during the wait, because other
    // threads may still send data to the processes, and callbacks query them.
    let family = {
        let Some(mut family) = FAMILY.try_lock_for(GRACE) else { return };
        std::mem::take(&mut *family)
    };
    let free = family.into_iter().filter_map(|member| match member {
        Member::Free { group, daemon } => Some((group, daemon)),
        Member::Held { group, daemon } => group.upgrade().map(|group| (group, daemon)),
        Member::Failed(error) => {
            tell(&error);
            None
        }
    });
    let free: Vec<_> = free.filter(|(group, _)| group.check_owner().is_ok()).collect();
    // Done before any process is ended or waited for, so that none is restarted and none waits for its next
    // start.
    free.iter().for_each(|(group, _)| group.forbid_restarts());
    let (daemons, others): (Vec<_>, Vec<_>) = free.into_iter().partition(|(_, daemon)| *daemon);
    Group::end_together(&daemons.iter().map(|(group, _)| group.as_ref()).collect::<Vec<_>>(), GRACE);
    // `exit` was called in a callback of `on_exit`, on the thread that reaps, which can't wait for itself.
    let others = if supervisor::is_this_thread() { Vec::new() } else { others };
    for (group, _) in others.iter() {
        group.wait(None, false);
    }
    daemons.iter().chain(&others).for_each(|(group, _)| tell_untold(group));
}

/// Prints the first failure of a group that was not returned to the program.
pub(crate) fn tell_untold(group: &Group) {
    if let Some(error) = group.untold_failure() {
        tell(&error);
    }
}
