//! Slabs: which exist, and how one more is added.
//!
//! A new slab changes several words at once (its own, the frontier, the count): that is an [`Update`], which others complete if
//! this process doesn't. When no addresses are left, `reuse` takes those of slabs that are not in use.

use crate::arena::Arena;
use crate::arena::alloc::size_class::{alignment_of, blocks_of, is_in_files, size_of, span_of};
use crate::arena::layout::{SLAB_BLOCKS, control};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess};
use crate::steps::{Members, Oracle, Plan, SlabSeen, Update, UpdateEnd};
use crate::sync::Ordering;
use crate::words::{BlockId, BlockState, Current, Kind, Life, Member, Presence};

/// Of each process, one thread at a time makes an update: a process has one word to announce it.
static UPDATES: PerProcess<Mutex<()>> = PerProcess::new([const { Mutex::new(()) }; GENERATIONS]);

/// A slab's first word: 1 bit valid, 10 bits class, 40 bits base in pages. Of a slab without a class: the base alone.
pub(in crate::arena) const fn describe(class: u32, base: u64) -> u64 {
    1 | (class as u64) << 1 | (base >> 12) << 11
}
pub(crate) const fn described(w: u64) -> Option<(u32, u64)> {
    if w & 1 == 0 { None } else { Some(((w >> 1 & 0x3ff) as u32, w >> 11 << 12)) }
}

/// The word of a retired slab: it has addresses, and no class.
pub(in crate::arena) const fn retired(base: u64) -> u64 {
    describe(0, base) & !1
}

/// Adds a slab of a class at the end of all slabs. Addresses that are skipped before it for alignment become
/// a retired slab: each address below the frontier belongs to some slab, and neighbours can be joined without
/// reading others.
///
/// None of these words is ever again what it was before: the count and the frontier only grow, and the rows are used for the
/// first time.
struct NewSlab {
    class: u32,
    slab: u32,
    limit: u64,
    /// Frontier, count, and of two rows the slab's word and its span's: of the new slab, or of the gap and the new slab.
    reads: [Word; 6],
}

/// How many addresses before a slab of the class are left out. In files with names none are used again.
fn gap(class: u32, frontier: u64) -> u64 {
    if is_in_files(class) { 0 } else { base(class, frontier) - frontier }
}

/// Where a slab of the class begins, beyond the frontier.
fn base(class: u32, frontier: u64) -> u64 {
    frontier.next_multiple_of(alignment_of(class))
}

/// Whether a slab of the class has room between the frontier and the end.
pub(in crate::arena) fn fits(class: u32, frontier: u64, end: u64) -> bool {
    base(class, frontier).checked_add(span_of(class)).is_some_and(|to| to <= end)
}

impl Plan for NewSlab {
    fn reads(&self) -> &[Word] {
        &self.reads
    }
    fn writes(&self, values: &[u64]) -> Vec<(usize, u64)> {
        const FRONTIER: usize = 0;
        const COUNT: usize = 1;
        // A row's own word; its span's follows.
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
        // The rows first: a process that sees the count reads them.
        writes.extend([(FRONTIER, base + span_of(self.class)), (COUNT, count + 1 + u64::from(gap != 0))]);
        writes
    }
    fn exclusive(&self) -> bool {
        false
    }
}

/// The other members of an arena.
struct Others(Arena);

impl Oracle for Others {
    fn is_dead(&self, m: Member) -> bool {
        self.0.is_dead(m)
    }
}

impl Members for Others {
    fn others(&self) -> Vec<Member> {
        let me = self.0.me().ok();
        let live = self.0.used_slots().filter(|(_, t)| t.presence == Presence::Live);
        live.map(|(slot, t)| Member::new(slot, t.epoch)).filter(|&m| Some(m) != me).collect()
    }
}

impl Arena {
    pub(in crate::arena) fn slab_word(&self, slab: u32, word: u64) -> Word {
        Word::at(self.layout().slabs_at + 64 * u64::from(slab)).plus(word)
    }

    pub(crate) fn slab_count(&self) -> u32 {
        self.map().load(Word::at(control::SLABS)) as u32
    }

