//! Envelopes of the arena: their words, their memory, and the unused ones of each thread.
//!
//! `groups` reserves the memory of envelopes and returns it. `idle` keeps unused envelopes for a thread's
//! next messages.

pub(crate) mod groups;
pub(crate) mod idle;
