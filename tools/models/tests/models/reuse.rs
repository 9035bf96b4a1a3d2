//! Exhaustive model of a slab of free blocks whose size class changes. Processes allocate blocks of either
//! size by stale hints, while another process retires the slab and gives it the other size. Any process,
//! including a reclaiming process, is killed at any shared access. Real processes run the same steps.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::steps::{
    BlockAt, ClaimBlock, FreeCheck, PublishBlock, ReleaseOutcome, ReleaseSeat, SlabSnapshot, UnclaimBlock,
    Update, UpdateAt, UpdateOutcome, UpdatePlan,
};
use mp_core::words::{BlockId, BlockKind, BlockLife, BlockState, CurrentUpdate, Member, Seat};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{DeathSnapshot, is_killed, member};

const SLAB: Word = Word::at(0);
/// Word that never changes, read by the planted bug.
const CONSTANT: Word = Word::at(8);
/// Maximum number of processes.
const PROCESSES: u64 = 4;
const UPDATES: UpdateAt =
    UpdateAt { current: Word::at(16), own: Column { base: Word::at(24), stride: 8 * UpdateAt::OWN_WORDS } };
const FIRST_BLOCK: u64 = 3 + PROCESSES * UpdateAt::OWN_WORDS;
const BLOCK_WORDS: u64 = 3;
const BLOCKS: u32 = 2;
const WORDS: usize = (FIRST_BLOCK + BLOCK_WORDS * BLOCKS as u64) as usize;

/// Value of the slab's word: retired slab.
const RETIRED: u64 = 0;
/// Value of the slab's word: slab of two small blocks.
const SMALL: u64 = 1;
/// Value of the slab's word: slab of one large block.
const LARGE: u64 = 2;

fn blocks_of(slab: u64) -> u32 {
    match slab {
        SMALL => 2,
        LARGE => 1,
        _ => 0,
    }
}
fn block(i: u32) -> BlockAt {
    let state = Word::at(8 * (FIRST_BLOCK + BLOCK_WORDS * u64::from(i)));
    BlockAt { id: i, state, inline: 1, per_page: 1 }
}
fn no_pages(_: BlockId) -> Option<Word> {
    None
}
type Pages = fn(BlockId) -> Option<Word>;
const PAGES: Pages = no_pages;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    /// Takes the block with this index, if the slab has this size, and releases it.
    Use(u64, u32),
    /// Gives the slab this size.
    Make(u64),
}

/// Plan of an update that changes the slab's word from `from` to `to`. Writes nothing if the word has another
/// value than `from`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Set {
    from: u64,
    to: u64,
}

