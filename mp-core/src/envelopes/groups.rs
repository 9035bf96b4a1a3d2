//! Groups of envelopes: return of their memory after a burst, and its reuse.
//!
//! States and proof are in `steps::envelope`. [`Arena::empty_cache`](crate::Arena::empty_cache) returns all
//! memory that it can. In addition, one of the waiting processes counts the free groups every 100 ms.
//! Groups that were free in all counts of a second are surplus, except [`KEPT`] of them. Surplus groups are
//! returned in small parts, so that a new message never waits for all of them. So neither a queue that fills
//! and empties continually, nor the first message after a pause, is slowed down.
//!
//! A put that finds no envelope by hints searches all groups before it returns an error.
//!
//! | word | changed by | killed | consequence |
//! |---|---|---|---|
//! | group | see `steps::envelope` | see `steps::envelope` | see `steps::envelope` |
//! | *absent from* | a process that fills a group sets it to the next group; a process that trims lowers it to the group that it made absent, and increments the high bits | before the change | more memory is used than needed, until all groups are searched |
//! | *absent to* | a process that fills a group raises it; a process that trims lowers it | before the change | free envelopes above it are not found, until all groups are searched |
//! | group map | a process that frees an envelope sets the envelope's hint, then the bit of the group; a process that finds no hint in the group clears the bit, and sets it again if it then finds a hint | after one of two accesses | free envelopes of that group are not found until another of them is freed, or all groups are searched |
//! | idle groups | the counting process | before the change | surplus groups are found a second later |
//!
//! Arenas in private memory keep the memory of their envelopes.

use std::ops::Range;

use crate::envelopes::Envelopes;
use crate::error::Result;
use crate::layout::{ENVELOPE, control, used_groups};
use crate::mem::{Column, Mem, Word, raise, run};
use crate::members::Members;
use crate::setup::Backing;
use crate::steps::{
    AdoptedGroup, EmptyGroup, EnvelopesAt, FillGroup, GroupAt, HintsAt, adopt_group, begin_fill,
};
use crate::words::{EnvelopeId, GroupState, Member, Owner};

/// Number of free groups that keep their memory: 64 groups of 16 KiB.
const KEPT: u32 = 64;
/// Maximum number of groups returned in one part: 256 KiB.
const AT_ONCE: usize = 16;
/// Maximum number of groups that a waiting process returns in one check: 4 MiB, which takes about a
/// millisecond.
const AT_A_LOOK: u32 = 256;
/// Number of counts of idle groups in a second.
const SCANS: u64 = 10;
/// Size of a group in bytes.
const BYTES: u64 = ENVELOPE * GroupState::ENVELOPES as u64;

/// Contents of the word of idle groups: number of counts in this second, minimum number of free groups
/// in these counts, and number of surplus groups.
#[derive(Clone, Copy, Default)]
struct IdleGroups {
    scans: u64,
    least: u32,
    surplus: u32,
}

impl IdleGroups {
    const COUNT: u32 = 24;

    fn pack(self) -> u64 {
        self.scans << (2 * Self::COUNT) | u64::from(self.least) << Self::COUNT | u64::from(self.surplus)
    }

    fn unpack(w: u64) -> Self {
        let count = |w: u64| w as u32 & ((1 << Self::COUNT) - 1);
        Self { scans: w >> (2 * Self::COUNT), least: count(w >> Self::COUNT), surplus: count(w) }
    }

    /// Returns the contents after one more count, which found `free` groups.
    fn observe(self, free: u32) -> Self {
        let least = if self.scans == 0 { free } else { self.least.min(free) };
        match self.scans + 1 {
            SCANS.. => Self { scans: 0, least: 0, surplus: least.saturating_sub(KEPT) },
            scans => Self { scans, least, surplus: self.surplus.min(free.saturating_sub(KEPT)) },
        }
    }
}

