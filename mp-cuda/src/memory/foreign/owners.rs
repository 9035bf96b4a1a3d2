//! Owners of other libraries' memory. An owner is retained as long as any process has a piece of the memory.
//!
//! Each piece has an *owner*: a value whose drop gives the memory back to its library. Words of the arena
//! show this process which pieces have no holder. So any process may drop a piece, or die with it.
//!
//! | a piece has no holder, and | its owner |
//! |---|---|
//! | its last use has run | is dropped |
//! | its last use has run, it is the last piece of its memory, and another process has the memory mapped | stays until that process unmaps the memory |
//! | its last use is pending | stays until the last use has run |
//! | its last use by a dead process never finished, or a process died while it could write to the piece | stays until this process ends |
//! | its last use has run, after work of several processes, and a clock has ended with unfinished work since the piece was shared | stays until this process ends, for the reason in [`use_record`](mp_core::steps::device::use_record) |
//!
//! The thread that found the pieces without holders drops their owners, without holding a lock. Receivers
//! unmap the memory with their last piece of it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::driver::api::IpcHandle;
use crate::error::Result;
use crate::memory::object::{FOREIGN_ROWS, PieceObject, SlabObject};
use crate::memory::registry::{self, UnusedSlabs};
use crate::memory::slab::Slab;
use crate::memory::stats::DeviceMemoryStats;
use crate::memory::ticks::{self, TickProgress};
use crate::uuid::Uuid;

/// Owner of a piece: its drop gives the memory back to the other library.
type BoxedOwner = Box<dyn Any + Send>;

/// Piece of another library's memory that some process may hold.
struct ForeignPiece {
    mark: u64,
    row: u32,
    bytes: u64,
    owner: Option<BoxedOwner>,
    /// Number of [unfinished ends](ticks::unfinished_ends) of clocks at the time when the piece was shared.
    ends: u64,
    /// `true` if the piece has no holder, but work of a dead process may still access it.
    is_retired: bool,
}

/// Memory that a library of this process allocated by one call.
struct ForeignAllocation {
    slab: Arc<Slab>,
    base: u64,
    handle: Option<IpcHandle>,
    pieces: Vec<ForeignPiece>,
}

/// Allocations that this process has shared, and the index of the next one to inspect.
struct ForeignAllocations {
    all: Vec<ForeignAllocation>,
    next: usize,
}

static ALLOCATIONS: PerProcess<Mutex<ForeignAllocations>> =
    mp_core::per_process!(Mutex::new(ForeignAllocations { all: Vec::new(), next: 0 }));

/// Number of allocations that are inspected whenever a piece is shared. The inspections keep the list of
/// unused allocations short.
const FEW: usize = 8;

/// Range of memory to share. `handle` is `None` if the memory is exported as a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignRange {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: Option<IpcHandle>,
}

/// Creates a piece of another library's memory, which begins at byte `begins` of the range. For a new
/// allocation, calls `export`, which makes the memory available to other processes. The caller sets the
/// [owner](set_owner) afterwards.
pub(in crate::memory) fn share(
    device: Uuid,
    range: ForeignRange,
    begins: u64,
    bytes: u64,
    export: impl FnOnce(&SlabObject) -> Result<()>,
) -> Result<(Arc<Slab>, PieceObject)> {
    reclaim_with(|allocations| allocations.some(FEW));
    let mut allocations = ALLOCATIONS.lock();
    let all = &mut allocations.all;
    let same = |one: &ForeignAllocation| one.is(device, range);
    let free = |one: &ForeignAllocation| if same(one) { one.free_row() } else { None };
    let known = all.iter().enumerate().find_map(|(at, one)| Some((at, free(one)?)));
    let (slab, row) = match known {
        Some((at, row)) => (Arc::clone(&all[at].slab), row),
        None => {
            let object = SlabObject::foreign(device, range.bytes, range.handle)?;
            export(&object)?;
            (Arc::new(Slab::foreign(object, range.base)), 0)
        }
    };
    slab.object().row(row).begin();
    let object = PieceObject::at(slab.object(), row, begins, bytes)?;
    let (mark, ends) = (object.info.mark, ticks::unfinished_ends());
    let share = ForeignPiece { mark, row, bytes, owner: None, ends, is_retired: false };
    match known {
        Some((at, _)) => all[at].pieces.push(share),
        None => {
            registry::add(&slab);
            let slab = Arc::clone(&slab);
            all.push(ForeignAllocation { slab, base: range.base, handle: range.handle, pieces: vec![share] });
        }
    }
    Ok((slab, object))
}

/// Sets the owner of the piece with this mark. The caller holds the piece.
pub(in crate::memory) fn set_owner(mark: u64, owner: impl Any + Send) {
    let mut allocations = ALLOCATIONS.lock();
    let pieces = allocations.all.iter_mut().flat_map(|one| &mut one.pieces);
    if let Some(share) = pieces.into_iter().find(|share| share.mark == mark) {
        share.owner = Some(Box::new(owner));
    }
}

/// Checks for unused memory after the drop of a piece that this process has shared or opened.
pub(in crate::memory) fn on_piece_dropped(slab: u64) {
    registry::release_unused(UnusedSlabs::Stale);
    reclaim_with(|allocations| allocations.of(slab));
}

/// Inspects all memory that this process has shared.
pub(in crate::memory) fn reclaim() {
    reclaim_with(|allocations| allocations.some(usize::MAX));
}

