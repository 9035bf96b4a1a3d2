//! Tables of slabs and blocks: the memory, kind, seats and generation of each block.
//!
//! The holders of a block are the members, messages and child objects that its seats name. A mark is a block
//! and its generation in one word: a process with a mark can check if the block lives, without holding it.
//! For blocks that are rings, this module calls the layer of queues.

use crate::arena::{Arena, view};
use crate::layout::size_class::{self, blocks_of, size_of};
use crate::layout::{self, SLAB_BLOCKS};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::parking::detach_notice::DetachedProcess;
use crate::ring_layer::RINGS;
use crate::steps::{
    BlockAt, INLINE_SEATS, PAGE_HEADER, ReleaseSeat, SlabSnapshot, generation_of, link_of, page_next,
};
use crate::sync::Ordering;
use crate::words::{BlockId, BlockKind, BlockLife, BlockState, Member, Seat, SeatAt};

view! {
    /// Blocks of an arena, as its tables describe them.
    pub struct Blocks;
}

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

impl Blocks {
    pub(crate) fn slab_word(self, slab: u32, word: u64) -> Word {
        Word::at(self.layout().slabs_at + 64 * u64::from(slab)).plus(word)
    }

    pub(crate) fn slab_count(self) -> u32 {
        layout::slab_count(self.map())
    }

    /// Returns the present class and base of a slab.
    pub(crate) fn slab_seen(self, slab: u32) -> SlabSnapshot {
        let word = self.slab_word(slab, 0);
        SlabSnapshot { word, value: self.map().load(word) }
    }

    pub(crate) fn slab(self, slab: u32) -> Option<(u32, u64)> {
        described(self.map().load(self.slab_word(slab, 0)))
    }

    /// Returns a bit map of the blocks of a slab that have pages.
    pub(crate) fn slab_committed(self, slab: u32) -> u64 {
        self.map().load(self.slab_word(slab, 2))
    }

    pub(crate) fn block_exists(self, block: BlockId) -> bool {
        self.existing(block).is_some()
    }

    /// Returns the offset and length of a block's memory, if the block exists.
    #[inline]
    pub(crate) fn existing(self, block: BlockId) -> Option<(u64, u64)> {
        let (slab, index) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        if slab >= self.slab_count() {
            return None;
        }
        let (class, base) = self.slab(slab)?;
        let len = size_of(class);
        (index < blocks_of(class)).then(|| (base + u64::from(index) * len, len))
    }

    /// Returns the offset and length of a block's memory. The range is empty if the block doesn't exist.
    #[inline]
    pub(crate) fn data_of(self, block: BlockId) -> (u64, u64) {
        match described(
            self.map().u64_at(self.slab_word(block / SLAB_BLOCKS, 0).offset()).load(Ordering::Acquire),
        ) {
            Some((class, base)) => (base + u64::from(block % SLAB_BLOCKS) * size_of(class), size_of(class)),
            None => (0, 0),
        }
    }

    /// Returns the position and length of a block's memory: see [`data_of`](Self::data_of).
    pub(crate) fn memory_of(self, block: BlockId) -> (Word, u64) {
        let (at, len) = self.data_of(block);
        (Word::at(at), len)
    }

    /// Returns the steps that release a seat of a block. `me` frees the block if no seat is left.
    #[inline(always)]
    pub(crate) fn release(
        self,
        block: BlockId,
        me: Member,
        (seat, holder): (Word, Seat),
    ) -> ReleaseSeat<impl Fn(BlockId) -> Option<Word> + Clone + use<>> {
        ReleaseSeat::new(self.block_at(block), self.pages(), me, seat, holder)
    }

    /// Returns the kind of a held block.
    pub(crate) fn kind_of(self, block: BlockId) -> BlockKind {
        BlockState::unpack(self.map().load(self.block_at(block).state)).kind
    }

    /// Returns the kind of a block, or `None` if the block doesn't exist.
    pub(crate) fn existing_kind(self, block: BlockId) -> Option<BlockKind> {
        self.block_exists(block).then(|| self.kind_of(block))
    }

