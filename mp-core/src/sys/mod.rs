//! System calls of this crate.
//!
//! The functions are thin, typed wrappers. The caller has checked every number passed in, and every error
//! names the failed operation. Most unsafe code of the crate is in these modules.

mod files;
pub(crate) mod limits;
mod mapped;
mod process;
mod sleep;

pub use files::socket;
pub(crate) use files::{directory, foreign, locks, memory, packets, placeholder, region};
use mapped::cmpxchg16b;
pub(crate) use mapped::huge_pages;
pub use mapped::huge_pages::{advise_huge_pages, set_malloc_thresholds};
pub(crate) use mapped::mapping::{Mapping, private_table, reserve_at, unmap_inherited};
use process::backoff;
pub use process::environment::{gained_privileges, under_valgrind};
#[cfg(feature = "inject")]
pub use process::inject;
pub(crate) use process::{affinity, at_exit, environment, identity, signal_counter};
pub use process::{inherited, peer};
pub(crate) use rustix::io::Errno;
pub use sleep::futex::monotonic;
pub(crate) use sleep::{futex, readiness};

use crate::error::Error;

/// Evaluates all values that a process looks up only once. If a process were forked during a lookup, its copy
/// would wait forever for the end of the lookup.
pub(crate) fn evaluate_lookups() {
    environment::has_one_processor();
    futex::can_wait_for_many();
}

/// Converts an error of the kernel, and names the failed operation.
pub(crate) fn os(what: &'static str) -> impl Fn(Errno) -> Error {
    move |e| Error::Os { what, source: e.into() }
}
