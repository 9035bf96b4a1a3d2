//! Own slabs: the choice of a slab for a piece, free units, and returned pieces.

mod cut;
mod given;
pub(super) mod pool;
