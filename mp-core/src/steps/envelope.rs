//! Groups of 64 envelopes, whose memory is committed and returned together, and hints of free envelopes.
//!
//! An envelope's owner word is also read by processes that don't own the envelope: a consumer that has lost a
//! message to another consumer, a recovering process, a pass over all envelopes. So the word stays at its
//! address while the memory is returned. It reads as zero, a value that no envelope in use has. Zero can't be
//! claimed ([`Owner::claimable`]). Only the process that fills the group swaps a zero word.
//!
//! # Words of a group, and the processes that change them
//! | word | states | changed by |
//! |---|---|---|
//! | group | `ABSENT(base)` | a process that needs envelopes, after the kernel has committed memory → `FILLING(me, base)` |
//! |  | `FILLING(m, base)` | `m` → `IN USE`; if `m` is dead, the process that reclaims it → `FILLING(me, base)` |
//! |  | `IN USE` | the owner of all of its envelopes → `EMPTYING(me, base)` |
//! |  | `EMPTYING(m, base)` | `m` → `ABSENT(base)`; if `m` is dead, the process that reclaims it → `EMPTYING(me, base)` |
//! | owner of each envelope | see [`Owner`] | in `FILLING`, also 0 → `FREE(base)`, by the process named there; in `EMPTYING`, the kernel makes it 0 |
//!
//! A process that empties a group first claims each of its envelopes, like for use. Then no other process
//! owns one of them, and the process owns the group. The base is later than all sequence numbers of the
//! group's envelopes.
//!
//! In `FILLING`, a process can claim an envelope whose owner word is already written, by a hint that it took
//! before the group was emptied. So passes over all envelopes include a group that is being filled. A group
//! that is being filled has memory, which the kernel committed before the swap to `FILLING`. That swap fails
//! if another process used the group after the memory was committed, since the group's base is then
//! different. So no pass reads uncommitted memory, and a reclaiming process can complete the work.
//!
//! # Effects of a death
//! | killed process | remaining state | the reclaim |
//! |---|---|---|
//! | claiming the envelopes | some of them `MEMBER(dead)` | frees them, like idle ones |
//! | returning the memory | `EMPTYING(dead, base)`; words that are `MEMBER(dead)` or 0 | takes over the group, returns the memory once more |
//! | between committing memory and the swap | an absent group with 16 KiB of zeros | does nothing: the memory is used when the group is filled |
//! | writing words | `FILLING(dead, base)` | takes over the group, and writes the remaining owner words |
//! | after filling, before setting the hints | envelopes without hints | sets the hints |
//!
//! A process that is stopped at one of these points blocks the group's envelopes, but no other process: a
//! process empties few groups at once, and at most half of the free ones (`envelopes::groups`).
//!
//! # Groups with hints
//! The group map has one bit for each group with hints, so that a search does not check all groups.
//!
//! A freeing process writes the hint and then checks the bit. A taker that finds no hint clears the bit and
//! then checks the hints again. In both, a full barrier separates the two accesses. So at least one of the
//! two processes reads the other's write, and the bit of a group with hints is set.
//!
//! | killed process | remaining state |
//! |---|---|
//! | a freeing process, between the hint and the bit | free envelopes that are not found until another envelope of the group is freed, or a put has searched all groups |
//! | a taker, between the bit and its second check | if a hint was set meanwhile: free envelopes that are not found until another envelope of the group is freed, or a put has searched all groups |
//!
//! Checked by `loom_group_of_a_freed_envelope_stays_marked`.

use crate::mem::{Column, Mem, Steps, Word};
use crate::words::{EnvelopeId, GroupState, Holder, Member, Owner};

/// Positions of the words of all envelopes, for passes over all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EnvelopesAt {
    /// Word with the number of envelopes that were ever in use, a multiple of 64.
    pub count: Word,
    /// Words of the groups.
    pub groups: Column,
    /// Owner words.
    pub owners: Column,
    /// Words with the ring and slot of each queued envelope.
    pub places: Column,
}

impl EnvelopesAt {
    /// Returns the word of an envelope's group.
    pub const fn group_of(&self, e: EnvelopeId) -> Word {
        self.groups.of(e / GroupState::ENVELOPES)
    }
}

/// Position of a member's bits for groups of envelopes. The member sets the bit of a group before its
/// intent names an envelope of the group, before an owner word or the word of the group names the member, and
/// before it takes hints of the group. It never clears a bit, so a recovery of the member reads no other
/// groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TouchedGroups(Word);

