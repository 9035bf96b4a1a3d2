//! Unused envelopes. Each thread keeps a few, whose owner words name its process. Other unused envelopes are
//! free, and a bit map has hints for them.
//!
//! # Share
//! The last eighth of the envelopes, the *share*, is used only when no hint leads to another envelope.
//! Envelopes of the share are claimed one by one. A put may claim one if its queue has fewer than [`SHARE`]
//! messages in such envelopes (not counting messages that threads are just putting). A message that belongs
//! to no queue, such as the arguments of a process, may always claim one. So a queue that uses all other
//! envelopes leaves some for other queues.
//!
//! The owner word of an envelope of the share has the same states as that of any envelope, with one
//! exception: no thread keeps it as an idle envelope. The process that owns the envelope frees it when it is
//! empty. If that process is killed, the reclaim frees the envelope.
//!
//! The number of envelopes of the share that a queue has is not stored. A process that needs the number scans
//! all envelopes of the share that were ever in use, whose place words name their queues.

use std::cell::RefCell;

use crate::arena::Arena;
use crate::envelopes::{EmptyEnvelope, Envelopes};
use crate::error::{ENVELOPES, Error, Result};
use crate::mem::{Mem, run, run_straight};
use crate::members::Members;
use crate::steps::{HintGroup, UnmarkGroup};
use crate::words::{BlockId, EnvelopeId, GroupState, Holder, Owner, RingPlace};

/// Maximum number of idle envelopes that a thread keeps.
const IDLE: usize = 64;
/// Number of marked groups without hints that a search skips before it begins to unmark them. So a few
/// groups that empty and fill alternately stay marked, and no process writes the group map.
const STALE: u32 = 32;
/// Maximum number of messages of a queue in envelopes of the share.
pub(crate) const SHARE: usize = 16;

/// Part of the share from which a message may claim an envelope.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    Nothing,
    OfQueue(BlockId),
    Any,
}

/// Idle envelopes of a thread.
struct Idle(Vec<(Arena, EnvelopeId, u64)>);

impl Drop for Idle {
    fn drop(&mut self) {
        for (arena, id, owner) in self.0.drain(..) {
            if arena.is_here() {
                Envelopes(arena).free_envelope(id, Owner::unpack(owner));
            }
        }
    }
}

thread_local! {
    static IDLE_ENVELOPES: RefCell<Idle> = const { RefCell::new(Idle(Vec::new())) };
}

/// Forgets the envelopes that this thread keeps, in a forked child that becomes a separate process. They
/// belong to the parent.
pub(crate) fn forget_thread() {
    _ = IDLE_ENVELOPES.try_with(|idle| idle.borrow_mut().0.clear());
}

/// Returns the lowest `n` set bits.
fn lowest(bits: u64, n: usize) -> u64 {
    let mut rest = bits;
    (0..n).for_each(|_| rest &= rest.wrapping_sub(1));
    bits & !rest
}

impl Envelopes {
    /// Frees an envelope of this process, for any process to claim.
    pub(crate) fn free_envelope(self, id: EnvelopeId, owner: Owner) {
        self.map().store(self.owner_words().of(id), owner.freed().pack());
        self.hint_envelope(id);
    }

    /// Frees a batch of envelopes of this process. Hints of adjacent envelopes are set together, up to 64 at
    /// a time.
    fn free_envelopes(self, batch: impl Iterator<Item = (Arena, EnvelopeId, u64)>) {
        let (mut group, mut bits) = (0, 0);
        for (_, id, owner) in batch {
            self.map().store(self.owner_words().of(id), Owner::unpack(owner).freed().pack());
            if id / 64 != group {
                self.hint_group(group, bits);
                (group, bits) = (id / 64, 0);
            }
            bits |= 1 << (id % 64);
        }
        self.hint_group(group, bits);
    }

    pub(crate) fn hint_group(self, group: u32, bits: u64) {
        if bits != 0 {
            run_straight(HintGroup::new(self.hints_at(group), bits), self.map());
        }
    }

    pub(crate) fn hint_envelope(self, id: EnvelopeId) {
        self.hint_group(id / 64, 1 << (id % 64));
    }

    /// Keeps an emptied envelope and its owner word for this thread's next message.
    #[inline]
    pub(crate) fn keep(self, id: EnvelopeId, owner: u64) {
        let keep = |idle: &RefCell<Idle>| {
            let mut idle = idle.borrow_mut();
            if idle.0.len() >= IDLE {
                // One batch, oldest first: the latest are warm in this core's cache.
                self.free_envelopes(idle.0.drain(..IDLE / 2));
            }
            idle.0.push((self.0, id, owner));
        };
        let kept = id < self.layout().ordinary() && IDLE_ENVELOPES.try_with(keep).is_ok();
        if !kept {
            self.free_envelope(id, Owner::unpack(owner));
        }
    }

