//! Memory of devices that processes share: slabs, which each process makes and cuts up, and the pieces of them that processes hold.
//!
//! | file | has |
//! |---|---|
//! | `piece.rs` | a piece, as this process has it: allocated, opened, dropped |
//! | `message.rs` | its way into a message and out of it |
//! | `object.rs` | the words that all processes see |
//! | `here.rs` | which slabs and pieces this process has |
//! | `slab.rs`, `virtual_memory.rs` | a slab: made, or opened by its descriptor; the calls of the driver for that |
//! | `own/` | own slabs: from which one a piece is cut, which units are free, what came back |
//! | `foreign/` | memory of other libraries: how it can be shared, what keeps it, opened by a handle |
//! | `uses.rs`, `ticks.rs` | what streams did with a piece, and whether that has run |
//! | `closing.rs` | when memory is closed that others allocated by `cuMemAlloc` |
//! | `collect.rs`, `stats.rs` | giving back what is unused; figures |
//!
//! No part of it is promised to users; what they have of it is reexported by the crate.
//!
//! Its process-wide locks are taken in the order `pool`, `kept`, `here`, a slab's, a piece's.

mod closing;
pub(crate) mod collect;
pub(crate) mod foreign;
mod here;

mod message;
mod object;
mod own;
mod piece;
mod slab;
pub(crate) mod stats;
mod ticks;
pub(crate) mod uses;
mod virtual_memory;

pub(crate) use here::deaths;
pub use object::{Mode, Row};
pub use piece::Piece;
pub(crate) use piece::WeakPiece;
