//! Calling thread: main thread or not, and its name. Also whether the program was loaded with its loader.
//!
//! # Safety
//! Unsafe, because it calls C functions that take numbers, or a pointer to a name that outlives the call.
#![allow(unsafe_code)]

/// Returns `true` on the thread that the process began with.
#[inline]
pub(crate) fn on_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Returns `true` if the kernel has loaded the program together with its loader. Returns `false` if it runs
/// through the loader, as in `ld.so ./program`, or needs none. See `getauxval(3)`.
pub(crate) fn has_interpreter() -> bool {
    // SAFETY: it reads values that the kernel passed to this process at its start.
    unsafe { libc::getauxval(libc::AT_BASE) != 0 }
}

/// Names the calling thread, for `ps` and debuggers. The kernel cuts the name after 15 bytes. Nothing depends
/// on it.
#[inline]
pub(crate) fn name_thread(name: &str) {
    let mut short = [0_u8; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: sixteen bytes, the last of them zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, short.as_ptr()) };
}
