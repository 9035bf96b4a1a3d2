//! The pool's thread: it hears workers and their deaths, replaces them, and watches the time.

pub(crate) mod deaths;
pub(crate) mod ending;
pub(crate) mod manager;
pub(crate) mod reports;
pub(crate) mod start;
mod times;
