//! The table of slabs, and the addition of slabs.
//!
//! Adding a slab changes several words at once: the slab's own words, the frontier, and the count. The change
//! is an [`Update`], which other processes complete if this process doesn't. When no addresses are left,
//! `reuse` takes those of unused slabs.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::size_class::{alignment_of, blocks_of, is_in_files, size_of, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::steps::{DeathOracle, LiveMembers, SlabSnapshot, Update, UpdateOutcome, UpdatePlan};
use crate::sync::Ordering;
use crate::words::{BlockId, BlockKind, BlockLife, BlockState, CurrentUpdate, Member, Presence};

/// Serializes the updates of this process, which has only one word to announce an update.
static UPDATES: PerProcess<Mutex<()>> = PerProcess::new([const { Mutex::new(()) }; GENERATIONS]);

/// Packs a slab's first word: valid (1 bit), class (10 bits), base in pages (40 bits). For a slab without a
/// class, only the base is set.
pub(crate) const fn describe(class: u32, base: u64) -> u64 {
    1 | (class as u64) << 1 | (base >> 12) << 11
}
pub(crate) const fn described(w: u64) -> Option<(u32, u64)> {
    if w & 1 == 0 { None } else { Some(((w >> 1 & 0x3ff) as u32, w >> 11 << 12)) }
}

/// Returns the word of a retired slab: it has addresses, but no class.
pub(crate) const fn retired(base: u64) -> u64 {
    describe(0, base) & !1
}

/// Update that adds a slab of a class after all other slabs. Addresses that are skipped before it for
/// alignment become a retired slab. So each address below the frontier belongs to some slab, and neighbours
/// can be joined without reading other slabs.
///
/// None of these words ever returns to an earlier value: the count and the frontier only grow, and the rows
/// are used for the first time.
struct NewSlab {
    class: u32,
    slab: u32,
    limit: u64,
    /// Frontier, count, and for two rows the slab word and the span word. The rows are for the new slab, or
    /// for the gap and the new slab.
    reads: [Word; 6],
}

/// Returns the number of addresses that are skipped before a slab of the class. Addresses in named files are
/// never reused, so their gaps are not recorded.
fn gap(class: u32, frontier: u64) -> u64 {
    if is_in_files(class) { 0 } else { base(class, frontier) - frontier }
}

/// Returns the base of a slab of the class that is added at the frontier.
fn base(class: u32, frontier: u64) -> u64 {
    frontier.next_multiple_of(alignment_of(class))
}

/// Returns `true` if a slab of the class fits between the frontier and the end.
pub(crate) fn fits(class: u32, frontier: u64, end: u64) -> bool {
    base(class, frontier).checked_add(span_of(class)).is_some_and(|to| to <= end)
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
        let (base, gap) = (base(self.class, frontier), gap(self.class, frontier));
        let slab = |row| (row, describe(self.class, base));
        let mut writes = match gap {
            0 => vec![slab(FIRST)],
            _ => vec![(FIRST, retired(frontier)), (FIRST + 1, gap), slab(SECOND)],
        };
        // The rows are written first: a process that sees the new count reads them.
        writes.extend([(FRONTIER, base + span_of(self.class)), (COUNT, count + 1 + u64::from(gap != 0))]);
        writes
    }
    fn exclusive(&self) -> bool {
        false
    }
}

/// The other members of an arena.
struct Others(Arena);

impl DeathOracle for Others {
    fn is_dead(&self, m: Member) -> bool {
        self.0.is_dead(m)
    }
}

impl LiveMembers for Others {
    fn others(&self) -> Vec<Member> {
        let me = self.0.me().ok();
        let live = self.0.used_slots().filter(|(_, t)| t.presence == Presence::Live);
        live.map(|(slot, t)| Member::new(slot, t.epoch)).filter(|&m| Some(m) != me).collect()
    }
}

impl Arena {
    pub(crate) fn slab_word(&self, slab: u32, word: u64) -> Word {
        Word::at(self.layout().slabs_at + 64 * u64::from(slab)).plus(word)
    }

    pub(crate) fn slab_count(&self) -> u32 {
        self.map().load(Word::at(control::SLABS)) as u32
    }

