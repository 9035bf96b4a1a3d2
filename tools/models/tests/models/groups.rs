//! Exhaustive model of a group of envelopes whose memory is returned and allocated again. Meanwhile processes
//! claim envelopes by stale hints. Any process, including a reclaiming process, is killed or stopped at any
//! shared access. Real processes run the same steps.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::steps::{AdoptedGroup, EmptyGroup, FillGroup, GroupAt, adopt_group, begin_fill};
use mp_core::words::{GroupState, Holder, Member, Owner};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{is_killed, member};
use mp_models::random::at_random;

const GROUP: Word = Word::at(0);
const OWNER: Column = Column { base: Word::at(8), stride: 8 };
const ENVELOPES: u32 = 2;
const AT: GroupAt = GroupAt { word: GROUP, owners: OWNER, first: 0, len: ENVELOPES };
/// Sequences of the envelopes in the initial state.
const BEGIN: [u64; ENVELOPES as usize] = [5, 7];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    /// Claims this envelope, as if a hint named it, and frees it.
    Use(u32),
    /// Returns the memory, if all envelopes are free.
    Empty,
    /// Allocates the group's memory, if it is missing.
    Fill,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// After the memory is allocated again, the sequences begin at 1.
    BaseLost,
    /// The group is emptied without claiming its envelopes.
    NotClaimed,
    /// A word of zero is treated as a free envelope.
    ZeroClaimed,
    /// A reclaiming process returns the memory of a partly filled group.
    HalfFilledEmptied,
    /// A reclaiming process writes all words of a partly filled group.
    WordsOverwritten,
    /// A reclaiming process skips envelopes of a group that is being filled.
    FillingNotSwept,
    /// A group is marked absent before its memory is freed.
    AbsentTooEarly,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Next,
    // use
    Look(u32),
    Claim(u32, u64),
    Free(u32, Owner),
    // empty
    Empty(EmptyGroup),
    SayAbsentFirst(u64),
    Punch(u32, u64),
    SayAbsent(u64),
    // fill
    Begin,
    Swap(u64),
    Fill(FillGroup),
    Overwrite(u32, u64),
    // reclaim
    Adopt(u64),
    TakeOver(u32, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    program: Vec<Op>,
    doing: Doing,
    /// `true` if the process reclaims after all earlier actors have ended or are stopped forever.
    last: bool,
    bug: Bug,
}

/// Latest sequence of each envelope.
type Sequences = [u64; ENVELOPES as usize];

fn words(m: &Memory) -> [u64; ENVELOPES as usize] {
    std::array::from_fn(|e| m.peek(OWNER.of(e as u32)))
}

impl Process {
    fn next(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        if !self.program.is_empty() {
            return Some(match self.program.remove(0) {
                Op::Use(e) => Doing::Look(e),
                Op::Empty if self.bug == Bug::NotClaimed => {
                    let all_free = words(m).iter().all(|&w| Owner::claimable(w).is_some());
                    if all_free { Doing::Punch(0, 9) } else { Doing::Next }
                }
                Op::Empty => Doing::Empty(EmptyGroup::new(AT, member(me))),
                Op::Fill => Doing::Begin,
            });
        }
        // After its program, a process reclaims dead processes.
        let dead = |p: Member| is_killed(fates, p);
        let found = m.peek(GROUP);
        let group = GroupState::unpack(found);
        if let GroupState::Emptying { by, .. } | GroupState::Filling { by, .. } = group
            && dead(by)
        {
            return Some(Doing::Adopt(found));
        }
        let looked_at = match self.bug {
            Bug::FillingNotSwept => group == GroupState::InUse,
            _ => group.is_scanned(),
        };
        let left = (0..ENVELOPES).filter(|_| looked_at).find_map(|e| {
            let found = m.peek(OWNER.of(e));
            matches!(Owner::unpack(found).holder, Holder::Member(p) if dead(p)).then_some((e, found))
        });
        left.map(|(e, found)| Doing::TakeOver(e, found))
    }

    fn adopted(&self, adopted: AdoptedGroup) -> Doing {
        match (adopted, self.bug) {
            (AdoptedGroup::ToEmpty(base), _) | (AdoptedGroup::ToFill(base), Bug::HalfFilledEmptied) => {
                Doing::Punch(0, base)
            }
            (AdoptedGroup::ToFill(base), Bug::WordsOverwritten) => Doing::Overwrite(0, base),
            (AdoptedGroup::ToFill(base), _) => Doing::Fill(FillGroup::new(AT, base)),
        }
    }
}

