//! Allocation of memory blocks.
//!
//! Blocks of one size class are stored in slabs of up to 64. The state word of a block records whether the
//! block is free. Two levels of bit maps (slabs of a class, blocks of a slab) are only hints. An extra bit
//! costs one search, and the next reclaim sets a missing bit again, so the bits need no protocol.
//!
//! Freed blocks keep their pages: the next tensor of that size fills warm memory, at the speed of memcpy.
//! `trim` describes when pages are returned to the kernel.

pub(crate) mod budget;
pub(crate) mod children;
pub(crate) mod fd_slots;
pub(crate) mod handles;
pub(crate) mod seats;
pub(crate) mod slabs;
pub(crate) mod stats;
pub(crate) mod trim;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;

use crate::alloc::fd_slots::FdSlots;
use crate::alloc::handles::Hold;
use crate::arena::state::NO_CURSOR;
use crate::arena::{Arena, view};
use crate::blocks::{Blocks, described};
use crate::error::{Error, Result, SIZE_SETTINGS};
use crate::layout::size_class::{SEAT_PAGES, blocks_of, class_of, is_near, near, size_of, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run, run_straight};
use crate::members::Members;
use crate::setup::Backing;
use crate::steps::{ClaimBlock, PublishBlock, SlabSnapshot, UnclaimBlock};
use crate::sync::Ordering;
use crate::words::{BlockId, BlockKind, BlockState, Member};

view! {
    /// Allocator of an arena: blocks, their pages, and the handles of this process to them.
    pub struct Allocator;
}

/// Maximum size of blocks for which each process begins with a separate slab. Such a slab has 128 KiB at
/// most.
const OWN_SLAB: u64 = 2 << 10;

/// Sizes of blocks for which a process alternates between two free blocks.
///
/// A block that another process has just read is still in the cache of that process's processor. To write it,
/// this processor must move each line out of that cache. Writing a block that was used earlier is faster.
/// Smaller blocks are as fast without alternation, or faster if one process fills and drops them. Larger
/// blocks don't stay in caches, and a second one would cost much memory.
const TAKES_TURNS: RangeInclusive<u64> = 512 << 10..=4 << 20;

