//! How this process ends: exit handlers, and without them.
//!
//! # Safety
//! Unsafe, because it registers C callbacks; sound, because they are functions of the program that take nothing and unwind
//! nowhere.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};

/// Ends the process without calling anything.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(code) }
}

/// What has been registered to be called at exit so far will not be, but what is registered from now on will. See
/// `on_exit(3)`.
#[cfg(target_env = "gnu")]
pub(crate) fn skip_exit_handlers_so_far() {
    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    extern "C" fn end(code: c_int, _: *mut c_void) {
        // What C code has printed. Rust's own buffer has been written out by `std::process::exit`.
        // SAFETY: a null pointer means all streams.
        unsafe { libc::fflush(ptr::null_mut()) };
        exit_at_once(code)
    }

    // SAFETY: the function lives as long as the program, and lets no panic out. They are called last one first, so that
    // it is called after those that are registered later, and none after it. If it fails, out of memory, the others are
    // called as well.
    unsafe { on_exit(end, ptr::null_mut()) };
}

/// Other C libraries can't.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn skip_exit_handlers_so_far() {}

/// Calls a function when the process exits, through `exit` or from `main`. See `atexit(3)`.
pub(crate) fn at_exit(then: fn()) {
    static THEN: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

    extern "C" fn call() {
        // A panic can't leave a C function; its message has been printed.
        let _ = std::panic::catch_unwind(|| THEN.get().map(|then| then()));
    }

    if THEN.set(then).is_ok() {
        // SAFETY: the function lives as long as the program, and lets no panic out. It fails only when out of memory;
        // then nothing is called.
        unsafe { libc::atexit(call) };
    }
}
