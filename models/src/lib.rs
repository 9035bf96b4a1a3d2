//! What the models share: the explorer of the exhaustive models, the same worlds at random, and the memory of a queue in them.

pub mod digest;
pub mod explore;
pub mod random;
pub mod ring;
pub mod vacating;
