//! The mutations that the torture has to find ([`mutant`](crate::mutant)), where one needs more than a condition.

use std::cell::RefCell;

use crate::mem::Word;
use crate::sync::Ordering;
use crate::sys::Mapping;

/// What a process stores is seen by other processes a few of its accesses later, also after its next
/// read-modify-write: as on a processor with a weak memory order, if none of them released.
fn missing_fence() -> bool {
    mutant!("planted.missing-fence")
}

/// By how many accesses a store is late.
const LATE: u32 = 4;

thread_local! {
    /// Stores that other processes don't see yet, the oldest first, and how many accesses ago they were.
    static STORES: RefCell<Vec<(Word, u64, u32)>> = const { RefCell::new(Vec::new()) };
}

/// What this thread has stored, as long as there is a thread.
fn stores<R>(f: impl FnOnce(&mut Vec<(Word, u64, u32)>) -> R) -> Option<R> {
    if !missing_fence() {
        return None;
    }
    STORES.try_with(|stores| f(&mut stores.borrow_mut())).ok()
}

/// Another access: stores that are old enough are seen now.
#[inline]
pub(crate) fn pass_time(map: &Mapping) {
    stores(|stores| {
        stores.iter_mut().for_each(|(.., age)| *age += 1);
        for (w, v, _) in stores.extract_if(.., |(.., age)| *age > LATE) {
            map.u64_at(w.offset()).store(v, Ordering::Release);
        }
    });
}

/// The thread goes to sleep: all that it has stored is seen before.
pub(crate) fn sleep(map: &Mapping) {
    stores(|stores| {
        stores.drain(..).for_each(|(w, v, _)| map.u64_at(w.offset()).store(v, Ordering::Release))
    });
}

/// Keeps a store back; `false`: it is to be done at once.
#[inline]
pub(crate) fn store_late(w: Word, v: u64) -> bool {
    stores(|stores| stores.push((w, v, 0))).is_some()
}

/// What this thread itself has stored there, if other processes don't see it yet.
#[inline]
pub(crate) fn stored_late(w: Word) -> Option<u64> {
    stores(|stores| stores.iter().rev().find(|(at, ..)| *at == w).map(|&(_, v, _)| v))?
}

/// The stores to this word are seen now.
#[inline]
pub(crate) fn store_now(map: &Mapping, w: Word) {
    stores(|stores| {
        for (_, v, _) in stores.extract_if(.., |(at, ..)| *at == w) {
            map.u64_at(w.offset()).store(v, Ordering::Release);
        }
    });
}
