//! Child side: a process that this library has started, from before `main` to the end of its function.
//! Nothing here depends on the parent's side.

pub(crate) mod clone;
pub(crate) mod crash_handler;
pub(crate) mod current;
pub(crate) mod entry;
pub(crate) mod fork_server;
pub(crate) mod guest;
pub(crate) mod limits;
#[cfg(feature = "log")]
pub(crate) mod log_to_stderr;
pub(crate) mod main;
pub(crate) mod panic_hook;
pub(crate) mod shared_library;
