//! Model of a lost message that contains the handle of a queue. A dead actor has the message, or the message
//! is in another queue that the dead actor holds. A waiter holds the first queue, and waits until it is
//! notified that no other process can put into it. Other actors, which hold neither queue, recover the dead
//! actor, and are killed and stopped. Real processes run the same steps.
//!
//! Checked: the waiter is notified, unless a stopped actor holds the queue. No actor writes into the queue
//! without holding it. Nothing is freed twice, and nothing leaks.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{
    BeginRecovery, BlockAt, CheckSoleRecovery, FreeCheck, ReleaseOutcome, ReleaseSeat, UnclaimBlock,
    end_recovery,
};
use mp_core::words::{BlockKind, BlockLife, BlockState, Presence, RecoveringSlots, Seat, Tenancy};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{DeathSnapshot, is_killed, killed, member};
use mp_models::random::at_random;
use mp_models::vacating::{
    ACTORS, DEAD, LEAVER, MESSAGE, NO_PAGES, Pages, QUEUE, RECOVERERS, has_no_seats, is_being_recovered,
    is_remembered, presence, recovering_word, seat_of, seats, state, tenancy,
};

/// Maximum number of concurrent recoveries. Larger numbers find no additional planted bugs.
const MOST: u32 = 4;
const FIRST: u64 = 9 + 2 * ACTORS as u64;
/// Block of the queue whose handle is in the message.
const RING: BlockAt = BlockAt { id: 1, state: Word::at(FIRST * 8), inline: 2, per_page: 1 };
/// Word in the memory of the queue whose handle is in the message. Actors write this word to notify
/// waiters that a holder of the queue has ended.
const NOTE: Word = Word::at((FIRST + 4) * 8);
const GONE: u64 = 1;
/// Value of [`NOTE`] after the memory was reused.
const OTHER_USE: u64 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// The handle is released without notifying the queue.
    Unnoted,
    /// A vacating actor gives the handle to the dead actor instead of taking it, and then notifies the queue.
    Late,
    /// A queue that is notified because of a message in another queue is not vacated.
    NotVacated,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setup {
    bug: Bug,
    /// `true` if the message is in a queue, which the leaver also holds. Otherwise the dead actor has the
    /// message.
    queued: bool,
    /// `true` if the waiter waits for the notification, `false` if it drops the queue at any time.
    waits: bool,
    recoverers: usize,
}

const BASE: Setup = Setup { bug: Bug::None, queued: true, waits: true, recoverers: 2 };

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    // the leaver and the waiter
    Leave(BlockAt, ReleaseSeat<Pages>),
    Wait,
    Reuse,
    Reused(BlockState),
    Gone,
    // an actor takes the handle of a lost message
    Take { then: Box<Doing> },
    Note { then: Box<Doing> },
    Drop { release: ReleaseSeat<Pages>, then: Box<Doing> },
    Free { block: BlockAt, claimed: BlockState, then: Box<Doing> },
    // recovering actors
    Look,
    Announce,
    Enter(BeginRecovery),
    Alone(CheckSoleRecovery<DeathSnapshot>),
    Message,
    Block(BlockAt),
    Seat(BlockAt),
    Give { then: Box<Doing> },
    Tell { then: Box<Doing> },
    Only,
    OnlyAgain(BlockState),
    Vacate(BlockAt, ReleaseSeat<Pages>),
    Check(BlockAt, FreeCheck<Pages>),
    Contents,
    End,
    Quit { reclaims: bool },
    // the reclaiming actor
    TakeOver(u64),
    Own(BlockAt),
    Claimed(BlockAt, BlockState),
    Reclaimed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    setup: Setup,
    dead: usize,
    counted: Option<Tenancy>,
    alone: bool,
    reported: [bool; 2],
    deserted: bool,
    /// `true` in all phases of the actor's recovery except the first.
    goes_on: bool,
    doing: Doing,
}

fn release(block: BlockAt, by: usize, at: Word, seat: Seat) -> ReleaseSeat<Pages> {
    ReleaseSeat::new(block, NO_PAGES, member(by), at, seat)
}

fn waiter(fates: &[Fate]) -> usize {
    fates.len() - 1
}

