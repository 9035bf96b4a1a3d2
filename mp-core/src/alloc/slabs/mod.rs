//! Slabs: addresses and pages of blocks of one size class.
//!
//! `carve` adds slabs. `reuse` takes the addresses of unused slabs. `commit` reserves pages, as huge pages if
//! the program has enabled them.

pub(crate) mod carve;
pub(crate) mod commit;
pub(crate) mod reuse;