impl Envelopes {
    /// Returns the positions of the words of all envelopes.
    pub fn envelopes_at(self) -> EnvelopesAt {
        let groups = Column { base: Word::at(self.layout().groups_at), stride: 8 };
        let (owners, places) = (self.owner_words(), self.place_words());
        EnvelopesAt { count: Word::at(control::ENVELOPES), groups, owners, places }
    }

    fn group_at(self, group: u32) -> GroupAt {
        let (first, len) = (group * GroupState::ENVELOPES, GroupState::ENVELOPES);
        GroupAt { word: self.envelopes_at().groups.of(group), owners: self.owner_words(), first, len }
    }

    pub(crate) fn group(self, group: u32) -> GroupState {
        GroupState::unpack(self.map().load(self.envelopes_at().groups.of(group)))
    }

    /// Returns the word of hints of a group: the envelopes that are probably free.
    pub(crate) fn group_hints(self, group: u32) -> Word {
        Word::at(self.layout().envelope_map_at).plus(group.into())
    }

    /// Returns the word of the group map for a group and its neighbours: the groups that probably have hints.
    fn group_map(self, group: u32) -> Word {
        Word::at(self.layout().group_map_at).plus(u64::from(group / 64))
    }

    /// Returns the positions of a group's hints, and of the group's bit in the group map.
    pub(crate) fn hints_at(self, group: u32) -> HintsAt {
        HintsAt { hints: self.group_hints(group), map: self.group_map(group), bit: 1 << (group % 64) }
    }

    /// Returns the groups among the first `groups` whose bits in the group map are set, in a circle that
    /// begins at `start`.
    pub(crate) fn marked_groups(self, start: u32, groups: u32) -> impl Iterator<Item = u32> + use<> {
        let arena = self.0;
        let words = groups.div_ceil(64);
        // The word of `start` is scanned first and last: from its bit on, and up to its bit.
        let turns = if groups == 0 { 0 } else { words + 1 };
        let marked = (0..turns).flat_map(move |turn| {
            let word = (start / 64 + turn) % words;
            let from = u64::MAX << (start % 64);
            let part = if turn == 0 {
                from
            } else if turn == words {
                !from
            } else {
                u64::MAX
            };
            let mut bits = arena.map().load_relaxed(Envelopes(arena).group_map(word * 64)) & part;
            std::iter::from_fn(move || {
                let group = (bits != 0).then(|| word * 64 + bits.trailing_zeros());
                bits &= bits.wrapping_sub(1);
                group
            })
        });
        marked.filter(move |&group| group < groups)
    }

    /// Returns the number of groups that were ever in use.
    fn used_groups(self) -> u32 {
        used_groups(self.map(), self.layout())
    }

    pub(crate) fn ordinary_groups(self) -> Range<u32> {
        0..self.layout().ordinary() / GroupState::ENVELOPES
    }

    pub(crate) fn share_groups(self) -> Range<u32> {
        self.ordinary_groups().end..self.layout().envelopes / GroupState::ENVELOPES
    }

    /// Returns `true` if an envelope may be in use: its group is in use.
    pub fn may_be_in_use(self, e: EnvelopeId) -> bool {
        let group = e / GroupState::ENVELOPES;
        group < self.used_groups() && self.group(group).is_scanned()
    }

    /// Returns all envelopes that may be in use, beginning at `from`, which is the first envelope of a group.
    pub fn envelopes_in_use(self, from: EnvelopeId) -> impl Iterator<Item = EnvelopeId> + use<> {
        let arena = self.0;
        let groups = (from / GroupState::ENVELOPES..Envelopes(arena).used_groups())
            .filter(move |&g| Envelopes(arena).group(g).is_scanned());
        groups.flat_map(|group| group * GroupState::ENVELOPES..(group + 1) * GroupState::ENVELOPES)
    }