/// Returns `true` if the waiter is the only living holder, and was notified.
fn is_notified(m: &Memory, fates: &[Fate]) -> bool {
    let others = |seat| !matches!(seat, Seat::Free) && seat != seat_of(waiter(fates));
    let dead = |seat| matches!(seat, Seat::Member(p) if is_killed(fates, p));
    m.peek(NOTE) == GONE && seats(m, RING).all(|(_, seat)| !others(seat) || dead(seat))
}

/// Returns `true` if only dead actors hold the queue that contains the message.
fn is_deserted(m: &Memory, fates: &[Fate]) -> bool {
    let left = |seat| matches!(seat, Seat::Member(p) if is_killed(fates, p));
    state(m, QUEUE).life == BlockLife::Live
        && seats(m, QUEUE).all(|(_, seat)| seat == Seat::Free || left(seat))
}

impl Process {
    fn new(setup: Setup, doing: Doing) -> Self {
        let (counted, alone, reported, deserted, goes_on) = (None, false, [false; 2], false, false);
        Self { setup, dead: DEAD, counted, alone, reported, deserted, goes_on, doing }
    }

    fn vacates(&self) -> bool {
        !matches!(self.counted, Some(Tenancy { presence: Presence::Dead(_), .. }))
    }

    /// Returns `true` if a recovery of `d` changes anything for the waiter. Does not count as an access.
    fn helps(&self, m: &Memory, fates: &[Fate], d: usize) -> bool {
        let handle = Seat::unpack(m.peek(RING.seat(1)));
        let queue = state(m, QUEUE);
        let claimed = queue.life == BlockLife::Busy(member(d));
        let lost = if self.setup.queued { claimed || is_deserted(m, fates) } else { d == DEAD };
        fates[waiter(fates)] == Fate::Running
            && (handle == MESSAGE && lost || handle == seat_of(d) && m.peek(NOTE) == 0)
    }

