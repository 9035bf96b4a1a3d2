//! Own slabs: from which one a piece is cut, which units are free, what came back.

mod cut;
mod given;
pub(super) mod pool;
