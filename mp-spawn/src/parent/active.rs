//! The processes that this one has started and that may still run, and what happens to them when it exits.

use std::io::Write as _;
use std::sync::{Arc, Once, Weak};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::error::SpawnError;
use crate::io::reader;
use crate::parent::group::{GRACE, Group};
use crate::parent::supervisor;
use crate::sys;

/// The processes of one start, as their parent keeps them beside the handles.
#[derive(Debug)]
enum Member {
    /// Of a [`ProcessContext`](crate::ProcessContext), which ends them when it is dropped: nothing remains to be done then.
    Held { group: Weak<Group>, daemon: bool },
    /// Of a [`Process`](crate::Process), or of a context that was detached: they continue without a handle.
    Free { group: Arc<Group>, daemon: bool },
    /// The failure of a process without a handle, which the program did not get: printed at the exit.
    Failed(SpawnError),
}

/// How many failures without a handle are kept.
const MOST_FAILED: usize = 100;

static FAMILY: PerProcess<Mutex<Vec<Member>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// A process that was started by this one and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveChild {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
}

/// The processes that this one has started and that run, with or without a handle. Does not block.
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
    /// Whether these are the processes of a context.
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

/// Notes processes that end with their context. If that lives when this process exits, it ends them (`daemon`) or waits for
/// them.
pub(crate) fn note(group: &Arc<Group>, daemon: bool) {
    care_at_exit();
    add(Member::Held { group: Arc::downgrade(group), daemon });
}

/// Notes processes that live without their handle. When this one exits, it ends them (`daemon`) or waits for them.
pub(crate) fn adopt(group: &Arc<Group>, daemon: bool) {
    care_at_exit();
    add(Member::Free { group: Arc::clone(group), daemon });
}

/// Lets processes that were held continue without their context.
pub(crate) fn release(group: &Arc<Group>, daemon: bool) {
    FAMILY.lock().retain(|member| !member.is_held(group));
    adopt(group, daemon);
}

/// Registers, once, what is to be done at exit.
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

/// Processes with a failure that the program did not get stay, to be named at the exit: as the error alone, once there is no
/// handle.
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

/// Prints a failure, whole: `eprintln!` would write it piece by piece, and other processes between the pieces.
fn tell(error: &SpawnError) {
    let line = format!("mp: {error}\n");
    // A write fails if the reader is gone: the caller continues.
    _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// At exit: no process is started again, daemonic ones are ended, then all are waited for, and failures that the program did not get are printed.
fn care() {
    // A blocked thread could hold the lock for ever. It is not held while this waits: other threads still feed the processes
    // that are waited for, and callbacks ask for them.
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
    // Before any of them is ended or waited for: none is followed by another one, and none waits for its start.
    free.iter().for_each(|(group, _)| group.forbid_restarts());
    let (daemons, others): (Vec<_>, Vec<_>) = free.into_iter().partition(|(_, daemon)| *daemon);
    Group::end_together(&daemons.iter().map(|(group, _)| group.as_ref()).collect::<Vec<_>>(), GRACE);
    // In a callback of `on_exit`, in the thread that reaps: it can't wait for its own work.
    let others = if supervisor::is_this_thread() { Vec::new() } else { others };
    for (group, _) in others.iter() {
        group.wait(None, false);
    }
    daemons.iter().chain(&others).for_each(|(group, _)| tell_untold(group));
}

/// Prints the first failure of a group that no call has returned.
pub(crate) fn tell_untold(group: &Group) {
    if let Some(error) = group.untold_failure() {
        tell(&error);
    }
}