/// Adds the number and the bytes of retained owners to the statistics of a device.
pub(in crate::memory) fn add_figures(device: Uuid, stats: &mut DeviceMemoryStats) {
    let allocations = ALLOCATIONS.lock();
    for share in
        allocations.all.iter().filter(|one| one.slab.object().uuid == device).flat_map(|one| &one.pieces)
    {
        stats.foreign_owners += 1;
        stats.foreign += share.bytes;
        stats.foreign_retired += if share.is_retired { share.bytes } else { 0 };
    }
}

/// Removes the pieces that `take` returns, and drops their owners without holding a lock, because a drop runs
/// the user's code.
fn reclaim_with(take: impl FnOnce(&mut ForeignAllocations) -> Vec<ForeignPiece>) {
    let gone = take(&mut ALLOCATIONS.lock());
    for share in gone {
        // A panic of an owner does not affect the thread that drops it.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(share.owner))) {
            // Dropping the panic's value may panic again.
            std::mem::forget(panic);
        }
    }
}

impl ForeignAllocations {
    /// Inspects up to `most` allocations in turn. Returns the pieces to release.
    fn some(&mut self, most: usize) -> Vec<ForeignPiece> {
        let mut gone = Vec::new();
        for _ in 0..most.min(self.all.len()) {
            self.next = if self.next < self.all.len() { self.next } else { 0 };
            let Some(one) = self.all.get_mut(self.next) else { break };
            gone.extend(one.released());
            if !self.remove_if_unused(self.next) {
                self.next += 1;
            }
        }
        gone
    }

    /// Inspects the allocation whose slab has this mark. Returns the pieces to release.
    fn of(&mut self, slab: u64) -> Vec<ForeignPiece> {
        let Some(at) = self.all.iter().position(|one| one.slab.object().mark == slab) else {
            return Vec::new();
        };
        let gone = self.all[at].released();
        self.remove_if_unused(at);
        gone
    }

    fn remove_if_unused(&mut self, at: usize) -> bool {
        let is_unused = self.all[at].pieces.is_empty();
        if is_unused {
            let one = self.all.swap_remove(at);
            registry::remove(&one.slab);
        }
        is_unused
    }
}

impl ForeignAllocation {
    fn is(&self, device: Uuid, range: ForeignRange) -> bool {
        let ForeignRange { base, bytes, handle } = range;
        let object = self.slab.object();
        (self.base, object.bytes, object.uuid) == (base, bytes, device)
            && self.handle.map(|handle| handle.0) == handle.map(|handle| handle.0)
    }

    fn free_row(&self) -> Option<u32> {
        let mut rows: Vec<u32> = self.pieces.iter().map(|share| share.row).collect();
        rows.sort_unstable();
        let first = (0_u32..).zip(rows).find(|(row, taken)| row != taken).map(|(row, _)| row);
        let next = u32::try_from(self.pieces.len()).unwrap_or(FOREIGN_ROWS);
        Some(first.unwrap_or(next)).filter(|row| *row < FOREIGN_ROWS)
    }

    /// Removes and returns the pieces that may be released. If all pieces may be released, one remains until
    /// no other process can have the memory mapped.
    fn released(&mut self) -> Vec<ForeignPiece> {
        let object = self.slab.object();
        let mut back: Vec<bool> = Vec::with_capacity(self.pieces.len());
        for share in &mut self.pieces {
            back.push(share.is_released(object));
        }
        // The owner of the last piece may free the memory, which another process must not have mapped then.
        if back.iter().all(|is| *is) && !object.is_only_mine() {
            back.pop();
            back.push(false);
        }
        let mut back = back.into_iter();
        self.pieces.extract_if(.., |_| back.next().unwrap_or(false)).collect()
    }
}

impl ForeignPiece {
    /// Returns `true` if the piece has no holder, and no process can still access it. Sets `is_retired` if a
    /// dead process may still access the piece.
    fn is_released(&mut self, slab: &SlabObject) -> bool {
        if self.is_retired || !ticks::has_no_holder(self.mark) {
            return false;
        }
        let (found, last) = ticks::last_use(&slab.row(self.row), self.ends);
        self.is_retired = last == TickProgress::Lost || !found.is_complete;
        let has_run = last != TickProgress::Pending;
        has_run && !self.is_retired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_foreign_memory_is_assigned_once() {
        let object = SlabObject::foreign(Uuid([7; 16]), 1 << 20, None).unwrap();
        let slab = Arc::new(Slab::foreign(object, 1 << 20));
        let mut all = ForeignAllocation { slab, base: 1 << 20, handle: None, pieces: Vec::new() };
        let take = |all: &mut ForeignAllocation| {
            let row = all.free_row();
            let share =
                |row| ForeignPiece { mark: 0, row, bytes: 1, owner: None, ends: 0, is_retired: false };
            all.pieces.extend(row.map(share));
            row
        };
        assert_eq!([(); 4].map(|()| take(&mut all)), [0, 1, 2, 3].map(Some));
        // The second piece is returned, and the other pieces stay.
        all.pieces.swap_remove(1);
        assert_eq!([(); 2].map(|()| take(&mut all)), [1, 4].map(Some));
        while take(&mut all).is_some() {}
        assert_eq!(all.pieces.len(), FOREIGN_ROWS as usize);
    }
}
