//! Exhaustive model of messages with acknowledgement: every interleaving of put, lease, finish, return and
//! recovery, with kills and stops at every shared access, also of recovering actors. Real processes run the
//! same steps.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner, delivered, deliveries};
use mp_models::explore::{Actor, Explored, Fate, Memory, World};
use mp_models::members::{actor_of, member};
use mp_models::random::at_random;
use mp_models::ring::{
    ENVELOPES, ENVELOPES_AT, META, OWNER, PLACE, Remains, TestContext, chain, find_remains, free, intent,
    item, memory, number_of, own, owner, returns, slots, small,
};
use mp_queue::ring::{
    ChainAt, Enclose, Get, GetOutcome, NoteReturned, Position, Put, PutOutcome, PutSmall, Reclaim, Return,
    Settle, SettleOutcome, SmallMessage, TakenMessage, may_have_returned,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Claim,
    Put(Put),
    PutSmall(PutSmall),
    /// Takes a returned message, or else the next message, as a consumer.
    Reclaim(Reclaim),
    Get(Get),
    /// Creates an envelope for a small message that the consumer found.
    Copy(SmallMessage, Position),
    Enclose(u32, Enclose),
    /// Counts a delivery of a message, in two accesses: a read and a write.
    Deliver(u32, Option<u64>),
    Done(u32),
    Free(u32),
    /// Returns a message to the queue, as a recovering actor or a consumer.
    Return(u32, Return),
    Look,
    Settle(Box<Settle<TestContext>>),
    Own(u32, u64),
    /// Notes in the ring that it has returned messages. The seat of the dead actor keeps the ring alive
    /// during the recovery.
    Note(NoteReturned),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    chain: ChainAt,
    items: std::ops::Range<u32>,
    last: bool,
    producers: usize,
    recoverers: usize,
    /// Maximum number of deliveries of a message. 0 is unlimited.
    limit: u32,
    /// `true` if messages are so small that producers need no envelope.
    smalls: bool,
    /// Number of messages that this consumer has yet to return.
    gives_back: u32,
    doing: Doing,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Numbers of published messages. The number of a message is the number of its envelope or of the small
    /// message.
    committed: Vec<u32>,
    done: Vec<u32>,
    /// Envelopes that have a copy of a small message, with its number.
    copies: Vec<(u32, u32)>,
}

impl Ghost {
    fn number(&self, e: u32) -> u32 {
        self.copies.iter().rev().find(|c| c.0 == e).map_or(e, |c| c.1)
    }
}

impl Process {
    fn look_again(&self, me: usize) -> Doing {
        let wanted = (Holder::Returned, Holder::Leased(member(me)));
        Doing::Reclaim(Reclaim::new(returns(self.limit), self.chain.first, ENVELOPES_AT, wanted))
    }

    /// Records the published messages.
    fn note_committed(&self, m: &Memory, ghost: &mut Ghost) {
        let ring = self.chain.first;
        for e in (0..ring.slots).filter_map(|i| item(m, ring.slot(i))) {
            if !ghost.committed.contains(&e) {
                ghost.committed.push(e);
            }
        }
    }

    fn give_back(&self, e: u32, owner: Owner) -> Return {
        Return::new(returns(self.limit), OWNER.of(e), META.of(e), owner)
    }

    /// Returns `true` if all producers have ended, and no message is in transit or could be returned.
    fn over(&self, m: &Memory, fates: &[Fate]) -> bool {
        use Holder::{Leased, Queued, Returned};
        // A stopped process keeps its messages until it continues. A real consumer would wait for these
        // messages. The consumers of this model do not.
        let coming = |e| {
            matches!(owner(m, e).holder, Queued | Leased(_) | Returned)
                && !with_stopped(m, &self.chain, fates, e)
        };
        fates[..self.producers].iter().all(|f| f.gone())
            && find_remains(m, fates).is_none()
            && !(0..ENVELOPES).any(coming)
    }
}

