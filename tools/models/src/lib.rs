//! Library of the models: the explorer of the exhaustive models, the same worlds at random, actors as members
//! and as sleepers, and the memory of a queue.
//!
//! A model is a file of `tests/models`: its world, its checks, its planted bugs.

pub mod digest;
pub mod explore;
pub mod members;
pub mod random;
pub mod ring;
pub mod sleepers;
pub mod vacating;
