//! Whether this process has privileges that the user who started it lacks.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it asks the C library for what the kernel gave this process at its start
//! (`getauxval(3)`), which reads memory that stays as it is while the process lives.
#![allow(unsafe_code)]

/// Whether this process runs a set-user-ID or set-group-ID program, or one with file capabilities, for a user who lacks
/// these privileges: the kernel's `AT_SECURE`, see `getauxval(3)`. The environment is then input of a stranger, and
/// nothing in it may decide what this process does.
///
/// ```
/// if !mp_core::gained_privileges() {
///     println!("{:?}", std::env::var_os("MY_PLUGINS"));
/// }
/// ```
#[must_use]
#[inline]
pub fn gained_privileges() -> bool {
    // SAFETY: it takes a number, and reads what the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
