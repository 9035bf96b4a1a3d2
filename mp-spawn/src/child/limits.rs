//! Limits of this process. All limits except the user are applied before this process joins the shared
//! memory. The shared memory admits only processes of the same user, so the user is changed after joining.

use std::fs;

use rustix::process::{Pid, Rlimit, getrlimit, setpgid, setrlimit};

use crate::protocol::resource_limits::{Limits, ResourceLimit};
use crate::sys;

/// Seconds between SIGXCPU and SIGKILL.
const AFTER_SIGXCPU: u64 = 5;

/// Applies all limits except the user and the group.
///
/// # Errors
/// The limit that could not be applied, and the reason.
#[inline]
pub(crate) fn apply(limits: &Limits) -> Result<(), String> {
    if let Some(folder) = &limits.cgroup {
        // 0 means the process that writes.
        fs::write(folder.join("cgroup.procs"), "0")
            .map_err(|error| format!("joining the control group {} failed: {error}", folder.display()))?;
    }
    if let Some(group) = limits.process_group {
        let id = i32::try_from(group).map_err(|_| format!("{group} is not the number of a process group"))?;
        setpgid(None, Pid::from_raw(id))
            .map_err(|error| format!("joining the process group {group} failed: {error}"))?;
    }
    limits.shared_memory.into_iter().for_each(mp_core::limit_held_memory);
    limits.resources.iter().try_for_each(|(resource, most)| set(*resource, *most))
}

/// Changes the user and the group, if they are set.
///
/// # Errors
/// The call that failed, and the reason.
#[inline]
pub(crate) fn change_user(limits: &Limits) -> Result<(), String> {
    if !limits.changes_user() {
        return Ok(());
    }
    sys::change_user(limits.user, limits.group)
        .map_err(|(what, error)| format!("{what} failed: {error}: only a privileged program may do that"))
}

fn set(resource: ResourceLimit, most: u64) -> Result<(), String> {
    let hard = match resource {
        // With equal limits SIGKILL would come first, and the cause would stay unknown.
        ResourceLimit::CpuSeconds => most.saturating_add(AFTER_SIGXCPU),
        _ => most,
    };
    let before = getrlimit(resource.resource()).maximum;
    // Only a privileged process may raise the hard limit.
    let hard = if most <= before.unwrap_or(u64::MAX) { hard.min(before.unwrap_or(u64::MAX)) } else { hard };
    setrlimit(resource.resource(), Rlimit { current: Some(most), maximum: Some(hard) }).map_err(|error| {
        let before = before.map_or_else(|| "unlimited".to_owned(), |before| before.to_string());
        format!("setting {resource} to {most} failed: {error}; the hard limit is {before}")
    })
}
