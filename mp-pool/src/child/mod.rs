//! What runs in the process of a worker.

pub(crate) mod note;
pub(crate) mod work;
