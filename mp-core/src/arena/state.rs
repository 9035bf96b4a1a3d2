//! State of this process that belongs to its arena, in private memory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::layout::{ArenaLayout, EXTENTS, size_class};
use crate::process::mutex::Mutex;
use crate::sync::shared::{AtomicU32, AtomicU64};
use crate::sys::Mapping;
use crate::sys::identity::Identity;
use crate::words::BlockId;

/// Value of `AllocState::cursors` for a class in which this process has not searched for a block
/// yet.
pub(crate) const NO_CURSOR: u32 = u32::MAX;

/// Mapping, layout and identity of this process in its arena, and its state for each part of the arena.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) map: Mapping,
    pub(crate) layout: ArenaLayout,
    /// Random ID of the arena.
    pub(crate) id: u64,
    pub(crate) identity: Identity,
    /// For each block, the number of this process's handles, and the seat that these handles share: see
    /// `alloc::handles`.
    pub(crate) holds: &'static [AtomicU64],
    pub(crate) files: Files,
    pub(crate) alloc: AllocState,
}

/// State of the allocator in this process.
#[derive(Debug)]
pub(crate) struct AllocState {
    pub(crate) populated: Mutex<Populated>,
    /// Block that was last found in `populated` or added to it, and the count of trims: `block + 1` in 24
    /// bits, the trims in 40 bits.
    pub(crate) last_populated: AtomicU64,
    /// For each class, the block that this process found last.
    pub(crate) cursors: Box<[AtomicU32]>,
    pub(crate) budget: Budget,
}

impl AllocState {
    pub(crate) fn new(budget: Budget) -> Self {
        let cursors = (0..size_class::CLASSES).map(|_| AtomicU32::new(NO_CURSOR)).collect();
        Self { populated: Mutex::default(), last_populated: AtomicU64::new(0), cursors, budget }
    }
}

/// Large blocks whose pages this process has mapped. The set is valid until a process returns pages to the
/// kernel.
#[derive(Debug, Default)]
pub(crate) struct Populated {
    pub(crate) trims: u64,
    /// Offset and length of each block.
    pub(crate) blocks: HashMap<BlockId, (u64, u64)>,
}

/// Limit of the memory that this process holds, and the number of bytes held.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Limit in bytes. 0 means no limit.
    pub(crate) limit: AtomicU64,
    /// Bytes held. Briefly negative if a thread drops a block before another thread has added it.
    pub(crate) held: AtomicU64,
}

/// A named file that this process holds.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) fd: OwnedFd,
    /// Sharing directory that contains the file, as chosen by the user.
    pub(crate) parent: PathBuf,
}

/// Open files of this process.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The arena's own file. `None` for private memory.
    pub(crate) own: Option<OwnedFd>,
    /// The arena's own file under a separate open file description, for children and for mappings that a raw
    /// fork inherits. With this process's description, children would keep the description's locks, which
    /// show that this process lives. Never closed, because closing it would drop this process's POSIX locks
    /// on the file.
    pub(crate) unlocked: OnceLock<OwnedFd>,
    /// Socket passed to children. It contains the descriptors of the arena's file and of the locker.
    pub(crate) parcel: OnceLock<OwnedFd>,
    /// Table of the locker. If the program has no locker, `no_locker` has the reason.
    pub(crate) locker: OnceLock<OwnedFd>,
    pub(crate) no_locker: OnceLock<String>,
    pub(crate) named: [OnceLock<OpenedFile>; EXTENTS as usize],
    /// Bit map of the mapped extents.
    pub(crate) mapped: AtomicU64,
    /// Bit map of the extents in the selected directory (low half), and the stamp of the settings for which
    /// the bit map is valid (high half).
    pub(crate) chosen: AtomicU64,
    /// Number of reserved bytes of private memory, for an arena without a file.
    pub(crate) local: AtomicU64,
    pub(crate) opening: Mutex<Opening>,
}

#[derive(Debug, Default)]
pub(crate) struct Opening {
    /// Named files that this process has locked and not mapped yet, by file name. Some of these files may
    /// still be in creation by another process.
    pub(crate) early: Vec<(u128, OwnedFd)>,
    /// Bit map of the extents that could not be mapped. Mapping is not retried, because the contents of the
    /// extent's addresses are unknown.
    pub(crate) failed: u64,
}

impl Files {
    pub(crate) fn new(own: Option<OwnedFd>) -> Self {
        // No extent was chosen yet: see `Backing::choose_extents`.
        Self { own, chosen: AtomicU64::new(u64::MAX << 32), ..Self::default() }
    }
}