impl TouchedGroups {
    /// Creates the position of bits that begin at `first`.
    pub const fn at(first: Word) -> Self {
        Self(first)
    }

    /// Returns the word with the bit of a group. The word has bits of 64 groups.
    pub const fn word(self, group: u32) -> Word {
        self.0.plus(group as u64 / 64)
    }

    const fn bit(e: EnvelopeId) -> u64 {
        1 << (e / GroupState::ENVELOPES % 64)
    }

    /// Returns `true` if the bit of an envelope's group is set. Makes one access.
    #[inline(always)]
    pub fn has<M: Mem + ?Sized>(self, m: &M, e: EnvelopeId) -> bool {
        m.load_relaxed(self.word(e / GroupState::ENVELOPES)) & Self::bit(e) != 0
    }

    /// Sets the bit of an envelope's group if it is not set.
    #[inline]
    pub fn touch<M: Mem + ?Sized>(self, m: &M, e: EnvelopeId) {
        if !self.has(m, e) {
            self.add(m, e);
        }
    }

    /// Sets the bit of an envelope's group, without reading it first. Makes one access.
    #[inline]
    pub fn add<M: Mem + ?Sized>(self, m: &M, e: EnvelopeId) {
        m.or(self.word(e / GroupState::ENVELOPES), Self::bit(e));
    }
}

/// Positions of the words of one group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupAt {
    /// Word of the group.
    pub word: Word,
    /// Owner words of all envelopes.
    pub owners: Column,
    /// First envelope of the group.
    pub first: EnvelopeId,
    /// Number of envelopes in the group.
    pub len: u32,
}

impl GroupAt {
    const fn owner(&self, i: u32) -> Word {
        self.owners.of(self.first + i)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum EmptyPc {
    Load,
    Owner,
    Claim(u64),
    Announce,
    Owned,
    Free(Owner),
}

/// Claims all envelopes of a group: `IN USE → EMPTYING(me, base)`. Ends with the base, or `None` if one of
/// them is not free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EmptyGroup {
    at: GroupAt,
    me: Member,
    claimed: u32,
    latest: Option<u64>,
    pc: EmptyPc,
}

impl EmptyGroup {
    /// Creates the steps to empty a group.
    pub fn new(at: GroupAt, me: Member) -> Self {
        Self { at, me, claimed: 0, latest: None, pc: EmptyPc::Load }
    }

    fn base(&self) -> u64 {
        Owner::free(self.latest.unwrap_or(0) + 1).seq
    }

    /// Begins to free the envelope that was claimed last. Ends the steps if no envelope is claimed.
    fn back(&mut self) -> Option<Option<u64>> {
        if self.claimed == 0 {
            return Some(None);
        }
        self.claimed -= 1;
        self.pc = EmptyPc::Owned;
        None
    }
}

impl Steps for EmptyGroup {
    type Out = Option<u64>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            EmptyPc::Load => {
                if GroupState::unpack(m.load(self.at.word)) != GroupState::InUse {
                    return Some(None);
                }
                self.pc = EmptyPc::Owner;
            }
            EmptyPc::Owner => {
                let found = m.load(self.at.owner(self.claimed));
                if Owner::claimable(found).is_none() {
                    return self.back();
                }
                self.pc = EmptyPc::Claim(found);
            }
            EmptyPc::Claim(found) => {
                let mine = Owner::unpack(found).then(Holder::Member(self.me));
                if m.cas(self.at.owner(self.claimed), found, mine.pack()).is_err() {
                    return self.back();
                }
                self.claimed += 1;
                self.latest = Some(self.latest.map_or(mine.seq, |latest| Owner::later(latest, mine.seq)));
                self.pc = if self.claimed < self.at.len { EmptyPc::Owner } else { EmptyPc::Announce };
            }
            EmptyPc::Announce => {
                let base = self.base();
                let emptying = GroupState::Emptying { by: self.me, base };
                // The swap can only fail if the word is corrupt: this process owns the envelopes.
                if m.cas(self.at.word, GroupState::InUse.pack(), emptying.pack()).is_err() {
                    return self.back();
                }
                return Some(Some(base));
            }
            EmptyPc::Owned => {
                let owner = Owner::unpack(m.load(self.at.owner(self.claimed)));
                self.pc = EmptyPc::Free(owner);
            }
            EmptyPc::Free(owner) => {
                m.store(self.at.owner(self.claimed), owner.freed().pack());
                return self.back();
            }
        }
        None
    }
}

