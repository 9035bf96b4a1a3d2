//! Model of two actors that recover and reclaim dead members. One member died with a stale intent: the
//! envelope that it names was put into another queue later. The other member died while it took the envelope
//! out of that queue. Exhaustive worlds have two cases. Each actor recovers one of the members, or both
//! actors recover the same member and are killed and stopped. Random schedules combine both cases. Real
//! processes run the same steps.
//!
//! Checked: no message is lost, and no actor waits forever. While an actor recovers a dead member, no other
//! actor reclaims the member, so its lane, seats and slot stay unchanged.

use mp_core::mem::{Mem, Steps};
use mp_core::steps::{BeginRecovery, CheckSoleRecovery, end_recovery};
use mp_core::words::{Holder, Owner, Presence, RecoveringSlots, RingPlace, Tenancy};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{DeathSnapshot, actor_of, is_killed, killed, member};
use mp_models::random::at_random;
use mp_models::ring::{
    COUNT, ENVELOPES_AT, META, OWNER, PLACE, TestContext, chain, free, intent, memory, owner,
    recovering_word, returns, ring, seat, slots, tenancy,
};
use mp_queue::ring::{
    Content, Get, GetOutcome, NoteReturned, Put, PutOutcome, Reclaim, Return, Settle, SettleOutcome, Slot,
    SlotState, TakenMessage, may_have_returned,
};

/// Index of the actor that is dead from the beginning. Its stale intent names the message.
const STALE: usize = 0;
/// Index of the actor that takes the message, and may die meanwhile.
const TAKER: usize = 1;
/// Index of the actor that takes returned messages.
const OTHER: usize = 2;
const RECOVERERS: std::ops::Range<usize> = 3..5;
const MESSAGE: u32 = 0;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    // the producer of the message, where it is not yet put
    Put(Put),
    // consumers
    Reclaim(Reclaim),
    Get(Get),
    Done,
    Free,
    Leave,
    // recovering actors
    Look,
    Announce,
    Enter(BeginRecovery),
    Alone(CheckSoleRecovery<DeathSnapshot>),
    Settle(Box<Settle<TestContext>>),
    Envelope,
    Return(Return),
    Seat,
    Note(NoteReturned),
    Begin,
    Vacate,
    End { reclaims: bool },
    // the reclaiming actor
    TakeOver(u64),
    Own,
    Release,
    Reclaimed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    /// `true` if recovering actors check whether a dead member holds the ring. `false` is a planted bug.
    asks: bool,
    /// Planted bug: recovering actors don't check for other recovering actors.
    rash: bool,
    /// Only member that this actor recovers. `None` if it recovers all members.
    only: Option<usize>,
    /// Member in recovery. `counted` is the value of its word, and `alone` is `true` if no other actor
    /// recovers it.
    dead: usize,
    counted: Option<Tenancy>,
    alone: bool,
    settled: bool,
    returned: bool,
    doing: Doing,
}

/// `true` if the message was processed.
type Ghost = bool;

fn look_again(me: usize) -> Doing {
    let wanted = (Holder::Returned, Holder::Leased(member(me)));
    Doing::Reclaim(Reclaim::new(returns(0), ring(1), ENVELOPES_AT, wanted))
}

fn presence(m: &Memory, actor: usize) -> Presence {
    Tenancy::unpack(m.peek(tenancy(actor))).presence
}

/// Returns `true` if a recovery of `dead` could change the state for other actors. Does not count as an
/// access. Real processes always recover.
fn waited_for(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let intended = m.peek(intent(dead));
    let living = |a: usize| fates[a] != Fate::Killed && m.peek(intent(a)) == intended;
    let in_doubt = intended != 0 && !(0..fates.len()).any(living);
    let leased = owner(m, MESSAGE).holder == Holder::Leased(member(dead));
    let back =
        owner(m, MESSAGE).holder == Holder::Returned && !may_have_returned(m.peek(returns(0).returned));
    in_doubt || leased || back && m.peek(seat(dead)) != 0
}

