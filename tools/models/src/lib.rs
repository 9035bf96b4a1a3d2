//! Library of the models. It contains the explorer, random schedules, and parts that several models share:
//! members, sleeping actors, and the memory of queues.
//!
//! A model is a file of `tests/models`, with a world, checks and planted bugs.

pub mod digest;
pub mod explore;
pub mod members;
pub mod random;
pub mod ring;
pub mod sleepers;
pub mod vacating;