    /// Changes a held [`BlockKind::Object`] block to a kind that extends it. Returns the block's kind as an
    /// error if the block is not a plain object.
    pub(crate) fn object_becomes(
        self,
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

    /// Makes a held [`BlockKind::Data`] block frozen or shared. Called before the first frozen or shared
    /// handle is created. Blocks of other kinds are unchanged.
    pub(crate) fn share_as(self, block: BlockId, kind: BlockKind) {
        if self.kind_of(block) == BlockKind::Data {
            // Bits are set: other processes may increment the version meanwhile.
            self.map().or(self.block_at(block).state, BlockState::kind_bits(kind));
        }
    }

    pub(crate) fn block_at(self, id: BlockId) -> BlockAt {
        let state = Word::at(self.layout().blocks_at + 64 * u64::from(id));
        BlockAt {
            id,
            state,
            inline: INLINE_SEATS,
            per_page: (size_class::SEAT_PAGE / 8) as u32 - PAGE_HEADER,
        }
    }

    /// Returns a function that finds the memory of a page of seats.
    pub(crate) fn pages(self) -> impl Fn(BlockId) -> Option<Word> + Clone + use<> {
        move |page| self.seat_page(page)
    }

    /// Returns the first word of a page of seats, or `None` if the block is not a page of seats. A page of
    /// seats is never used for other data.
    #[inline]
    pub(crate) fn seat_page(self, page: BlockId) -> Option<Word> {
        let (class, base) = self.slab(page / layout::SLAB_BLOCKS)?;
        let at = base + u64::from(page % layout::SLAB_BLOCKS) * size_class::SEAT_PAGE;
        (class == size_class::SEAT_PAGES).then_some(Word::at(at))
    }

    #[inline]
    pub(crate) fn seat_word(self, block: BlockId, seat: SeatAt) -> Option<Word> {
        self.block_at(block).seat_word(seat, self.pages())
    }

    /// Returns the generation of a block, which changes each time the block is claimed. Returns 0 for an
    /// invalid block and in a forked child.
    #[inline]
    pub(crate) fn generation(self, block: BlockId) -> u64 {
        if self.0.is_here() && (block as usize) < self.0.holds().len() {
            generation_of(self.map().load(self.block_at(block).link()))
        } else {
            0
        }
    }
}

/// Maximum number of pages of seats that a walk follows. More pages mean that the links form a cycle.
const MOST_PAGES: u32 = 1 << 16;

impl Blocks {
    /// Calls `f` with each seat word of a block. Pages may be linked meanwhile, but every link leads to
    /// seats.
    ///
    /// The order is: the header's seats, then the pages' seats. `FreeCheck` and recovery use the same order,
    /// for the following case. A dead member may have taken a second seat, in the header, without
    /// incrementing the version (`steps::block::child`). A check may read the word of the second seat before
    /// the member takes that seat, and later find the first seat released by recovery. The check then finds
    /// no seat, and the version unchanged. This result is correct only if the second seat is free by then.
    /// The order ensures that: recovery releases the second seat before the first
    /// (`tools/models/tests/models/child_blocks.rs`).
    pub(crate) fn each_seat(self, block: BlockId, mut f: impl FnMut(Word)) {
        let at = self.block_at(block);
        (0..INLINE_SEATS).for_each(|i| f(at.seat(i)));
        let mut link = self.map().load(at.link());
        for _ in 0..MOST_PAGES {
            let Some(first) = link_of(link).and_then(|page| self.seat_page(page)) else { return };
            (0..at.per_page).for_each(|i| f(first.plus((PAGE_HEADER + i).into())));
            link = self.map().load(page_next(first));
        }
    }

