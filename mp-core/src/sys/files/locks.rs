//! # Safety
//! Byte-range locks on the arena's file, which show the death of a member. Unsafe, because `fcntl` takes a
//! pointer to a `struct flock`. Each call passes one on the stack, and an open file descriptor.
//!
//! Each member holds two locks on bytes of its own. The kernel drops the POSIX lock when the process dies,
//! even if a forked child keeps the file open. The kernel keeps the open-file-description lock when code of
//! the process opens and closes the same file through `/proc`. In each of the two cases the other lock gives
//! a wrong answer. If both are free at the same time, the member is dead. Reference: `fcntl(2)`, "Advisory
//! record locking", "Open file description locks".
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// First byte of the locks. It is far beyond the end of any arena: a lock needs no existing bytes of the
/// file.
const FIRST_LOCK: i64 = 1 << 61;

fn range(kind: libc::c_int, at: i64) -> libc::flock {
    // SAFETY: `struct flock` is plain data, for which zeros are valid.
    let mut f: libc::flock = unsafe { std::mem::zeroed() };
    f.l_type = kind as libc::c_short;
    f.l_whence = libc::SEEK_SET as libc::c_short;
    f.l_start = at;
    f.l_len = 1;
    f
}

fn fcntl(fd: BorrowedFd<'_>, cmd: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and `lock` is a valid `struct flock` for all lock commands.
    match unsafe { libc::fcntl(fd.as_raw_fd(), cmd, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn posix_byte(slot: u32) -> i64 {
    FIRST_LOCK + 2 * i64::from(slot)
}

fn ofd_byte(slot: u32) -> i64 {
    posix_byte(slot) + 1
}

/// Acquires both locks of `slot`. Returns `false` if another process holds one of them.
pub(crate) fn acquire(fd: BorrowedFd<'_>, slot: u32) -> io::Result<bool> {
    let taken = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    match fcntl(fd, libc::F_OFD_SETLK, &mut range(libc::F_WRLCK, ofd_byte(slot))) {
        Err(e) if taken(&e) => return Ok(false),
        other => other?,
    }
    match fcntl(fd, libc::F_SETLK, &mut range(libc::F_WRLCK, posix_byte(slot))) {
        Err(e) if taken(&e) => {
            fcntl(fd, libc::F_OFD_SETLK, &mut range(libc::F_UNLCK, ofd_byte(slot)))?;
            Ok(false)
        }
        other => other.map(|()| true),
    }
}

/// Releases both locks of `slot`.
pub(crate) fn release(fd: BorrowedFd<'_>, slot: u32) {
    _ = fcntl(fd, libc::F_SETLK, &mut range(libc::F_UNLCK, posix_byte(slot)));
    _ = fcntl(fd, libc::F_OFD_SETLK, &mut range(libc::F_UNLCK, ofd_byte(slot)));
}

/// Returns `true` if neither lock of `slot` is held. The caller must not pass its own slot.
pub(crate) fn both_free(fd: BorrowedFd<'_>, slot: u32) -> io::Result<bool> {
    let both = [ofd_byte(slot), posix_byte(slot)];
    for byte in &both {
        let mut lock = range(libc::F_WRLCK, *byte);
        fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
        if lock.l_type != libc::F_UNLCK as libc::c_short {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Locks a whole file, if no other open file description has locked it. The kernel drops the lock when the
/// last descriptor of this process is closed: at the death of the process at the latest.
pub fn try_lock_file(fd: BorrowedFd<'_>) -> io::Result<bool> {
    match fcntl(fd, libc::F_OFD_SETLK, &mut whole(libc::F_WRLCK)) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Unlocks a whole file.
pub fn unlock_file(fd: BorrowedFd<'_>) {
    _ = fcntl(fd, libc::F_OFD_SETLK, &mut whole(libc::F_UNLCK));
}

fn whole(kind: libc::c_int) -> libc::flock {
    let mut f = range(kind, 0);
    f.l_len = 0;
    f
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A member counts as alive as long as one of its two locks is held, because other code of the process
    /// can drop one of them.
    #[test]
    #[cfg_attr(miri, ignore = "needs a file with locks")]
    fn either_of_two_file_locks_proves_a_live_member() {
        const SLOT: u32 = 3;
        let file = rustix::fs::memfd_create("locks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // Another open file description, as another process has it.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let member = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let (file, member) = (file.as_fd(), member.as_fd());
        let give_up = |command, byte| fcntl(member, command, &mut range(libc::F_UNLCK, byte)).unwrap();
        assert!(both_free(file, SLOT).unwrap());
        assert!(acquire(member, SLOT).unwrap());
        give_up(libc::F_SETLK, posix_byte(SLOT));
        assert!(!both_free(file, SLOT).unwrap());
        assert!(acquire(member, SLOT).unwrap());
        give_up(libc::F_OFD_SETLK, ofd_byte(SLOT));
        assert!(!both_free(file, SLOT).unwrap());
        give_up(libc::F_SETLK, posix_byte(SLOT));
        assert!(both_free(file, SLOT).unwrap());
    }
}
