//! What `cargo xtask fuzz` and the unit tests give to this crate's parser: the memory of a list, which any process of the user can
//! make under a name.

pub use crate::shareable_list::fuzz::TARGETS;