/// Returns `true` if a living actor announces a recovery of `dead`. Does not count as an access.
fn is_being_recovered(m: &Memory, fates: &[Fate], dead: usize) -> bool {
    let recovers = |a: usize| {
        fates[a] != Fate::Killed && RecoveringSlots::covers(m.peek(recovering_word(a)), dead as u32)
    };
    (0..fates.len()).any(recovers)
}

/// Returns `true` if all killed actors are reclaimed. Does not count as an access.
fn reclaimed(m: &Memory, fates: &[Fate]) -> bool {
    killed(fates).all(|d| presence(m, d) == Presence::Free)
}

impl Process {
    /// Returns the next step for one of the dead members. Does not count as an access.
    fn look(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        for d in killed(fates).filter(|&d| self.only.is_none_or(|only| only == d)) {
            self.dead = d;
            match presence(m, d) {
                Presence::Dead(_) | Presence::Vacating(_)
                    if waited_for(m, fates, d) || !is_being_recovered(m, fates, d) =>
                {
                    return Some(Doing::Announce);
                }
                Presence::Reclaiming(by) if actor_of(by) != me && is_killed(fates, by) => {
                    return Some(Doing::TakeOver(m.peek(tenancy(d))));
                }
                _ => {}
            }
        }
        None
    }

