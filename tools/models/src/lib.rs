//! Library of the models: the explorer, exhaustive or at random, actors as members of an arena and as
//! sleepers, and the memory of a queue.
//!
//! A model is a file of `tests/models`, with a world, checks and planted bugs.

pub mod digest;
pub mod explore;
pub mod members;
pub mod random;
pub mod ring;
pub mod sleepers;
pub mod vacating;
