//! Fuzz target of this crate: the memory of a list, which any process of the user can create under a name.

pub use crate::shareable_list::fuzz::TARGETS;