    fn settle(&self, m: &Memory, fates: &[Fate]) -> Doing {
        let context = TestContext::new(fates, chain(1, 0), self.dead).redelivering();
        let holds = !self.asks || m.peek(seat(self.dead)) != 0;
        let context = if holds { context } else { context.without_a_seat() };
        Doing::Settle(context.settle())
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], done: &mut Ghost) -> bool {
        let dead = self.dead;
        let mut doing = self.doing.clone();
        if let Doing::Settle(_) | Doing::Return(_) | Doing::Note(_) = doing {
            assert!(matches!(presence(m, dead), Presence::Dead(_)), "reclaimed during its recovery");
        }
        self.doing = match &mut doing {
            Doing::Put(put) => match put.step(m) {
                None => doing,
                Some(PutOutcome::Done(_)) => Doing::Leave,
                Some(PutOutcome::Full(_) | PutOutcome::Closed(_)) => {
                    unreachable!("there is room; no actor closes")
                }
            },
            Doing::Reclaim(_) if *done => Doing::Leave,
            Doing::Reclaim(reclaim) => match reclaim.step(m) {
                None => doing,
                Some(Some(_)) => Doing::Done,
                Some(None) => Doing::Get(Get::new(ring(1), intent(me), OWNER, member(me)).leasing()),
            },
            Doing::Get(get) => match get.step(m) {
                None => doing,
                Some(GetOutcome::Done(TakenMessage::Envelope(..))) => Doing::Done,
                Some(GetOutcome::Empty) => look_again(me),
                Some(
                    GetOutcome::Done(TakenMessage::Small(..))
                    | GetOutcome::Done(TakenMessage::Stray(_))
                    | GetOutcome::Closed,
                ) => {
                    unreachable!("no actor closes, and it is an envelope")
                }
            },
            Doing::Done => {
                let mine = owner(m, MESSAGE);
                assert_eq!(mine.holder, Holder::Leased(member(me)), "taken away from its holder");
                assert!(!*done, "done twice");
                *done = true;
                m.store(OWNER.of(MESSAGE), mine.then(Holder::Member(member(me))).pack());
                Doing::Free
            }
            Doing::Free => {
                free(m, MESSAGE, me);
                Doing::Leave
            }
            Doing::Leave => {
                m.store(seat(me), 0);
                return true;
            }
            Doing::Look => match self.look(me, m, fates) {
                Some(doing) => doing,
                None => {
                    let stopped = fates.contains(&Fate::Stopped);
                    return fates[..RECOVERERS.start].iter().all(|f| f.gone())
                        && (stopped || reclaimed(m, fates));
                }
            },
            Doing::Announce => {
                let slot = dead as u32;
                m.store(recovering_word(me), RecoveringSlots { first: slot, last: slot }.pack());
                Doing::Enter(BeginRecovery::new(tenancy(dead), 1))
            }
            Doing::Enter(enter) => match enter.step(m) {
                None => doing,
                Some(None) => Doing::End { reclaims: false },
                Some(counted) => {
                    self.counted = counted;
                    let living = RECOVERERS.filter(|&a| a != me).map(|a| (recovering_word(a), member(a)));
                    let oracle = DeathSnapshot::new(me, fates);
                    let others = if self.rash { Vec::new() } else { living.collect() };
                    Doing::Alone(CheckSoleRecovery::new(dead as u32, others, oracle))
                }
            },
            Doing::Alone(alone) => match alone.step(m) {
                None => doing,
                Some(alone) => {
                    self.alone = alone;
                    self.settled = self.counted.is_some_and(|t| matches!(t.presence, Presence::Vacating(_)));
                    if self.settled { Doing::Vacate } else { self.settle(m, fates) }
                }
            },
            Doing::Settle(settle) => match settle.step(m) {
                None => doing,
                Some(SettleOutcome::Owned(_)) => unreachable!("everything is delivered again here"),
                Some(end) => {
                    self.settled = !matches!(end, SettleOutcome::Undecided(_));
                    Doing::Envelope
                }
            },
            Doing::Envelope => {
                let found = Owner::unpack(m.load(OWNER.of(MESSAGE)));
                if found.holder == Holder::Leased(member(dead)) {
                    let back = Return::new(returns(0), OWNER.of(MESSAGE), META.of(MESSAGE), found);
                    Doing::Return(back.for_dead_holder())
                } else {
                    Doing::Seat
                }
            }
            Doing::Return(back) => match back.step(m) {
                None => doing,
                Some(end) => {
                    self.returned = end.is_some();
                    Doing::Seat
                }
            },
            Doing::Seat => match m.load(seat(dead)) {
                0 => Doing::Begin,
                // Real processes always note a returned message. In the model the number of notes must be
                // finite.
                _ if owner(m, MESSAGE).holder == Holder::Returned
                    && (self.returned || !may_have_returned(m.peek(returns(0).returned))) =>
                {
                    Doing::Note(NoteReturned::new(returns(0)))
                }
                _ => Doing::Begin,
            },
            Doing::Note(note) => {
                assert_ne!(m.peek(seat(dead)), 0, "writes into memory that has no holder");
                match note.step(m) {
                    None => doing,
                    Some(()) => Doing::Begin,
                }
            }
            Doing::Begin => match self.counted {
                Some(counted) if self.alone && self.settled => {
                    self.counted = end_recovery(tenancy(dead), counted, member(me), m);
                    match self.counted.map(|t| t.presence) {
                        Some(Presence::Vacating(_)) => Doing::Vacate,
                        presence => Doing::End { reclaims: presence.is_some() },
                    }
                }
                _ => Doing::End { reclaims: false },
            },
            Doing::Vacate => {
                assert!(matches!(presence(m, dead), Presence::Vacating(_)), "reclaimed during its recovery");
                _ = m.cas(seat(dead), dead as u64 + 1, 0);
                Doing::Begin
            }
            Doing::End { reclaims } => {
                m.store(recovering_word(me), 0);
                (self.counted, self.alone, self.settled, self.returned) = (None, false, false, false);
                // If no actor has stored the number of recoveries, its value makes no difference.
                let presence = match presence(m, dead) {
                    Presence::Dead(_) => Presence::Dead(0),
                    Presence::Vacating(_) => Presence::Vacating(0),
                    other => other,
                };
                if !is_being_recovered(m, fates, dead) {
                    m.poke(tenancy(dead), Tenancy { presence, epoch: 1 }.pack());
                }
                if *reclaims { Doing::Own } else { Doing::Look }
            }
            Doing::TakeOver(found) => {
                let mine = Tenancy { presence: Presence::Reclaiming(member(me)), epoch: 1 };
                let won = m.cas(tenancy(dead), *found, mine.pack()).is_ok();
                if won { Doing::Own } else { Doing::Look }
            }
            Doing::Own => {
                let found = owner(m, MESSAGE);
                let mine = found.then(Holder::Member(member(me)));
                assert_ne!(found.holder, Holder::Leased(member(dead)), "its lease was not returned");
                let theirs = found.holder == Holder::Member(member(dead));
                let won = theirs && m.cas(OWNER.of(MESSAGE), found.pack(), mine.pack()).is_ok();
                if won { Doing::Release } else { Doing::Reclaimed }
            }
            Doing::Release => {
                free(m, MESSAGE, me);
                Doing::Reclaimed
            }
            Doing::Reclaimed => {
                m.store(tenancy(dead), Tenancy { presence: Presence::Free, epoch: 1 }.pack());
                Doing::Look
            }
        };
        false
    }
}

