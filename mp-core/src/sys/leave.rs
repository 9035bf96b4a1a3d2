//! # Safety
//! Something to do when the process ends by itself. Unsafe, because it registers a C callback; sound, because the
//! callback is a function of the program, which takes nothing, unwinds nowhere, and stays where it is.
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

use crate::fork::{GENERATIONS, PerProcess};

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
