//! The only system calls of this crate.
//!
//! Thin, typed wrappers; every number that goes in was checked by the caller, every error comes out with what
//! was being done. Unsafe code of the crate lives here, in [`Mapping`] and [`locks`], and in the few files
//! that hand out typed views of the mapping.

pub(crate) mod futex;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod locks;
mod mapping;
pub(crate) mod memory;
pub(crate) mod private;

pub(crate) use mapping::Mapping;
pub(crate) use rustix::io::Errno;

use crate::error::Error;

/// Names what the kernel refused.
pub(crate) fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |e| Error::Os { what, source: e.into() }
}

/// Sends a signal to this process.
#[cfg(feature = "inject")]
pub(crate) fn signal_self(signal: i32) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}
