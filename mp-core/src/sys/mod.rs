//! The only system calls of this crate.
//!
//! Thin, typed wrappers; every number that goes in was checked by the caller, every error comes out with what
//! was being done. Unsafe code of the crate lives here, in [`Mapping`] and [`locks`], and in the few files
//! that hand out typed views of the mapping.

mod files;
pub(crate) mod limits;
mod mapped;
mod process;
mod sleep;

pub use files::socket;
pub(crate) use files::{directory, foreign, locks, packets, plug, region};
pub use mapped::fresh::{keep_freed_memory, will_fill};
pub(crate) use mapped::mapping::Mapping;
use mapped::pair;
pub(crate) use mapped::{huge, memory, private};
use process::backoff;
pub use process::clock::monotonic;
#[cfg(feature = "inject")]
pub use process::inject;
pub use process::privileges::gained_privileges;
#[cfg(feature = "inject")]
use process::raise;
pub use process::valgrind::under_valgrind;
pub(crate) use process::{at_exit, identity, on_signal, processors, stack};
pub use process::{inherited, peer};
pub(crate) use rustix::io::Errno;
pub(crate) use sleep::{epoll, futex, readiness};

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
