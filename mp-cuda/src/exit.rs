//! What a process does for others, and gives back to the driver, when it ends by itself. A process that is killed leaves that to the
//! kernel.
//!
//! # Safety
//! Unsafe, because it registers a C callback; sound, because that is a function of the program, which takes nothing and unwinds nowhere.
//! It is registered after the driver was initialised, whose own callbacks run after it.
#![allow(unsafe_code)]

use std::sync::{Once, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::driver::Driver;
use crate::sync::{AtomicBool, Ordering};

/// The parts of the end, in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Streams run what others may wait for.
    Streams,
    /// Events of other processes are closed.
    Events,
    /// Memory is unmapped.
    Memory,
}

const PARTS: usize = 3;

/// What is to be done, for each part.
type Parts = [OnceLock<fn()>; PARTS];

static WHAT: PerProcess<Parts> = PerProcess::new([const { [const { OnceLock::new() }; PARTS] }; GENERATIONS]);

/// Has a part of the end be done. The driver was initialised.
pub(crate) fn watch(part: Part, what: fn()) {
    static ONCE: PerProcess<Once> = PerProcess::new([const { Once::new() }; GENERATIONS]);
    _ = WHAT[part as usize].set(what);
    ONCE.call_once(|| {
        // SAFETY: an `extern "C" fn()`, as asked for, which lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    });
}

static HAS_BEGUN: PerProcess<AtomicBool> = PerProcess::new([const { AtomicBool::new(false) }; GENERATIONS]);

/// Whether the process is ending.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    // Nothing in a copy of the process, whose driver it isn't.
    if Driver::loaded().is_some() {
        HAS_BEGUN.store(true, Ordering::Relaxed);
        for what in WHAT.iter().filter_map(OnceLock::get) {
            // A panic must not leave a C callback.
            _ = std::panic::catch_unwind(what);
        }
    }
}
