//! The pool's thread, which handles replies and deaths of workers, replaces workers, and enforces time
//! limits.

pub(crate) mod deaths;
pub(crate) mod ending;
pub(crate) mod manager;
pub(crate) mod reports;
pub(crate) mod start;
mod times;
