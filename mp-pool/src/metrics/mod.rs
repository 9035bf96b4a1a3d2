//! How a pool is doing: what is counted, and what is shown of it.

pub(crate) mod meter;
pub(crate) mod running;
pub(crate) mod shown;
