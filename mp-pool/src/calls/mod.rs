//! Calls of the pool: sources of tasks, chunks that are sent, and outcomes that arrive.

pub(crate) mod brought;
pub(crate) mod chunk;
pub(crate) mod hand;
pub(crate) mod job;
pub(crate) mod lanes;
pub(crate) mod outcomes;
mod runs;
pub(crate) mod slots;
pub(crate) mod source;
pub(crate) mod tickets;