#[derive(Clone, Copy)]
struct Setup {
    /// `true` if the dead member with the stale intent has a seat in the queue.
    stale_holds: bool,
    asks: bool,
    rash: bool,
    /// `true` if each of the two actors recovers a different member.
    apart: bool,
}

const BASE: Setup = Setup { stale_holds: false, asks: true, rash: false, apart: false };
const APART: Setup = Setup { apart: true, ..BASE };

impl Setup {
    /// Creates a world with a queue with acknowledgement, which contains one message.
    fn world(self) -> World<Process> {
        let m = memory(&chain(1, 0), 1);
        let queued = Owner { holder: Holder::Queued, seq: 1 };
        m.poke(COUNT, u64::from(MESSAGE) + 1);
        m.poke(OWNER.of(MESSAGE), queued.pack());
        m.poke(PLACE.of(MESSAGE), RingPlace { ring: 0, slot: 0 }.pack());
        m.poke(ring(1).slot(0), Slot { lap: 1, state: SlotState::Full(Content::of(MESSAGE)) }.pack());
        m.poke(intent(STALE), u64::from(MESSAGE) + 1);
        let holders = [TAKER, OTHER].into_iter().chain(self.stale_holds.then_some(STALE));
        holders.for_each(|a| m.poke(seat(a), a as u64 + 1));
        // The word is read only after its actor has died.
        let dead = Tenancy { presence: Presence::Dead(0), epoch: 1 };
        (0..RECOVERERS.end).for_each(|a| m.poke(tenancy(a), dead.pack()));
        let actors = (0..RECOVERERS.end).map(|a| {
            let get = Doing::Get(Get::new(ring(1), intent(a), OWNER, member(a)).leasing());
            let doing = if RECOVERERS.contains(&a) { Doing::Look } else { get };
            let Self { asks, rash, .. } = self;
            let only = self.apart.then_some(if a == RECOVERERS.start { STALE } else { TAKER });
            Process {
                asks,
                rash,
                only,
                dead: TAKER,
                counted: None,
                alone: false,
                settled: false,
                returned: false,
                doing,
            }
        });
        let mut world = World::new(m, actors.collect(), false);
        world.fates[STALE] = Fate::Killed;
        world
    }

    /// Creates the world of [`world`](Self::world), but the message is put later, into the queue that the
    /// dead member with the stale intent holds.
    fn put(self) -> World<Process> {
        let mut world = self.world();
        let (m, mine) = (&world.memory, Owner { holder: Holder::Member(member(TAKER)), seq: 1 });
        m.poke(OWNER.of(MESSAGE), mine.pack());
        m.poke(ring(1).slot(0), Slot { lap: 1, state: SlotState::Empty }.pack());
        let words = (MESSAGE, OWNER.of(MESSAGE), PLACE.of(MESSAGE));
        let put = Put::new(ring(1), intent(TAKER), words, member(TAKER), mine);
        world.actors[TAKER].doing = Doing::Put(put);
        world
    }

