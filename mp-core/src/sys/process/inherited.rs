//! # Safety
//! Inheritance from the parent process: an environment variable, and the socket that it names. Unsafe,
//! because it changes the environment and takes ownership of a descriptor by its number. Sound, because of
//! the contracts below.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags};

use crate::sys::process::peer;

/// Removes a variable from the environment, so that programs started by this process do not inherit it.
#[inline]
pub fn remove_variable(name: &str) {
    // SAFETY: the standard library guards its own reads with a lock. Other threads that use the environment
    // meanwhile by C's functions find every other variable as it was: the list is moved together, and nothing
    // in it is freed.
    unsafe { std::env::remove_var(name) };
}

/// Takes ownership of the descriptor with this number, if it is a Unix socket that the process `maker` has
/// created, and `maker` belongs to the user of this process. Programs executed by this process do not inherit
/// the descriptor.
///
/// # Errors
/// The reason why the descriptor is not taken. The descriptor is then unchanged, except for close-on-exec.
///
/// # Safety
/// The number is not negative. The parent has passed it for this purpose in an environment variable, which
/// only one thread of this process has removed from the environment.
#[inline]
pub unsafe fn adopt(number: RawFd, maker: u32) -> io::Result<OwnedFd> {
    // SAFETY: the number isn't negative. If no file has it, the calls below fail with EBADF; nothing closes
    // files meanwhile.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let peer = peer::credentials(socket)?;
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    if peer.pid != maker {
        return Err(Errno::NOTCONN.into());
    }
    // Both ids are compared: otherwise a user could control a set-user-ID program of another user.
    let own = [rustix::process::getuid(), rustix::process::geteuid()].map(|user| user.as_raw());
    if own.iter().any(|own| *own != peer.uid) {
        return Err(stranger(peer.uid, own));
    }
    // SAFETY: the file is open, for the calls above succeeded, and this process owns it: the caller promises
    // that the maker left it to this process for this purpose, and no other code finds its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cold]
fn stranger(peer: u32, [real, effective]: [u32; 2]) -> io::Error {
    let own = if real == effective { real.to_string() } else { format!("{real}, for now {effective}") };
    io::Error::other(format!("it is a socket of user {peer}, and this process is of user {own}"))
}