    fn look(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        for d in killed(fates) {
            self.dead = d;
            match presence(m, d) {
                Presence::Dead(n) | Presence::Vacating(n)
                    if (n < MOST || !is_remembered(m, fates)) && self.helps(m, fates, d)
                        || !is_being_recovered(m, fates, d) =>
                {
                    return Some(Doing::Announce);
                }
                Presence::Reclaiming(by) if killed(fates).any(|k| k != me && member(k) == by) => {
                    return Some(Doing::TakeOver(m.peek(tenancy(d))));
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the next step after the scan of this block: the scan of the next block, or else of the
    /// contents.
    fn after(&self, block: BlockAt) -> Doing {
        match block.id == QUEUE.id {
            true if !self.goes_on || self.reported[1] => Doing::Block(RING),
            _ => Doing::Contents,
        }
    }

    fn claimed(&mut self, block: BlockAt, end: ReleaseOutcome) -> Doing {
        self.deserted |= block.id == QUEUE.id && matches!(end, ReleaseOutcome::MustFree(_));
        self.after(block)
    }

    /// Returns the state that releases the handle in the message, before the state `then`.
    fn give(&self, then: Doing) -> Doing {
        let then = Box::new(then);
        let vacates = self.vacates() && self.setup.bug != Bug::Late;
        match self.setup.bug {
            Bug::Unnoted => {
                let release = release(RING, self.dead, RING.seat(1), MESSAGE);
                Doing::Drop { release, then }
            }
            _ if vacates => Doing::Take { then },
            _ => Doing::Give { then },
        }
    }
}

impl Actor for Process {
    /// `true` if the waiter has reused the memory.
    type Ghost = bool;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], reused: &mut bool) -> bool {
        let dead = self.dead;
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Wait => {
                if self.setup.waits && !is_notified(m, fates) {
                    return false;
                }
                Doing::Leave(RING, release(RING, me, RING.seat(0), seat_of(me)))
            }
            Doing::Leave(block, leaves) => match leaves.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => Doing::Gone,
                Some(ReleaseOutcome::MustFree(claimed)) if block.id == QUEUE.id => {
                    let free = Doing::Free { block: QUEUE, claimed, then: Doing::Gone.into() };
                    Doing::Take { then: free.into() }
                }
                Some(ReleaseOutcome::MustFree(claimed)) => {
                    *reused = true;
                    Doing::Reused(claimed)
                }
            },
            Doing::Reused(claimed) => {
                m.store(NOTE, OTHER_USE);
                let claimed = *claimed;
                self.counted = None;
                Doing::Free { block: RING, claimed, then: Doing::Reuse.into() }
            }
            Doing::Reuse => {
                assert_eq!(m.load(NOTE), OTHER_USE, "an actor writes into another's memory");
                Doing::Gone
            }
            Doing::Gone => unreachable!("it has ended"),
            Doing::Take { then } => match m.cas(RING.seat(1), MESSAGE.pack(), seat_of(me).pack()) {
                Ok(()) => Doing::Note { then: then.clone() },
                Err(_) => *then.clone(),
            },
            Doing::Note { then } => {
                assert!(
                    seats(m, RING).any(|(_, s)| s == seat_of(me)),
                    "notifies a queue that it does not have"
                );
                m.store(NOTE, GONE);
                let release = release(RING, me, RING.seat(1), seat_of(me));
                Doing::Drop { release, then: then.clone() }
            }
            Doing::Drop { release, then } => match release.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => *then.clone(),
                // The block is claimed on behalf of the dead actor: the reclaiming actor frees it.
                Some(ReleaseOutcome::MustFree(claimed)) if claimed.life != BlockLife::Busy(member(me)) => {
                    *then.clone()
                }
                Some(ReleaseOutcome::MustFree(claimed)) => {
                    Doing::Free { block: RING, claimed, then: then.clone() }
                }
            },
            Doing::Free { block, claimed, then } => {
                assert_eq!(state(m, *block), *claimed, "freed by two");
                UnclaimBlock::new(*block, *claimed).step(m);
                *then.clone()
            }
            Doing::Look => match self.look(me, m, fates) {
                Some(doing) => doing,
                None => {
                    let stopped = fates.contains(&Fate::Stopped);
                    let reclaimed = killed(fates).all(|d| presence(m, d) == Presence::Free);
                    let gone = fates[LEAVER].gone() && fates[waiter(fates)].gone();
                    return gone && (stopped || reclaimed);
                }
            },
            Doing::Announce => {
                let slot = dead as u32;
                m.store(recovering_word(me), RecoveringSlots { first: slot, last: slot }.pack());
                Doing::Enter(BeginRecovery::new(tenancy(dead), 1))
            }
            Doing::Enter(enter) => match enter.step(m) {
                None => doing,
                Some(None) => Doing::Quit { reclaims: false },
                Some(counted) => {
                    self.counted = counted;
                    let others = (RECOVERERS..RECOVERERS + self.setup.recoverers).filter(|&a| a != me);
                    let others = others.map(|a| (recovering_word(a), member(a))).collect();
                    Doing::Alone(CheckSoleRecovery::new(dead as u32, others, DeathSnapshot::new(me, fates)))
                }
            },
            Doing::Alone(alone) => match alone.step(m) {
                None => doing,
                Some(alone) => {
                    self.alone = alone;
                    Doing::Message
                }
            },
            Doing::Message if self.setup.queued => Doing::Block(QUEUE),
            Doing::Message if dead == DEAD && !self.vacates() => self.give(Doing::Block(RING)),
            Doing::Message => Doing::Block(RING),
            Doing::Block(block) => {
                let block = *block;
                let found = BlockState::unpack(m.load(block.state));
                match found.life {
                    BlockLife::Live => Doing::Seat(block),
                    life => {
                        self.deserted |= block.id == QUEUE.id && life == BlockLife::Busy(member(dead));
                        self.after(block)
                    }
                }
            }
            Doing::Seat(block) => {
                let block = *block;
                let theirs = seats(m, block).find(|(_, seat)| *seat == seat_of(dead));
                let (at, seat) = theirs.unwrap_or((block.seat(0), Seat::Free));
                _ = m.load(at);
                match (seat, self.vacates()) {
                    (Seat::Member(_), false) if block.id == QUEUE.id => {
                        self.reported[0] = true;
                        Doing::Only
                    }
                    (Seat::Member(_), false) => Doing::Tell { then: self.after(block).into() },
                    (Seat::Member(_), true) => Doing::Vacate(block, release(block, dead, at, seat)),
                    _ if has_no_seats(m, block) => {
                        Doing::Check(block, FreeCheck::new(block, NO_PAGES, member(dead)))
                    }
                    _ => self.after(block),
                }
            }
            Doing::Give { then } => match m.cas(RING.seat(1), MESSAGE.pack(), seat_of(dead).pack()) {
                Ok(()) => Doing::Tell { then: then.clone() },
                Err(_) => *then.clone(),
            },
            Doing::Tell { then } => {
                assert!(
                    seats(m, RING).any(|(_, s)| s == seat_of(dead)),
                    "notifies a queue that it does not have"
                );
                m.store(NOTE, GONE);
                self.reported[1] |= self.setup.bug != Bug::NotVacated;
                *then.clone()
            }
            Doing::Only => match BlockState::unpack(m.load(QUEUE.state)) {
                before if is_deserted(m, fates) => Doing::OnlyAgain(before),
                _ => self.after(QUEUE),
            },
            Doing::OnlyAgain(before) => {
                self.deserted |= BlockState::unpack(m.load(QUEUE.state)) == *before;
                self.after(QUEUE)
            }
            Doing::Vacate(block, release) => match release.step(m) {
                None => doing,
                // The dead actor may have another seat there, which belonged to a message.
                Some(ReleaseOutcome::Held) => Doing::Seat(*block),
                Some(end) => {
                    let block = *block;
                    self.claimed(block, end)
                }
            },
            Doing::Check(block, check) => match check.step(m) {
                None => doing,
                Some(end) => {
                    let block = *block;
                    self.claimed(block, end)
                }
            },
            Doing::Contents if self.deserted => {
                self.deserted = false;
                self.give(Doing::End)
            }
            Doing::Contents => Doing::End,
            Doing::End => match self.counted.filter(|_| self.alone) {
                None => Doing::Quit { reclaims: false },
                Some(counted) => {
                    self.counted = end_recovery(tenancy(dead), counted, member(me), m);
                    let vacates_now = !std::mem::replace(&mut self.goes_on, true);
                    match self.counted.map(|t| t.presence) {
                        Some(Presence::Vacating(_)) if self.reported[0] && vacates_now => Doing::Block(QUEUE),
                        Some(Presence::Vacating(_)) if self.reported[1] && vacates_now => Doing::Block(RING),
                        Some(Presence::Vacating(_)) => Doing::End,
                        presence => Doing::Quit { reclaims: presence.is_some() },
                    }
                }
            },
            Doing::Quit { reclaims } => {
                m.store(recovering_word(me), 0);
                let next = if *reclaims { Doing::Own(QUEUE) } else { Doing::Look };
                *self = Self { dead, ..Self::new(self.setup, next) };
                // If no actor has stored the number of recoveries, its value makes no difference.
                let presence = match presence(m, dead) {
                    Presence::Dead(_) => Presence::Dead(0),
                    Presence::Vacating(_) => Presence::Vacating(0),
                    other => other,
                };
                if !is_remembered(m, fates) {
                    m.poke(tenancy(dead), Tenancy { presence, epoch: 1 }.pack());
                }
                return false;
            }
            Doing::TakeOver(found) => {
                let mine = Tenancy { presence: Presence::Reclaiming(member(me)), epoch: 1 };
                let won = m.cas(tenancy(dead), *found, mine.pack()).is_ok();
                if won { Doing::Own(QUEUE) } else { Doing::Look }
            }
            Doing::Own(block) => {
                let found = BlockState::unpack(m.load(block.state));
                let has = seats(m, *block).any(|(_, seat)| seat == seat_of(dead));
                assert!(found.life != BlockLife::Live || !has, "a recoverer in a queue");
                match found.life {
                    BlockLife::Busy(by) if by == member(dead) => Doing::Claimed(*block, found),
                    _ if block.id == QUEUE.id => Doing::Own(RING),
                    _ => Doing::Reclaimed,
                }
            }
            Doing::Claimed(block, found) => {
                let next = if block.id == QUEUE.id { Doing::Own(RING) } else { Doing::Reclaimed };
                let mine = found.with(BlockLife::Busy(member(me)));
                match m.cas(block.state, found.pack(), mine.pack()) {
                    Ok(()) => Doing::Free { block: *block, claimed: mine, then: next.into() },
                    Err(_) => next,
                }
            }
            Doing::Reclaimed => {
                m.store(tenancy(dead), Tenancy { presence: Presence::Free, epoch: 1 }.pack());
                Doing::Look
            }
        };
        self.doing == Doing::Gone
    }
}

