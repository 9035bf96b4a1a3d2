//! Stores that become visible late: the mutation `planted.missing-fence`. Only the copy of the sources that
//! `cargo xtask mutate` makes has this file.

use std::cell::RefCell;

use crate::mem::Word;
use crate::sync::Ordering;
use crate::sys::Mapping;

/// Returns `true` if the mutation `planted.missing-fence` is switched on. In that case, stores become visible
/// to other processes a few accesses late, even if a read-modify-write follows. A processor with a weak
/// memory order shows the same effect if a release is missing.
fn missing_fence() -> bool {
    mutant!("planted.missing-fence")
}

/// Number of accesses by which a store is late.
const LATE: u32 = 4;

thread_local! {
    /// Stores that other processes can't see yet, oldest first, with their age in accesses.
    static STORES: RefCell<Vec<(Word, u64, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the stores of this thread, until the thread's data is destroyed.
fn stores<R>(f: impl FnOnce(&mut Vec<(Word, u64, u32)>) -> R) -> Option<R> {
    if !missing_fence() {
        return None;
    }
    STORES.try_with(|stores| f(&mut stores.borrow_mut())).ok()
}

/// Counts one access. Stores that are old enough become visible.
#[inline]
pub(crate) fn pass_time(map: &Mapping) {
    stores(|stores| {
        stores.iter_mut().for_each(|(.., age)| *age += 1);
        for (w, v, _) in stores.extract_if(.., |(.., age)| *age > LATE) {
            map.u64_at(w.offset()).store(v, Ordering::Release);
        }
    });
}

/// Makes all stores visible, before the thread sleeps.
pub(crate) fn sleep(map: &Mapping) {
    stores(|stores| {
        stores.drain(..).for_each(|(w, v, _)| map.u64_at(w.offset()).store(v, Ordering::Release))
    });
}

/// Delays a store. Returns `false` if the mutation is off.
#[inline]
pub(crate) fn store_late(w: Word, v: u64) -> bool {
    stores(|stores| stores.push((w, v, 0))).is_some()
}

/// Returns the value that this thread has stored in a word, if the store is not visible yet.
#[inline]
pub(crate) fn stored_late(w: Word) -> Option<u64> {
    stores(|stores| stores.iter().rev().find(|(at, ..)| *at == w).map(|&(_, v, _)| v))?
}

/// Makes the stores to this word visible.
#[inline]
pub(crate) fn store_now(map: &Mapping, w: Word) {
    pass_time(map);
    stores(|stores| {
        for (_, v, _) in stores.extract_if(.., |(at, ..)| *at == w) {
            map.u64_at(w.offset()).store(v, Ordering::Release);
        }
    });
}