/// Returns `true` if there is a returned message, the ring's hint reports no returned message, and an actor
/// was killed. Does not count as an access. (Real recovering processes update the hint for all returned
/// messages.)
fn unnotified(m: &Memory, fates: &[Fate]) -> bool {
    let back = (0..ENVELOPES).any(|e| owner(m, e).holder == Holder::Returned);
    back && !may_have_returned(m.peek(returns(0).returned)) && fates.contains(&Fate::Killed)
}

/// Returns `true` if a stopped process has the message, or was taking or putting it.
fn with_stopped(m: &Memory, chain: &ChainAt, fates: &[Fate], e: u32) -> bool {
    let stopped = |actor: usize| fates[actor] == Fate::Stopped;
    match owner(m, e).holder {
        Holder::Leased(o) | Holder::Member(o) => stopped(actor_of(o)),
        Holder::Queued if slots(m, chain).iter().any(|slot| slot.envelope() == Some(e)) => false,
        // If other actors also intend the envelope, one of these actors has it.
        Holder::Queued => {
            let intends = |a: usize| m.peek(intent(a)) == u64::from(e) + 1;
            let others = |a: usize| !stopped(a) && intends(a);
            (0..fates.len()).any(|a| stopped(a) && intends(a)) && !(0..fates.len()).any(others)
        }
        Holder::Free | Holder::Returned | Holder::Undeliverable => false,
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let consumer = me >= self.producers && me < self.recoverers;
        let mut doing = self.doing.clone();
        let next = match &mut doing {
            Doing::Claim => match self.items.next() {
                None => None,
                Some(n) if self.smalls => {
                    self.doing = Doing::PutSmall(PutSmall::new(self.chain.first, small(n)));
                    return self.step(me, m, fates, ghost);
                }
                Some(e) => {
                    let mine = owner(m, e).then(Holder::Member(member(me)));
                    m.store(OWNER.of(e), mine.pack());
                    let at = (e, OWNER.of(e), PLACE.of(e));
                    Some(Doing::Put(Put::new(self.chain.first, intent(me), at, member(me), mine)))
                }
            },
            Doing::Put(put) => {
                let end = put.step(m);
                self.note_committed(m, ghost);
                match end {
                    None => Some(doing),
                    Some(PutOutcome::Done(_)) => Some(Doing::Claim),
                    Some(PutOutcome::Full(owner)) => {
                        let e = self.items.start - 1;
                        let at = (e, OWNER.of(e), PLACE.of(e));
                        Some(Doing::Put(Put::new(self.chain.first, intent(me), at, member(me), owner)))
                    }
                    Some(PutOutcome::Closed(_)) => unreachable!("no actor closes"),
                }
            }
            Doing::PutSmall(put) => {
                let end = put.step(m);
                self.note_committed(m, ghost);
                match end {
                    None => Some(doing),
                    Some(PutOutcome::Done(_)) => Some(Doing::Claim),
                    Some(PutOutcome::Full(())) => {
                        Some(Doing::PutSmall(PutSmall::new(self.chain.first, small(self.items.start - 1))))
                    }
                    Some(PutOutcome::Closed(())) => unreachable!("no actor closes"),
                }
            }
            Doing::Copy(message, position) => {
                let free = |&e: &u32| owner(m, e).holder == Holder::Free;
                let e = (0..ENVELOPES).find(free).expect("there are enough");
                let (found, mine) = (owner(m, e), owner(m, e).then(Holder::Member(member(me))));
                m.cas(OWNER.of(e), found.pack(), mine.pack()).expect("nothing happens in between");
                ghost.copies.retain(|c| c.0 != e);
                ghost.copies.push((e, number_of(*message)));
                ghost.copies.sort_unstable();
                let words = (OWNER.of(e), PLACE.of(e));
                let message = (*message, *position);
                Some(Doing::Enclose(e, Enclose::new(self.chain.first, words, (member(me), mine), message)))
            }
            Doing::Enclose(e, enclose) => match enclose.step(m) {
                None => Some(doing),
                Some((_, true)) => Some(Doing::Deliver(*e, None)),
                Some((_, false)) => Some(Doing::Free(*e)),
            },
            Doing::Reclaim(reclaim) => match reclaim.step(m) {
                None => Some(doing),
                Some(Some((e, _))) => Some(Doing::Deliver(e, None)),
                Some(None) => {
                    let get = Get::new(self.chain.first, intent(me), OWNER, member(me)).leasing();
                    Some(Doing::Get(get))
                }
            },
            Doing::Get(get) => match get.step(m) {
                None => Some(doing),
                Some(GetOutcome::Done(TakenMessage::Envelope(e, owner, _))) => {
                    assert_eq!(owner.holder, Holder::Leased(member(me)));
                    Some(Doing::Deliver(e, None))
                }
                Some(GetOutcome::Empty) if self.last => None,
                Some(GetOutcome::Empty) => {
                    self.last = self.over(m, fates);
                    Some(self.look_again(me))
                }
                Some(GetOutcome::Done(TakenMessage::Small(message, position))) => {
                    Some(Doing::Copy(message, position))
                }
                Some(GetOutcome::Closed | GetOutcome::Done(TakenMessage::Stray(_))) => {
                    unreachable!("no actor closes, and all are there")
                }
            },
            Doing::Deliver(e, None) => {
                assert_eq!(owner(m, *e).holder, Holder::Leased(member(me)), "another actor has it, too");
                assert!(self.smalls || !ghost.done.contains(e), "finished envelope {e} is taken again");
                Some(Doing::Deliver(*e, Some(m.load(META.of(*e)))))
            }
            Doing::Deliver(e, Some(meta)) => {
                m.store(META.of(*e), delivered(*meta));
                if self.gives_back > 0 {
                    self.gives_back -= 1;
                    Some(Doing::Return(*e, self.give_back(*e, owner(m, *e))))
                } else {
                    Some(Doing::Done(*e))
                }
            }
            Doing::Done(e) => {
                let mine = owner(m, *e);
                assert_eq!(mine.holder, Holder::Leased(member(me)), "taken away from its holder");
                m.store(OWNER.of(*e), mine.then(Holder::Member(member(me))).pack());
                let number = ghost.number(*e);
                // A message that a dead consumer has copied may be delivered again.
                let dead = fates.contains(&Fate::Killed);
                assert!(!ghost.done.contains(&number) || self.smalls && dead, "done twice");
                ghost.done.push(number);
                ghost.done.sort_unstable();
                ghost.done.dedup();
                Some(Doing::Free(*e))
            }
            Doing::Free(e) => {
                free(m, *e, me);
                Some(if consumer { self.look_again(me) } else { Doing::Look })
            }
            Doing::Return(_, back) => match back.step(m) {
                None => Some(doing),
                Some(_) if consumer => Some(self.look_again(me)),
                Some(_) => Some(Doing::Note(NoteReturned::new(returns(self.limit)))),
            },
            Doing::Look => match find_remains(m, fates) {
                Some(Remains::Intent(dead)) => {
                    let context = TestContext::new(fates, self.chain, dead).redelivering();
                    Some(Doing::Settle(context.settle()))
                }
                Some(Remains::Envelope(e, owner)) if matches!(owner.holder, Holder::Leased(_)) => {
                    Some(Doing::Return(e, self.give_back(e, owner).for_dead_holder()))
                }
                Some(Remains::Envelope(e, owner)) => Some(Doing::Own(e, owner.pack())),
                None if unnotified(m, fates) => Some(Doing::Note(NoteReturned::new(returns(self.limit)))),
                None => (!fates[..self.recoverers].iter().all(|f| f.gone())).then_some(Doing::Look),
            },
            Doing::Settle(settle) => match settle.step(m) {
                None => Some(doing),
                Some(SettleOutcome::Owned(_)) => unreachable!("everything is delivered again here"),
                Some(_) => Some(Doing::Look),
            },
            Doing::Own(e, found) => {
                let won = own(m, *e, *found, me);
                Some(if won { Doing::Free(*e) } else { Doing::Look })
            }
            Doing::Note(note) => match note.step(m) {
                None => Some(doing),
                Some(()) => Some(Doing::Look),
            },
        };
        match next {
            Some(doing) => self.doing = doing,
            None => return true,
        }
        false
    }
}