    /// Calls `f` with each envelope that may be in use, in groups that a member in one of these slots has
    /// touched.
    pub(crate) fn each_touched(
        self,
        slots: impl Iterator<Item = u32> + Clone,
        mut f: impl FnMut(EnvelopeId),
    ) {
        Members(self.0).each_touched_group(slots, |group| {
            if self.group(group).is_scanned() {
                (group * GroupState::ENVELOPES..(group + 1) * GroupState::ENVELOPES).for_each(&mut f);
            }
        });
    }

    /// Returns the number of groups to search for an envelope: all groups that were ever in use, or, without
    /// `all`, only the groups below the hint *absent to*.
    pub(crate) fn groups_to_look_at(self, all: bool) -> u32 {
        let last = if all { u64::MAX } else { self.map().load_relaxed(Word::at(control::ABSENT_TO)) };
        let used = self.used_groups().min(self.ordinary_groups().end);
        used.min(u32::try_from(last).unwrap_or(u32::MAX))
    }

    /// Returns `true` if some group of this range has no memory and could get memory.
    pub(crate) fn could_fill(self, mut of: Range<u32>) -> bool {
        let used = self.used_groups();
        used < of.end || of.any(|group| matches!(self.group(group), GroupState::Absent { .. }))
    }

    /// Adds 64 envelopes by filling an absent group of this range. With `all`, searches the whole range for
    /// such a group. Otherwise begins the search at the hint *absent from*.
    pub(crate) fn more_envelopes(self, of: Range<u32>, all: bool) -> Result<()> {
        let me = self.me()?;
        let hint_at = Word::at(control::ABSENT_FROM);
        loop {
            let (used, hint) = (self.used_groups(), self.map().load(hint_at));
            let from = if all { of.start } else { hint as u32 };
            let absent = |&group: &u32| matches!(self.group(group), GroupState::Absent { .. });
            let found = (from..used.min(of.end)).find(absent);
            if !all {
                // Fails if a group has become absent meanwhile, which increments the high bits.
                let next = found.map_or(used.min(of.end), |group| group + 1);
                _ = self.map().cas(hint_at, hint, hint >> 32 << 32 | u64::from(next));
            }
            match found {
                Some(group) if self.fill_group(group, me)? => return Ok(()),
                Some(_) => {}
                None if used < of.end => self.use_group(used)?,
                None => return Err(self.out_of_envelopes()),
            }
        }
    }

    /// Adds the group to the groups that were ever in use. Its envelopes still have no memory.
    fn use_group(self, group: u32) -> Result<()> {
        for word in [self.group_hints(group), self.group_map(group), self.group_at(group).word] {
            self.0.commit(word.offset() & !4095, 4096)?;
        }
        let used = u64::from(group) * u64::from(GroupState::ENVELOPES);
        _ = self.map().cas(Word::at(control::ENVELOPES), used, used + u64::from(GroupState::ENVELOPES));
        Ok(())
    }

    /// Reserves the memory of an absent group, and initializes its envelopes. Returns `false` if the group
    /// was not absent.
    fn fill_group(self, group: u32, me: Member) -> Result<bool> {
        let at = self.group_at(group);
        let GroupState::Absent { base } = self.group(group) else { return Ok(false) };
        // Reserved first, so no process reads missing memory, and a failure leaves the group absent.
        if let Err(e) = self.0.commit(self.layout().envelopes_at + u64::from(group) * BYTES, BYTES) {
            self.note_absent(group);
            return Err(e);
        }
        Members(self.0).touch_group_of(me, group * GroupState::ENVELOPES);
        if !begin_fill(at, me, base, self.map()) {
            return Ok(false);
        }
        run(FillGroup::new(at, base), self.map());
        raise(self.map(), Word::at(control::ABSENT_TO), u64::from(group) + 1);
        self.hint_group(group, u64::MAX);
        Ok(true)
    }

    /// Lowers the hint *absent from* to a group that has no memory.
    fn note_absent(self, group: u32) {
        let at = Word::at(control::ABSENT_FROM);
        let mut found = self.map().load(at);
        while let Err(other) = self.map().cas(at, found, self.absent_too(found, group)) {
            found = other;
        }
    }