    /// Creates a world like [`taken`](Self::taken), without the dead member with the stale intent.
    fn one_dead(self) -> World<Process> {
        let mut world = self.taken();
        world.fates[STALE] = Fate::Ended;
        world.memory.poke(intent(STALE), 0);
        world
    }

    /// Creates a world like [`one_dead`](Self::one_dead), without the actor that takes returned messages.
    fn alone(self) -> World<Process> {
        let mut world = self.one_dead();
        world.fates[OTHER] = Fate::Ended;
        world
    }

    /// Creates a world in which the taker dies right after it has taken the message out of its slot.
    fn taken(self) -> World<Process> {
        let mut world = self.world();
        while slots(&world.memory, &chain(1, 0))[0].envelope().is_some() {
            world.step(TAKER);
        }
        world.fates[TAKER] = Fate::Killed;
        world
    }
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        if w.count(RECOVERERS, Fate::Ended) == 0 || !w.fates[OTHER].gone() {
            return;
        }
        let found = owner(m, MESSAGE).holder;
        let in_slot = slots(m, &chain(1, 0)).iter().any(|s| s.envelope() == Some(MESSAGE));
        let with_stopped = |o| w.fates[actor_of(o)] == Fate::Stopped;
        let intends = |a: usize| w.fates[a] == Fate::Stopped && m.peek(intent(a)) != 0;
        let in_doubt = (0..w.fates.len()).any(intends);
        let fine = match found {
            Holder::Free => w.ghost,
            Holder::Queued => in_slot || in_doubt,
            // An actor that checks the queue finds the message.
            Holder::Returned => !w.ghost && may_have_returned(m.peek(returns(0).returned)),
            // The actor that had processed the message died. The envelope is freed when no actor recovers.
            Holder::Member(o) => with_stopped(o) || w.ghost && w.count(0..w.fates.len(), Fate::Stopped) > 0,
            Holder::Leased(o) => with_stopped(o),
            Holder::Undeliverable => false,
        };
        assert!(fine, "the message is {found:?}");
    };
    let wedged = |w: &World<Process>| {
        let recovers = w.count(RECOVERERS, Fate::Running) > 0;
        // A stopped consumer keeps its message.
        let stopped = w.count(0..RECOVERERS.start, Fate::Stopped) > 0;
        recovers && !stopped
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn stale_intent_takes_no_message_of_an_unheld_queue() {
    explore(APART.taken(), 0, 0);
}

#[test]
fn recoverer_may_lease_for_another_dead_member() {
    explore(Setup { stale_holds: true, ..APART }.taken(), 0, 0);
}

/// A recovering actor reads the slots before the producer writes the message, and reads the intents after the
/// producer has cleared its intent.
#[test]
fn message_being_put_is_not_taken_for_ownerless() {
    explore(Setup { stale_holds: true, ..BASE }.put(), 0, 0);
}

#[test]
fn memory_survives_killed_and_stopped_recoverers() {
    explore(BASE.alone(), 1, 0);
    explore(BASE.alone(), 0, 1);
    explore(BASE.alone(), 1, 1);
    explore(BASE.one_dead(), 0, 1);
}

#[test]
fn recovery_holds_in_long_random_schedules() {
    at_random(|| {
        explore(BASE.world(), 2, 1);
        explore(Setup { stale_holds: true, ..BASE }.world(), 2, 1);
        explore(Setup { stale_holds: true, ..BASE }.taken(), 1, 1);
        explore(BASE.alone(), 1, 1);
    });
}

/// The message is leased for a member without a seat in the queue, so its return is never found.
#[test]
#[should_panic(expected = "wedged")]
fn model_finds_message_lost_without_a_seat_request() {
    explore(Setup { asks: false, ..APART }.taken(), 0, 0);
}

#[test]
#[should_panic(expected = "reclaimed during its recovery")]
fn model_finds_recoverer_that_frees_live_memory() {
    explore(Setup { rash: true, ..BASE }.alone(), 0, 1);
}
