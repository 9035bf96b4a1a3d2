//! Descriptors that this library keeps as long as the process lives, each named where it is opened. So a test can tell them from
//! those that were left open: with the feature `inject`, they are compared with what is open at the end (`leaks`).

use std::os::fd::AsFd;

/// Says that a descriptor stays open until the process ends, and what it is. A later one of the same name replaces it, unless the
/// kernel has a number for each, as for pipes and sockets.
#[cfg(not(all(feature = "inject", not(mp_loom))))]
#[inline]
pub fn kept(_what: &'static str, _fd: &impl AsFd) {}

/// Says that a descriptor stays open until the process ends, and what it is. A later one of the same name replaces it, unless the
/// kernel has a number for each, as for pipes and sockets.
#[cfg(all(feature = "inject", not(mp_loom)))]
pub fn kept(what: &'static str, fd: &impl AsFd) {
    use std::os::fd::AsRawFd;
    crate::leaks::keep(what, fd.as_fd().as_raw_fd());
}

/// Says that this process has written what no process writes into the arena, so that counting what is in it says nothing.
#[doc(hidden)]
#[inline]
pub fn arena_is_garbage() {
    #[cfg(all(feature = "inject", not(mp_loom)))]
    crate::leaks::memory_says_nothing();
}