    /// The present class and base of a slab.
    pub(in crate::arena) fn slab_seen(&self, slab: u32) -> SlabSeen {
        let word = self.slab_word(slab, 0);
        SlabSeen { word, value: self.map().load(word) }
    }

    pub(crate) fn slab(&self, slab: u32) -> Option<(u32, u64)> {
        described(self.map().load(self.slab_word(slab, 0)))
    }

    /// Which blocks of a slab have pages behind them.
    pub(crate) fn slab_committed(&self, slab: u32) -> u64 {
        self.map().load(self.slab_word(slab, 2))
    }

    pub(crate) fn block_exists(&self, block: BlockId) -> bool {
        self.existing(block).is_some()
    }

    /// Where a block's memory begins, if there is such a block.
    #[inline]
    pub(crate) fn existing(&self, block: BlockId) -> Option<u64> {
        let (slab, index) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        if slab >= self.slab_count() {
            return None;
        }
        let (class, base) = self.slab(slab)?;
        (index < blocks_of(class)).then(|| base + u64::from(index) * size_of(class))
    }

    /// Offset and length of a block's memory. Of a block that doesn't exist: an empty range.
    #[inline]
    pub(crate) fn data_of(&self, block: BlockId) -> (u64, u64) {
        match described(
            self.map().u64_at(self.slab_word(block / SLAB_BLOCKS, 0).offset()).load(Ordering::Acquire),
        ) {
            Some((class, base)) => (base + u64::from(block % SLAB_BLOCKS) * size_of(class), size_of(class)),
            None => (0, 0),
        }
    }

    /// What a held block is used for.
    pub(crate) fn kind_of(&self, block: BlockId) -> Kind {
        BlockState::unpack(self.map().load(self.block_at(block).state)).kind
    }

    /// Makes a held [`Kind::Object`] block one of a kind that is an object, and something more; what it was, if that is something more
    /// already.
    pub(in crate::arena) fn object_becomes(
        &self,
        block: BlockId,
        kind: Kind,
    ) -> std::result::Result<(), Kind> {
        let at = self.block_at(block).state;
        let mut found = self.map().load(at);
        loop {
            let was = BlockState::unpack(found).kind;
            if was != Kind::Object {
                return Err(was);
            }
            // Others count the version up meanwhile.
            match self.map().cas(at, found, found | BlockState::kind_bits(kind)) {
                Ok(()) => return Ok(()),
                Err(now) => found = now,
            }
        }
    }

    /// Makes a held [`Kind::Data`] block frozen or shared, before any handle that says so exists. A block of another kind
    /// stays what it is.
    pub(crate) fn open_to_others(&self, block: BlockId, kind: Kind) {
        if self.kind_of(block) == Kind::Data {
            // Setting bits: others may count the version up meanwhile.
            self.map().or(self.block_at(block).state, BlockState::kind_bits(kind));
        }
    }

    /// Where the memory of a ring is; `None` if the block is none (any more).
    ///
    /// It stays a ring only as long as it has a holder.
    pub fn ring_memory(&self, block: BlockId) -> Option<(Word, u64)> {
        // Read once: if it has no holder any more, its slab may be about to change its class.
        let slab = block / SLAB_BLOCKS;
        let (class, base) = (slab < self.slab_count()).then(|| self.slab(slab)).flatten()?;
        let (i, len) = (block % SLAB_BLOCKS, size_of(class));
        if i >= blocks_of(class) {
            return None;
        }
        let at = base + u64::from(i) * len;
        let state = BlockState::unpack(self.map().load(self.block_at(block).state));
        (state.life != Life::Free && (state.kind == Kind::Ring)).then_some((Word::at(at), len))
    }

