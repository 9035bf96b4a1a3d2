//! Whether a program would get privileges that the user of this process lacks, when it is executed: the kernel tells it so
//! (`AT_SECURE`, see `getauxval(3)`), and then it ignores the token in its environment, and runs `main` again instead of
//! becoming a worker.
//!
//! This is a guard against mistakes, and a check at one moment: the file may be another one when it is executed. Such a
//! program is safe because it never becomes a worker.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

/// What the kernel keeps the capabilities of a file in: see `capabilities(7)`.
const CAPABILITIES: &str = "security.capability";

/// What gives privileges to a program that this process executes, and how to remove that; `None` if nothing does, or if the
/// file can't be inspected, which its execution reports better.
pub(crate) fn privileges(program: &Path) -> Option<String> {
    let file = std::fs::metadata(program).ok()?;
    let (mode, owner, group) = (file.permissions().mode(), file.uid(), file.gid());
    let (user, own_group) = (rustix::process::getuid(), rustix::process::getgid().as_raw());
    let given = if mode & libc::S_ISUID != 0 && owner != user.as_raw() && !rules_out_set_user_id() {
        format!("is set-user-ID of the user {owner} (`chmod u-s` takes that away)")
    } else if is_set_group_id(mode) && group != own_group && !rules_out_set_user_id() {
        format!("is set-group-ID of the group {group} (`chmod g-s` takes that away)")
    } else if !user.is_root() && has_capabilities(program) {
        "has file capabilities (`setcap -r` takes them away)".to_string()
    } else {
        return None;
    };
    (!gives_nothing(program)).then_some(given)
}

/// Without the right of the group to execute it, the bit means something else.
fn is_set_group_id(mode: u32) -> bool {
    const BITS: u32 = libc::S_ISGID | libc::S_IXGRP;
    mode & BITS == BITS
}

/// Whether programs that this thread executes don't get the user or group of their file: `PR_SET_NO_NEW_PRIVS` in `prctl(2)`.
fn rules_out_set_user_id() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

fn has_capabilities(program: &Path) -> bool {
    let mut room = [0_u8; 64];
    match rustix::fs::getxattr(program, CAPABILITIES, &mut room) {
        Ok(length) => length > 0,
        Err(error) => error == Errno::RANGE,
    }
}

/// Whether no program of its file system gets privileges.
fn gives_nothing(program: &Path) -> bool {
    rustix::fs::statvfs(program).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_without_privileges_give_none() {
        assert_eq!(privileges(Path::new("/proc/self/exe")), None);
        assert_eq!(privileges(Path::new("/bin/sh")), None);
        assert_eq!(privileges(Path::new("/no/such/program")), None);
    }

    #[test]
    fn a_group_that_may_not_execute_is_not_set() {
        assert!(is_set_group_id(0o2755));
        assert!(!is_set_group_id(0o2705));
        assert!(!is_set_group_id(0o755));
    }
}