/// Begins to fill an absent group, after its memory was committed: `ABSENT(base) → FILLING(me, base)`.
/// Returns `false` if another process has used the group since the caller read `base`: the group then has
/// another base.
pub fn begin_fill<M: Mem + ?Sized>(at: GroupAt, me: Member, base: u64, m: &M) -> bool {
    let (absent, filling) = (GroupState::Absent { base }, GroupState::Filling { by: me, base });
    m.cas(at.word, absent.pack(), filling.pack()).is_ok()
}

/// Writes the owner words of a group that this process fills and that has memory: `FILLING(me, base) → IN
/// USE`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FillGroup {
    at: GroupAt,
    base: u64,
    written: u32,
}

impl FillGroup {
    /// Creates the steps for a group whose sequences begin at `base`.
    pub fn new(at: GroupAt, base: u64) -> Self {
        Self { at, base, written: 0 }
    }
}

impl Steps for FillGroup {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        if self.written == self.at.len {
            m.store(self.at.word, GroupState::InUse.pack());
            return Some(());
        }
        let (word, free) = (self.at.owner(self.written), Owner::free(self.base).pack());
        // A non-zero word is from the dead process whose work this continues; it may be claimed by now.
        _ = m.cas(word, 0, free);
        self.written += 1;
        None
    }
}

/// State of a group that a reclaiming process has taken over, with the remaining work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AdoptedGroup {
    /// The group is `EMPTYING(me, base)`: return its memory, then make it `ABSENT(base)`.
    ToEmpty(u64),
    /// The group is `FILLING(me, base)` and has memory: [`FillGroup`].
    ToFill(u64),
}

/// Takes over a group whose word is `found`, which names a dead process that was emptying or filling it.
/// Returns `None` if another process was faster.
pub fn adopt_group<M: Mem + ?Sized>(at: GroupAt, by: Member, found: u64, m: &M) -> Option<AdoptedGroup> {
    let (mine, adopted) = match GroupState::unpack(found) {
        GroupState::Emptying { base, .. } => (GroupState::Emptying { by, base }, AdoptedGroup::ToEmpty(base)),
        GroupState::Filling { base, .. } => (GroupState::Filling { by, base }, AdoptedGroup::ToFill(base)),
        GroupState::Absent { .. } | GroupState::InUse => return None,
    };
    m.cas(at.word, found, mine.pack()).is_ok().then_some(adopted)
}

/// Positions of a group's hints, and of the group's bit in the group map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintsAt {
    /// Word with the hints of the group.
    pub hints: Word,
    /// Word of the group map that contains the group's bit.
    pub map: Word,
    /// Bit of the group.
    pub bit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    First,
    Load,
    Mark,
}

/// Sets hints of a group, and the group's bit in the group map if it is not set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintGroup {
    at: HintsAt,
    hints: u64,
    pc: Pc,
}

impl HintGroup {
    /// Creates the steps to set these hints.
    pub fn new(at: HintsAt, hints: u64) -> Self {
        Self { at, hints, pc: Pc::First }
    }
}

impl Steps for HintGroup {
    type Out = ();

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.pc {
            // The hints are always written, even if they seem to be set: a taker may be clearing them.
            Pc::First => {
                m.or(self.at.hints, self.hints);
                m.fence_after_rmw();
                self.pc = Pc::Load;
            }
            // Usually only read: processes that take and free envelopes of one group share the word.
            Pc::Load if m.load(self.at.map) & self.at.bit != 0 => return Some(()),
            Pc::Load => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}

/// Clears the bit of a group in which no hint was found. Then reads the hints again, and sets the bit if
/// there is a hint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnmarkGroup {
    at: HintsAt,
    pc: Pc,
}

impl UnmarkGroup {
    /// Creates the steps for the group at `at`.
    pub fn new(at: HintsAt) -> Self {
        Self { at, pc: Pc::First }
    }
}

impl Steps for UnmarkGroup {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.pc {
            Pc::First => {
                m.and(self.at.map, !self.at.bit);
                m.fence_after_rmw();
                self.pc = Pc::Load;
            }
            Pc::Load if m.load(self.at.hints) == 0 => return Some(()),
            Pc::Load => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}
