//! User and group that this process runs as.
//!
//! # Safety
//! Unsafe, because it calls libc with a pointer. Sound, because the pointer is to an empty list. The calls
//! change all threads of the process, which only the C library can do.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;

/// Changes the user and the group of this process, and leaves all supplementary groups. See `setuid(2)`.
///
/// # Errors
/// The call that failed, and its error.
pub(crate) fn change_user(user: Option<u32>, group: Option<u32>) -> Result<(), (String, io::Error)> {
    let done = |what: String, result: c_int| match result {
        0 => Ok(()),
        _ => Err((what, io::Error::last_os_error())),
    };
    // SAFETY: no entry of the list is read.
    done("setgroups(0)".to_owned(), unsafe { libc::setgroups(0, std::ptr::null()) })?;
    if let Some(group) = group {
        // SAFETY: this takes a number.
        done(format!("setgid({group})"), unsafe { libc::setgid(group) })?;
    }
    let Some(user) = user else { return Ok(()) };
    // SAFETY: this takes a number.
    done(format!("setuid({user})"), unsafe { libc::setuid(user) })
}
