//! Cheap counts of operations. Each thread counts in the cache line of its own lane, which no other thread
//! writes. So an allocation costs a few stores to a line in this core's cache.
//!
//! Counts remain when a member leaves: they are sums over all members that ever had the lane. A process that
//! is killed while it allocates or frees a block may leave that block uncounted. Nothing depends on the
//! counts.

use crate::alloc::Allocator;
use crate::layout::control;
use crate::mem::{Mem, Word, raise};
use crate::members::{Members, intents};
use crate::words::Member;

/// Positions of a lane's words, relative to its intent word.
const ALLOCS: u64 = 1;
const FREES: u64 = 2;
const ALLOCATED: u64 = 3;
const FREED: u64 = 4;
const FRESH: u64 = 5;
/// Bytes allocated since the peak was last checked.
const UNSEEN: u64 = 6;
/// Bytes in large blocks that were freed since a thread last checked whether too many are cached.
const RETURNED: u64 = 7;

/// Number of bytes that a thread allocates before it checks the peak again.
const LOOK_EVERY: u64 = 4 << 20;

/// Sums over all lanes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Number of allocations whose pages had to be reserved first.
    pub(crate) fresh: u64,
    allocated: u64,
    freed: u64,
}

impl Counts {
    /// Returns the number of bytes in held blocks, according to the counts.
    pub(crate) fn held(&self) -> u64 {
        self.allocated.saturating_sub(self.freed)
    }
}

impl Allocator {
    /// Adds to a word that only this thread writes, and returns the sum.
    #[inline]
    fn bump(self, at: Word, by: u64) -> u64 {
        let sum = self.map().load_relaxed(at).wrapping_add(by);
        self.map().store_relaxed(at, sum);
        sum
    }

    #[inline(always)]
    fn in_lane<R>(self, me: Member, f: impl FnOnce(Word) -> R) -> R {
        intents::with(|lane| Members(self.0).note_lane(me, lane), |lane| f(self.layout().intent(me, lane)))
    }

    /// Counts a block that this process has made live.
    #[inline]
    pub(crate) fn count_alloc(self, me: Member, bytes: u64, fresh: bool) {
        let look = self.in_lane(me, |lane| {
            self.bump(lane.plus(ALLOCS), 1);
            self.bump(lane.plus(ALLOCATED), bytes);
            if fresh {
                self.bump(lane.plus(FRESH), 1);
            }
            let look = self.bump(lane.plus(UNSEEN), bytes) >= LOOK_EVERY;
            if look {
                self.map().store_relaxed(lane.plus(UNSEEN), 0);
            }
            look
        });
        if look {
            raise(self.map(), Word::at(control::PEAK_ALLOCATED), self.counts().held());
        }
    }

    /// Counts a block of `bytes` bytes that this process has freed.
    #[inline]
    pub(crate) fn count_free(self, bytes: u64) {
        let Ok(me) = self.me() else { return };
        let returned = self.in_lane(me, |lane| {
            self.bump(lane.plus(FREES), 1);
            self.bump(lane.plus(FREED), bytes);
            if bytes < crate::alloc::trim::LARGE {
                return 0;
            }
            self.bump(lane.plus(RETURNED), bytes)
        });
        if returned != 0 && self.trim_if_due(me, returned) {
            self.in_lane(me, |lane| self.map().store_relaxed(lane.plus(RETURNED), 0));
        }
    }

    /// Returns the sums over all lanes.
    pub(crate) fn counts(self) -> Counts {
        let mut c = Counts::default();
        for (slot, _) in Members(self.0).used_slots() {
            for lane in Members(self.0).lanes_ever(slot) {
                let read = |word| self.map().load_relaxed(lane.plus(word));
                c.allocs += read(ALLOCS);
                c.frees += read(FREES);
                c.fresh += read(FRESH);
                c.allocated = c.allocated.wrapping_add(read(ALLOCATED));
                c.freed = c.freed.wrapping_add(read(FREED));
            }
        }
        c
    }
}
