//! Model of a queue that a dead and a living actor hold. A message in the queue holds a token, such as a
//! channel's last sender, and other actors wait for the token's release. The living actor drops the queue
//! while other actors recover the dead actor, and are killed and stopped. Then the living actor reuses the
//! queue's memory, if the memory is free. The model is explored exhaustively with two recovering actors, and
//! at random with three. Real processes run the same steps.
//!
//! Checked: no running actor waits for a stopped actor. No actor writes into a queue without a holder. Reused
//! memory has no other holder. Nothing is freed twice, and nothing leaks.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{
    BeginRecovery, BlockAt, CheckSoleRecovery, ClaimBlock, FreeCheck, PublishBlock, ReleaseOutcome,
    ReleaseSeat, SlabSnapshot, UnclaimBlock, end_recovery,
};
use mp_core::words::{BlockKind, BlockLife, BlockState, Presence, RecoveringSlots, Seat, Tenancy};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{DeathSnapshot, killed, member};
use mp_models::random::at_random;
use mp_models::vacating::{
    DEAD, LEAVER, MESSAGE, NO_PAGES, NOTIFIED, OTHER_USE, Pages, QUEUE, RECOVERERS, SLAB, TOKEN,
    has_no_seats, is_being_recovered, is_deserted, is_remembered, is_waited_for, memory, presence,
    recovering_word, seat_of, seats, state, tenancy,
};

/// Maximum number of concurrent recoveries. Larger numbers find no additional planted bugs.
const MOST: u32 = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    // the leaver
    Leave(ReleaseSeat<Pages>),
    Claim(ClaimBlock),
    Publish(PublishBlock),
    Write,
    Read,
    Again(ReleaseSeat<Pages>),
    Gone,
    // the last holder of the queue: its contents, and its memory
    Drain(ReleaseSeat<Pages>, BlockState),
    FreeToken(BlockState, BlockState),
    Free(BlockAt, BlockState),
    // recovering actors
    Look,
    Announce,
    Enter(BeginRecovery),
    Alone(CheckSoleRecovery<DeathSnapshot>),
    Queue,
    Seat,
    Tell,
    Only,
    OnlyAgain(BlockState),
    Vacate(ReleaseSeat<Pages>),
    Check(FreeCheck<Pages>),
    Token,
    TokenCheck(FreeCheck<Pages>),
    Contents,
    GiveUp(ReleaseSeat<Pages>),
    End,
    Quit { reclaims: bool },
    // the reclaiming actor
    TakeOver(u64),
    Own(BlockAt),
    Claimed(BlockAt, BlockState),
    Take(ReleaseSeat<Pages>),
    Greedy(FreeCheck<Pages>),
    Reclaimed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// Recovering actors don't release a dead actor's seats in queues. Only the reclaiming actor does.
    OldOrder,
    /// Vacating actors do not check for other recovering actors.
    Rash,
    /// A vacating actor treats a seat that another actor has released as completely recovered.
    Trusting,
    /// The reclaiming actor claims any block without holders, even if the dead actor had no seat in it.
    Greedy,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setup {
    bug: Bug,
    /// `true` if the leaver reuses the memory.
    reuses: bool,
    /// Number of actors in addition to the dead actor and the leaver.
    recoverers: usize,
}

const BASE: Setup = Setup { bug: Bug::None, reuses: false, recoverers: 2 };

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    setup: Setup,
    dead: usize,
    counted: Option<Tenancy>,
    alone: bool,
    reported: bool,
    deserted: bool,
    /// `true` in all phases of the actor's recovery except the first.
    goes_on: bool,
    doing: Doing,
}

impl Process {
    fn new(setup: Setup, doing: Doing) -> Self {
        let (counted, alone, reported, deserted, goes_on) = (None, false, false, false, false);
        Self { setup, dead: DEAD, counted, alone, reported, deserted, goes_on, doing }
    }

    fn vacates(&self) -> bool {
        !matches!(self.counted, Some(Tenancy { presence: Presence::Dead(_), .. }))
    }