#[derive(Clone, Copy)]
struct Setup {
    producers: usize,
    items: u32,
    consumers: usize,
    recoverers: usize,
    slots: u32,
    limit: u32,
    gives_back: u32,
    smalls: bool,
}

impl Setup {
    fn world(self) -> World<Process> {
        let chain = chain(self.slots, 0);
        let first_recoverer = self.producers + self.consumers;
        let actors = (0..first_recoverer + self.recoverers).map(|i| {
            let mut p = Process {
                chain,
                items: i as u32 * self.items..(i as u32 + 1) * self.items,
                last: false,
                producers: self.producers,
                recoverers: first_recoverer,
                limit: self.limit,
                smalls: self.smalls,
                gives_back: self.gives_back,
                doing: Doing::Claim,
            };
            if i >= first_recoverer {
                p.doing = Doing::Look;
            } else if i >= self.producers {
                p.doing = p.look_again(i);
            }
            p
        });
        World::new(memory(&chain, 1), actors.collect(), Ghost::default())
    }

    fn explore(self, kills: u32) -> Explored {
        self.check(self.world(), kills, 0)
    }

    fn check(self, world: World<Process>, kills: u32, stops: u32) -> Explored {
        let consumers = self.producers..self.producers + self.consumers;
        let end = |w: &World<Process>| {
            let reclaimed = find_remains(&w.memory, &w.fates).is_none() && !unnotified(&w.memory, &w.fates);
            if w.count(consumers.clone(), Fate::Ended) == 0 || !reclaimed {
                return;
            }
            for e in &w.ghost.committed {
                let dead_letter = !self.smalls && owner(&w.memory, *e).holder == Holder::Undeliverable;
                let stopped = with_stopped(&w.memory, &chain(self.slots, 0), &w.fates, *e);
                assert!(w.ghost.done.contains(e) || dead_letter || stopped, "message {e} is lost");
                if dead_letter {
                    assert!(self.limit > 0 && deliveries(w.memory.peek(META.of(*e))) >= self.limit);
                }
            }
            for e in (0..ENVELOPES).filter(|&e| w.ghost.done.contains(&w.ghost.number(e))) {
                let holder = owner(&w.memory, e).holder;
                let by_dead = matches!(holder, Holder::Member(o) if w.fates[actor_of(o)] == Fate::Killed);
                let stopped = with_stopped(&w.memory, &chain(self.slots, 0), &w.fates, e);
                // The envelope is the copy of a consumer that died before it took the message. The message is
                // still in the queue.
                let again = self.smalls && kills > 0 && holder == Holder::Returned;
                assert!(
                    holder == Holder::Free || by_dead || stopped || again,
                    "envelope {e} leaks: {holder:?}"
                );
            }
        };
        // If a recovering actor continues, or no recovery is needed, the consumers continue as well.
        let recoverers = self.producers + self.consumers..world.actors.len();
        let wedged = |w: &World<Process>| {
            let reclaimed = w.count(recoverers.clone(), Fate::Running) > 0 || kills == 0;
            // The producer was stopped at the very end of its put and still intends the message, and a
            // consumer was killed while it took the message. Only the producer can decide whether the message
            // was put. Consumers wait for the producer.
            let intents = |fate| (0..w.fates.len()).filter(move |&a| w.fates[a] == fate).map(intent);
            let in_doubt = intents(Fate::Killed)
                .map(|at| w.memory.peek(at))
                .any(|e| e != 0 && intents(Fate::Stopped).any(|stopped| w.memory.peek(stopped) == e));
            w.count(consumers.clone(), Fate::Running) > 0 && reclaimed && !in_doubt
        };
        world.explore(kills, stops, end, wedged)
    }
}

