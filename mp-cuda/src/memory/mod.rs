//! Device memory that processes share. A process allocates *slabs* from the driver, and divides them into
//! *pieces*, one for each tensor. Any process may hold a piece. A *tick* marks a point in the work of a
//! stream.
//!
//! | file | contents |
//! |---|---|
//! | `piece.rs`, `piece_state.rs` | pieces of this process: allocated, opened, dropped |
//! | `message.rs` | pieces in messages |
//! | `object.rs` | words that all processes read |
//! | `registry.rs` | slabs and pieces that this process has |
//! | `slab.rs`, `virtual_memory.rs` | slabs, which are made or opened by a descriptor, and the driver's calls for virtual memory |
//! | `own/` | own slabs: the choice of a slab for a piece, free units, and returned pieces |
//! | `foreign/`, `legacy.rs` | memory of other libraries: ways to share the memory, and its owners; memory opened by a legacy handle |
//! | `stream_uses.rs`, `ticks.rs` | uses of a piece by streams, and the progress of their work |
//! | `closing.rs` | closing of memory that other processes allocated by `cuMemAlloc` |
//! | `collect.rs`, `stats.rs` | functions that give unused memory back; statistics |
//!
//! The module is not part of the public interface. The crate reexports the public items.
//!
//! A thread takes locks in this order: `pool`, `owners`, `registry`, the lock of a slab, the lock of a piece.

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
