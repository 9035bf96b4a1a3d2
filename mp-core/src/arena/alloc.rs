//! Blocks of memory: found, claimed, given pages, freed, found again.
//!
//! Blocks of one size class lie in slabs of up to 64. Which blocks are free is in their state words; two levels of bit
//! maps (which slabs of a class, which blocks of a slab) only say where to look. A bit too many costs a look, a bit
//! too few is put back by the next sweep; so bits need no protocol.
//!
//! A new slab changes four words at once (the slab's own, the frontier, two counts): that runs under the redo
//! lock. Freed blocks keep their pages: the next tensor of that size fills warm memory, at the speed of memcpy.
//! Pages are reserved by `fallocate` before a block is handed out, so that running out is an error here and not
//! a SIGBUS later; [`Arena::empty_cache`] gives the pages of free blocks back.

use std::time::{Duration, Instant};

use super::class::{CLASSES, POPULATE, alignment_of, blocks_of, class_of, commits_alone, size_of, span_of};
use super::layout::{SLAB_BLOCKS, control};
use super::{Arena, Hold, SEAT_PAGE};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::{
    Claim, FreeCheck, Plan, Publish, Redo, RedoAt, RedoEnd, Released, Unclaim, link_of, with_link,
};
use crate::sync::Ordering;
use crate::sys::{Errno, limits, memory};
use crate::words::{BlockId, BlockState, Kind, Life, Member, Seat};

/// A slab's first word: 1 bit valid, 10 bits class, 40 bits base in pages.
const fn describe(class: u32, base: u64) -> u64 {
    1 | (class as u64) << 1 | (base >> 12) << 11
}
pub(crate) const fn described(w: u64) -> Option<(u32, u64)> {
    if w & 1 == 0 { None } else { Some(((w >> 1 & 0x3ff) as u32, w >> 11 << 12)) }
}

/// How long to wait for another process that holds the redo lock (a few dozen instructions) and does not go on.
const REDO_PATIENCE: Duration = Duration::from_secs(10);

/// Adds a slab of a class at the end of all slabs.
struct NewSlab {
    class: u32,
    slab: u32,
    slab_word: Word,
    limit: u64,
    reads: [Word; 3],
}

impl NewSlab {
    fn base(&self, frontier: u64) -> u64 {
        frontier.next_multiple_of(alignment_of(self.class))
    }
    fn fits(&self, frontier: u64) -> bool {
        self.base(frontier).checked_add(span_of(self.class)).is_some_and(|end| end <= self.limit)
    }
}

impl Plan for NewSlab {
    fn reads(&self) -> &[Word] {
        &self.reads
    }
    fn writes(&self, values: &[u64]) -> Vec<(Word, u64)> {
        let (frontier, slabs, class_end) = (values[0], values[1], values[2]);
        if slabs != u64::from(self.slab) || !self.fits(frontier) {
            return Vec::new();
        }
        let base = self.base(frontier);
        vec![
            (self.slab_word, describe(self.class, base)),
            (self.reads[0], base + span_of(self.class)),
            (self.reads[1], slabs + 1),
            (self.reads[2], class_end.max(slabs + 1)),
        ]
    }
}

impl Arena {
    /// A block of at least `len` bytes, for this process. Its contents are whatever they were.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`]; nothing has changed then.
    pub(crate) fn alloc_kind(&self, len: u64, kind: Kind) -> Result<Hold> {
        let me = self.me()?;
        let class =
            class_of(len).filter(|&c| span_of(c) <= self.layout().size).ok_or(Error::OutOfMemory {
                asked: len,
                left: self.size(),
                limit: "the size of the arena".into(),
            })?;
        let mut carved = 0;
        loop {
            // Up to a quarter larger is better than more memory.
            let near = (class..CLASSES).take_while(|&c| size_of(c) <= size_of(class) / 4 * 5);
            for c in near {
                while let Some(block) = self.find_free(c) {
                    let Some(state) = run(Claim::new(self.block_at(block), me), self.map()) else { continue };
                    if let Err(e) = self.commit_block(block, c) {
                        run(Unclaim::new(self.block_at(block), state), self.map());
                        self.hint_free(block);
                        return Err(e);
                    }
                    let at = self.block_at(block);
                    run(Publish::new(at, me, state, kind), self.map());
                    return Ok(self.first_hold(block));
                }
            }
            // Another process may take the slab's blocks before us; not for ever.
            carved += 1;
            if carved > 1000 {
                return Err(Error::ArenaFull { what: "blocks", asked: 1, limit: carved });
            }
            self.carve(class, me)?;
        }
    }