    fn absent_too(self, hint: u64, group: u32) -> u64 {
        let from = (hint as u32).min(group);
        (hint >> 32).wrapping_add(1) << 32 | u64::from(from)
    }

    /// Returns `true` if a group is in use and all of its envelopes are free, according to hints.
    fn seems_free(self, group: u32) -> bool {
        self.map().load_relaxed(self.group_hints(group)) == u64::MAX && self.group(group) == GroupState::InUse
    }

    /// Returns the memory of free groups to the kernel, beginning with the last group. Keeps `kept` free
    /// groups, and returns at most `most` groups. The result is the number of returned groups.
    pub(crate) fn trim_envelopes(self, me: Member, kept: u32, most: u32) -> u32 {
        if self.0.is_local() {
            return 0;
        }
        let ordinary = self.trim_part(self.ordinary_groups(), me, kept.max(1), most);
        let share = self.trim_part(self.share_groups(), me, 1, most.saturating_sub(ordinary));
        let given = ordinary + share;
        if given > 0 {
            let in_use = (0..self.used_groups()).rfind(|&group| self.group(group).is_scanned());
            let end = in_use.map_or(0, |last| u64::from(last) + 1);
            self.map().store(Word::at(control::ABSENT_TO), end);
        }
        given
    }

    /// Returns the memory of free groups in this range to the kernel, in parts of at most half of the
    /// remaining free groups. No put can use the groups of the current part. So if this process is stopped
    /// here, the other half remains for puts.
    fn trim_part(self, of: Range<u32>, me: Member, kept: u32, most: u32) -> u32 {
        let (used, kept) = (self.used_groups(), kept as usize);
        let free: Vec<u32> = (of.start..of.end.min(used)).filter(|&group| self.seems_free(group)).collect();
        let (mut left, mut most, mut given) = (free.len(), most as usize, 0);
        while left > kept && most > 0 {
            let part = (left - kept).min(most).min(AT_ONCE).min((left / 2).max(1));
            let chosen = &free[left - part..left];
            given += chosen.chunk_by(|a, b| a + 1 == *b).map(|run| self.trim_groups(run, me)).sum::<u32>();
            (left, most) = (left - part, most - part);
        }
        given
    }

    /// Returns the memory of the free groups among these adjacent groups to the kernel. The result is the
    /// number of these free groups.
    fn trim_groups(self, groups: &[u32], me: Member) -> u32 {
        let mut emptying: Vec<(u32, u64)> = Vec::with_capacity(groups.len());
        for &group in groups {
            let hints = self.group_hints(group);
            Members(self.0).touch_group_of(me, group * GroupState::ENVELOPES);
            let taken = self.map().and(hints, 0);
            let base =
                (taken == u64::MAX).then(|| run(EmptyGroup::new(self.group_at(group), me), self.map()));
            match base.flatten() {
                Some(base) => emptying.push((group, base)),
                None => self.hint_free_ones(group),
            }
        }
        for run in emptying.chunk_by(|a, b| a.0 + 1 == b.0) {
            self.make_absent(run);
        }
        emptying.len() as u32
    }

    /// Sets the hints of the free envelopes of a group that could not be emptied.
    fn hint_free_ones(self, group: u32) {
        if self.group(group) == GroupState::InUse {
            let first = group * GroupState::ENVELOPES;
            let free = |i: &u32| {
                let word = self.map().load(self.owner_words().of(first + i));
                Owner::claimable(word).is_some()
            };
            let bits = (0..GroupState::ENVELOPES).filter(free).map(|i| 1 << i).sum();
            self.hint_group(group, bits);
        }
    }