    /// Calls `f` with each seat of a member, a message or a block. Seats of dead members count like in
    /// [`other_holders`](crate::Hold::other_holders).
    pub(crate) fn each_holder(self, block: BlockId, mut f: impl FnMut(Seat)) {
        self.each_seat(block, |word| match Seat::unpack(self.map().load(word)) {
            Seat::Free => {}
            Seat::Member(m) if Members(self.0).has_left(m, block) => {}
            holder @ (Seat::Member(_) | Seat::Envelope(_) | Seat::Block(_)) => f(holder),
        });
    }
}

impl Blocks {
    /// Same as [`mark`](crate::Hold::mark), for a block that stays alive during the call.
    #[inline]
    pub(crate) fn mark_of(self, block: BlockId) -> u64 {
        self.generation(block) << 24 | (u64::from(block) + 1)
    }

    /// Returns the block of a mark.
    pub(crate) fn marked(mark: u64) -> Option<BlockId> {
        (mark & 0xff_ffff).checked_sub(1).map(|block| block as BlockId)
    }

    /// Returns `true` if a marked block still has a holder: a process, a message in flight, or a child
    /// object. A block without a holder never has one again. A killed holder counts until another process has
    /// released everything it held.
    #[inline]
    pub fn lives(self, mark: u64) -> bool {
        let Some(block) = Self::marked(mark) else { return false };
        // A block that is in no slab also has words, and is not live.
        if !self.0.is_here() || block as usize >= self.0.holds().len() {
            return false;
        }
        let (map, at) = (self.map(), self.block_at(block));
        let is_same = || generation_of(map.load(at.link())) == mark >> 24;
        // The state is read between two reads of the generation, which differ if the block was freed and
        // claimed meanwhile.
        let same = is_same();
        let state = BlockState::unpack(map.load(at.state));
        same && state.life == BlockLife::Live && is_same()
    }
}

impl Blocks {
    /// Returns the first word and the length in bytes of a ring's memory, or `None` if the block is not a
    /// ring (any more).
    ///
    /// The block remains a ring only as long as it has a holder.
    pub fn ring_memory(self, block: BlockId) -> Option<(Word, u64)> {
        // Read once: if the block has no holder, its slab's class may be about to change.
        let (at, len) = self.existing(block)?;
        let state = BlockState::unpack(self.map().load(self.block_at(block).state));
        (state.life != BlockLife::Free && (state.kind == BlockKind::Ring)).then_some((Word::at(at), len))
    }

    /// Drains a ring that is about to be freed. Returns `false` if this process has no ring layer.
    pub(crate) fn finalize_ring(self, block: BlockId) -> bool {
        let Some(rings) = RINGS.get() else {
            // Only a process with a ring layer may reclaim this process.
            if let Ok(me) = self.me() {
                Members(self.0).note_rings(me);
            }
            return false;
        };
        rings.drain(self.0, self.memory_of(block), block);
        true
    }

    /// Records in a ring that a holder has died, releases the ring, or never received it. This process must
    /// hold the ring.
    pub(crate) fn ring_holder_gone(self, block: BlockId, gone: DetachedProcess, pid: u32) {
        if let Some(rings) = RINGS.get() {
            rings.holder_gone(self.0, self.memory_of(block), block, gone, pid);
        }
    }

    /// Wakes the sleepers of a ring that is held by a dead member, which this process recovers.
    pub(crate) fn wake_ring(self, block: BlockId) {
        if let Some(rings) = RINGS.get() {
            rings.wake(self.0, self.memory_of(block), block);
        }
    }

    /// Returns `true` if a member holds the ring in `block`, by a seat or because it has claimed the ring to
    /// free it. For a dead member, the result is exact if this process recovers the member and has not yet
    /// released its seats in rings.
    pub fn ring_is_held_by(self, block: BlockId, member: Member) -> bool {
        if self.ring_memory(block).is_none() {
            return false;
        }
        let mut held =
            BlockState::unpack(self.map().load(self.block_at(block).state)).life == BlockLife::Busy(member);
        self.each_seat(block, |seat| held |= self.map().load(seat) == Seat::Member(member).pack());
        held
    }
}