const BASE: Setup = Setup {
    producers: 1,
    items: 1,
    consumers: 2,
    recoverers: 1,
    slots: 1,
    limit: 0,
    gives_back: 0,
    smalls: false,
};

#[test]
fn leased_message_survives_its_killed_consumer() {
    BASE.explore(1);
    Setup { items: 2, consumers: 1, ..BASE }.explore(1);
}

#[test]
fn leased_message_survives_a_killed_recoverer() {
    Setup { consumers: 1, recoverers: 2, ..BASE }.explore(2);
}

#[test]
fn consumer_stopped_with_a_lease_delays_no_other() {
    let s = Setup { items: 2, slots: 2, ..BASE };
    s.check(s.world(), 0, 1);
    let s = Setup { producers: 2, consumers: 1, ..BASE };
    s.check(s.world(), 0, 1);
    BASE.check(BASE.world(), 1, 1);
}

/// The dead consumer's message is delivered to the other consumer, even if a recovering process is stopped
/// while it returns the message.
#[test]
fn stopped_lease_recoverer_delays_no_consumer() {
    let s = Setup { recoverers: 2, ..BASE };
    let mut world = s.world();
    while world.ghost.committed.is_empty() {
        world.step(0);
    }
    // The producer is dead, and a consumer has the message.
    world.fates[0] = Fate::Killed;
    while owner(&world.memory, 0).holder != Holder::Leased(member(1)) {
        world.step(1);
    }
    world.fates[1] = Fate::Killed;
    s.check(world, 0, 1);
    let s = Setup { consumers: 1, recoverers: 2, ..BASE };
    s.check(s.world(), 1, 1);
}

