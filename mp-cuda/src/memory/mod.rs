//! Device memory that processes share: slabs, which each process makes and cuts up, and their pieces, which
//! processes hold.
//!
//! | file | contents |
//! |---|---|
//! | `piece.rs` | pieces of this process: allocated, opened, dropped |
//! | `message.rs` | pieces in messages |
//! | `object.rs` | words that all processes read |
//! | `here.rs` | table of the slabs and pieces of this process |
//! | `slab.rs`, `virtual_memory.rs` | slabs, made or opened by a descriptor, and the driver's calls for that |
//! | `own/` | own slabs: the choice of a slab for a piece, free units, and returned pieces |
//! | `foreign/` | memory of other libraries: how it can be shared, its owners, opened by a handle |
//! | `uses.rs`, `ticks.rs` | uses of a piece by streams, and the progress of their work |
//! | `closing.rs` | closing of memory that other processes allocated by `cuMemAlloc` |
//! | `collect.rs`, `stats.rs` | giving back unused memory; figures |
//!
//! The module is not part of the public interface. The crate reexports the public items.
//!
//! The process-wide locks are taken in the order `pool`, `kept`, `here`, a slab's, a piece's.

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
