//! Shared words without an arena.

use super::{Mem, Word, atomic_accesses, order};
use crate::sync::{AtomicU64, Mutex, Ordering, fence};

/// Shared words in a `Vec` of this process, for loom, explorations and tests without an arena.
///
/// Word `Word::at(8 * i)` is the `i`-th element.
#[derive(Debug)]
pub struct HeapMem {
    words: Vec<AtomicU64>,
    /// Locked while two words are changed as one.
    pairs: Mutex<()>,
}

impl HeapMem {
    /// Creates `len` words, all zero.
    pub fn new(len: usize) -> Self {
        Self { words: (0..len).map(|_| AtomicU64::new(0)).collect(), pairs: Mutex::new(()) }
    }

    fn at(&self, w: Word) -> &AtomicU64 {
        &self.words[(w.offset() / 8) as usize]
    }
}

impl Mem for HeapMem {
    atomic_accesses!(at);

    fn has_pairs(&self) -> bool {
        true
    }
    /// Changes the words one after the other. The swap of the first word decides. A non-zero second word is
    /// written before the swap, a zero second word after the swap. So a thread that has read the first word
    /// also reads the matching second word, provided that the second word is 0 before it gets a non-zero
    /// value.
    fn cas_pair(&self, w: Word, old: [u64; 2], new: [u64; 2]) -> bool {
        let Ok(_alone) = self.pairs.lock() else { return false };
        let (first, second) = (self.at(w), self.at(w.plus(1)));
        if first.load(order::load()) != old[0] || second.load(order::load()) != old[1] {
            return false;
        }
        if new[1] != 0 {
            second.store(new[1], order::store());
        }
        let swapped = first.compare_exchange(old[0], new[0], order::cas(), order::cas_failure()).is_ok();
        if swapped && new[1] == 0 || !swapped && new[1] != 0 {
            second.store(if swapped { 0 } else { old[1] }, order::store());
        }
        swapped
    }
}
