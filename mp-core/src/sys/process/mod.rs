//! This process: identity, start, exit, processors and stacks.

pub(crate) mod affinity;
pub(crate) mod at_exit;
pub(crate) mod backoff;
pub(crate) mod environment;
pub(crate) mod identity;
pub mod inherited;
#[cfg(feature = "inject")]
pub mod inject;
pub mod peer;
pub(crate) mod signal_counter;
