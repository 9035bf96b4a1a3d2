//! One call of the pool: where its tasks come from, the chunks that they leave in, and the outcomes that come back.

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
