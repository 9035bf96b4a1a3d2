//! # Safety
//! Signal to the calling thread, for tests. Unsafe, because it is a C function. It takes and keeps no
//! pointer.
#![allow(unsafe_code)]

/// Sends a signal to the calling thread, so that it takes effect before the thread's next instruction. (If it
/// were sent to the process, another thread could receive it while this one continues.) Reference:
/// `raise(3)`.
pub(in crate::sys) fn signal_self(signal: i32) {
    // SAFETY: `raise` takes any number; an invalid signal is an error that changes nothing.
    _ = unsafe { libc::raise(signal) };
}
