//! What the models share: the explorer of the exhaustive models, and the memory of a queue in them.

pub mod explore;
pub mod ring;