impl Actor for Process {
    type Ghost = Sequences;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], latest: &mut Sequences) -> bool {
        let before = words(m);
        // A claimed envelope belongs to the process until the process frees it.
        if let Doing::Free(e, owner) = self.doing {
            assert_eq!(Owner::unpack(before[e as usize]), owner, "an envelope was taken from its owner");
        }
        let doing = std::mem::replace(&mut self.doing, Doing::Next);
        self.doing = match doing {
            Doing::Next => match self.next(me, m, fates) {
                Some(doing) => doing,
                None => return !self.last || fates[..me].iter().all(|fate| fate.gone()),
            },
            Doing::Look(e) => match m.load(OWNER.of(e)) {
                0 if self.bug == Bug::ZeroClaimed => Doing::Claim(e, 0),
                found if Owner::claimable(found).is_some() => Doing::Claim(e, found),
                _ => Doing::Next,
            },
            Doing::Claim(e, found) => {
                let mine = Owner::unpack(found).then(Holder::Member(member(me)));
                match m.cas(OWNER.of(e), found, mine.pack()) {
                    Ok(()) => Doing::Free(e, mine),
                    Err(_) => Doing::Next,
                }
            }
            Doing::Free(e, owner) => {
                m.store(OWNER.of(e), owner.freed().pack());
                Doing::Next
            }
            Doing::Empty(mut steps) => match steps.step(m) {
                None => Doing::Empty(steps),
                Some(None) => Doing::Next,
                Some(Some(base)) if self.bug == Bug::AbsentTooEarly => Doing::SayAbsentFirst(base),
                Some(Some(base)) => Doing::Punch(0, base),
            },
            Doing::SayAbsentFirst(base) => {
                m.store(GROUP, GroupState::Absent { base }.pack());
                Doing::Punch(0, base)
            }
            // The kernel frees pages one after another.
            Doing::Punch(e, base) => {
                m.store(OWNER.of(e), 0);
                if e + 1 < ENVELOPES { Doing::Punch(e + 1, base) } else { Doing::SayAbsent(base) }
            }
            Doing::SayAbsent(base) => {
                if self.bug != Bug::AbsentTooEarly {
                    m.store(GROUP, GroupState::Absent { base }.pack());
                }
                Doing::Next
            }
            // The kernel provides the memory between this step and the swap.
            Doing::Begin => match GroupState::unpack(m.load(GROUP)) {
                GroupState::Absent { base } => Doing::Swap(base),
                _ => Doing::Next,
            },
            Doing::Swap(base) => match begin_fill(AT, member(me), base, m) {
                false => Doing::Next,
                true if self.bug == Bug::BaseLost => Doing::Fill(FillGroup::new(AT, 1)),
                true => Doing::Fill(FillGroup::new(AT, base)),
            },
            Doing::Fill(mut steps) => match steps.step(m) {
                None => Doing::Fill(steps),
                Some(()) => Doing::Next,
            },
            Doing::Overwrite(e, base) if e < ENVELOPES => {
                m.store(OWNER.of(e), Owner::free(base).pack());
                Doing::Overwrite(e + 1, base)
            }
            Doing::Overwrite(..) => {
                m.store(GROUP, GroupState::InUse.pack());
                Doing::Next
            }
            Doing::Adopt(found) => match adopt_group(AT, member(me), found, m) {
                None => Doing::Next,
                Some(adopted) => self.adopted(adopted),
            },
            Doing::TakeOver(e, found) => {
                let mine = Owner::unpack(found).then(Holder::Member(member(me)));
                match m.cas(OWNER.of(e), found, mine.pack()) {
                    Ok(()) => Doing::Free(e, mine),
                    Err(_) => Doing::Next,
                }
            }
        };
        let after = words(m);
        for e in 0..ENVELOPES as usize {
            if after[e] != before[e] && after[e] != 0 {
                let seq = Owner::unpack(after[e]).seq;
                assert!(seq > latest[e], "envelope {e} has the sequence {seq} again");
                latest[e] = seq;
            }
        }
        if let GroupState::Absent { .. } = GroupState::unpack(m.peek(GROUP)) {
            assert_eq!(after, [0; ENVELOPES as usize], "an absent group has memory");
        }
        false
    }
}

