//! This process: its end with or without exit handlers, its user, its threads.
//!
//! # Safety
//! Unsafe, because it registers C callbacks, and calls C functions with a pointer. Sound, because
//! the callbacks are functions of the program that take nothing and never unwind, and the pointers are to an
//! empty list or to a name that outlives the call. Only the C library can change the user of all threads.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::{io, ptr};

use mp_core::fork::PerProcess;

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
    static THEN: PerProcess<OnceLock<fn()>> = mp_core::per_process!(OnceLock::new());

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

/// Returns `true` on the thread that the process began with.
#[inline]
pub(crate) fn on_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Returns `true` if the kernel has loaded the program together with its loader. Returns `false` if it runs
/// through the loader, as in `ld.so ./program`, or needs none. See `getauxval(3)`.
pub(crate) fn has_interpreter() -> bool {
    // SAFETY: it reads values that the kernel passed to this process at its start.
    unsafe { libc::getauxval(libc::AT_BASE) != 0 }
}

/// Names the calling thread, for `ps` and debuggers. The kernel cuts the name after 15 bytes. Nothing depends
/// on it.
#[inline]
pub(crate) fn name_thread(name: &str) {
    let mut short = [0_u8; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: sixteen bytes, the last of them zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, short.as_ptr()) };
}

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