    /// Adds a slab of the class.
    pub(in crate::arena) fn carve(&self, class: u32, me: Member) -> Result<()> {
        loop {
            let slab = self.slab_count();
            // Two rows may be needed.
            let limit = u64::from(self.layout().slabs) - 1;
            if u64::from(slab) + 1 >= limit {
                return Err(Error::ArenaFull { what: "slabs", asked: 1, limit });
            }
            // The pages of its metadata first: an update is no place to find that memory has run out.
            self.commit_slab_row(slab)?;
            self.commit_slab_row(slab + 1)?;
            self.commit_class_map(class, slab + 1)?;
            // A bound: too large does no harm.
            self.raise(Word::at(control::CLASS_ENDS + 8 * u64::from(class)), u64::from(slab) + 2);
            let (frontier, limit) = if is_in_files(class) {
                self.frontier_in_files(class, me)?
            } else {
                (Word::at(control::FRONTIER), self.layout().size)
            };
            let [first, second] = [slab, slab + 1].map(|row| [0, 3].map(|word| self.slab_word(row, word)));
            let count = Word::at(control::SLABS);
            let reads = [frontier, count, first[0], first[1], second[0], second[1]];
            // A file that is full by now has a successor.
            if !is_in_files(class) && !fits(class, self.map().load(frontier), limit) {
                let left = self.size().saturating_sub(self.map().load(frontier));
                let limit = "the address range of the arena".into();
                return Err(Error::OutOfMemory { asked: span_of(class), left, limit });
            }
            // If this process dies before its hints are set, the sweep sets them.
            self.touch(me, slab);
            self.touch(me, slab + 1);
            match self.update(me, NewSlab { class, slab, limit, reads }) {
                UpdateEnd::Done(read) if read[1] == u64::from(slab) && fits(class, read[0], limit) => {
                    let slab = slab + u32::from(gap(class, read[0]) != 0);
                    self.hint_new_slab(slab, class);
                    self.0.cursors[class as usize].store(slab * SLAB_BLOCKS, Ordering::Relaxed);
                    return Ok(());
                }
                // Another process was faster; and it may be stopped, or dead, before it has set the hints.
                UpdateEnd::Done(_) | UpdateEnd::Held(_) => {
                    for slab in slab..self.slab_count() {
                        self.hint_slab(slab);
                    }
                }
            }
        }
    }

    /// Reserves the pages of a slab's words and of its blocks'.
    pub(in crate::arena) fn commit_slab_row(&self, slab: u32) -> Result<()> {
        let blocks = self.layout().blocks_at + u64::from(slab * SLAB_BLOCKS) * 64;
        for at in [self.slab_word(slab, 0).offset() & !4095, blocks] {
            self.commit_at(at, 4096)?;
        }
        Ok(())
    }

    /// Reserves the pages of a class's map up to a slab: it is searched from the start.
    pub(in crate::arena) fn commit_class_map(&self, class: u32, slab: u32) -> Result<()> {
        let (map, end) =
            (self.class_map(class, 0).0.offset() & !4095, self.class_map(class, slab).0.offset());
        let len = (end + 8 - map).next_multiple_of(4096);
        self.commit_at(map, len)
    }

    /// Notes that all blocks of a new slab are free.
    pub(in crate::arena) fn hint_new_slab(&self, slab: u32, class: u32) {
        self.map().or(self.slab_word(slab, 1), u64::MAX >> (64 - blocks_of(class)));
        let (map, bit) = self.class_map(class, slab);
        self.map().or(map, bit);
    }

    /// Notes which blocks of a slab are free.
    fn hint_slab(&self, slab: u32) {
        let Some((class, _)) = self.slab(slab) else { return };
        for block in (0..blocks_of(class)).map(|i| slab * SLAB_BLOCKS + i) {
            if BlockState::unpack(self.map().load(self.block_at(block).state)).life == Life::Free {
                self.hint_free(block);
            }
        }
    }

    /// Makes several changes at once, or says which member makes conflicting ones.
    pub(crate) fn update(&self, me: Member, plan: impl Plan) -> UpdateEnd {
        let _one = UPDATES.lock();
        run(Update::new(self.layout().updates(), me, plan, Others(*self)), self.map())
    }

    /// Whether there is an update that this member has begun, and no process has completed.
    pub(in crate::arena) fn update_is_of(&self, m: Member) -> bool {
        let current = Current::unpack(self.map().load(self.layout().updates().current));
        current.making.is_some_and(|(by, _)| by == m)
    }
}