/// Explores processes with these programs, and two additional processes that reclaim.
fn explore(group: GroupState, programs: &[&[Op]], (kills, stops): (u32, u32), bug: Bug) {
    let m = Memory::new(1 + ENVELOPES as usize);
    m.poke(GROUP, group.pack());
    if group == GroupState::InUse {
        (0..ENVELOPES).for_each(|e| m.poke(OWNER.of(e), Owner::free(BEGIN[e as usize]).pack()));
    }
    let process =
        |(program, last): (&[Op], bool)| Process { program: program.to_vec(), doing: Doing::Next, last, bug };
    let recoverers: [(&[Op], bool); 2] = [(&[], true); 2];
    let actors = programs.iter().map(|&program| (program, false)).chain(recoverers).map(process).collect();
    let world = World::new(m, actors, BEGIN);
    let end = |w: &World<Process>| {
        if w.fates.last() != Some(&Fate::Ended) {
            return;
        }
        let fate = |p: Member| w.fates[p.slot() as usize];
        let group = GroupState::unpack(w.memory.peek(GROUP));
        if let GroupState::Emptying { by, .. } | GroupState::Filling { by, .. } = group {
            assert_eq!(fate(by), Fate::Stopped, "a group leaks");
        }
        for w in words(&w.memory) {
            match Owner::unpack(w).holder {
                // The envelope is delayed together with its group, by the process that empties the group.
                Holder::Member(_) if matches!(group, GroupState::Emptying { .. }) => {}
                Holder::Member(p) => assert_eq!(fate(p), Fate::Stopped, "an envelope leaks"),
                _ => assert!(w != 0 || group != GroupState::InUse, "an envelope is lost"),
            }
        }
    };
    world.explore(kills, stops, end, |w| w.count(0..w.fates.len(), Fate::Stopped) == 0);
}

use Op::{Empty, Fill, Use};

const ABSENT: GroupState = GroupState::Absent { base: BEGIN[1] + 1 };

#[test]
fn envelope_group_is_refilled_despite_stale_hints() {
    explore(GroupState::InUse, &[&[Use(1), Use(0)], &[Empty, Fill, Use(1)]], (2, 0), Bug::None);
    explore(GroupState::InUse, &[&[Use(1), Use(0)], &[Empty, Fill, Use(1)]], (1, 1), Bug::None);
}

#[test]
fn concurrent_emptying_of_envelope_group_is_safe() {
    explore(GroupState::InUse, &[&[Empty, Fill], &[Empty, Use(0)]], (2, 0), Bug::None);
    explore(GroupState::InUse, &[&[Empty, Fill], &[Empty, Use(0)]], (1, 1), Bug::None);
}

#[test]
fn concurrent_filling_of_envelope_group_is_safe() {
    explore(ABSENT, &[&[Fill, Use(0)], &[Fill, Empty], &[Use(1)]], (1, 0), Bug::None);
    explore(ABSENT, &[&[Fill, Use(0)], &[Fill, Use(0)]], (1, 1), Bug::None);
}

#[test]
fn envelope_group_is_emptied_and_filled_twice() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty, Fill, Empty, Fill]], (2, 0), Bug::None);
}

#[test]
fn envelope_group_holds_in_random_schedules() {
    at_random(|| {
        let programs: [&[Op]; 3] =
            [&[Use(0), Empty, Use(1), Fill], &[Fill, Use(0), Empty, Fill], &[Use(1), Use(1), Empty, Use(0)]];
        explore(GroupState::InUse, &programs, (3, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "again")]
fn model_finds_group_that_restarts_its_sequences() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty, Fill]], (0, 0), Bug::BaseLost);
}

#[test]
#[should_panic(expected = "was taken from its owner")]
fn model_finds_group_emptied_without_claims() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty]], (0, 0), Bug::NotClaimed);
}

#[test]
#[should_panic(expected = "again")]
fn model_finds_zero_treated_as_a_free_envelope() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty]], (0, 0), Bug::ZeroClaimed);
}

#[test]
#[should_panic(expected = "was taken from its owner")]
fn model_finds_emptying_of_a_partly_filled_group() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty, Fill]], (1, 0), Bug::HalfFilledEmptied);
}

#[test]
#[should_panic(expected = "again")]
fn model_finds_overwritten_partly_filled_group() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty, Fill]], (1, 0), Bug::WordsOverwritten);
}

#[test]
#[should_panic(expected = "an envelope leaks")]
fn model_finds_unrecovered_partly_filled_group() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty, Fill]], (1, 1), Bug::FillingNotSwept);
}

#[test]
#[should_panic(expected = "an absent group has memory")]
fn model_finds_group_marked_absent_too_early() {
    explore(GroupState::InUse, &[&[Use(0)], &[Empty]], (0, 0), Bug::AbsentTooEarly);
}