    /// Returns the number of envelopes of the share that contain messages of a queue, and a free envelope.
    fn look_at_share(self, queue: Option<BlockId>) -> (usize, Option<(EnvelopeId, u64)>) {
        let (mut had, mut free) = (0, None);
        for e in self.envelopes_in_use(self.layout().ordinary()) {
            let found = self.map().load(self.owner_words().of(e));
            match Owner::unpack(found).holder {
                Holder::Free => free = free.or(Owner::claimable(found).map(|_| (e, found))),
                Holder::Member(_) => {}
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    let ring = RingPlace::unpack(self.map().load_relaxed(self.place_words().of(e))).ring;
                    had += usize::from(queue == Some(ring));
                }
            }
        }
        (had, free)
    }

    /// Claims an envelope of the share. For a queue, fails if the queue already has [`SHARE`] messages in
    /// such envelopes.
    #[cold]
    fn envelope_of_share(self, share: Share) -> Result<EmptyEnvelope> {
        let me = self.me()?;
        let queue = match share {
            Share::Nothing => return Err(self.out_of_envelopes()),
            Share::OfQueue(queue) => Some(queue),
            Share::Any => None,
        };
        loop {
            let (had, free) = self.look_at_share(queue);
            if had >= SHARE {
                return Err(self.out_of_envelopes());
            }
            let Some((id, found)) = free else {
                self.more_envelopes(self.share_groups(), true)?;
                continue;
            };
            Members(self.0).touch_group_of(me, id);
            let owner = Owner::unpack(found).then(Holder::Member(me));
            if self.map().cas(self.owner_words().of(id), found, owner.pack()).is_ok() {
                return Ok(EmptyEnvelope { arena: self.0, id, owner: owner.pack() });
            }
        }
    }

    pub(crate) fn out_of_envelopes(self) -> Error {
        Error::ArenaFull { what: ENVELOPES, asked: 1, limit: self.layout().envelopes.into() }
    }

    /// Returns `true` if a message for this queue could be packed at present.
    pub fn has_envelopes(self, queue: BlockId) -> bool {
        let hinted = |group| self.map().load_relaxed(self.group_hints(group)) != 0;
        if self.could_fill(self.ordinary_groups()) || self.ordinary_groups().any(hinted) {
            return true;
        }
        let (had, free) = self.look_at_share(Some(queue));
        had < SHARE && (free.is_some() || self.could_fill(self.share_groups()))
    }

    #[inline]
    pub(crate) fn idle_envelope(
        self,
        share: Share,
        free_memory: impl FnOnce() -> Result<u64>,
    ) -> Result<EmptyEnvelope> {
        self.me()?;
        let idle = IDLE_ENVELOPES.try_with(|idle| {
            let idle = &mut idle.borrow_mut().0;
            let this = idle.pop();
            // The next envelope is prefetched while this message is written and put.
            if let Some((arena, next, _)) = idle.last() {
                Envelopes(*arena).fetch_empty(*next);
            }
            this
        });
        match idle {
            Ok(Some((arena, id, owner))) => Ok(EmptyEnvelope { arena, id, owner }),
            Ok(None) | Err(_) => self.new_envelopes(idle.is_ok(), share, free_memory),
        }
    }

    /// Claims free envelopes: returns one, and keeps a batch of others. Searches in this order: groups with
    /// hints, groups without memory, the share. Only before an error is returned, all groups are searched, to
    /// find envelopes without a hint. So a message that uses the share costs no search of all groups.
    #[cold]
    pub(crate) fn new_envelopes(
        self,
        keep: bool,
        share: Share,
        free_memory: impl FnOnce() -> Result<u64>,
    ) -> Result<EmptyEnvelope> {
        let me = self.me()?;
        let want = if keep { IDLE / 2 } else { 1 };
        let mut got = Vec::with_capacity(want);
        let (mut all, mut free_memory) = (false, Some(free_memory));
        loop {
            let groups = self.groups_to_look_at(all);
            // Different processes start at different groups.
            let start = me.slot().wrapping_mul(7) % groups.max(1);
            let (every, marked) = if all { (groups, 0) } else { (0, groups) };
            let every = (0..every).map(|i| (start + i) % groups);
            let mut stale = 0;
            for group in every.chain(self.marked_groups(start, marked)) {
                let at = self.group_hints(group);
                let hints = self.map().load(at);
                if hints == 0 {
                    stale += 1;
                    // A search of all groups includes groups without a bit.
                    if stale > STALE && !all {
                        run(UnmarkGroup::new(self.hints_at(group)), self.map());
                    }
                    continue;
                }
                Members(self.0).touch_group_of(me, group * GroupState::ENVELOPES);
                let mut wanted = lowest(hints, want - got.len());
                // Excludes hints that another process has taken meanwhile.
                let taken = self.map().and(at, !wanted);
                wanted &= taken;
                if !self.group(group).is_scanned() {
                    continue;
                }
                // Prefetch all at once, instead of waiting for each: another process freed them.
                for i in (0..64).filter(|i| wanted >> i & 1 == 1) {
                    self.map().will_write(self.owner_words().of(group * 64 + i));
                }
                while wanted != 0 {
                    let id = group * 64 + wanted.trailing_zeros();
                    wanted &= wanted - 1;
                    let word = self.owner_words().of(id);
                    let old = self.map().load(word);
                    let owner = Owner::unpack(old).then(Holder::Member(me));
                    if (Owner::claimable(old).is_some()) && self.map().cas(word, old, owner.pack()).is_ok() {
                        got.push((id, owner.pack()));
                    }
                }
                if got.len() == want {
                    break;
                }
            }
            match got.pop() {
                Some((id, owner)) => {
                    for (id, owner) in got {
                        self.keep(id, owner);
                    }
                    return Ok(EmptyEnvelope { arena: self.0, id, owner });
                }
                None => match self.more_envelopes(self.ordinary_groups(), all) {
                    Err(e) if e.is_out_of_envelopes() => match self.envelope_of_share(share) {
                        Err(e) if !all && (e.is_out_of_envelopes() || e.is_out_of_memory()) => all = true,
                        done => return done,
                    },
                    Err(e) if !all && e.is_out_of_memory() => all = true,
                    // As in an allocation, memory of other sizes is freed first.
                    Err(e) if e.is_out_of_memory() && free_memory.is_some() => {
                        if free_memory.take().map_or(Ok(0), |free| free())? == 0 {
                            return Err(e);
                        }
                    }
                    done => done?,
                },
            }
        }
    }

    /// Frees the envelopes that this thread keeps.
    pub(crate) fn free_idle(self) {
        let taken = IDLE_ENVELOPES.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            let (here, elsewhere) =
                std::mem::take(&mut idle.0).into_iter().partition(|(arena, ..)| *arena == self.0);
            idle.0 = elsewhere;
            here
        });
        let taken: Vec<_> = taken.unwrap_or_default();
        self.free_envelopes(taken.into_iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::control;
    use crate::mem::Word;

    const QUEUE: Share = Share::OfQueue(7);

    fn take(envelopes: Envelopes, share: Share) -> Option<EmptyEnvelope> {
        envelopes.idle_envelope(share, || Ok(0)).ok()
    }

    /// Runs a test in a process whose arena has few envelopes. All envelopes outside of the share are in use.
    fn exhausted(name: &str, test: impl FnOnce(Envelopes, Vec<EmptyEnvelope>)) {
        const SIZED: (&str, &str) = ("MP_ARENA_MESSAGES", "32768");
        if std::env::var(SIZED.0).is_ok_and(|set| set == SIZED.1) {
            let envelopes = Envelopes(Arena::current().unwrap());
            let all: Vec<_> = std::iter::from_fn(|| take(envelopes, Share::Nothing)).collect();
            assert_eq!(all.len(), 28_672);
            return test(envelopes, all);
        }
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        let name = format!("envelopes::idle::tests::{name}");
        let output = program.args(["--exact", &name]).env(SIZED.0, SIZED.1).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn full_search_finds_free_envelopes_with_lost_hints() {
        exhausted("full_search_finds_free_envelopes_with_lost_hints", |envelopes, all| {
            let free = |e: &EmptyEnvelope| envelopes.free_envelope(e.id, Owner::unpack(e.owner));
            assert_eq!(std::iter::from_fn(|| take(envelopes, QUEUE)).count(), 4096);
            // The freeing process was killed before it set the bit of the group.
            free(&all[500]);
            let at = envelopes.hints_at(all[500].id / 64);
            envelopes.map().and(at.map, !at.bit);
            assert_eq!(take(envelopes, QUEUE).map(|e| e.id), Some(all[500].id));
            // The trimming process was killed before it lowered the hint of absent groups.
            all.iter().filter(|e| e.id / 64 < 2).for_each(free);
            assert_eq!(envelopes.trim_envelopes(envelopes.me().unwrap(), 1, 1), 1);
            envelopes.map().store(Word::at(control::ABSENT_FROM), 448);
            assert_eq!(std::iter::from_fn(|| take(envelopes, QUEUE)).count(), 128);
        });
    }

    #[test]
    #[cfg(feature = "inject")]
    fn reserved_envelope_is_taken_without_a_full_search() {
        use crate::inject::seen;
        exhausted("reserved_envelope_is_taken_without_a_full_search", |envelopes, _| {
            for share in [QUEUE, Share::Any] {
                // The first envelope of the share fills a group of 64.
                take(envelopes, share).unwrap();
                let before = seen();
                take(envelopes, share).unwrap();
                let accesses = seen() - before;
                // 448 groups have ordinary envelopes. Some of them, and 64 envelopes of the share, are read.
                assert!(accesses < 200, "{accesses} accesses");
            }
        });
    }
}
