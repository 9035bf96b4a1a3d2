//! Statistics of a pool.

pub(crate) mod meter;
pub(crate) mod running;
pub(crate) mod snapshot;
