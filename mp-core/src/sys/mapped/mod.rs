//! Mapped memory: the arena and its words, pages, and memory that a forked copy must not inherit.

pub(crate) mod cmpxchg16b;
pub(crate) mod huge_pages;
pub(crate) mod mapping;