    /// Returns the present class and base of a slab.
    pub(crate) fn slab_seen(&self, slab: u32) -> SlabSnapshot {
        let word = self.slab_word(slab, 0);
        SlabSnapshot { word, value: self.map().load(word) }
    }

    pub(crate) fn slab(&self, slab: u32) -> Option<(u32, u64)> {
        described(self.map().load(self.slab_word(slab, 0)))
    }

    /// Returns a bit map of the blocks of a slab that have pages.
    pub(crate) fn slab_committed(&self, slab: u32) -> u64 {
        self.map().load(self.slab_word(slab, 2))
    }

    pub(crate) fn block_exists(&self, block: BlockId) -> bool {
        self.existing(block).is_some()
    }

    /// Returns the offset of a block's memory, if the block exists.
    #[inline]
    pub(crate) fn existing(&self, block: BlockId) -> Option<u64> {
        let (slab, index) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        if slab >= self.slab_count() {
            return None;
        }
        let (class, base) = self.slab(slab)?;
        (index < blocks_of(class)).then(|| base + u64::from(index) * size_of(class))
    }

    /// Returns the offset and length of a block's memory. The range is empty if the block doesn't exist.
    #[inline]
    pub(crate) fn data_of(&self, block: BlockId) -> (u64, u64) {
        match described(
            self.map().u64_at(self.slab_word(block / SLAB_BLOCKS, 0).offset()).load(Ordering::Acquire),
        ) {
            Some((class, base)) => (base + u64::from(block % SLAB_BLOCKS) * size_of(class), size_of(class)),
            None => (0, 0),
        }
    }

    /// Returns the kind of a held block.
    pub(crate) fn kind_of(&self, block: BlockId) -> BlockKind {
        BlockState::unpack(self.map().load(self.block_at(block).state)).kind
    }

    /// Changes a held [`BlockKind::Object`] block to a kind that extends it. Returns the block's kind as
    /// an error if the block is not a plain object.
    pub(crate) fn object_becomes(
        &self,
        block: BlockId,
        kind: BlockKind,
    ) -> std::result::Result<(), BlockKind> {
        let at = self.block_at(block).state;
        let mut found = self.map().load(at);
        loop {
            let was = BlockState::unpack(found).kind;
            if was != BlockKind::Object {
                return Err(was);
            }
            // Other processes may increment the version meanwhile.
            match self.map().cas(at, found, found | BlockState::kind_bits(kind)) {
                Ok(()) => return Ok(()),
                Err(now) => found = now,
            }
        }
    }

    /// Makes a held [`BlockKind::Data`] block frozen or shared, before any such handle exists. A block of
    /// another kind is unchanged.
    pub(crate) fn share_as(&self, block: BlockId, kind: BlockKind) {
        if self.kind_of(block) == BlockKind::Data {
            // Bits are set: other processes may increment the version meanwhile.
            self.map().or(self.block_at(block).state, BlockState::kind_bits(kind));
        }
    }

    /// Returns the first word and the length in bytes of a ring's memory, or `None` if the block is not a
    /// ring (any more).
    ///
    /// The block remains a ring only as long as it has a holder.
    pub fn ring_memory(&self, block: BlockId) -> Option<(Word, u64)> {
        // Read once: if the block has no holder any more, its slab's class may be about to change.
        let slab = block / SLAB_BLOCKS;
        let (class, base) = (slab < self.slab_count()).then(|| self.slab(slab)).flatten()?;
        let (i, len) = (block % SLAB_BLOCKS, size_of(class));
        if i >= blocks_of(class) {
            return None;
        }
        let at = base + u64::from(i) * len;
        let state = BlockState::unpack(self.map().load(self.block_at(block).state));
        (state.life != BlockLife::Free && (state.kind == BlockKind::Ring)).then_some((Word::at(at), len))
    }