fn memory(setup: Setup) -> Memory {
    let m = Memory::new(FIRST as usize + 5);
    let live = BlockState { life: BlockLife::Live, kind: BlockKind::Ring, version: 1 };
    if setup.queued {
        m.poke(QUEUE.state, live.pack());
        m.poke(QUEUE.seat(0), seat_of(DEAD).pack());
        m.poke(QUEUE.seat(1), seat_of(LEAVER).pack());
    }
    m.poke(RING.state, live.pack());
    m.poke(RING.seat(0), seat_of(RECOVERERS + setup.recoverers).pack());
    m.poke(RING.seat(1), MESSAGE.pack());
    let dead = Tenancy { presence: Presence::Dead(0), epoch: 1 };
    (0..ACTORS).for_each(|a| m.poke(tenancy(a), dead.pack()));
    m
}

fn world(setup: Setup) -> World<Process> {
    let waiter = RECOVERERS + setup.recoverers;
    let actors = (0..=waiter).map(|a| {
        let doing = match a {
            DEAD | LEAVER => Doing::Leave(QUEUE, release(QUEUE, a, QUEUE.seat(a as u32), seat_of(a))),
            a if a == waiter => Doing::Wait,
            _ => Doing::Look,
        };
        Process::new(setup, doing)
    });
    let mut world = World::new(memory(setup), actors.collect(), false);
    world.fates[DEAD] = Fate::Killed;
    if !setup.queued {
        world.fates[LEAVER] = Fate::Ended;
    }
    world
}

