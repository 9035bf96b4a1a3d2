//! State of the simulated driver in one process: connections to the engine, current contexts of its threads,
//! and failures injected by tests.

mod connection;
mod host;
pub(crate) mod host_calls;
mod inject;

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

pub(crate) use connection::{ask, ask_with, begin, devices, init, note, with_registered};
pub(crate) use host::{Pinned, descriptor, file_of, pin};

use crate::codes;

thread_local! {
    /// Stack of contexts of this thread; the last is current. The stack is not dropped with the thread, so
    /// that exit callbacks of the process, which run later, can still use it.
    static CONTEXTS: RefCell<ManuallyDrop<Vec<u64>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// `CUstreamCaptureMode` of this thread: 0 is the strictest.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// Returns the thread's capture mode, which controls potentially unsafe calls during captures.
pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE.get()
}

/// Changes the capture mode, and returns the previous one.
pub(crate) fn set_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

/// Returns the context that is current on this thread, or 0.
pub(crate) fn current() -> u64 {
    CONTEXTS.try_with(|contexts| contexts.borrow().last().copied().unwrap_or(0)).unwrap_or(0)
}

/// Calls `change` with the stack of contexts of this thread.
pub(crate) fn contexts<T>(change: impl FnOnce(&mut Vec<u64>) -> T) -> Result<T, u32> {
    CONTEXTS.try_with(|contexts| change(&mut contexts.borrow_mut())).map_err(|_| codes::DEINITIALIZED)
}

/// Executes a call of the driver, with the failures that are injected for its name. Returns the result code.
pub(crate) fn run(name: &'static str, call: impl FnOnce() -> Result<(), u32>) -> u32 {
    if let Err(code) = inject::before(name) {
        return code;
    }
    let result = begin(name).and_then(|()| call());
    inject::after(name);
    result.err().unwrap_or(codes::SUCCESS)
}
