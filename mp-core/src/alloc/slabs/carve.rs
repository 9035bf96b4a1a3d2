//! Table of slabs, and the addition of slabs.
//!
//! Adding a slab changes several words at once: the slab's own words, the frontier, and the count. The change
//! is an [`Update`], which other processes complete if this process doesn't. When no addresses are left, the
//! module `reuse` makes slabs out of unused ones.

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::{Blocks, describe, retired};
use crate::error::{Error, Result};
use crate::layout::size_class::{base_at, blocks_of, fits, is_in_files, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise, run};
use crate::members::Members;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::setup::Backing;
use crate::steps::{self, DeathOracle, Update, UpdateOutcome, UpdatePlan};
use crate::sync::Ordering;
use crate::words::{BlockLife, BlockState, CurrentUpdate, Member};

/// Serializes the updates of this process, which has only one word to announce an update.
static UPDATES: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

/// Update that adds a slab of a class after all other slabs. Addresses that are skipped for alignment become
/// a retired slab. So each address below the frontier belongs to some slab, and neighbouring slabs can be
/// joined without reading other slabs.
///
/// None of the changed words ever returns to an earlier value: the count and the frontier only grow, and the
/// rows are used for the first time.
struct NewSlab {
    class: u32,
    slab: u32,
    limit: u64,
    /// Words read: the frontier, the number of slabs, and the slab word and span word of two rows: the row
    /// of the new slab, and the row of the gap before the slab, if there is a gap.
    reads: [Word; 6],
}

/// Returns the number of addresses between the frontier and the base of a new slab of the class, to be
/// recorded as a retired slab. Returns 0 in named files, whose addresses are never reused.
fn gap(class: u32, frontier: u64) -> u64 {
    if is_in_files(class) { 0 } else { base_at(class, frontier) - frontier }
}

impl UpdatePlan for NewSlab {
    fn reads(&self) -> &[Word] {
        &self.reads
    }
    fn writes(&self, values: &[u64]) -> Vec<(usize, u64)> {
        const FRONTIER: usize = 0;
        const COUNT: usize = 1;
        // A row's slab word. Its span word follows.
        const FIRST: usize = 2;
        const SECOND: usize = 4;
        let &[frontier, count, ..] = values else { return Vec::new() };
        if count != u64::from(self.slab) || !fits(self.class, frontier, self.limit) {
            return Vec::new();
        }
        let (base, gap) = (base_at(self.class, frontier), gap(self.class, frontier));
        let slab = |row| (row, describe(self.class, base));
        let mut writes = match gap {
            0 => vec![slab(FIRST)],
            _ => vec![(FIRST, retired(frontier)), (FIRST + 1, gap), slab(SECOND)],
        };
        // The rows are written first: a process that reads the new count also reads the rows.
        writes.extend([(FRONTIER, base + span_of(self.class)), (COUNT, count + 1 + u64::from(gap != 0))]);
        writes
    }
}

/// Liveness of the members of an arena, for updates.
struct MemberOracle(Arena);

impl DeathOracle for MemberOracle {
    fn is_dead(&self, m: Member) -> bool {
        Members(self.0).is_dead(m)
    }
}

impl steps::LiveMembers for MemberOracle {
    fn others(&self) -> Vec<Member> {
        let me = self.0.me().ok();
        Members(self.0).live_members().filter(|&m| Some(m) != me).collect()
    }
}