    /// Completes the emptying of adjacent groups: returns their memory, and marks them as absent.
    fn make_absent(self, emptying: &[(u32, u64)]) {
        let Some(&(first, _)) = emptying.first() else { return };
        let (at, len) =
            (self.layout().envelopes_at + u64::from(first) * BYTES, emptying.len() as u64 * BYTES);
        let taken = Backing(self.0).punch_at(at, len);
        for &(group, base) in emptying {
            if !taken {
                // The kernel has kept the memory. The words must read as in new memory.
                self.clear_owners(group);
            }
            self.map().store(self.group_at(group).word, GroupState::Absent { base }.pack());
            self.note_absent(group);
        }
    }

    fn clear_owners(self, group: u32) {
        let first = group * GroupState::ENVELOPES;
        (first..first + GroupState::ENVELOPES).for_each(|e| self.map().store(self.owner_words().of(e), 0));
    }

    /// Completes the emptying and filling of groups that dead members in these slots had begun.
    pub(crate) fn reclaim_groups(
        self,
        slots: impl Iterator<Item = u32> + Clone,
        theirs: impl Fn(Member) -> bool,
        me: Member,
    ) {
        Members(self.0).each_touched_group(slots, |group| {
            let at = self.group_at(group);
            let found = self.map().load(at.word);
            let (GroupState::Emptying { by, .. } | GroupState::Filling { by, .. }) =
                GroupState::unpack(found)
            else {
                return;
            };
            if !theirs(by) {
                return;
            }
            Members(self.0).touch_group_of(me, group * GroupState::ENVELOPES);
            match adopt_group(at, me, found, self.map()) {
                None => {}
                Some(AdoptedGroup::ToEmpty(base)) => self.make_absent(&[(group, base)]),
                Some(AdoptedGroup::ToFill(base)) => {
                    run(FillGroup::new(at, base), self.map());
                    raise(self.map(), Word::at(control::ABSENT_TO), u64::from(group) + 1);
                }
            }
        });
    }

    /// Returns the number of groups that some process is emptying or filling. For tests that kill the process
    /// meanwhile.
    #[cfg(feature = "inject")]
    #[doc(hidden)]
    pub fn unfinished_groups(self) -> usize {
        let unfinished =
            |group: &u32| !matches!(self.group(*group), GroupState::InUse | GroupState::Absent { .. });
        (0..self.used_groups()).filter(unfinished).count()
    }

    /// Counts the free groups, and returns the memory of some groups that were free for a second. While any
    /// process waits, one process calls this every 100 ms.
    pub(crate) fn trim_idle_envelopes(self, me: Member) {
        let free = (0..self.groups_to_look_at(false)).filter(|&group| self.seems_free(group)).count() as u32;
        let at = Word::at(control::IDLE_GROUPS);
        let mut idle = IdleGroups::unpack(self.map().load(at)).observe(free);
        if idle.surplus > 0 {
            idle.surplus -= self.trim_envelopes(me, KEPT, idle.surplus.min(AT_A_LOOK)).min(idle.surplus);
        }
        self.map().store(at, idle.pack());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups that were free for a second are surplus. Groups in use in one of the counts are not.
    #[test]
    fn envelope_groups_idle_for_a_second_are_surplus() {
        let surplus_after = |free: &[u32]| {
            free.iter()
                .fold(IdleGroups::default(), |idle, &free| IdleGroups::unpack(idle.observe(free).pack()))
        };
        assert_eq!(surplus_after(&[1000; 9]).surplus, 0);
        assert_eq!(surplus_after(&[1000; 10]).surplus, 1000 - KEPT);
        assert_eq!(
            surplus_after(&[1000, 1000, 1000, 1000, 100, 1000, 1000, 1000, 1000, 1000]).surplus,
            100 - KEPT
        );
        assert_eq!(surplus_after(&[KEPT; 30]).surplus, 0);
        // Groups that are in use by now are no longer surplus.
        let idle = IdleGroups { surplus: 500, ..IdleGroups::default() };
        assert_eq!(idle.observe(KEPT + 7).surplus, 7);
        assert_eq!(idle.observe(0).surplus, 0);
    }
}
