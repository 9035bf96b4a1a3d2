//! Descriptors that this library keeps open for the life of the process, each with a name. Tests use the
//! names to distinguish these descriptors from leaked ones: with the feature `inject`, they are compared with
//! the open descriptors at exit (`leaks`).

use std::os::fd::AsFd;

/// Records a descriptor that stays open until the process ends, and its purpose. Replaces an earlier record
/// with the same purpose and the same target in `/proc/self/fd`. Pipes and sockets have different targets.
#[cfg(not(all(feature = "inject", not(mp_loom))))]
#[inline]
pub fn register(_what: &'static str, _fd: &impl AsFd) {}

/// Records a descriptor that stays open until the process ends, and its purpose. Replaces an earlier record
/// with the same purpose and the same target in `/proc/self/fd`. Pipes and sockets have different targets.
#[cfg(all(feature = "inject", not(mp_loom)))]
pub fn register(what: &'static str, fd: &impl AsFd) {
    use std::os::fd::AsRawFd;
    crate::leaks::register(what, fd.as_fd().as_raw_fd());
}

/// Calls `make`, and records the new descriptors that it leaves open until the process ends. Records only
/// kernel objects without a file, such as epoll.
pub fn register_made<R>(what: &'static str, make: impl FnOnce() -> R) -> R {
    #[cfg(all(feature = "inject", not(mp_loom)))]
    return crate::leaks::register_made(what, make);
    #[cfg(not(all(feature = "inject", not(mp_loom))))]
    {
        _ = what;
        make()
    }
}

/// Records that this process has written invalid data into the arena. The check for leaked blocks and
/// messages is then skipped.
#[doc(hidden)]
#[inline]
pub fn skip_memory_check() {
    #[cfg(all(feature = "inject", not(mp_loom)))]
    crate::leaks::skip_memory_check();
}
