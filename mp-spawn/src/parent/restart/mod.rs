//! When something that has failed is tried again.

pub(crate) mod backoff;
