//! Input and output of processes: set-up before the start, capture while they run.

pub(crate) mod captured;
pub(crate) mod reader;
pub(crate) mod setup;
pub(crate) mod streams;
pub(crate) mod tee;
