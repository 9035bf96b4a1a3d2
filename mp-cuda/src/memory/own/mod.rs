//! Own slabs: the choice of a slab for a piece, free units, and returned pieces.

pub(super) mod pool;
mod ranges;
mod reuse;