    /// Returns the next step of the recovery of a dead actor. Does not count as an access.
    fn look(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        for d in killed(fates) {
            self.dead = d;
            match presence(m, d) {
                Presence::Dead(n) | Presence::Vacating(n)
                    if (n < MOST || !is_remembered(m, fates)) && is_waited_for(m, fates, d)
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

    /// Returns the next step after the work on this block.
    fn after(&self, me: usize, block: BlockAt) -> Doing {
        match (me, block.id == QUEUE.id) {
            (LEAVER, _) if !self.setup.reuses => Doing::Gone,
            (LEAVER, _) => {
                Doing::Claim(ClaimBlock::new(QUEUE, member(me), SlabSnapshot { word: SLAB, value: 0 }))
            }
            (_, true) => Doing::Own(TOKEN),
            (_, false) => Doing::Reclaimed,
        }
    }

    /// Returns the next step after the scan of the queue's seats: the scan of the token's seats.
    fn token(&self) -> Doing {
        if self.goes_on || self.setup.bug == Bug::Trusting && self.vacates() {
            return Doing::Contents;
        }
        Doing::Token
    }

    /// Returns the next state after a seat of the queue was released for the dead actor.
    fn claimed(&mut self, end: ReleaseOutcome) -> Doing {
        self.deserted |= matches!(end, ReleaseOutcome::MustFree(BlockState { kind: BlockKind::Ring, .. }));
        self.token()
    }
}

fn release(me: usize, seat: Word, holder: Seat) -> ReleaseSeat<Pages> {
    ReleaseSeat::new(QUEUE, NO_PAGES, member(me), seat, holder)
}

/// Returns the state that drains the queue, which no other actor holds.
fn drain(me: usize, state: BlockState) -> Doing {
    match state.kind {
        BlockKind::Ring => {
            Doing::Drain(ReleaseSeat::new(TOKEN, NO_PAGES, member(me), TOKEN.seat(0), MESSAGE), state)
        }
        _ => Doing::Free(QUEUE, state),
    }
}

impl Actor for Process {
    /// `true` if the leaver has reused the memory.
    type Ghost = bool;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], reused: &mut bool) -> bool {
        let dead = self.dead;
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Leave(release) => match release.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => self.after(me, QUEUE),
                Some(ReleaseOutcome::MustFree(state)) => drain(me, state),
            },
            Doing::Claim(claim) => match claim.step(m) {
                None => doing,
                Some(None) => Doing::Gone,
                Some(Some(state)) => {
                    Doing::Publish(PublishBlock::new(QUEUE, member(me), state, BlockKind::Data))
                }
            },
            Doing::Publish(publish) => match publish.step(m) {
                None => doing,
                Some(_) => {
                    *reused = true;
                    Doing::Write
                }
            },
            Doing::Write => {
                m.store(NOTIFIED, OTHER_USE);
                Doing::Read
            }
            Doing::Read => {
                assert_eq!(m.load(NOTIFIED), OTHER_USE, "an actor writes into another's memory");
                Doing::Again(release(me, QUEUE.seat(0), seat_of(me)))
            }
            Doing::Again(release) => {
                let end = release.step(m);
                *reused &= Seat::unpack(m.peek(QUEUE.seat(0))) == seat_of(me);
                match end {
                    None => doing,
                    Some(ReleaseOutcome::Held) => Doing::Gone,
                    Some(ReleaseOutcome::MustFree(state)) => Doing::Free(QUEUE, state),
                }
            }
            Doing::Gone => unreachable!("it has ended"),
            Doing::Drain(release, queue) => match release.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => Doing::Free(QUEUE, *queue),
                Some(ReleaseOutcome::MustFree(token)) => Doing::FreeToken(token, *queue),
            },
            Doing::FreeToken(token, queue) => {
                assert_eq!(state(m, TOKEN), *token, "freed by two");
                UnclaimBlock::new(TOKEN, *token).step(m);
                Doing::Free(QUEUE, *queue)
            }
            Doing::Free(block, claimed) => {
                assert_eq!(state(m, *block), *claimed, "freed by two");
                UnclaimBlock::new(*block, *claimed).step(m);
                let again = claimed.kind == BlockKind::Data && me == LEAVER;
                if again { Doing::Gone } else { self.after(me, *block) }
            }
            Doing::Look => match self.look(me, m, fates) {
                Some(doing) => doing,
                None => {
                    let stopped = fates.contains(&Fate::Stopped);
                    let reclaimed = killed(fates).all(|d| presence(m, d) == Presence::Free);
                    let reported = state(m, TOKEN).life != BlockLife::Live || fates[LEAVER] == Fate::Stopped;
                    return fates[LEAVER].gone() && reported && (stopped || reclaimed);
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
                    let others = (RECOVERERS..RECOVERERS + self.setup.recoverers)
                        .filter(|&a| a != me && self.setup.bug != Bug::Rash);
                    let others = others.map(|a| (recovering_word(a), member(a))).collect();
                    Doing::Alone(CheckSoleRecovery::new(dead as u32, others, DeathSnapshot::new(me, fates)))
                }
            },
            Doing::Alone(alone) => match alone.step(m) {
                None => doing,
                Some(alone) => {
                    self.alone = alone;
                    Doing::Queue
                }
            },
            Doing::Queue => {
                let queue = BlockState::unpack(m.load(QUEUE.state));
                match queue.life {
                    BlockLife::Live => Doing::Seat,
                    life => {
                        self.deserted |=
                            life == BlockLife::Busy(member(dead)) && queue.kind == BlockKind::Ring;
                        self.token()
                    }
                }
            }
            Doing::Seat => {
                let theirs = seats(m, QUEUE).find(|(_, seat)| *seat == seat_of(dead));
                let (at, seat) = theirs.unwrap_or((QUEUE.seat(0), Seat::Free));
                _ = m.load(at);
                match (seat, self.vacates()) {
                    // A seat in a block that isn't a queue is released at once.
                    (Seat::Member(_), false) if state(m, QUEUE).kind == BlockKind::Ring => Doing::Tell,
                    (Seat::Member(_), _) => Doing::Vacate(release(dead, at, seat)),
                    _ if has_no_seats(m, QUEUE) && !(self.setup.bug == Bug::Trusting && self.vacates()) => {
                        Doing::Check(FreeCheck::new(QUEUE, NO_PAGES, member(dead)))
                    }
                    _ => self.token(),
                }
            }
            Doing::Tell => {
                assert!(
                    seats(m, QUEUE).any(|(_, s)| s == seat_of(dead)),
                    "notifies a queue that it does not have"
                );
                m.store(NOTIFIED, 1);
                self.reported = true;
                Doing::Only
            }
            Doing::Only => match BlockState::unpack(m.load(QUEUE.state)) {
                state if is_deserted(m, fates) => Doing::OnlyAgain(state),
                _ => self.token(),
            },
            Doing::OnlyAgain(before) => {
                self.deserted |= BlockState::unpack(m.load(QUEUE.state)) == *before;
                self.token()
            }
            Doing::Vacate(release) => match release.step(m) {
                None => doing,
                Some(end) => self.claimed(end),
            },
            Doing::Check(check) => match check.step(m) {
                None => doing,
                Some(end) => self.claimed(end),
            },
            Doing::Token => {
                _ = m.load(TOKEN.seat(0));
                match has_no_seats(m, TOKEN) {
                    true => Doing::TokenCheck(FreeCheck::new(TOKEN, NO_PAGES, member(dead))),
                    false => Doing::Contents,
                }
            }
            Doing::TokenCheck(check) => match check.step(m) {
                None => doing,
                Some(_) => Doing::Contents,
            },
            Doing::Contents if self.deserted => {
                self.deserted = false;
                let of_queue = ReleaseSeat::new(TOKEN, NO_PAGES, member(dead), TOKEN.seat(0), MESSAGE);
                Doing::GiveUp(of_queue)
            }
            Doing::Contents => Doing::End,
            Doing::GiveUp(release) => match release.step(m) {
                None => doing,
                Some(_) => Doing::End,
            },
            Doing::End => match self.counted.filter(|_| self.alone) {
                None => Doing::Quit { reclaims: false },
                Some(counted) if self.setup.bug == Bug::OldOrder => {
                    let mine = Tenancy { presence: Presence::Reclaiming(member(me)), ..counted };
                    let reclaims = m.cas(tenancy(dead), counted.pack(), mine.pack()).is_ok();
                    Doing::Quit { reclaims }
                }
                Some(counted) => {
                    self.counted = end_recovery(tenancy(dead), counted, member(me), m);
                    self.goes_on = true;
                    match self.counted.map(|t| t.presence) {
                        Some(Presence::Vacating(_)) if self.reported => Doing::Queue,
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
                let of_dead = seats(m, *block).find(|(_, seat)| *seat == seat_of(dead));
                match (found.life, of_dead) {
                    (BlockLife::Busy(by), _) if by == member(dead) => Doing::Claimed(*block, found),
                    (BlockLife::Live, Some((at, seat))) if self.setup.bug == Bug::OldOrder => {
                        Doing::Take(release(me, at, seat))
                    }
                    (BlockLife::Live, Some(_)) => unreachable!("a recoverer in a queue"),
                    (BlockLife::Live, None) if self.setup.bug == Bug::Greedy && *block == QUEUE => {
                        Doing::Greedy(FreeCheck::new(QUEUE, NO_PAGES, member(me)))
                    }
                    _ => self.after(me, *block),
                }
            }
            Doing::Claimed(block, found) => {
                let mine = found.with(BlockLife::Busy(member(me)));
                match m.cas(block.state, found.pack(), mine.pack()) {
                    Ok(()) if *block == QUEUE => drain(me, mine),
                    Ok(()) => Doing::Free(*block, mine),
                    Err(_) => self.after(me, *block),
                }
            }
            Doing::Take(release) => match release.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => self.after(me, QUEUE),
                Some(ReleaseOutcome::MustFree(state)) => drain(me, state),
            },
            Doing::Greedy(check) => match check.step(m) {
                None => doing,
                Some(ReleaseOutcome::Held) => self.after(me, QUEUE),
                Some(ReleaseOutcome::MustFree(state)) => drain(me, state),
            },
            Doing::Reclaimed => {
                m.store(tenancy(dead), Tenancy { presence: Presence::Free, epoch: 1 }.pack());
                Doing::Look
            }
        };
        if self.doing == Doing::Gone {
            return true;
        }
        if *reused && fates[LEAVER] != Fate::Killed {
            assert_eq!(state(m, QUEUE).life, BlockLife::Live, "taken away from its holder");
        }
        false
    }
}