impl Allocator {
    /// Adds a slab of the class.
    pub(crate) fn carve(self, class: u32, me: Member) -> Result<()> {
        loop {
            let slab = Blocks(self.0).slab_count();
            // The update may need two rows.
            let limit = u64::from(self.layout().slabs) - 1;
            if u64::from(slab) + 1 >= limit {
                return Err(Error::ArenaFull { what: "slabs", asked: 1, limit });
            }
            // The pages of the slab's metadata are reserved first: an update must not run out of memory.
            self.commit_slab_row(slab)?;
            self.commit_slab_row(slab + 1)?;
            self.commit_class_map(class, slab + 1)?;
            // An upper bound: a value that is too large does no harm.
            raise(self.map(), Word::at(control::CLASS_ENDS + 8 * u64::from(class)), u64::from(slab) + 2);
            let (frontier, limit) = if is_in_files(class) {
                Backing(self.0).frontier_in_files(class, me)?
            } else {
                (Word::at(control::FRONTIER), self.layout().size)
            };
            let [first, second] =
                [slab, slab + 1].map(|row| [0, 3].map(|word| Blocks(self.0).slab_word(row, word)));
            let count = Word::at(control::SLABS);
            let reads = [frontier, count, first[0], first[1], second[0], second[1]];
            // Not checked for named files: a full file has a successor.
            if !is_in_files(class) && !fits(class, self.map().load(frontier), limit) {
                let left = self.0.size().saturating_sub(self.map().load(frontier));
                let limit = "the address range of the arena".into();
                return Err(Error::OutOfMemory { asked: span_of(class), left, limit });
            }
            // If this process dies before the hints of the slab are set, the reclaim sets them.
            Members(self.0).touch(me, slab);
            Members(self.0).touch(me, slab + 1);
            match self.update(me, NewSlab { class, slab, limit, reads }) {
                UpdateOutcome::Done(read) if read[1] == u64::from(slab) && fits(class, read[0], limit) => {
                    let slab = slab + u32::from(gap(class, read[0]) != 0);
                    self.hint_new_slab(slab, class);
                    self.0.alloc_state().cursors[class as usize].store(slab * SLAB_BLOCKS, Ordering::Relaxed);
                    return Ok(());
                }
                // Another process was faster. It may be stopped or dead before it has set the hints.
                UpdateOutcome::Done(_) | UpdateOutcome::Busy(_) => {
                    for slab in slab..Blocks(self.0).slab_count() {
                        self.hint_slab(slab);
                    }
                }
            }
        }
    }

    /// Reserves the pages of a slab's words and of its blocks' words.
    pub(crate) fn commit_slab_row(self, slab: u32) -> Result<()> {
        let blocks = self.layout().blocks_at + u64::from(slab * SLAB_BLOCKS) * 64;
        for at in [Blocks(self.0).slab_word(slab, 0).offset() & !4095, blocks] {
            self.0.commit(at, 4096)?;
        }
        Ok(())
    }

    /// Reserves the pages of a class's map, from its start (searches begin there) up to the bit of a slab.
    pub(crate) fn commit_class_map(self, class: u32, slab: u32) -> Result<()> {
        let (map, end) =
            (self.class_map(class, 0).0.offset() & !4095, self.class_map(class, slab).0.offset());
        let len = (end + 8 - map).next_multiple_of(4096);
        self.0.commit(map, len)
    }

    /// Sets the hints of a new slab, all of whose blocks are free.
    pub(crate) fn hint_new_slab(self, slab: u32, class: u32) {
        self.map().or(Blocks(self.0).slab_word(slab, 1), u64::MAX >> (64 - blocks_of(class)));
        let (map, bit) = self.class_map(class, slab);
        self.map().or(map, bit);
    }

    /// Sets the hints of a slab's free blocks.
    fn hint_slab(self, slab: u32) {
        let Some((class, _)) = Blocks(self.0).slab(slab) else { return };
        for block in (0..blocks_of(class)).map(|i| slab * SLAB_BLOCKS + i) {
            if BlockState::unpack(self.map().load(Blocks(self.0).block_at(block).state)).life
                == BlockLife::Free
            {
                self.hint_free(block);
            }
        }
    }

    /// Applies several changes atomically, or returns the member whose conflicting update is in progress.
    pub(crate) fn update(self, me: Member, plan: impl UpdatePlan) -> UpdateOutcome {
        let _one = UPDATES.lock();
        run(Update::new(self.layout().updates(), me, plan, MemberOracle(self.0)), self.map())
    }

    /// Returns `true` if this member has begun an update that no process has completed.
    pub(crate) fn update_is_of(self, m: Member) -> bool {
        let current = CurrentUpdate::unpack(self.map().load(self.layout().updates().current));
        current.making.is_some_and(|(by, _)| by == m)
    }
}
