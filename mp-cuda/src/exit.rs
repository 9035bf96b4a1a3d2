//! Cleanup at the exit of a process: waits for work that other processes need, and gives objects of the
//! driver back. After a kill, the kernel gives the objects back.
//!
//! # Safety
//! Unsafe, because it registers a C callback. Sound, because the callback is a function of the program that
//! takes no arguments and does not unwind. It is registered after the driver was initialised, so the driver's
//! callbacks run after it.
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

use mp_core::fork::PerProcess;

use crate::driver::Driver;
use crate::sync::{AtomicBool, Ordering};

/// Phases of the exit, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExitPhase {
    /// Wait until streams have run the work that other processes may wait for.
    Streams,
    /// Close events of other processes.
    Events,
    /// Unmap memory.
    Memory,
}

const PHASES: usize = 3;

/// Functions to call, one for each phase.
type ExitHooks = [OnceLock<fn()>; PHASES];

static HOOKS: PerProcess<ExitHooks> = mp_core::per_process!([const { OnceLock::new() }; PHASES]);

/// Registers a function to run in this phase of the exit. The caller has initialised the driver before.
pub(crate) fn register(phase: ExitPhase, hook: fn()) {
    static ONCE: PerProcess<Once> = mp_core::per_process!(Once::new());
    _ = HOOKS[phase as usize].set(hook);
    ONCE.call_once(|| {
        // SAFETY: the function has the type `extern "C" fn()`, and lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    });
}

static HAS_BEGUN: PerProcess<AtomicBool> = mp_core::per_process!(AtomicBool::new(false));

/// Returns `true` if the process is ending.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    // A forked copy of the process does not own the driver's objects.
    if Driver::loaded().is_some() {
        HAS_BEGUN.store(true, Ordering::Relaxed);
        for hook in HOOKS.iter().filter_map(OnceLock::get) {
            // A panic must not leave a C callback.
            _ = std::panic::catch_unwind(hook);
        }
    }
}
