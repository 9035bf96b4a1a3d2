//! Sleeping on words and on descriptors.

pub(crate) mod futex;
pub(crate) mod readiness;
