//! Two sweepers at once, each with a dead member of its own, exhaustively: one member died with an intent that names an
//! envelope of long ago, which has come into another queue since; the other one died while it took it there. The steps
//! are the ones that run in processes.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner, Place};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::ring::{
    Around, COUNT, META, OWNER, PLACE, SWEPT, chain, free, intent, member, memory, owner, returns, ring,
    seat, slots, tenancy,
};
use mp_queue::ring::{Content, Get, Got, Note, Reclaim, Return, Settle, Settled, Slot, SlotState};

/// Dead from the beginning; its intent names the message.
const STALE: usize = 0;
/// Takes the message, and may die in it.
const TAKER: usize = 1;
/// Takes what comes back.
const OTHER: usize = 2;
const SWEEPERS: std::ops::Range<usize> = 3..5;
const MESSAGE: u32 = 0;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    // consumers
    Reclaim(Reclaim),
    Get(Get),
    Done,
    Free,
    // sweepers; the first number is who is swept
    Look,
    Claim(usize, u64),
    Settle(usize, Box<Settle<Around>>),
    Later(usize),
    Envelope(usize, u32),
    Return(usize, u32, Return),
    Own(usize, u32, Owner),
    Release(usize, u32),
    Seat(usize, usize),
    Note(usize, usize, Note),
    Vacate(usize, usize),
    Swept(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    /// Sweepers ask whether the dead one holds the ring.
    asks: bool,
    doing: Doing,
}

/// Whether the message was done.
type Ghost = bool;

fn look_again(me: usize) -> Doing {
    let wanted = (Holder::Returned, Holder::Leased(member(me)));
    Doing::Reclaim(Reclaim::new(returns(0), ring(1), COUNT, (OWNER, PLACE), wanted))
}

/// Who is dead and not swept, nor being swept by one who lives; no access.
fn unswept(m: &Memory, fates: &[Fate]) -> Option<(usize, u64)> {
    let dead = |a: usize| fates[a] == Fate::Killed;
    let all = (0..fates.len()).filter(|&d| dead(d)).map(|d| (d, m.peek(tenancy(d))));
    all.into_iter().find(|&(_, by)| by != SWEPT && (by == 0 || dead(by as usize - 1)))
}

/// Whether a sweep is still to come or to end; no access.
fn swept(m: &Memory, fates: &[Fate]) -> bool {
    (0..fates.len()).all(|d| fates[d] != Fate::Killed || m.peek(tenancy(d)) == SWEPT)
}

impl Process {
    fn settle(&self, me: usize, dead: usize, m: &Memory, fates: &[Fate]) -> Doing {
        let around = Around::new(fates, chain(1, 0)).redelivering(dead);
        let holds = !self.asks || m.peek(seat(dead)) == dead as u64 + 1;
        let around = if holds { around } else { around.without_a_seat() };
        let settle = Settle::new((intent(dead), intent(me)), (OWNER, PLACE), around, member(me));
        Doing::Settle(dead, Box::new(settle))
    }

    fn envelope(&self, dead: usize, e: u32, found: Owner) -> Doing {
        match found.holder {
            Holder::Leased(o) if o == member(dead) => {
                let back = Return::new(returns(0), OWNER.of(e), META.of(e), found);
                Doing::Return(dead, e, back.for_the_dead())
            }
            Holder::Member(o) if o == member(dead) => Doing::Own(dead, e, found),
            _ => Self::next_envelope(dead, e),
        }
    }

    fn next_envelope(dead: usize, e: u32) -> Doing {
        if e == MESSAGE { Doing::Seat(dead, 0) } else { Doing::Envelope(dead, e + 1) }
    }

