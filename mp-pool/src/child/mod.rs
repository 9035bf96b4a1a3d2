//! Code that runs in a worker process.

pub(crate) mod note;
pub(crate) mod work;
