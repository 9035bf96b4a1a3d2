//! Blocks of memory: found, claimed, given pages, freed, found again.
//!
//! Blocks of one size class lie in slabs of up to 64. Which blocks are free is in their state words; two levels of bit
//! maps (which slabs of a class, which blocks of a slab) only say where to look. A bit too many costs a look, a bit
//! too few is put back by the next sweep; so bits need no protocol.
//!
//! Freed blocks keep their pages: the next tensor of that size fills warm memory, at the speed of memcpy.
//! [`Arena::empty_cache`] gives the pages of free blocks back.

use std::cell::RefCell;

use super::class::{CLASSES, SEAT_PAGE, SEAT_PAGES, blocks_of, class_of, commits_alone, size_of, span_of};
use super::layout::{SLAB_BLOCKS, control};
use super::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::{Claim, Publish, Unclaim, link_of, with_link};
use crate::sync::Ordering;
use crate::sys::memory;
use crate::words::{BlockId, BlockState, Kind, Life};

thread_local! {
    /// Rings that this thread is freeing; the first entry's call works through the list.
    static RINGS_TO_FREE: RefCell<Vec<(Arena, BlockId, BlockState)>> = const { RefCell::new(Vec::new()) };
}

impl Arena {
    /// A block of at least `len` bytes, for this process. Its contents are whatever they were.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`]; nothing has changed then.
    fn alloc_once(&self, len: u64, kind: Kind) -> Result<Hold> {
        let me = self.me()?;
        let class = if kind == Kind::Seats { Some(SEAT_PAGES) } else { class_of(len) };
        let class = class.filter(|&c| span_of(c) <= self.layout().size).ok_or(Error::OutOfMemory {
            asked: len,
            left: self.size(),
            limit: "the size of the arena".into(),
        })?;
        let mut carved = 0;
        loop {
            // Up to a quarter larger is better than more memory.
            let most = if kind == Kind::Seats { SEAT_PAGE } else { size_of(class) / 4 * 5 };
            let near =
                (class..CLASSES).take_while(|&c| size_of(c) <= most && (c == class || c != SEAT_PAGES));
            for c in near {
                while let Some(block) = self.find_free(c) {
                    let Some(state) = run(Claim::new(self.block_at(block), me), self.map()) else { continue };
                    let committed = if kind == Kind::Ring {
                        self.commit_start(block, c)
                    } else {
                        self.commit_block(block, c)
                    };
                    if let Err(e) = committed {
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

    /// As [`alloc`](Self::alloc); if memory has run out, it gives the pages of free blocks of other sizes back and tries
    /// once more.
    pub(crate) fn alloc_kind(&self, len: u64, kind: Kind) -> Result<Hold> {
        match self.alloc_once(len, kind) {
            Err(Error::OutOfMemory { .. }) if self.empty_cache()? > 0 => self.alloc_once(len, kind),
            done => done,
        }
    }

    pub(super) fn class_map(&self, class: u32, slab: u32) -> (Word, u64) {
        let row = self.layout().class_maps_at + u64::from(class) * u64::from(self.layout().slabs) / 8;
        (Word::at(row + u64::from(slab / 64) * 8), 1 << (slab % 64))
    }

    /// Notes that a block is probably free.
    pub(crate) fn hint_free(&self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        // Always written: a load could come before the store that freed the block, find the bit still set, and the
        // bit be taken before the block shows as free.
        self.map().or(self.slab_word(slab, 1), bit);
        self.map().fence_after_rmw();
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

    /// Frees a block that this process has claimed for that: `BUSY(me) → FREE`. May be begun by one process and ended
    /// by another.
    ///
    /// What is in a ring may itself be rings: they wait in a list, so that the stack does not grow with their depth.
    pub(crate) fn finish_free(&self, block: BlockId, state: BlockState) {
        if state.kind != Kind::Ring {
            return self.free_claimed(block, state);
        }
        let listed = RINGS_TO_FREE.try_with(|list| {
            let mut list = list.borrow_mut();
            let first = list.is_empty();
            list.push((*self, block, state));
            first
        });
        match listed {
            Ok(true) => {}
            // Somebody further up this stack works through the list.
            Ok(false) => return,
            // The thread is ending: whoever sweeps this process frees it.
            Err(_) => return,
        }
        let next = |i: usize| RINGS_TO_FREE.try_with(|list| list.borrow().get(i).copied()).ok().flatten();
        let mut i = 0;
        while let Some((arena, block, state)) = next(i) {
            // Without the ring layer its messages can't be released: it stays claimed until somebody sweeps us.
            if arena.finalize_ring(block) {
                arena.free_claimed(block, state);
            }
            i += 1;
        }
        _ = RINGS_TO_FREE.try_with(|list| list.borrow_mut().clear());
    }

    fn free_claimed(&self, block: BlockId, state: BlockState) {
        let at = self.block_at(block);
        let link = self.map().load(at.link());
        if link_of(link).is_some() {
            self.free_seat_pages(block, link);
            self.map().store(at.link(), with_link(link, None));
        }
        if state.kind == Kind::Ring {
            self.shrink(block);
        }
        run(Unclaim::new(at, state), self.map());
        self.hint_free(block);
    }

    /// Gives the pages of free blocks back to the kernel; how many bytes.
    ///
    /// The next tensors of these sizes fill cold memory again, at a fifth of the speed.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn empty_cache(&self) -> Result<u64> {
        let me = self.me()?;
        let before = memory::committed(self.file());
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
                _ = memory::punch(self.file(), offset, len);
                run(Unclaim::new(at, state), self.map());
                self.hint_free(block);
            }
        }
        self.map().add(Word::at(control::TRIMS), 1);
        Ok(before.saturating_sub(memory::committed(self.file())))
    }
}
