//! Device memory that processes share. A process makes slabs and cuts pieces out of them. Any process may
//! hold a piece.
//!
//! | file | contents |
//! |---|---|
//! | `piece.rs`, `piece_state.rs` | pieces of this process: allocated, opened, dropped |
//! | `message.rs` | pieces in messages |
//! | `object.rs` | words that all processes read |
//! | `registry.rs` | slabs and pieces that this process has |
//! | `slab.rs`, `virtual_memory.rs` | slabs, made or opened by a descriptor, and the driver's calls for that |
//! | `own/` | own slabs: the choice of a slab for a piece, free units, and returned pieces |
//! | `foreign/`, `legacy.rs` | memory of other libraries: ways to share it, its owners; memory opened by a handle |
//! | `stream_uses.rs`, `ticks.rs` | uses of a piece by streams, and the progress of their work |
//! | `closing.rs` | closing of memory that other processes allocated by `cuMemAlloc` |
//! | `collect.rs`, `stats.rs` | giving back unused memory; figures |
//!
//! The module is not part of the public interface. The crate reexports the public items.
//!
//! The process-wide locks are taken in the order `pool`, `owners`, `registry`, a slab's, a piece's.

mod closing;
pub(crate) mod collect;
pub(crate) mod foreign;
mod legacy;
mod message;
mod object;
mod own;
mod piece;
mod piece_state;
mod registry;
mod slab;
pub(crate) mod stats;
pub(crate) mod stream_uses;
mod ticks;
mod virtual_memory;

pub use object::{PieceMode, PieceRow};
pub use piece::Piece;
pub(crate) use piece::WeakPiece;
pub(crate) use registry::on_deaths;
