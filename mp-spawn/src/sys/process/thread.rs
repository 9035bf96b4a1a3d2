//! The calling thread: whether it is the main one, its name; and whether the program was loaded with its loader.
//!
//! # Safety
//! Unsafe, because C functions that take numbers, or a pointer to a name that outlives the call.
#![allow(unsafe_code)]

/// Whether the calling thread is the one that the process began with.
#[inline]
pub(crate) fn on_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Whether the kernel has loaded the program together with the loader that it asks for: not if it runs by the loader, as in
/// `ld.so ./program`, or needs none. See `getauxval(3)`.
pub(crate) fn has_interpreter() -> bool {
    // SAFETY: it reads what the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_BASE) != 0 }
}

/// Gives the calling thread a name, for `ps` and debuggers. The kernel cuts it after 15 bytes, and nothing depends on it.
#[inline]
pub(crate) fn name_thread(name: &str) {
    let mut short = [0_u8; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: sixteen bytes, the last of them zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, short.as_ptr()) };
}
