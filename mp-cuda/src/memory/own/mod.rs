//! Own slabs: the choice of a slab for a piece, free units, and returned pieces.

mod ledger;
pub(super) mod pool;
mod ranges;
