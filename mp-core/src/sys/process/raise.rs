//! # Safety
//! A signal to the calling thread, for tests. Unsafe, because it is a C function; it takes and keeps no pointer.
#![allow(unsafe_code)]

/// Sends a signal to the calling thread, so that it takes effect before the next instruction of it (sent to the
/// process, another thread could take it, and this one run on for a while). Reference: `raise(3)`.
pub(in crate::sys) fn signal_self(signal: i32) {
    // SAFETY: `raise` takes any number; one that is no signal is an error that changes nothing.
    _ = unsafe { libc::raise(signal) };
}
