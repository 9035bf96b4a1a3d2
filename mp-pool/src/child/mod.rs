//! What runs in the process of a worker.

pub(crate) mod work;