    /// A block of at least `len` bytes, held by this process only. Its contents are whatever they were.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`]; nothing has changed then.
    pub fn alloc(&self, len: u64) -> Result<Hold> {
        self.alloc_kind(len, Kind::Data)
    }

    fn slab_word(&self, slab: u32, word: u64) -> Word {
        Word::at(self.layout().slabs_at + 64 * u64::from(slab)).plus(word)
    }

    pub(crate) fn slab_count(&self) -> u32 {
        self.map().load(Word::at(control::SLABS)) as u32
    }

    pub(crate) fn slab(&self, slab: u32) -> Option<(u32, u64)> {
        described(self.map().load(self.slab_word(slab, 0)))
    }

    /// Which blocks of a slab have pages behind them.
    pub(crate) fn slab_committed(&self, slab: u32) -> u64 {
        self.map().load(self.slab_word(slab, 2))
    }

    pub(crate) fn block_exists(&self, block: BlockId) -> bool {
        let slab = block / SLAB_BLOCKS;
        slab < self.slab_count() && self.slab(slab).is_some_and(|(c, _)| block % SLAB_BLOCKS < blocks_of(c))
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

    fn class_map(&self, class: u32, slab: u32) -> (Word, u64) {
        let row = self.layout().class_maps_at + u64::from(class) * u64::from(self.layout().slabs) / 8;
        (Word::at(row + u64::from(slab / 64) * 8), 1 << (slab % 64))
    }

    /// Notes that a block is probably free.
    pub(crate) fn hint_free(&self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        let hints = self.slab_word(slab, 1);
        if self.map().load(hints) & bit == 0 {
            self.map().or(hints, bit);
        }
        if let Some((class, _)) = self.slab(slab) {
            let (map, bit) = self.class_map(class, slab);
            if self.map().load(map) & bit == 0 {
                self.map().or(map, bit);
            }
        }
    }

    /// A block of the class that is probably free; its hint is taken.
    fn find_free(&self, class: u32) -> Option<BlockId> {
        let cursor = &self.0.cursors[class as usize];
        let first = cursor.load(Ordering::Relaxed);
        if let Some(block) = self.take_hint(first, class) {
            return Some(block);
        }
        let end = self.map().load(Word::at(control::CLASS_ENDS + 8 * u64::from(class))) as u32;
        let words = end.div_ceil(64);
        for i in 0..words {
            let word = (first / 64 + i) % words;
            let (at, _) = self.class_map(class, word * 64);
            let mut bits = self.map().load(at);
            while bits != 0 {
                let slab = word * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(block) = self.take_hint(slab, class) {
                    cursor.store(slab, Ordering::Relaxed);
                    return Some(block);
                }
                // Nothing there. A block freed since then sets the bit again, after its own.
                let (at, bit) = self.class_map(class, slab);
                self.map().and(at, !bit);
                if self.map().load(self.slab_word(slab, 1)) != 0 {
                    self.map().or(at, bit);
                }
            }
        }
        None
    }

    fn take_hint(&self, slab: u32, class: u32) -> Option<BlockId> {
        if self.slab(slab)?.0 != class {
            return None;
        }
        let at = self.slab_word(slab, 1);
        let mut hints = self.map().load(at);
        while hints != 0 {
            match self.map().cas(at, hints, hints & (hints - 1)) {
                Ok(()) => return Some(slab * SLAB_BLOCKS + hints.trailing_zeros()),
                Err(now) => hints = now,
            }
        }
        None
    }

    /// Adds a slab of the class.
    fn carve(&self, class: u32, me: Member) -> Result<()> {
        let start = Instant::now();
        loop {
            let slab = self.slab_count();
            let limit = u64::from(self.layout().slabs) - 1;
            if u64::from(slab) >= limit {
                return Err(Error::ArenaFull { what: "slabs", asked: 1, limit });
            }
            // The pages of its metadata first: the lock is no place to find that memory has run out.
            let blocks = self.layout().blocks_at + u64::from(slab * SLAB_BLOCKS) * 64;
            for at in [self.slab_word(slab, 0).offset(), blocks, self.class_map(class, slab).0.offset()] {
                memory::commit(self.fd(), at & !4095, 4096).map_err(|e| self.no_memory(4096, e))?;
            }
            let plan = NewSlab {
                class,
                slab,
                slab_word: self.slab_word(slab, 0),
                limit: self.layout().size,
                reads: [
                    Word::at(control::FRONTIER),
                    Word::at(control::SLABS),
                    Word::at(control::CLASS_ENDS + 8 * u64::from(class)),
                ],
            };
            let fits = |frontier| plan.fits(frontier);
            if !fits(self.map().load(Word::at(control::FRONTIER))) {
                let left = self.size().saturating_sub(self.map().load(Word::at(control::FRONTIER)));
                let limit = "the address range of the arena".into();
                return Err(Error::OutOfMemory { asked: span_of(class), left, limit });
            }
            match self.redo(me, plan) {
                RedoEnd::Done(read) if read[1] == u64::from(slab) => {
                    let all = u64::MAX >> (64 - blocks_of(class));
                    self.map().or(self.slab_word(slab, 1), all);
                    let (map, bit) = self.class_map(class, slab);
                    self.map().or(map, bit);
                    return Ok(());
                }
                RedoEnd::Done(_) => {}
                RedoEnd::Held(holder) => {
                    if start.elapsed() > REDO_PATIENCE {
                        return Err(Error::Busy { what: "the slab table", holder, pid: self.pid_of(holder) });
                    }
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Runs a plan under the redo lock, once.
    pub(crate) fn redo(&self, me: Member, plan: impl Plan) -> RedoEnd {
        let at = RedoAt { lock: Word::at(control::REDO) };
        run(Redo::new(at, me, plan, |m| self.is_dead(m)), self.map())
    }

    /// Gives a claimed block its pages, if it has none.
    fn commit_block(&self, block: BlockId, class: u32) -> Result<()> {
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        if self.slab_committed(slab) & bit == 0 {
            let ((at, len), bits) = if commits_alone(class) {
                (self.data_of(block), bit)
            } else {
                ((self.data_of(slab * SLAB_BLOCKS).0, span_of(class)), u64::MAX)
            };
            self.reserve(len)?;
            memory::commit(self.fd(), at, len).map_err(|e| self.no_memory(len, e))?;
            self.map().or(self.slab_word(slab, 2), bits);
        }
        self.populate(block);
        Ok(())
    }

    /// Checks a large growth against the budget, the cgroup and the machine.
    fn reserve(&self, len: u64) -> Result<()> {
        let budget = self.map().load(Word::at(control::BUDGET));
        if budget != 0 {
            let left = budget.saturating_sub(memory::committed(self.fd()));
            if len > left {
                let limit = "the arena's budget (set_budget)".into();
                return Err(Error::OutOfMemory { asked: len, left, limit });
            }
        }
        if len >= 1 << 20 {
            let (left, limit) = limits::memory_left();
            if len > left {
                return Err(Error::OutOfMemory { asked: len, left, limit });
            }
        }
        Ok(())
    }

    pub(crate) fn no_memory(&self, asked: u64, e: Errno) -> Error {
        match e {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG => {
                let (left, limit) = limits::memory_left();
                Error::OutOfMemory { asked, left, limit }
            }
            e => Error::Os { what: "fallocate in the arena", source: e.into() },
        }
    }

    /// Maps the pages of a large block into this process in one go, once.
    pub(crate) fn populate(&self, block: BlockId) {
        let (at, len) = self.data_of(block);
        if len < POPULATE {
            return;
        }
        let trims = self.map().load(Word::at(control::TRIMS));
        let mut known = self.0.populated.lock();
        if known.trims != trims {
            known.trims = trims;
            known.blocks.clear();
        }
        if known.blocks.insert(block) {
            drop(known);
            self.map().populate(at, len);
        }
    }

    /// Frees a block that this process has claimed for that: `BUSY(me) → FREE`. May be begun by one process and ended
    /// by another.
    pub(crate) fn finish_free(&self, block: BlockId, state: BlockState) {
        if state.kind == Kind::Ring {
            self.finalize_ring(block);
        }
        let at = self.block_at(block);
        let link = self.map().load(at.link());
        if link_of(link).is_some() {
            self.free_seat_pages(block, link);
            self.map().store(at.link(), with_link(link, None));
        }
        run(Unclaim::new(at, state), self.map());
        self.hint_free(block);
    }

    /// Frees the pages of seats of a block, the last one first, so that a walk from the start always finds the rest.
    fn free_seat_pages(&self, block: BlockId, link: u64) {
        let Ok(me) = self.me() else { return };
        let owned = Seat::Block(block).pack();
        let mut pages = Vec::new();
        let mut next = link_of(link);
        while let Some(page) = next.filter(|&p| self.block_exists(p) && !pages.contains(&p)) {
            if self.map().load(self.block_at(page).seat(0)) != owned {
                break;
            }
            pages.push(page);
            next = link_of(self.map().load(Word::at(self.data_of(page).0).plus(1)));
        }
        for page in pages.into_iter().rev() {
            let at = self.block_at(page);
            if self.map().cas(at.seat(0), owned, Seat::Free.pack()).is_ok()
                && let Released::ToFree(state) = run(FreeCheck::new(at, self.pages(), me), self.map())
            {
                run(Unclaim::new(at, state), self.map());
                self.hint_free(page);
            }
        }
    }

    /// Links one more page of seats to a block that this process holds.
    pub(crate) fn add_seat_page(&self, block: BlockId) -> Result<()> {
        let hold = self.alloc_kind(SEAT_PAGE, Kind::Seats)?;
        let page = hold.block();
        let first = Word::at(self.data_of(page).0);
        self.map().store(first, u64::from(block) + 1);
        for i in 1..SEAT_PAGE / 8 {
            self.map().store_relaxed(first.plus(i), 0);
        }
        // The last link of the chain, which others may lengthen meanwhile.
        let mut at = self.block_at(block).link();
        loop {
            let link = self.map().load(at);
            match link_of(link) {
                Some(next) => at = Word::at(self.data_of(next).0).plus(1),
                None => match self.map().cas(at, link, with_link(link, Some(page))) {
                    Ok(()) => break,
                    Err(_) => continue,
                },
            }
        }
        // Linked: from now on the page belongs to the block. Killed before this line, the sweep does it.
        if let Ok(seat) = self.take_seat(hold)
            && let Some(word) = self.seat_word(page, seat)
        {
            self.map().store(word, Seat::Block(block).pack());
        }
        Ok(())
    }

    /// Whether a page of seats is linked to its block.
    pub(crate) fn page_is_linked(&self, page: BlockId) -> Option<BlockId> {
        let owner = self.map().load(Word::at(self.data_of(page).0)).checked_sub(1)? as BlockId;
        if !self.block_exists(owner) {
            return None;
        }
        let mut link = self.map().load(self.block_at(owner).link());
        for _ in 0..1 << 16 {
            match link_of(link)? {
                p if p == page => return Some(owner),
                p if self.block_exists(p) => link = self.map().load(Word::at(self.data_of(p).0).plus(1)),
                _ => return None,
            }
        }
        None
    }

    /// Gives the pages of free blocks back to the kernel; how many bytes.
    ///
    /// The next tensors of these sizes fill cold memory again, at a fifth of the speed.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn empty_cache(&self) -> Result<u64> {
        let me = self.me()?;
        let before = memory::committed(self.fd());
        for slab in 0..self.slab_count() {
            let Some((class, _)) = self.slab(slab).filter(|&(c, _)| commits_alone(c)) else { continue };
            for i in 0..blocks_of(class) {
                let (block, bit) = (slab * SLAB_BLOCKS + i, 1 << i);
                let at = self.block_at(block);
                if self.slab_committed(slab) & bit == 0
                    || BlockState::unpack(self.map().load(at.state)).life != Life::Free
                {
                    continue;
                }
                let Some(state) = run(Claim::new(at, me), self.map()) else { continue };
                let (offset, len) = self.data_of(block);
                self.map().and(self.slab_word(slab, 2), !bit);
                _ = memory::punch(self.fd(), offset, len);
                run(Unclaim::new(at, state), self.map());
                self.hint_free(block);
            }
        }
        self.map().add(Word::at(control::TRIMS), 1);
        Ok(before.saturating_sub(memory::committed(self.fd())))
    }

    /// Where the memory of a ring is; `None` if the block is none (any more).
    ///
    /// It stays a ring only as long as somebody holds it.
    pub fn ring_memory(&self, block: BlockId) -> Option<(Word, u64)> {
        if !self.block_exists(block) {
            return None;
        }
        let state = BlockState::unpack(self.map().load(self.block_at(block).state));
        let (at, len) = self.data_of(block);
        (state.life != Life::Free && state.kind == Kind::Ring).then_some((Word::at(at), len))
    }

    /// Limits how many bytes the arena may have pages for, for all members; 0 means no limit of its own.
    pub fn set_budget(&self, bytes: u64) {
        self.map().store(Word::at(control::BUDGET), bytes);
    }
}