    /// Sweepers have none of their own.
    fn next_seat(dead: usize, i: usize) -> Doing {
        if i + 1 < SWEEPERS.start { Doing::Seat(dead, i + 1) } else { Doing::Swept(dead) }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], done: &mut Ghost) -> bool {
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Reclaim(_) if *done => return true,
            Doing::Reclaim(reclaim) => match reclaim.step(m) {
                None => doing,
                Some(Some(_)) => Doing::Done,
                Some(None) => Doing::Get(Get::new(ring(1), intent(me), OWNER, member(me)).leasing()),
            },
            Doing::Get(get) => match get.step(m) {
                None => doing,
                Some(Got::Envelope(..)) => Doing::Done,
                Some(Got::Empty) => look_again(me),
                Some(Got::Small(..) | Got::Stray(_) | Got::Closed) => {
                    unreachable!("nobody closes, and it is an envelope")
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
                return true;
            }
            Doing::Look => match unswept(m, fates) {
                Some((dead, found)) => Doing::Claim(dead, found),
                None => return fates[..SWEEPERS.start].iter().all(|f| f.gone()) && swept(m, fates),
            },
            Doing::Claim(dead, found) => match m.cas(tenancy(*dead), *found, me as u64 + 1) {
                Ok(()) => self.settle(me, *dead, m, fates),
                Err(_) => Doing::Look,
            },
            Doing::Settle(dead, settle) => match settle.step(m) {
                None => doing,
                Some(Settled::TakenOver(_)) => unreachable!("everything is delivered again here"),
                Some(Settled::Later) => Doing::Later(*dead),
                Some(Settled::Clear | Settled::Leased) => Doing::Envelope(*dead, 0),
            },
            Doing::Later(dead) => {
                m.store(tenancy(*dead), 0);
                Doing::Look
            }
            Doing::Envelope(dead, e) => self.envelope(*dead, *e, Owner::unpack(m.load(OWNER.of(*e)))),
            Doing::Return(dead, e, back) => match back.step(m) {
                None => doing,
                Some(_) => Self::next_envelope(*dead, *e),
            },
            Doing::Own(dead, e, found) => {
                let mine = found.then(Holder::Member(member(me)));
                match m.cas(OWNER.of(*e), found.pack(), mine.pack()) {
                    Ok(()) => Doing::Release(*dead, *e),
                    Err(_) => Self::next_envelope(*dead, *e),
                }
            }
            Doing::Release(dead, e) => {
                free(m, *e, me);
                Self::next_envelope(*dead, *e)
            }
            Doing::Seat(dead, i) => match m.cas(seat(*i), *dead as u64 + 1, me as u64 + 1) {
                Ok(()) => Doing::Note(*dead, *i, Note::new(returns(0))),
                Err(_) => Self::next_seat(*dead, *i),
            },
            Doing::Note(dead, i, note) => match note.step(m) {
                None => doing,
                Some(()) => Doing::Vacate(*dead, *i),
            },
            Doing::Vacate(dead, i) => {
                m.store(seat(*i), 0);
                Self::next_seat(*dead, *i)
            }
            Doing::Swept(dead) => {
                m.store(tenancy(*dead), SWEPT);
                Doing::Look
            }
        };
        false
    }
}

/// One message in a queue that delivers again, which the dead one with the stale intent holds, or doesn't.
fn world(stale_holds: bool, asks: bool) -> World<Process> {
    let m = memory(&chain(1, 0), 1);
    let queued = Owner { holder: Holder::Queued, seq: 1 };
    m.poke(COUNT, u64::from(MESSAGE) + 1);
    m.poke(OWNER.of(MESSAGE), queued.pack());
    m.poke(PLACE.of(MESSAGE), Place { ring: 0, slot: 0 }.pack());
    m.poke(ring(1).slot(0), Slot { lap: 1, state: SlotState::Full(Content::of(MESSAGE)) }.pack());
    m.poke(intent(STALE), u64::from(MESSAGE) + 1);
    let holders = [TAKER, OTHER].into_iter().chain(stale_holds.then_some(STALE));
    holders.for_each(|a| m.poke(seat(a), a as u64 + 1));
    let actors = (0..SWEEPERS.end).map(|a| {
        let get = Doing::Get(Get::new(ring(1), intent(a), OWNER, member(a)).leasing());
        Process { asks, doing: if SWEEPERS.contains(&a) { Doing::Look } else { get } }
    });
    let mut world = World::new(m, actors.collect(), false);
    world.fates[STALE] = Fate::Killed;
    world
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let stopped = w.count(0..w.fates.len(), Fate::Stopped) > 0;
        if !swept(m, &w.fates) || stopped {
            return;
        }
        let found = owner(m, MESSAGE).holder;
        let in_slot = slots(m, &chain(1, 0)).iter().any(|s| s.envelope() == Some(MESSAGE));
        let fine = match found {
            Holder::Free => w.ghost,
            Holder::Queued => in_slot,
            Holder::Returned => !w.ghost,
            _ => false,
        };
        assert!(fine, "the message is {found:?}");
    };
    let wedged = |w: &World<Process>| {
        let sweeps = w.count(SWEEPERS, Fate::Running) > 0;
        let stopped = w.count(0..w.fates.len(), Fate::Stopped) > 0;
        w.fates[OTHER] == Fate::Running && sweeps && !stopped
    };
    let explored = world.explore(kills, stops, end, wedged);
    println!("{} states, {} ends", explored.states, explored.ends);
    assert!(explored.ends > 0);
}

#[test]
fn a_stale_intent_takes_no_message_of_a_queue_that_its_member_does_not_hold() {
    explore(world(false, true), 1, 0);
}

#[test]
fn one_who_holds_the_queue_may_lease_it_for_the_other_dead_one() {
    explore(world(true, true), 1, 0);
}

#[test]
fn sweepers_are_killed_too() {
    let mut world = world(false, true);
    // It has just taken the message out of its slot.
    while slots(&world.memory, &chain(1, 0))[0].envelope().is_some() {
        world.step(TAKER);
    }
    world.fates[TAKER] = Fate::Killed;
    explore(world, 1, 0);
}

/// The message is leased for one who has no seat in the queue, with whose sweep it would be noted that it came back.
#[test]
#[should_panic(expected = "wedged")]
fn without_asking_for_the_seat_the_message_is_never_found() {
    explore(world(false, false), 1, 0);
}