impl UpdatePlan for Set {
    fn reads(&self) -> &[Word] {
        &[SLAB]
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        if v[0] == self.from && self.from != self.to { vec![(0, self.to)] } else { Vec::new() }
    }
    fn exclusive(&self) -> bool {
        true
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Next,
    // use
    Look(u64, u32),
    Claim(u64, u32, ClaimBlock),
    Publish(u64, u32, PublishBlock),
    Held(u64, u32),
    Release(ReleaseSeat<Pages>, u32),
    Freed(UnclaimBlock),
    // make
    LookToMake(u64),
    ClaimAll(u64, u64, u32, ClaimBlock),
    Retire(u64, Update<Set, DeathSnapshot>),
    GiveBack(u64),
    GiveClass(u64, Update<Set, DeathSnapshot>),
    // reclaim
    Complete(Update<Set, DeathSnapshot>),
    Busy(u32, u64),
    Check(FreeCheck<Pages>, u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    program: Vec<Op>,
    claimed: Vec<(u32, BlockState)>,
    /// Planted bug: the second read of a claim reads a constant word instead of the slab's word.
    careless: bool,
    doing: Doing,
}

fn state(m: &Memory, i: u32) -> BlockState {
    BlockState::unpack(m.peek(block(i).state))
}
fn seat(m: &Memory, i: u32) -> Seat {
    Seat::unpack(m.peek(block(i).seat(0)))
}

impl Process {
    fn next(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        if !self.program.is_empty() {
            return Some(match self.program.remove(0) {
                Op::Use(size, i) => Doing::Look(size, i),
                Op::Make(to) => Doing::LookToMake(to),
            });
        }
        // After its program, a process reclaims dead processes.
        let dead = |p: Member| is_killed(fates, p);
        if let Some((p, _)) = CurrentUpdate::unpack(m.peek(UPDATES.current)).making
            && dead(p)
        {
            return Some(Doing::Complete(self.set(me, fates, RETIRED, RETIRED)));
        }
        // Visits all blocks that a slab of any size can have.
        for i in 0..BLOCKS {
            match (state(m, i).life, seat(m, i)) {
                (BlockLife::Busy(p), _) if dead(p) => return Some(Doing::Busy(i, m.peek(block(i).state))),
                (BlockLife::Live, Seat::Member(p)) if dead(p) => {
                    let at = block(i).seat(0);
                    let release = ReleaseSeat::new(block(i), PAGES, member(me), at, Seat::Member(p));
                    return Some(Doing::Release(release, i));
                }
                (BlockLife::Live, Seat::Free) => {
                    return Some(Doing::Check(FreeCheck::new(block(i), PAGES, member(me)), i));
                }
                _ => {}
            }
        }
        None
    }

    fn set(&self, me: usize, fates: &[Fate], from: u64, to: u64) -> Update<Set, DeathSnapshot> {
        let known = DeathSnapshot::new(me, fates);
        Update::new(UPDATES, member(me), Set { from, to }, known)
    }

    fn claim(&self, me: usize, i: u32, seen: u64) -> ClaimBlock {
        let slab = if self.careless {
            SlabSnapshot { word: CONSTANT, value: 0 }
        } else {
            SlabSnapshot { word: SLAB, value: seen }
        };
        ClaimBlock::new(block(i), member(me), slab)
    }
}

impl Actor for Process {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], _: &mut ()) -> bool {
        // A held block lies in a slab of its size, and no other process holds a block of another size there.
        if let Doing::Publish(size, ..) | Doing::Held(size, _) = self.doing {
            assert_eq!(m.peek(SLAB), size, "two sizes overlap");
        }
        let doing = std::mem::replace(&mut self.doing, Doing::Next);
        self.doing = match doing {
            Doing::Next => match self.next(me, m, fates) {
                Some(doing) => doing,
                None => return true,
            },
            // The process took a hint in a slab of this size. The slab may change before the claim.
            Doing::Look(size, i) => match m.load(SLAB) {
                seen if seen == size && i < blocks_of(size) => Doing::Claim(size, i, self.claim(me, i, seen)),
                _ => Doing::Next,
            },
            Doing::Claim(size, i, mut claim) => match claim.step(m) {
                None => Doing::Claim(size, i, claim),
                Some(None) => Doing::Next,
                Some(Some(state)) => {
                    Doing::Publish(size, i, PublishBlock::new(block(i), member(me), state, BlockKind::Data))
                }
            },
            Doing::Publish(size, i, mut publish) => match publish.step(m) {
                None => Doing::Publish(size, i, publish),
                Some(_) => Doing::Held(size, i),
            },
            Doing::Held(_, i) => {
                let (at, mine) = (block(i).seat(0), Seat::Member(member(me)));
                Doing::Release(ReleaseSeat::new(block(i), PAGES, member(me), at, mine), i)
            }
            Doing::Release(mut release, i) => match release.step(m) {
                None => Doing::Release(release, i),
                Some(ReleaseOutcome::Held) => Doing::Next,
                Some(ReleaseOutcome::MustFree(state)) => Doing::Freed(UnclaimBlock::new(block(i), state)),
            },
            Doing::Freed(mut unclaim) => {
                unclaim.step(m);
                Doing::Next
            }
            Doing::LookToMake(to) => match m.load(SLAB) {
                RETIRED => Doing::GiveClass(to, self.set(me, fates, RETIRED, to)),
                seen if seen == to => Doing::Next,
                seen => Doing::ClaimAll(seen, to, 0, self.claim(me, 0, seen)),
            },
            Doing::ClaimAll(seen, to, i, mut claim) => match claim.step(m) {
                None => Doing::ClaimAll(seen, to, i, claim),
                Some(None) => Doing::GiveBack(seen),
                Some(Some(state)) => {
                    self.claimed.push((i, state));
                    if i + 1 < blocks_of(seen) {
                        Doing::ClaimAll(seen, to, i + 1, self.claim(me, i + 1, seen))
                    } else {
                        Doing::Retire(to, self.set(me, fates, seen, RETIRED))
                    }
                }
            },
            Doing::Retire(to, mut update) => match update.step(m) {
                None => Doing::Retire(to, update),
                Some(UpdateOutcome::Busy(_)) => {
                    let from = m.peek(SLAB);
                    Doing::Retire(to, self.set(me, fates, from, RETIRED))
                }
                Some(UpdateOutcome::Done(_)) => Doing::GiveBack(to),
            },
            Doing::GiveBack(to) => match self.claimed.pop() {
                Some((i, state)) => {
                    UnclaimBlock::new(block(i), state).step(m);
                    Doing::GiveBack(to)
                }
                None => Doing::GiveClass(to, self.set(me, fates, RETIRED, to)),
            },
            Doing::GiveClass(to, mut update) => match update.step(m) {
                None => Doing::GiveClass(to, update),
                Some(UpdateOutcome::Busy(_)) => Doing::GiveClass(to, self.set(me, fates, RETIRED, to)),
                Some(UpdateOutcome::Done(_)) => Doing::Next,
            },
            Doing::Complete(mut update) => match update.step(m) {
                None => Doing::Complete(update),
                Some(_) => Doing::Next,
            },
            Doing::Busy(i, found) => {
                let state = BlockState::unpack(found).with(BlockLife::Busy(member(me)));
                match m.cas(block(i).state, found, state.pack()) {
                    Ok(()) => Doing::Freed(UnclaimBlock::new(block(i), state)),
                    Err(_) => Doing::Next,
                }
            }
            Doing::Check(mut check, i) => match check.step(m) {
                None => Doing::Check(check, i),
                Some(ReleaseOutcome::Held) => Doing::Next,
                Some(ReleaseOutcome::MustFree(state)) => Doing::Freed(UnclaimBlock::new(block(i), state)),
            },
        };
        false
    }
}

