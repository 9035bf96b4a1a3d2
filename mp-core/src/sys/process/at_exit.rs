//! # Safety
//! Functions called when the process exits normally, and in forked children. Unsafe, because C callbacks are
//! registered. Sound, because a callback is a function of the program, which takes no arguments, never
//! unwinds, and is never unloaded. With the feature `inject`, `.init_array` has an entry: a function of the
//! same kind, which needs nothing that is initialized later.
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

use crate::process::{PerProcess, per_process};

static WHAT: PerProcess<OnceLock<fn()>> = per_process!(OnceLock::new());

extern "C" fn at_exit() {
    if let Some(what) = WHAT.get() {
        // A panic must not leave a C callback.
        _ = std::panic::catch_unwind(what);
    }
}

/// Runs `what` when the process exits (`atexit(3)`). Only the first call registers a function. A process that
/// is killed does not run it.
pub(crate) fn on_exit(what: fn()) {
    static ONCE: PerProcess<Once> = per_process!(Once::new());
    ONCE.call_once(|| {
        _ = WHAT.set(what);
        // SAFETY: `at_exit` is an `extern "C" fn()`, as required, and lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Registers a function that each forked child calls before `fork` returns (`pthread_atfork(3)`). The
/// function must not panic or wait for a lock. Has no effect if there is no memory for the registration.
pub(crate) fn on_fork(what: extern "C" fn()) {
    let what: unsafe extern "C" fn() = what;
    // SAFETY: a function of the program without arguments, as required, which lives as long as the program.
    _ = unsafe { libc::pthread_atfork(None, None, Some(what)) };
}

/// Registers a function to be called before `main`. The function is called before all other code that
/// registers exit functions, so an exit function that it registers runs last.
#[cfg(all(feature = "inject", not(mp_loom), target_os = "linux", target_env = "gnu"))]
macro_rules! before_main {
    ($begin:path) => {
        const _: () = {
            #[used]
            #[allow(unsafe_code)]
            // SAFETY: glibc calls the entries of this section with arguments, which a C function may ignore,
            // and the static has the size and the alignment of an entry.
            #[unsafe(link_section = ".init_array")]
            // fork: code, which does not change.
            static ENTRY: extern "C" fn() = {
                extern "C" fn entry() {
                    // A panic must not leave a C callback.
                    _ = std::panic::catch_unwind($begin);
                }
                entry
            };
        };
    };
}
#[cfg(all(feature = "inject", not(mp_loom), target_os = "linux", target_env = "gnu"))]
pub(crate) use before_main;

/// Runs `what` when the process exits, after all functions that are registered later. Only the first call
/// registers a function.
#[cfg(all(feature = "inject", not(mp_loom)))]
pub(crate) fn on_exit_last(what: fn()) {
    static LAST: PerProcess<OnceLock<fn()>> = per_process!(OnceLock::new());
    extern "C" fn at_exit() {
        if let Some(what) = LAST.get() {
            // A panic must not leave a C callback.
            _ = std::panic::catch_unwind(what);
        }
    }
    if LAST.set(what).is_ok() {
        // SAFETY: `at_exit` is an `extern "C" fn()`, as required, and lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    }
}
