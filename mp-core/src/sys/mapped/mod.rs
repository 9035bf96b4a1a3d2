//! Memory that is mapped: the arena and its words, pages, what a copy of the process must not keep.

pub(crate) mod fresh;
pub(crate) mod huge;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod pair;
pub(crate) mod private;
