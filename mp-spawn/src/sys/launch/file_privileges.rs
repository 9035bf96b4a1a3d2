//! Check for privileges that a program would get when it is executed and that the user of this process lacks.
//! The kernel reports them to the program (`AT_SECURE`, see `getauxval(3)`), which then ignores the token in
//! its environment, and runs `main` again instead of becoming a worker.
//!
//! The check protects against mistakes only, because the file may be replaced between the check and the
//! execution. A privileged program is safe because it never becomes a worker.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::thread::CapabilitySet;

/// Extended attribute for the capabilities of a file: see `capabilities(7)`.
const CAPABILITIES: &str = "security.capability";
/// Maximum number of nested interpreters in the kernel.
const DEPTH: usize = 5;
/// Number of bytes that the kernel reads of a script, to find its interpreter.
const FIRST_LINE: u64 = 256;

/// Describes the source of privileges of a program that this thread executes, and a remedy. Returns `None` if
/// the program gets no privileges, or if the file can't be inspected: its execution then returns a more
/// precise error.
pub(crate) fn privileges(program: &Path) -> Option<String> {
    let executed = executed(program);
    let granted = granted(&executed)?;
    Some(if executed == program {
        granted
    } else {
        format!("is a script, and its interpreter {} {granted}", executed.display())
    })
}

/// Returns the file whose privileges count: the program, or for a script its interpreter, as named by `#!`
/// (see `execve(2)`). An interpreter may be a script, too.
fn executed(program: &Path) -> PathBuf {
    let mut file = program.to_owned();
    for _ in 0..DEPTH {
        match interpreter(&file) {
            Some(interpreter) => file = interpreter,
            None => break,
        }
    }
    file
}

fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    // Opening a special file might block.
    let file = script.is_file().then(|| std::fs::File::open(script).ok())??;
    file.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    words.next().map(|word| OsStr::from_bytes(word).into())
}

fn granted(program: &Path) -> Option<String> {
    let file = std::fs::metadata(program).ok()?;
    let (mode, owner, group) = (file.permissions().mode(), file.uid(), file.gid());
    let (user, own_group) = (rustix::process::getuid(), rustix::process::getgid().as_raw());
    let granted = if mode & libc::S_ISUID != 0 && owner != user.as_raw() && !gets_no_new_privileges() {
        format!("is set-user-ID of the user {owner} (`chmod u-s` takes that away)")
    } else if is_set_group_id(mode) && group != own_group && !gets_no_new_privileges() {
        format!("is set-group-ID of the group {group} (`chmod g-s` takes that away)")
    } else if !user.is_root() && gets_capabilities(program) {
        "has file capabilities (`setcap -r` takes them away)".to_string()
    } else {
        return None;
    };
    (!gives_nothing(program)).then_some(granted)
}

/// Returns `true` if the set-group-ID bit is effective. If the group may not execute the file, the bit has
/// another meaning.
fn is_set_group_id(mode: u32) -> bool {
    const BITS: u32 = libc::S_ISGID | libc::S_IXGRP;
    mode & BITS == BITS
}

/// Returns `true` if programs that this thread executes don't get the user or group of their file:
/// `PR_SET_NO_NEW_PRIVS` in `prctl(2)`. Each thread has its own flag.
fn gets_no_new_privileges() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// Returns `true` if this thread gets capabilities by executing a program. A file whose list of capabilities
/// is empty, or malformed, gives none.
fn gets_capabilities(program: &Path) -> bool {
    let mut room = [0_u8; 64];
    let Ok(length) = rustix::fs::getxattr(program, CAPABILITIES, &mut room) else { return false };
    let Some(file) = FileCapabilities::read(&room[..length]) else { return false };
    let own = rustix::thread::capabilities(None);
    let (inheritable, permitted) =
        own.map_or((u64::MAX, u64::MAX), |own| (own.inheritable.bits(), own.permitted.bits()));
    let mut gets = file.inheritable & inheritable | within_bounds(file.permitted);
    if gets_no_new_privileges() {
        gets &= permitted;
    }
    file.effective || gets != 0
}

/// Returns the subset of the capabilities that the bounding set of this thread permits.
fn within_bounds(capabilities: u64) -> u64 {
    let bits = (0..u64::BITS).map(|bit| capabilities & 1 << bit).filter(|bit| *bit != 0);
    // Capabilities that the kernel doesn't know cause an error, and are not granted.
    let is_given = |bit: &u64| {
        rustix::thread::capability_is_in_bounding_set(CapabilitySet::from_bits_retain(*bit)).unwrap_or(false)
    };
    bits.filter(is_given).sum()
}

/// Capabilities of a file in the kernel's format: `vfs_cap_data` in `linux/capability.h`.
#[derive(Debug, PartialEq)]
struct FileCapabilities {
    /// `true` if the permitted capabilities are effective from the beginning. The program then does not trust
    /// its parent, even if no capability is permitted.
    effective: bool,
    permitted: u64,
    inheritable: u64,
}

impl FileCapabilities {
    /// Parses an attribute. Returns `None` if the kernel refuses the attribute, and with it the execution.
    fn read(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let kind = words.next().filter(|_| rest.is_empty())?;
        let words: Vec<u64> = words.map(u64::from).collect();
        let (permitted, inheritable) = match (kind >> 24, &words[..]) {
            (1, &[permitted, inheritable]) => (permitted, inheritable),
            // The last word of the third revision is the owner of the user namespace.
            (2, &[permitted, inheritable, more, more_inheritable])
            | (3, &[permitted, inheritable, more, more_inheritable, _]) => {
                (permitted | more << 32, inheritable | more_inheritable << 32)
            }
            _ => return None,
        };
        Some(Self { effective: kind & 1 != 0, permitted, inheritable })
    }
}

/// Returns `true` if programs on the file system of `program` never get privileges.
fn gives_nothing(program: &Path) -> bool {
    rustix::fs::statvfs(program).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_files_without_set_id_have_no_privileges() {
        assert_eq!(privileges(Path::new("/proc/self/exe")), None);
        assert_eq!(privileges(Path::new("/bin/sh")), None);
        assert_eq!(privileges(Path::new("/no/such/program")), None);
    }

    #[test]
    fn file_capabilities_parse_like_in_the_kernel() {
        let read = |words: &[u32]| {
            FileCapabilities::read(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>())
        };
        let of =
            |effective, permitted, inheritable| Some(FileCapabilities { effective, permitted, inheritable });
        assert_eq!(read(&[0x0100_0000, 1, 2]), of(false, 1, 2));
        assert_eq!(read(&[0x0200_0001, 1, 2, 3, 4]), of(true, 3 << 32 | 1, 4 << 32 | 2));
        assert_eq!(read(&[0x0300_0000, 0, 0, 0, 0, 1000]), of(false, 0, 0));
        for other in [&[][..], &[0x0200_0001], &[0x0200_0000, 1, 2], &[0x0400_0000, 1, 2, 3, 4], &[0, 1, 2]] {
            assert_eq!(read(other), None, "{other:?}");
        }
        assert_eq!(FileCapabilities::read(&[0, 0, 0, 1, 0]), None);
    }

    #[test]
    fn set_group_id_requires_the_execute_bit() {
        assert!(is_set_group_id(0o2755));
        assert!(!is_set_group_id(0o2705));
        assert!(!is_set_group_id(0o755));
    }
}
