//! Detection of privileges that the user who started this process lacks.
//!
//! # Safety
//!
//! This file may contain `unsafe`: it asks the C library for a value that the kernel passed to this process
//! at its start (`getauxval(3)`), which reads memory that never changes.
#![allow(unsafe_code)]

/// Returns `true` if this process runs a set-user-ID or set-group-ID program, or one with file capabilities,
/// for a user who lacks these privileges: the kernel's `AT_SECURE`, see `getauxval(3)`. The environment is
/// then untrusted input, and must not influence this process.
///
/// ```
/// if !mp_core::gained_privileges() {
///     println!("{:?}", std::env::var_os("MY_PLUGINS"));
/// }
/// ```
#[must_use]
#[inline]
pub fn gained_privileges() -> bool {
    // SAFETY: it takes a number, and reads a value that the kernel passed to this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