/// Creates a world in which the dead actor and the leaver hold the queue, which contains a message.
fn world(setup: Setup) -> World<Process> {
    let actors = (0..RECOVERERS + setup.recoverers).map(|a| {
        let doing = match a {
            DEAD | LEAVER => Doing::Leave(release(a, QUEUE.seat(a as u32), seat_of(a))),
            _ => Doing::Look,
        };
        Process::new(setup, doing)
    });
    let mut world = World::new(memory(), actors.collect(), false);
    world.fates[DEAD] = Fate::Killed;
    world
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let reclaimed = killed(&w.fates).all(|d| presence(m, d) == Presence::Free);
        if reclaimed && !w.fates.contains(&Fate::Stopped) {
            assert_eq!(state(m, QUEUE).life, BlockLife::Free, "the queue leaks");
            assert_eq!(state(m, TOKEN).life, BlockLife::Free, "the token leaks");
        }
    };
    let wedged = |w: &World<Process>| {
        let sees = w.count(RECOVERERS..w.fates.len(), Fate::Running) > 0;
        // A stopped actor keeps its resources.
        sees && w.fates[LEAVER] != Fate::Stopped
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn dropped_queue_strands_no_message_of_a_dead_holder() {
    explore(world(BASE), 0, 1);
    explore(world(BASE), 1, 0);
}

#[test]
fn late_recoverer_changes_no_reused_memory() {
    explore(world(Setup { reuses: true, ..BASE }), 0, 0);
}

#[test]
fn queue_vacating_holds_in_long_random_schedules() {
    at_random(|| {
        for recoverers in 2..=3 {
            for (kills, stops) in [(1, 1), (2, 1), (0, 2)] {
                explore(world(Setup { reuses: true, recoverers, ..BASE }), kills, stops);
            }
        }
    });
}

fn with(bug: Bug) -> World<Process> {
    world(Setup { bug, ..BASE })
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_seats_left_to_the_reclaiming_actor() {
    explore(with(Bug::OldOrder), 0, 1);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_claim_of_all_unheld_blocks() {
    explore(with(Bug::Greedy), 0, 1);
}

/// The actor that released the seats is stopped before it checks whether these were the last seats of the
/// queue.
#[test]
#[should_panic(expected = "wedged")]
fn model_finds_trust_in_an_unchecked_release() {
    explore(with(Bug::Trusting), 0, 1);
}

#[test]
#[should_panic(expected = "notifies a queue that it does not have")]
fn model_finds_vacating_that_ignores_recoverers() {
    explore(with(Bug::Rash), 0, 0);
}