fn explore(setup: Setup, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let reclaimed = killed(&w.fates).all(|d| presence(m, d) == Presence::Free);
        if reclaimed && !w.fates.contains(&Fate::Stopped) {
            assert_eq!(state(m, QUEUE).life, BlockLife::Free, "the outer queue leaks");
            assert_eq!(state(m, RING).life, BlockLife::Free, "the queue leaks");
        }
    };
    let wedged = |w: &World<Process>| {
        let recoverers = RECOVERERS..RECOVERERS + setup.recoverers;
        let stopped = |a: usize| w.fates[a] == Fate::Stopped;
        // A stopped actor with the handle holds the queue, like any stopped process.
        let has = |a: usize| {
            let holds = seats(&w.memory, RING).any(|(_, seat)| seat == seat_of(a));
            holds || state(&w.memory, RING).life == BlockLife::Busy(member(a))
        };
        let excused = stopped(LEAVER) || recoverers.clone().any(|a| stopped(a) && has(a));
        w.count(recoverers, Fate::Running) > 0 && !excused
    };
    world(setup).explore(kills, stops, end, wedged);
}

#[test]
fn handle_in_message_of_dead_process_is_recorded() {
    let own = Setup { queued: false, ..BASE };
    explore(own, 1, 0);
    explore(own, 0, 1);
    explore(Setup { waits: false, ..own }, 1, 0);
}

#[test]
fn handle_in_queue_of_dead_process_is_recorded() {
    explore(BASE, 0, 0);
    explore(Setup { recoverers: 1, ..BASE }, 1, 1);
    explore(Setup { waits: false, ..BASE }, 0, 0);
}

#[test]
fn lost_handle_records_hold_in_long_random_schedules() {
    at_random(|| {
        for (kills, stops) in [(1, 0), (0, 1), (1, 1), (2, 1)] {
            explore(BASE, kills, stops);
            explore(Setup { queued: false, ..BASE }, kills, stops);
        }
    });
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_unrecorded_lost_handle() {
    explore(Setup { bug: Bug::Unnoted, queued: false, ..BASE }, 0, 0);
}

#[test]
#[should_panic(expected = "a recoverer in a queue")]
fn model_finds_late_vacating_of_a_queue() {
    explore(Setup { bug: Bug::Late, ..BASE }, 0, 0);
}

#[test]
#[should_panic(expected = "a recoverer in a queue")]
fn model_finds_queue_that_is_never_vacated() {
    explore(Setup { bug: Bug::NotVacated, ..BASE }, 0, 0);
}
