//! The only system calls of this crate.
//!
//! Thin, typed wrappers; every number that goes in was checked by the caller, every error comes out with what
//! was being done. Unsafe code of the crate lives here, in [`Mapping`] and [`locks`], and in the few files
//! that hand out typed views of the mapping.

mod backoff;
mod cgroup;
mod clock;
pub(crate) mod directory;
pub(crate) mod epoll;
pub(crate) mod foreign;
pub(crate) mod futex;
pub(crate) mod huge;
pub(crate) mod identity;
#[cfg(feature = "inject")]
pub mod inject;
pub(crate) mod leave;
pub(crate) mod limits;
pub(crate) mod locks;
mod mapping;
pub(crate) mod memory;
mod pair;
#[cfg(feature = "inject")]
pub(crate) mod planted;
pub(crate) mod plug;
pub(crate) mod private;
mod privileges;
pub(crate) mod processors;
#[cfg(feature = "inject")]
mod raise;
pub(crate) mod readiness;
pub(crate) mod region;
pub(crate) mod stack;
mod valgrind;

pub use clock::monotonic;
pub(crate) use mapping::Mapping;
pub use privileges::gained_privileges;
pub(crate) use rustix::io::Errno;
pub use valgrind::under_valgrind;

use crate::error::Error;

/// Looks up what is looked up once in a process: a copy that is made meanwhile would wait for it for ever.
pub(crate) fn look_up_everything() {
    processors::only_one();
    futex::can_wait_for_many();
}

/// Names what the kernel refused.
pub(crate) fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |e| Error::Os { what, source: e.into() }
}