#[test]
fn returned_message_is_redelivered_up_to_the_limit() {
    Setup { consumers: 1, gives_back: 1, items: 2, ..BASE }.explore(1);
    Setup { gives_back: 2, limit: 2, ..BASE }.explore(0);
    Setup { consumers: 1, gives_back: 2, limit: 2, ..BASE }.explore(1);
}

/// A consumer scans the envelopes, finds no returned message, and pauses before it records this result in the
/// hint. Meanwhile another consumer returns a message, and updates the hint. The paused consumer must not
/// undo that update, because there is no recovering actor that would repeat it.
#[test]
fn empty_get_hides_no_returned_message() {
    Setup { items: 2, gives_back: 2, recoverers: 0, ..BASE }.explore(0);
}

#[test]
fn leased_small_message_survives_its_killed_consumer() {
    let smalls = Setup { smalls: true, ..BASE };
    smalls.explore(1);
    Setup { items: 2, ..smalls }.explore(1);
    Setup { items: 2, consumers: 1, slots: 2, gives_back: 1, ..smalls }.explore(1);
    Setup { consumers: 1, recoverers: 2, ..smalls }.explore(2);
}

#[test]
fn leases_hold_in_long_random_schedules() {
    at_random(|| {
        for smalls in [false, true] {
            let s = Setup { smalls, items: 3, slots: 2, gives_back: 2, ..BASE };
            let world = Setup { producers: 2, ..s };
            world.check(world.world(), 2, 0);
            let limit = if smalls { 0 } else { 2 };
            let world = Setup { recoverers: 2, limit, ..s };
            world.check(world.world(), 3, 0);
            // This check does not count the small messages of a stopped consumer.
            world.check(world.world(), 2, u32::from(!smalls));
        }
    });
}

/// If a return does not increment the hint, no actor searches for the returned message, and waiters never
/// wake up.
#[test]
#[should_panic(expected = "wedged")]
fn model_finds_return_without_incremented_hint() {
    let setup = Setup { consumers: 1, gives_back: 1, recoverers: 0, ..BASE };
    let mut world = setup.world();
    world.memory.lose([returns(0).returned]);
    setup.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "wedged")]
fn random_schedules_find_return_without_hint() {
    at_random(|| {
        let setup = Setup { items: 3, gives_back: 2, recoverers: 0, ..BASE };
        let mut world = setup.world();
        world.memory.lose([returns(0).returned]);
        setup.check(world, 0, 0);
    });
}
