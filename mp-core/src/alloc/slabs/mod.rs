//! Slabs: addresses and pages of blocks of one size class.
//!
//! `carve` adds slabs, and `reuse` takes the addresses of unused ones. `commit` reserves pages, as huge
//! pages if the program asked for them (`huge_pages`).

pub(crate) mod carve;
pub(crate) mod commit;
pub(crate) mod reuse;
