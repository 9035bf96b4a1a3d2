//! What a process reads from and writes to: set up before it starts, captured while it runs.

pub(crate) mod captured;
mod pattern;
pub(crate) mod reader;
pub(crate) mod setup;
pub(crate) mod tee;
