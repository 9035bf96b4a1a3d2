//! # Safety
//! What a process was given by the one that started it: a variable of its environment, and the socket that it names. Unsafe,
//! because it changes the environment and takes possession of a descriptor by its number; sound, because of what the
//! functions say of both.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, FdFlags};

use crate::sys::process::peer;

/// Takes a variable out of the environment, so that no program started from here finds it.
#[inline]
pub fn remove_variable(name: &str) {
    // SAFETY: the standard library guards its own reads with a lock. Other threads that use the environment meanwhile by
    // C's functions find each variable but this one as it was: the list is moved together, and nothing in it is freed.
    unsafe { std::env::remove_var(name) };
}

/// Takes the Unix socket with this number, if it is one, was made by the process `maker`, and that one is of this process's user.
/// No program that is executed from here inherits it.
///
/// # Errors
/// Why it is not taken: it is left as it is then, but for that.
///
/// # Safety
/// The number is not negative, and was named by the process that started this one, for this purpose, in a variable of the
/// environment that only one thread of this process has taken out of it.
#[inline]
pub unsafe fn adopt(number: RawFd, maker: u32) -> io::Result<OwnedFd> {
    // SAFETY: the number isn't negative. If no file has it, the calls below fail with EBADF; nothing closes files meanwhile.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let peer = peer::of(socket)?;
    rustix::io::fcntl_setfd(socket, FdFlags::CLOEXEC)?;
    if peer.pid != maker {
        return Err(Errno::NOTCONN.into());
    }
    // Both of them: a user that runs with the effective user of another one must not control that one's processes.
    let own = [rustix::process::getuid(), rustix::process::geteuid()].map(|user| user.as_raw());
    if own.iter().any(|own| *own != peer.uid) {
        return Err(stranger(peer.uid, own));
    }
    // SAFETY: the file is open, for the calls above succeeded, and it is this process's to own: the maker left it to this
    // process for this purpose, says the caller, and no other code finds its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cold]
fn stranger(peer: u32, [real, effective]: [u32; 2]) -> io::Error {
    let own = if real == effective { real.to_string() } else { format!("{real}, for now {effective}") };
    io::Error::other(format!("it is a socket of user {peer}, and this process is of user {own}"))
}
