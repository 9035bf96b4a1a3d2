//! End of this process, with or without exit handlers.
//!
//! # Safety
//! Unsafe, because it registers C callbacks. Sound, because they are functions of the program that take
//! nothing and never unwind.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};

/// Ends the process without running exit handlers.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Skips exit handlers that have been registered so far. Handlers that are registered later are called. See
/// `on_exit(3)`.
#[cfg(target_env = "gnu")]
pub(crate) fn skip_exit_handlers_so_far() {
    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    extern "C" fn end(code: c_int, _: *mut c_void) {
        // Writes buffered output of C code. Rust's own buffer has been written out by `std::process::exit`.
        // SAFETY: a null pointer means all streams.
        unsafe { libc::fflush(ptr::null_mut()) };
        exit_at_once(code)
    }

    // SAFETY: the function lives as long as the program, and lets no panic out. Handlers are called in
    // reverse order, so it is called after those that are registered later, and no handler after it. If the
    // call fails, out of memory, the others are called as well.
    unsafe { on_exit(end, ptr::null_mut()) };
}

/// Does nothing, because other C libraries can't skip exit handlers.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn skip_exit_handlers_so_far() {}

/// Registers a function for the exit of the process, through `exit` or from `main`. See `atexit(3)`.
pub(crate) fn at_exit(then: fn()) {
    static THEN: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

    extern "C" fn call() {
        // A panic must not leave a C function. Its message has been printed.
        let _ = std::panic::catch_unwind(|| THEN.get().map(|then| then()));
    }

    if THEN.set(then).is_ok() {
        // SAFETY: the function lives as long as the program, and lets no panic out. The call fails only when
        // out of memory, and then nothing is called.
        unsafe { libc::atexit(call) };
    }
}
