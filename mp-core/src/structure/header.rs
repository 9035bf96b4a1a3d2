//! Header of a structure: the first 64 bytes of its block.
//!
//! | word | contents | written by |
//! |---|---|---|
//! | 0 | mark of a structure | its creator, before any other code knows the block |
//! | 1 | fingerprint of its name | its creator |
//! | 2 | number of words after the header | its creator |
//! | 3 – 6 | a name for people, 32 bytes; zeros: none | its creator; any holder later |
//! | 7 | the descriptor that it keeps in the locker: see `messages::object_descriptors`; zero: none | its creator; a holder later |
//! | 7, of a child | its seat in its parent: see `alloc::children` | its creator |
//!
//! The block has kind [`Object`](BlockKind::Object) from its creation, and only this crate creates such
//! blocks. So every header in such a block was written here, and its words are accessed only through the
//! structure.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::wait_table;
use crate::mem::{Mem, Word};
use crate::words::{BlockId, BlockKind};

/// Mark of a structure, in word 0.
const STRUCTURE: u64 = wait_table::STRUCTURE;

/// Contents of a header, to compare with the expected ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    fingerprint: u64,
    words: u64,
}

impl Header {
    /// Bytes before the words.
    pub(super) const BYTES: u64 = 8 * wait_table::STRUCTURE_WORDS;

    /// Creates a header for `words` words of the structure that a layer above calls `name`.
    pub(super) fn new(name: &str, words: u64) -> Self {
        Self { fingerprint: crate::fnv1a(name.as_bytes()), words }
    }

    fn base(arena: Arena, block: BlockId) -> Word {
        Word::at(Blocks(arena).data_of(block).0)
    }

    /// Returns the first word after the header.
    pub(super) fn data(arena: Arena, block: BlockId) -> Word {
        Word::at(Self::base(arena, block).offset() + Self::BYTES)
    }

    /// Allocates a block and writes the header. The words after it are unspecified.
    pub(super) fn allocate(self) -> Result<Hold> {
        let arena = Arena::current()?;
        let too_many = || Allocator(arena).too_large(u64::MAX);
        let bytes = self.words.checked_mul(8).and_then(|n| n.checked_add(Self::BYTES));
        let hold = Allocator(arena).alloc_kind(bytes.ok_or_else(too_many)?, BlockKind::Object)?;
        let base = Self::base(arena, hold.block());
        let words = [STRUCTURE, self.fingerprint, self.words].into_iter().chain([0; 5]);
        words.zip(0..).for_each(|(v, i)| arena.map().store_relaxed(base.plus(i), v));
        Ok(hold)
    }

    /// Checks that a received block is a structure with this name, whose fingerprint is passed as well.
    /// Returns its number of words.
    pub(super) fn check(hold: &Hold, name: &str, fingerprint: u64) -> Result<u64> {
        if hold.is_nowhere() {
            return Err(wrong(name, "it is no structure at all"));
        }
        Self::check_block(hold.arena(), hold.block(), name, fingerprint)
    }

    /// Checks a block like [`check`](Self::check). The caller guarantees that the block has a holder
    /// meanwhile.
    pub(super) fn check_block(arena: Arena, block: BlockId, name: &str, fingerprint: u64) -> Result<u64> {
        arena.me()?;
        let wrong = |why: &str| wrong(name, why);
        if !Blocks(arena).kind_of(block).is_object() {
            return Err(wrong("it is no structure at all"));
        }
        let base = Self::base(arena, block);
        let word = |i| arena.map().load(base.plus(i));
        let (structure, found, words) = (word(0), word(1), word(2));
        if (structure, found) != (STRUCTURE, fingerprint) {
            return Err(wrong("it is another structure"));
        }
        let room = Blocks(arena).data_of(block).1.saturating_sub(Self::BYTES) / 8;
        if words > room {
            return Err(wrong(&format!(
                "it says that it has {words} words, in a block with room for {room}"
            )));
        }
        Ok(words)
    }
}

#[cold]
fn wrong(name: &str, why: &str) -> Error {
    Error::Malformed(format!("the attachment is no {name}: {why}"))
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes long")]
    fn block_with_another_header_is_rejected() {
        let hold = Header::new("test::One", 3).allocate().unwrap();
        let check = |name: &str| Header::check(&hold, name, crate::fnv1a(name.as_bytes()));
        assert_eq!(check("test::One").unwrap(), 3);
        let refused = |name| check(name).unwrap_err().to_string();
        assert!(refused("test::Other").contains("another structure"), "{}", refused("test::Other"));
        // More words than the block has.
        let base = Header::base(hold.arena(), hold.block());
        hold.arena().map().store(base.plus(2), 1 << 20);
        assert!(refused("test::One").contains("room for"), "{}", refused("test::One"));
        hold.arena().map().store(base, 0);
        assert!(refused("test::One").contains("another structure"), "{}", refused("test::One"));
    }
}