    /// Adds a slab of the class.
    pub(crate) fn carve(&self, class: u32, me: Member) -> Result<()> {
        loop {
            let slab = self.slab_count();
            // The update may need two rows.
            let limit = u64::from(self.layout().slabs) - 1;
            if u64::from(slab) + 1 >= limit {
                return Err(Error::ArenaFull { what: "slabs", asked: 1, limit });
            }
            // The pages of its metadata are reserved first: an update must not run out of memory.
            self.commit_slab_row(slab)?;
            self.commit_slab_row(slab + 1)?;
            self.commit_class_map(class, slab + 1)?;
            // An upper bound: a value that is too large does no harm.
            self.raise(Word::at(control::CLASS_ENDS + 8 * u64::from(class)), u64::from(slab) + 2);
            let (frontier, limit) = if is_in_files(class) {
                self.frontier_in_files(class, me)?
            } else {
                (Word::at(control::FRONTIER), self.layout().size)
            };
            let [first, second] = [slab, slab + 1].map(|row| [0, 3].map(|word| self.slab_word(row, word)));
            let count = Word::at(control::SLABS);
            let reads = [frontier, count, first[0], first[1], second[0], second[1]];
            // A full file has a successor.
            if !is_in_files(class) && !fits(class, self.map().load(frontier), limit) {
                let left = self.size().saturating_sub(self.map().load(frontier));
                let limit = "the address range of the arena".into();
                return Err(Error::OutOfMemory { asked: span_of(class), left, limit });
            }
            // If this process dies before the hints of the slab are set, the sweep sets them.
            self.touch(me, slab);
            self.touch(me, slab + 1);
            match self.update(me, NewSlab { class, slab, limit, reads }) {
                UpdateOutcome::Done(read) if read[1] == u64::from(slab) && fits(class, read[0], limit) => {
                    let slab = slab + u32::from(gap(class, read[0]) != 0);
                    self.hint_new_slab(slab, class);
                    self.0.cursors[class as usize].store(slab * SLAB_BLOCKS, Ordering::Relaxed);
                    return Ok(());
                }
                // Another process was faster. It may be stopped or dead before it has set the hints.
                UpdateOutcome::Done(_) | UpdateOutcome::Busy(_) => {
                    for slab in slab..self.slab_count() {
                        self.hint_slab(slab);
                    }
                }
            }
        }
    }

    /// Reserves the pages of a slab's words and of its blocks' words.
    pub(crate) fn commit_slab_row(&self, slab: u32) -> Result<()> {
        let blocks = self.layout().blocks_at + u64::from(slab * SLAB_BLOCKS) * 64;
        for at in [self.slab_word(slab, 0).offset() & !4095, blocks] {
            self.commit_at(at, 4096)?;
        }
        Ok(())
    }

    /// Reserves the pages of a class's map up to a slab. The map is searched from the start.
    pub(crate) fn commit_class_map(&self, class: u32, slab: u32) -> Result<()> {
        let (map, end) =
            (self.class_map(class, 0).0.offset() & !4095, self.class_map(class, slab).0.offset());
        let len = (end + 8 - map).next_multiple_of(4096);
        self.commit_at(map, len)
    }

    /// Marks all blocks of a new slab as free.
    pub(crate) fn hint_new_slab(&self, slab: u32, class: u32) {
        self.map().or(self.slab_word(slab, 1), u64::MAX >> (64 - blocks_of(class)));
        let (map, bit) = self.class_map(class, slab);
        self.map().or(map, bit);
    }

    /// Marks the free blocks of a slab.
    fn hint_slab(&self, slab: u32) {
        let Some((class, _)) = self.slab(slab) else { return };
        for block in (0..blocks_of(class)).map(|i| slab * SLAB_BLOCKS + i) {
            if BlockState::unpack(self.map().load(self.block_at(block).state)).life == BlockLife::Free {
                self.hint_free(block);
            }
        }
    }

    /// Makes several changes at once, or returns the member that is making conflicting changes.
    pub(crate) fn update(&self, me: Member, plan: impl UpdatePlan) -> UpdateOutcome {
        let _one = UPDATES.lock();
        run(Update::new(self.layout().updates(), me, plan, Others(*self)), self.map())
    }

    /// Returns `true` if this member has begun an update that no process has completed.
    pub(crate) fn update_is_of(&self, m: Member) -> bool {
        let current = CurrentUpdate::unpack(self.map().load(self.layout().updates().current));
        current.making.is_some_and(|(by, _)| by == m)
    }
}
