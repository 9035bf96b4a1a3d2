//! What a process gives back to the driver when it ends by itself. A process that is killed leaves that to the kernel.
//!
//! # Safety
//! Unsafe, because it registers a C callback; sound, because that is a function of the program, which takes nothing and unwinds nowhere.
//! It is registered after the driver was initialised, whose own callbacks run after it.
#![allow(unsafe_code)]

use std::sync::Once;

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::driver::Driver;
use crate::memory::collect;

/// Has the end of this process do its part. The driver was initialised.
pub(crate) fn watch() {
    static ONCE: PerProcess<Once> = PerProcess::new([const { Once::new() }; GENERATIONS]);
    ONCE.call_once(|| {
        // SAFETY: an `extern "C" fn()`, as asked for, which lives as long as the program.
        _ = unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    // Nothing in a copy of the process, whose driver it isn't.
    if Driver::loaded().is_some() {
        // A panic must not leave a C callback.
        _ = std::panic::catch_unwind(collect::leave);
    }
}
