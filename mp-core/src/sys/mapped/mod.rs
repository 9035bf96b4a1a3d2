//! Mapped memory: the arena and its words, pages, and memory that a forked copy must not inherit.

pub(crate) mod fresh;
pub(crate) mod huge;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod pair;
pub(crate) mod private;