thread_local! {
    /// Rings that this thread is freeing. A ring's messages may hold rings, so calls that free a ring nest.
    /// The outermost call frees all rings of the list.
    ///
    /// The list has no destructor, because destructors of the thread's other variables drop queues too, in
    /// any order.
    static RINGS_TO_FREE: RefCell<ManuallyDrop<Vec<(Arena, BlockId, BlockState)>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Forgets the rings that this thread was freeing. Called in a forked child that becomes a separate process.
/// The rings belong to the parent.
pub(crate) fn forget_thread() {
    forget_rings();
}

/// Empties this thread's list of rings to free, and frees the list's memory.
fn forget_rings() {
    RINGS_TO_FREE.with(|list| drop(std::mem::take(&mut **list.borrow_mut())));
}

impl Allocator {
    /// Allocates a block of the class, or a somewhat larger one. The contents are unspecified.
    fn alloc_once(self, class: u32, kind: BlockKind) -> Result<Hold> {
        let me = self.me()?;
        if size_of(class) <= OWN_SLAB
            && self.0.alloc_state().cursors[class as usize].load(Ordering::Relaxed) == NO_CURSOR
        {
            self.begin_apart(class, me);
        }
        let mut carved = 0;
        let m = *self.map();
        loop {
            while let Some((block, c, slab)) = self.find_free(class, me) {
                let Some(state) = run_straight(ClaimBlock::new(Blocks(self.0).block_at(block), me, slab), &m)
                else {
                    continue;
                };
                let committed = match kind {
                    BlockKind::Ring => self.commit_start(block, c).map(|()| true),
                    _ => self.commit_block(block, c),
                };
                let fresh = match committed {
                    Ok(fresh) => fresh,
                    Err(e) => {
                        run(UnclaimBlock::new(Blocks(self.0).block_at(block), state), self.map());
                        self.hint_free(block);
                        return Err(e);
                    }
                };
                let at = Blocks(self.0).block_at(block);
                run_straight(PublishBlock::new(at, me, state, kind), &m);
                self.count_alloc(me, size_of(c), fresh);
                return Ok(self.first_hold(block, kind));
            }
            // Other processes may take all blocks of the new slab first. The limit ends the loop in any case.
            carved += 1;
            if carved > 1000 {
                return Err(Error::ArenaFull { what: "blocks", asked: 1, limit: carved });
            }
            match self.carve(class, me) {
                // Addresses or rows for slabs are exhausted: reuse the addresses and rows of unused slabs.
                Err(Error::OutOfMemory { .. } | Error::ArenaFull { .. }) if self.reuse(class, me)? => {}
                done => done?,
            }
        }
    }

    /// Allocates a block of at least `len` bytes, held only by this process. The contents are unspecified.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::ArenaFull`]. The arena is then unchanged.
    pub fn alloc(self, len: u64) -> Result<Hold> {
        self.alloc_kind(len, BlockKind::Data)
    }

    /// Same as [`alloc`](Self::alloc), but in the kind of memory that this process's sharing strategy
    /// selects.
    ///
    /// # Errors
    /// Same as for `alloc`, and [`Error::Directory`].
    pub(crate) fn alloc_by_strategy(self, len: u64) -> Result<Hold> {
        let class = Backing(self.0).class_by_strategy(self.class_for(len)?);
        self.alloc_in_budget(class)
    }

    /// Returns the error for a request that exceeds the size of the arena.
    pub(crate) fn too_large(self, asked: u64) -> Error {
        let under = if crate::sys::under_valgrind() { " under valgrind" } else { "" };
        let limit = format!("the size of the arena{under} ({SIZE_SETTINGS})");
        Error::OutOfMemory { asked, left: self.0.size(), limit }
    }

    fn class_for(self, len: u64) -> Result<u32> {
        class_of(len).filter(|&c| span_of(c) <= self.layout().size).ok_or_else(|| self.too_large(len))
    }

    /// Same as [`alloc`](Self::alloc). If memory is exhausted, returns the pages of free blocks of other
    /// sizes to the kernel and retries once.
    pub(crate) fn alloc_kind(self, len: u64, kind: BlockKind) -> Result<Hold> {
        let class = if kind == BlockKind::Seats { SEAT_PAGES } else { self.class_for(len)? };
        let hold = self.alloc_uncounted(class, kind)?;
        self.charge(hold.block());
        Ok(hold)
    }

    /// Allocates a block without counting it in the budget. The caller counts it.
    #[inline]
    fn alloc_uncounted(self, class: u32, kind: BlockKind) -> Result<Hold> {
        match self.alloc_once(class, kind) {
            Err(Error::OutOfMemory { .. }) if self.empty_cache()? > 0 => self.alloc_once(class, kind),
            done => done,
        }
    }

    pub(crate) fn class_map(self, class: u32, slab: u32) -> (Word, u64) {
        let row = self.layout().class_maps_at + u64::from(class) * u64::from(self.layout().slabs) / 8;
        (Word::at(row + u64::from(slab / 64) * 8), 1 << (slab % 64))
    }

    /// Marks a block as probably free.
    pub(crate) fn hint_free(self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        // Always written: a load could be ordered before the store that freed the block, and find the bit
        // still set; another process could then take the bit before it reads the block as free.
        self.map().or(Blocks(self.0).slab_word(slab, 1), bit);
        self.map().fence_after_rmw();
        if let Some((class, _)) = Blocks(self.0).slab(slab) {
            let (map, bit) = self.class_map(class, slab);
            if self.map().load(map) & bit == 0 {
                self.map().or(map, bit);
            }
        }
    }

    /// Returns a block that fits the class and is probably free, with the block's own class and slab. Clears
    /// the block's hint.
    fn find_free(self, class: u32, me: Member) -> Option<(BlockId, u32, SlabSnapshot)> {
        let cursor = &self.0.alloc_state().cursors[class as usize];
        let last = cursor.load(Ordering::Relaxed);
        let mut found = None;
        if last != NO_CURSOR {
            // Probably the same block is found again, and was freed by another process meanwhile.
            self.map().will_write(Blocks(self.0).block_at(last).state);
            // A block of any near class is accepted. If all blocks of the class itself are taken, a search of
            // the class would read all its slabs each time.
            found = self.take_hint(last / SLAB_BLOCKS, me, last, |c| is_near(class, c));
        }
        let found = found.or_else(|| near(class).find_map(|c| self.search(c, last, me)))?;
        cursor.store(found.0, Ordering::Relaxed);
        Some(found)
    }

    /// Searches all slabs that have free blocks for a block of the class. Begins at the slab of `last`, the
    /// block that this process found last.
    fn search(self, class: u32, last: BlockId, me: Member) -> Option<(BlockId, u32, SlabSnapshot)> {
        let end = self.map().load(Word::at(control::CLASS_ENDS + 8 * u64::from(class))) as u32;
        let first = match last {
            // Members begin at different slabs, so they rarely write the same words.
            NO_CURSOR => me.slot().wrapping_mul(5),
            last => last / SLAB_BLOCKS,
        } % end.max(1);
        let words = end.div_ceil(64);
        for i in 0..words {
            let word = (first / 64 + i) % words;
            let (at, _) = self.class_map(class, word * 64);
            let mut bits = self.map().load(at).rotate_right(first % 64);
            while bits != 0 {
                let slab = word * 64 + (bits.trailing_zeros() + first) % 64;
                bits &= bits - 1;
                // Slabs in a directory that this process did not select are for other processes.
                if Blocks(self.0).slab(slab).is_some_and(|(_, base)| !Backing(self.0).slab_is_chosen(base)) {
                    continue;
                }
                let found = self.take_hint(slab, me, last, |c| c == class);
                if found.is_some() {
                    return found;
                }
                // The slab has no free block. A process that frees a block after this sets the bit again,
                // after the block's own bit.
                let (at, bit) = self.class_map(class, slab);
                self.map().and(at, !bit);
                // Same as in `hint_free`: a process that frees a block sets one bit and reads the other.
                self.map().fence_after_rmw();
                if Blocks(self.0).slab(slab).is_some_and(|(c, _)| c == class)
                    && self.map().load(Blocks(self.0).slab_word(slab, 1)) != 0
                {
                    self.map().or(at, bit);
                }
            }
        }
        None
    }

    /// Selects the slab in which this process begins to search for blocks of the class, a different slab for
    /// each process if possible. Processes that share a slab write the same words, and each write costs a
    /// transfer between processors.
    ///
    /// Adds a slab if fewer slabs have free blocks than member slots are in use. Otherwise, selects the slab
    /// by the number of the member's slot.
    fn begin_apart(self, class: u32, me: Member) {
        let end = self.map().load(Word::at(control::CLASS_ENDS + 8 * u64::from(class))) as u32;
        let words =
            (0..end.div_ceil(64)).map(|word| (word, self.map().load(self.class_map(class, word * 64).0)));
        let words: Vec<(u32, u64)> = words.filter(|(_, slabs)| *slabs != 0).collect();
        let count: u32 = words.iter().map(|(_, slabs)| slabs.count_ones()).sum();
        if u64::from(count) < self.map().load(Word::at(control::MEMBERS)) {
            // If a new slab has no room, this process shares a slab.
            _ = self.carve(class, me);
            return;
        }
        let mut before = me.slot() % count.max(1);
        for (word, mut slabs) in words {
            while slabs != 0 {
                if before == 0 {
                    let slab = word * 64 + slabs.trailing_zeros();
                    self.0.alloc_state().cursors[class as usize].store(slab * SLAB_BLOCKS, Ordering::Relaxed);
                    return;
                }
                before -= 1;
                slabs &= slabs - 1;
            }
        }
    }

    /// Returns a block of this slab that is probably free, and clears its hint. Returns `None` if `will_do`
    /// rejects the slab's class. Avoids `last`, the block found last, if blocks of this size
    /// [alternate](TAKES_TURNS).
    fn take_hint(
        self,
        slab: u32,
        me: Member,
        last: BlockId,
        will_do: impl Fn(u32) -> bool,
    ) -> Option<(BlockId, u32, SlabSnapshot)> {
        let seen = Blocks(self.0).slab_seen(slab);
        let (class, base) = described(seen.value)?;
        if !will_do(class) || !Backing(self.0).slab_is_chosen(base) {
            return None;
        }
        // If this process dies after taking the hint, the reclaim sets it again.
        Members(self.0).touch(me, slab);
        let at = Blocks(self.0).slab_word(slab, 1);
        // A slab that had more blocks in another class may still have their hints.
        let blocks = u64::MAX >> (64 - blocks_of(class));
        let turns = last / SLAB_BLOCKS == slab && TAKES_TURNS.contains(&size_of(class));
        let others = if turns { !(1 << (last % SLAB_BLOCKS)) } else { u64::MAX };
        let mut hints = self.map().load(at);
        while hints & blocks != 0 {
            let first = |hints: u64| hints & hints.wrapping_neg();
            let bit = match first(hints & blocks & others) {
                0 => first(hints & blocks),
                other => other,
            };
            match self.map().cas(at, hints, hints & !bit) {
                Ok(()) => return Some((slab * SLAB_BLOCKS + bit.trailing_zeros(), class, seen)),
                Err(now) => hints = now,
            }
        }
        None
    }

    /// Frees a block that this process has claimed for freeing: `BUSY(me) → FREE`. If this process is killed,
    /// the reclaim repeats the call.
    ///
    /// Messages in a ring may hold other rings. These are added to a list, so the stack does not grow
    /// with their depth.
    pub(crate) fn finish_free(self, block: BlockId, state: BlockState) {
        if matches!(state.kind, BlockKind::Descriptors | BlockKind::Keeper)
            && !FdSlots(self.0).close_descriptors(block, state)
        {
            return;
        }
        if state.kind == BlockKind::Child {
            self.leave_parent(block);
        }
        if state.kind != BlockKind::Ring {
            return self.free_claimed(block, state);
        }
        let first = RINGS_TO_FREE.with(|list| {
            let mut list = list.borrow_mut();
            list.push((self.0, block, state));
            list.len() == 1
        });
        if !first {
            // A call higher up this stack works through the list.
            return;
        }
        let next = |i: usize| RINGS_TO_FREE.with(|list| list.borrow().get(i).copied());
        let mut i = 0;
        while let Some((arena, block, state)) = next(i) {
            // A program without the ring layer can't release the ring's messages: the ring stays claimed
            // until another process reclaims this process.
            if Blocks(arena).finalize_ring(block) {
                Allocator(arena).free_claimed(block, state);
            }
            i += 1;
        }
        forget_rings();
    }

    fn free_claimed(self, block: BlockId, state: BlockState) {
        let at = Blocks(self.0).block_at(block);
        self.free_seat_pages(block);
        // The size of the block is readable as long as the block is claimed.
        let bytes = Blocks(self.0).data_of(block).1;
        if state.kind == BlockKind::Ring {
            self.shrink(block);
        }
        run(UnclaimBlock::new(at, state), self.map());
        self.hint_free(block);
        self.count_free(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Messages;

    /// Block sizes in bytes that no other test uses.
    const SIZES: [u64; 3] = [11 << 20, 900 << 10, 7 << 10];

    #[test]
    #[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
    fn freed_blocks_are_reused() {
        let arena = Arena::current().unwrap();
        for size in SIZES {
            let blocks: Vec<BlockId> =
                (0..40).map(|_| Allocator(arena).alloc(size).unwrap().block()).collect();
            let turn = if TAKES_TURNS.contains(&size) { 2 } else { 1 };
            assert!(
                blocks[turn..].iter().zip(&blocks[..]).skip(1).all(|(now, before)| now == before),
                "{size}: {blocks:?}"
            );
            assert_eq!(blocks[1] == blocks[2], turn == 1, "{size}: {blocks:?}");
        }
        // Also in a full slab, for which its class has no hint.
        let slab = blocks_of(class_of(SIZES[1]).unwrap()) as usize;
        let mut held: Vec<Hold> = (0..4 * slab).map(|_| Allocator(arena).alloc(SIZES[1]).unwrap()).collect();
        // Other tests create slabs of other classes.
        let class = class_of(SIZES[1]);
        let slabs = || {
            (0..Blocks(arena).slab_count())
                .filter(|&slab| Blocks(arena).slab(slab).map(|(c, _)| c) == class)
                .count()
        };
        let before = slabs();
        for _ in 0..4 {
            let rest = held.split_off(slab);
            let freed: Vec<BlockId> = std::mem::replace(&mut held, rest).iter().map(Hold::block).collect();
            // The line above dropped them. The same number of blocks fits in their place.
            held.extend((0..slab).map(|_| Allocator(arena).alloc(SIZES[1]).unwrap()));
            let again = held.iter().filter(|hold| freed.contains(&hold.block())).count();
            assert!(again > 0, "none of {freed:?} was found");
        }
        assert_eq!(slabs(), before);
    }

    /// Each thread takes a batch of envelopes, and returns the unused ones when it ends.
    #[test]
    #[cfg_attr(miri, ignore = "hundreds of threads")]
    fn envelopes_of_ended_threads_are_reused() {
        let arena = Arena::current().unwrap();
        let used = || arena.map().load(Word::at(control::ENVELOPES));
        let before = used();
        for _ in 0..200 {
            let pack =
                move || drop(Messages(arena).pack(&mut crate::message::Outgoing::default(), 7).unwrap());
            std::thread::spawn(pack).join().unwrap();
        }
        // Other tests use some meanwhile.
        assert!(used() - before < 3000, "{} for 200 threads, one after the other", used() - before);
    }

    /// Each member has 64 lanes for its threads.
    #[test]
    #[cfg_attr(miri, ignore = "hundreds of threads")]
    fn lanes_of_ended_threads_are_reused() {
        let arena = Arena::current().unwrap();
        let lane = move || Members(arena).with_intent(|_, intent| intent).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            seen.insert(format!("{:?}", std::thread::spawn(lane).join().unwrap()));
        }
        assert!(seen.len() < 40, "{} lanes for 100 threads, one after the other", seen.len());
        let both = std::sync::Barrier::new(2);
        let intents = std::thread::scope(|scope| {
            let each = [(); 2].map(|()| {
                scope.spawn(|| {
                    let mine = lane();
                    both.wait();
                    mine
                })
            });
            each.map(|thread| thread.join().unwrap())
        });
        assert_ne!(intents[0], intents[1], "two live threads share a lane");
    }
}