fn world(slab: u64, programs: &[&[Op]]) -> World<Process> {
    let m = Memory::new(WORDS);
    m.poke(SLAB, slab);
    let process = |program: &&[Op]| Process {
        program: program.to_vec(),
        claimed: Vec::new(),
        careless: false,
        doing: Doing::Next,
    };
    World::new(m, programs.iter().map(process).collect(), ())
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let killed = |p: Member| is_killed(&w.fates, p);
        let all = 0..w.fates.len();
        let left = (0..BLOCKS).any(|i| matches!(state(m, i).life, BlockLife::Busy(p) if killed(p)))
            || (0..BLOCKS).any(|i| matches!(seat(m, i), Seat::Member(p) if killed(p)))
            || (0..BLOCKS).any(|i| state(m, i).life == BlockLife::Live && seat(m, i) == Seat::Free);
        // Processes that died after the last check of a living process are left to the next reclaim. Stopped
        // actors may continue.
        let reclaimed = w.count(all.clone(), Fate::Ended) > 0 && !left;
        if reclaimed && w.count(all.clone(), Fate::Stopped) == 0 {
            for i in 0..BLOCKS {
                assert_eq!(state(m, i).life, BlockLife::Free, "block {i} leaks");
            }
        }
        if w.count(all.clone(), Fate::Ended) == all.len() {
            assert_ne!(m.peek(SLAB), RETIRED, "its addresses leak");
        }
    };
    world.explore(kills, stops, end, |w| {
        // A stopped process keeps the lock. A process that waits for the lock reports an error in the end.
        w.fates.contains(&Fate::Running) && w.count(0..w.fates.len(), Fate::Stopped) == 0
    });
}

use Op::{Make, Use};

#[test]
fn slab_changes_its_block_size_during_use() {
    explore(world(SMALL, &[&[Use(SMALL, 1)], &[Make(LARGE), Use(LARGE, 0)]]), 2, 0);
    explore(world(LARGE, &[&[Use(LARGE, 0)], &[Make(SMALL), Use(SMALL, 1)]]), 2, 0);
    explore(world(SMALL, &[&[Use(SMALL, 1)], &[Make(LARGE), Use(LARGE, 0)]]), 1, 1);
}

#[test]
fn blocks_of_both_sizes_survive_a_slab_size_change() {
    let programs: [&[Op]; 3] = [&[Use(SMALL, 0)], &[Make(LARGE)], &[Use(LARGE, 0)]];
    explore(world(SMALL, &programs), 1, 0);
    explore(world(SMALL, &[&[Use(SMALL, 1)], &[Make(LARGE), Make(SMALL)], &[Use(SMALL, 0)]]), 1, 0);
}

#[test]
fn concurrent_size_changes_of_a_slab_are_safe() {
    explore(world(SMALL, &[&[Make(LARGE), Use(LARGE, 0)], &[Make(LARGE), Use(LARGE, 0)]]), 2, 0);
    explore(world(SMALL, &[&[Make(LARGE)], &[Make(LARGE), Make(SMALL)]]), 1, 0);
}

#[test]
#[should_panic(expected = "two sizes overlap")]
fn model_finds_overlapping_blocks_of_two_sizes() {
    let mut w = world(SMALL, &[&[Use(SMALL, 1)], &[Make(LARGE), Use(LARGE, 0)]]);
    w.actors[0].careless = true;
    explore(w, 0, 0);
}
