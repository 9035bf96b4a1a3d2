//! Tables of slabs and blocks: the memory, kind, seats and generation of each block.
//!
//! `holders` reads the seats of a block, `marks` names a block without holding it, and `rings` calls the
//! layer of queues for a block that is a ring.

pub(crate) mod holders;
pub(crate) mod marks;
pub(crate) mod rings;

use crate::arena::{Arena, view};
use crate::layout::size_class::{self, blocks_of, size_of};
use crate::layout::{self, SLAB_BLOCKS};
use crate::mem::{Mem, Word};
use crate::steps::{BlockAt, INLINE_SEATS, PAGE_HEADER, SlabSnapshot, generation_of};
use crate::sync::Ordering;
use crate::words::{BlockId, BlockKind, BlockState, SeatAt};

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

    /// Returns the offset of a block's memory, if the block exists.
    #[inline]
    pub(crate) fn existing(self, block: BlockId) -> Option<u64> {
        let (slab, index) = (block / SLAB_BLOCKS, block % SLAB_BLOCKS);
        if slab >= self.slab_count() {
            return None;
        }
        let (class, base) = self.slab(slab)?;
        (index < blocks_of(class)).then(|| base + u64::from(index) * size_of(class))
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

    /// Returns the kind of a held block.
    pub(crate) fn kind_of(self, block: BlockId) -> BlockKind {
        BlockState::unpack(self.map().load(self.block_at(block).state)).kind
    }

    /// Returns the kind of a block, if there is one of this number.
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

    /// Makes a held [`BlockKind::Data`] block frozen or shared, before any such handle exists. A block of
    /// another kind is unchanged.
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

    /// Returns the first word of a page of seats, or `None` if the block is not a page of seats. A block that
    /// is a page of seats stays one.
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
