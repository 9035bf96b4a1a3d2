//! Descriptors that this library keeps open for the life of the process, each with a name. So a test can
//! distinguish them from leaked ones: with the feature `inject`, they are compared with the open descriptors
//! at exit (`leaks`).

use std::os::fd::AsFd;

/// Records a descriptor that stays open until the process ends, and its purpose. A later descriptor with the
/// same name replaces it, unless the kernel numbers each, for example for pipes and sockets.
#[cfg(not(all(feature = "inject", not(mp_loom))))]
#[inline]
pub fn register(_what: &'static str, _fd: &impl AsFd) {}

/// Records a descriptor that stays open until the process ends, and its purpose. A later descriptor with the
/// same name replaces it, unless the kernel numbers each, for example for pipes and sockets.
#[cfg(all(feature = "inject", not(mp_loom)))]
pub fn register(what: &'static str, fd: &impl AsFd) {
    use std::os::fd::AsRawFd;
    crate::leaks::register(what, fd.as_fd().as_raw_fd());
}

/// Calls `make`, and records the descriptors of the kernel's own objects, such as epoll, that it leaves open
/// until the process ends.
pub fn register_made<R>(what: &'static str, make: impl FnOnce() -> R) -> R {
    #[cfg(all(feature = "inject", not(mp_loom)))]
    return crate::leaks::register_made(what, make);
    #[cfg(not(all(feature = "inject", not(mp_loom))))]
    {
        _ = what;
        make()
    }
}

/// Records that this process has written invalid data into the arena, so that its counts are meaningless.
#[doc(hidden)]
#[inline]
pub fn skip_memory_check() {
    #[cfg(all(feature = "inject", not(mp_loom)))]
    crate::leaks::skip_memory_check();
}
