//! # Safety
//! Something to do when the process ends by itself. Unsafe, because it registers a C callback; sound, because the
//! callback is a function of the program, which takes nothing, unwinds nowhere, and stays where it is. With the feature `inject`
//! there is an entry in `.init_array`, a function of the same kind, which needs nothing that comes into being later.
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

use crate::process::{GENERATIONS, PerProcess};

static WHAT: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

extern "C" fn at_exit() {
    if let Some(what) = WHAT.get() {
        // A panic must not leave a C callback.
        _ = std::panic::catch_unwind(what);
    }
}

/// Runs `what` when the process exits (`atexit(3)`), the first one given, once. A process that is killed runs nothing.
pub(crate) fn on_exit(what: fn()) {
    static ONCE: PerProcess<Once> = PerProcess::new([const { Once::new() }; GENERATIONS]);
    ONCE.call_once(|| {
        _ = WHAT.set(what);
        // SAFETY: `at_exit` is an `extern "C" fn()`, as asked for, and lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Has a function called before `main`: before all that registers functions for the exit there, so that its own is the last one
/// that runs.
#[cfg(all(feature = "inject", not(mp_loom), target_os = "linux", target_env = "gnu"))]
macro_rules! before_main {
    ($begin:path) => {
        const _: () = {
            #[used]
            #[allow(unsafe_code)]
            // SAFETY: glibc calls what is in this section with arguments, which a C function may ignore, and the static has the
            // size and the alignment of an entry.
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

/// Runs `what` when the process exits, the first one given, after all that is registered later.
#[cfg(all(feature = "inject", not(mp_loom)))]
pub(crate) fn at_last(what: fn()) {
    static LAST: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
    extern "C" fn at_exit() {
        if let Some(what) = LAST.get() {
            // A panic must not leave a C callback.
            _ = std::panic::catch_unwind(what);
        }
    }
    if LAST.set(what).is_ok() {
        // SAFETY: `at_exit` is an `extern "C" fn()`, as asked for, and lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    }
}
