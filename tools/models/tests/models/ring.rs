//! Exhaustive model of the ring of envelopes: every interleaving of put, get, batches of puts or gets, close
//! and recovery, with kills and stops at every shared access, also of recovering actors. Real processes run
//! the same steps.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Explored, Fate, Memory, World};
use mp_models::members::{actor_of, member};
use mp_models::random::at_random;
use mp_models::ring::{
    ENVELOPES, Ghost, OWNER, PLACE, RingRecovery, chain, check_touched, intent, item, memory, number_of,
    small, touched, touched_groups,
};
use mp_queue::ring::{
    Advance, Close, Get, GetOutcome, Position, Put, PutOutcome, PutSmall, RingAt, TakenMessage,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// Claims the next envelope, as a producer.
    Claim,
    Put(Put),
    PutSmall(PutSmall),
    /// Gets a message, as a consumer.
    Get(Get),
    /// Ends a batch. If the last operation did not fit into the batch, then repeats it without a batch.
    Advance(Advance, Option<Box<Doing>>),
    Free(u32, Owner),
    /// Closes the queue at any time.
    Close(Close),
    Recover(RingRecovery),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    ring: RingAt,
    /// Numbers of the messages that a producer has not put yet.
    items: std::ops::Range<u32>,
    smalls: Smalls,
    /// `true` if all producers had ended before the current get began.
    last: bool,
    producers: usize,
    /// Index of the first recovering actor.
    recoverers: usize,
    /// `true` if the actor puts and gets in batches. `run` contains the positions of the first and the last
    /// message of the current batch.
    batches: bool,
    run: Option<(Position, Position)>,
    /// `true` if a consumer records that it touches the group of a message's envelope.
    touches: bool,
    doing: Doing,
}

/// Selection of the messages that are small enough to need no envelope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Smalls {
    #[default]
    None,
    /// Messages with odd numbers.
    Odd,
    All,
}

impl Smalls {
    fn is(self, e: u32) -> bool {
        match self {
            Smalls::None => false,
            Smalls::Odd => e % 2 == 1,
            Smalls::All => true,
        }
    }
}

impl Process {
    /// Returns the state that takes the next message, in a batch if the actor uses batches.
    fn get_next(&self, me: usize) -> Doing {
        match self.get(me) {
            Doing::Get(get) if self.batches => Doing::Get(get.batched(self.last())),
            get => get,
        }
    }

    fn put_small(&self) -> PutSmall {
        PutSmall::new(self.ring, small(self.items.start - 1))
    }

    /// Puts the actor's current envelope.
    fn put(&self, me: usize, owner: Owner) -> Put {
        let e = self.items.start - 1;
        Put::new(self.ring, intent(me), (e, OWNER.of(e), PLACE.of(e)), member(me), owner)
    }

    fn get(&self, me: usize) -> Doing {
        let get = Get::new(self.ring, intent(me), OWNER, member(me));
        Doing::Get(if self.touches { get.touching(touched_groups(me)) } else { get })
    }

    /// Adds the message at this position to the batch.
    fn add(&mut self, position: Position) {
        let first = self.run.map_or(position, |(first, _)| first);
        self.run = self.batches.then_some((first, position));
    }

    fn last(&self) -> Option<Position> {
        self.run.map(|(_, last)| last)
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let ended = self.make_step(me, m, fates, ghost);
        if self.touches && me >= self.producers {
            check_touched(m, me);
        }
        ended
    }
}

impl Process {
    fn make_step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let next = match &mut self.doing {
            Doing::Claim => {
                let Some(e) = self.items.next() else {
                    let Some((first, last)) = self.run.take() else { return true };
                    self.doing = Doing::Advance(Advance::tail(self.ring, first, last), None);
                    return false;
                };
                if self.smalls.is(e) {
                    let put = self.put_small();
                    self.doing = Doing::PutSmall(if self.batches { put.batched(self.last()) } else { put });
                    return self.step(me, m, fates, ghost);
                }
                let owner = Owner::unpack(m.peek(OWNER.of(e))).then(Holder::Member(member(me)));
                m.store(OWNER.of(e), owner.pack());
                let put = self.put(me, owner);
                Doing::Put(if self.batches { put.batched(self.last()) } else { put })
            }
            Doing::PutSmall(put) => {
                let end = put.step(m);
                committed(m, self.ring, ghost);
                match end {
                    None => return false,
                    Some(PutOutcome::Done(position)) => {
                        self.add(position);
                        Doing::Claim
                    }
                    Some(PutOutcome::Full(()) | PutOutcome::Closed(())) if self.run.is_some() => {
                        let put = Box::new(Doing::PutSmall(self.put_small()));
                        let (first, last) = self.run.take().expect("there is one");
                        Doing::Advance(Advance::tail(self.ring, first, last), Some(put))
                    }
                    Some(PutOutcome::Full(())) => Doing::PutSmall(self.put_small()),
                    Some(PutOutcome::Closed(())) => {
                        assert!(ghost.closed);
                        Doing::Claim
                    }
                }
            }
            Doing::Put(put) => {
                let end = put.step(m);
                committed(m, self.ring, ghost);
                match end {
                    None => return false,
                    Some(PutOutcome::Done(position)) => {
                        self.add(position);
                        Doing::Claim
                    }
                    // A message that does not fit into the batch is put separately, after the batch is
                    // published.
                    Some(PutOutcome::Full(owner) | PutOutcome::Closed(owner)) if self.run.is_some() => {
                        let put = Box::new(Doing::Put(self.put(me, owner)));
                        let (first, last) = self.run.take().expect("there is one");
                        Doing::Advance(Advance::tail(self.ring, first, last), Some(put))
                    }
                    Some(PutOutcome::Full(owner)) => Doing::Put(self.put(me, owner)),
                    Some(PutOutcome::Closed(owner)) => {
                        assert!(ghost.closed);
                        Doing::Free(self.items.start - 1, owner)
                    }
                }
            }
            Doing::Get(get) => match get.step(m) {
                None => return false,
                Some(GetOutcome::Done(TakenMessage::Envelope(e, owner, position))) => {
                    self.add(position);
                    assert_eq!(owner.holder, Holder::Member(member(me)));
                    assert!(!ghost.consumed.contains(&e), "envelope {e} twice");
                    assert!(ghost.committed.contains(&e), "envelope {e} from nowhere");
                    ghost.consumed.push(e);
                    ghost.consumed.sort_unstable();
                    Doing::Free(e, owner)
                }
                Some(GetOutcome::Done(TakenMessage::Small(message, position))) => {
                    self.add(position);
                    let e = number_of(message);
                    assert!(!ghost.consumed.contains(&e), "message {e} twice");
                    assert!(ghost.committed.contains(&e), "message {e} from nowhere");
                    ghost.consumed.push(e);
                    ghost.consumed.sort_unstable();
                    self.get_next(me)
                }
                // The batch ends. The actor waits for later messages without a batch.
                Some(GetOutcome::Empty | GetOutcome::Closed) if self.run.is_some() => {
                    let (first, last) = self.run.take().expect("there is one");
                    Doing::Advance(Advance::head(self.ring, first, last), None)
                }
                Some(GetOutcome::Empty) if self.last => return true,
                Some(GetOutcome::Closed) => return true,
                Some(GetOutcome::Done(TakenMessage::Stray(e))) => panic!("{e} is not in it"),
                Some(GetOutcome::Empty) => {
                    self.last = fates[..self.producers].iter().all(|f| f.gone());
                    self.get(me)
                }
            },
            Doing::Advance(advance, then) => {
                _ = advance.step(m);
                match (then.take(), me < self.producers) {
                    (Some(put), _) => *put,
                    (None, true) => Doing::Claim,
                    (None, false) => self.get(me),
                }
            }
            Doing::Free(e, owner) => {
                m.store(OWNER.of(*e), owner.then(Holder::Free).pack());
                if me < self.producers { Doing::Claim } else { self.get_next(me) }
            }
            Doing::Close(close) => {
                let done = close.step(m);
                ghost.closed |= done.is_some();
                return done.is_some();
            }
            Doing::Recover(recovery) => {
                // A recovering actor runs as long as any other actor runs.
                let idle = recovery.step(me, m, fates, chain(self.ring.slots, 0));
                return idle && fates[..self.recoverers].iter().all(|f| f.gone());
            }
        };
        self.doing = next;
        false
    }
}

/// Records the published messages.
fn committed(m: &Memory, ring: RingAt, ghost: &mut Ghost) {
    for i in 0..ring.slots {
        if let Some(e) = item(m, ring.slot(i))
            && !ghost.committed.contains(&e)
        {
            ghost.committed.push(e);
            ghost.committed.sort_unstable();
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Setup {
    producers: usize,
    items: u32,
    consumers: usize,
    closers: usize,
    recoverers: usize,
    slots: u32,
    batches: bool,
    smalls: Smalls,
    touches: bool,
}

impl Setup {
    fn world(self) -> World<Process> {
        let chain = chain(self.slots, 0);
        let (ring, m) = (chain.first, memory(&chain, 1));
        let n = self.producers + self.consumers + self.closers + self.recoverers;
        let actors = (0..n).map(|i| {
            let doing = if i < self.producers {
                Doing::Claim
            } else if i < self.producers + self.consumers {
                // The actor's first operation is set below.
                Doing::Claim
            } else if i < self.producers + self.consumers + self.closers {
                Doing::Close(Close::new(ring))
            } else {
                Doing::Recover(RingRecovery::Look)
            };
            let items = i as u32 * self.items..(i as u32 + 1) * self.items;
            let mut process = Process {
                ring,
                items,
                last: false,
                producers: self.producers,
                recoverers: n - self.recoverers,
                batches: self.batches,
                smalls: self.smalls,
                run: None,
                touches: self.touches,
                doing,
            };
            if (self.producers..self.producers + self.consumers).contains(&i) {
                process.doing = process.get(i);
            }
            process
        });
        World::new(m, actors.collect(), Ghost::default())
    }

    fn explore(self, kills: u32, stops: u32) -> Explored {
        self.check(self.world(), kills, stops)
    }

    fn check(self, world: World<Process>, kills: u32, stops: u32) -> Explored {
        let consumers = self.producers..self.producers + self.consumers;
        let recoverers = self.producers + self.consumers + self.closers..world.actors.len();
        let end = |w: &World<Process>| {
            let ended = w.count(consumers.clone(), Fate::Ended) > 0;
            let taken_along =
                w.count(consumers.clone(), Fate::Killed) + w.count(consumers.clone(), Fate::Stopped);
            let lost = w.ghost.committed.iter().filter(|e| !w.ghost.consumed.contains(e)).count();
            if ended {
                assert!(lost <= taken_along, "{lost} messages lost, {taken_along} consumers");
            }
            // An actor that is killed after the last check of a recovering actor is left to the next
            // recovery. Memory with remains of dead actors is not checked.
            let dead = |a: &usize| w.fates[*a] == Fate::Killed;
            let reclaimed = (0..w.actors.len()).filter(dead).all(|a| w.memory.peek(intent(a)) == 0)
                && (0..ENVELOPES).all(|e| {
                    let holder = Owner::unpack(w.memory.peek(OWNER.of(e))).holder;
                    !matches!(holder, Holder::Member(o) if dead(&actor_of(o)))
                });
            if ended && reclaimed && stops == 0 && w.count(recoverers.clone(), Fate::Ended) > 0 {
                for e in 0..ENVELOPES {
                    let holder = Owner::unpack(w.memory.peek(OWNER.of(e))).holder;
                    assert_eq!(holder, Holder::Free, "envelope {e} leaks");
                }
            }
        };
        let wedged = |w: &World<Process>| w.count(consumers.clone(), Fate::Running) > 0;
        world.explore(kills, stops, end, wedged)
    }
}

#[test]
fn killed_producer_or_consumer_loses_no_message() {
    let s = Setup { producers: 1, items: 2, consumers: 1, slots: 1, ..Setup::default() };
    s.explore(1, 0);
    Setup { recoverers: 1, ..s }.explore(1, 0);
}

#[test]
fn killed_or_stopped_producers_lose_no_message() {
    let s = Setup { producers: 2, items: 1, consumers: 1, slots: 1, ..Setup::default() };
    s.explore(1, 1);
    Setup { slots: 2, items: 2, ..s }.explore(0, 1);
}

#[test]
fn killed_or_stopped_consumers_lose_no_message() {
    Setup { producers: 1, items: 2, consumers: 2, slots: 1, ..Setup::default() }.explore(1, 1);
}

#[test]
fn ring_recovery_runs_while_others_continue() {
    let s = Setup { producers: 2, items: 1, consumers: 1, recoverers: 1, slots: 1, ..Setup::default() };
    s.explore(1, 0);
    Setup { producers: 1, items: 2, consumers: 2, ..s }.explore(1, 0);
}

#[test]
fn ring_survives_killed_recoverers() {
    Setup { producers: 1, items: 1, consumers: 1, recoverers: 2, slots: 1, ..Setup::default() }.explore(2, 0);
}

#[test]
fn close_of_a_ring_strands_no_message() {
    let s = Setup { producers: 1, items: 2, consumers: 1, closers: 1, slots: 2, ..Setup::default() };
    s.explore(1, 0);
    Setup { slots: 1, ..s }.explore(1, 0);
    Setup { producers: 2, items: 1, slots: 1, ..s }.explore(0, 1);
    Setup { closers: 2, slots: 1, ..s }.explore(0, 0);
}

#[test]
fn ring_batches_survive_killed_and_stopped_processes() {
    let s = Setup { producers: 1, items: 3, consumers: 1, slots: 2, batches: true, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { items: 2, recoverers: 1, ..s }.explore(1, 0);
}

#[test]
fn concurrent_ring_batches_stay_ordered() {
    let s = Setup { producers: 2, items: 2, consumers: 1, slots: 2, batches: true, ..Setup::default() };
    s.explore(0, 0);
    Setup { items: 1, ..s }.explore(1, 1);
    Setup { producers: 1, consumers: 2, ..s }.explore(1, 1);
}

#[test]
fn close_of_a_ring_strands_no_batch() {
    let s = Setup {
        producers: 1,
        items: 2,
        consumers: 1,
        closers: 1,
        slots: 2,
        batches: true,
        ..Setup::default()
    };
    s.explore(1, 1);
    Setup { slots: 1, ..s }.explore(1, 0);
}

#[test]
fn small_messages_need_no_envelope() {
    let all =
        Setup { producers: 1, items: 2, consumers: 1, slots: 1, smalls: Smalls::All, ..Setup::default() };
    all.explore(1, 1);
    Setup { producers: 2, items: 2, slots: 2, ..all }.explore(1, 1);
    Setup { consumers: 2, items: 3, slots: 2, ..all }.explore(1, 1);
    Setup { items: 3, slots: 2, batches: true, ..all }.explore(1, 1);
    Setup { producers: 2, items: 2, slots: 2, batches: true, ..all }.explore(1, 0);
    // With faults at every step, this test takes minutes.
    let closed = Setup { producers: 2, closers: 1, ..all };
    closed.explore(0, 0);
    at_random(|| {
        closed.explore(1, 1);
    });
}

#[test]
fn small_messages_and_envelopes_stay_in_order() {
    let odd =
        Setup { producers: 1, items: 3, consumers: 1, slots: 1, smalls: Smalls::Odd, ..Setup::default() };
    odd.explore(1, 0);
    Setup { slots: 2, ..odd }.explore(0, 1);
    Setup { items: 2, closers: 1, recoverers: 1, ..odd }.explore(1, 0);
}

#[test]
fn mixed_messages_of_two_producers_stay_in_order() {
    let odd = Setup { producers: 2, items: 1, consumers: 2, smalls: Smalls::Odd, ..Setup::default() };
    Setup { slots: 1, ..odd }.explore(1, 1);
}

#[test]
fn batches_of_mixed_messages_stay_in_order() {
    let odd = Setup { producers: 2, items: 2, consumers: 1, smalls: Smalls::Odd, ..Setup::default() };
    Setup { slots: 2, batches: true, ..odd }.explore(0, 0);
}

/// If a small message is written as two words, one after the other, a consumer gets half a message.
#[test]
#[should_panic(expected = "torn")]
fn model_finds_half_written_small_message() {
    let s = Setup { producers: 1, items: 1, consumers: 1, slots: 1, smalls: Smalls::All, ..Setup::default() };
    let (mut world, ring) = (s.world(), chain(s.slots, 0).first);
    world.memory.lose([ring.slot(0).plus(1)]);
    s.check(world, 0, 0);
}

/// Hints may be out of date, but an actor that finds an outdated hint must advance it.
#[test]
#[should_panic(expected = "wedged")]
fn model_finds_ring_hints_that_never_advance() {
    let s = Setup { producers: 1, items: 3, consumers: 1, slots: 2, batches: true, ..Setup::default() };
    let (mut world, ring) = (s.world(), chain(s.slots, 0).first);
    world.memory.lose([ring.head, ring.tail]);
    s.check(world, 0, 0);
}

#[test]
fn consumer_touches_group_before_owning_envelope() {
    let s = Setup { producers: 1, items: 1, consumers: 2, slots: 1, touches: true, ..Setup::default() };
    s.explore(1, 1);
    Setup { consumers: 1, items: 2, batches: true, ..s }.explore(1, 0);
}

#[test]
#[should_panic(expected = "has not touched the group")]
fn model_finds_unrecorded_touch_of_a_group() {
    let s = Setup { producers: 1, items: 1, consumers: 1, slots: 1, touches: true, ..Setup::default() };
    let mut world = s.world();
    world.memory.lose((0..world.actors.len()).map(touched));
    s.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "leaks")]
fn model_finds_envelope_leak_without_intents() {
    let s = Setup { producers: 1, items: 1, consumers: 2, recoverers: 1, slots: 1, ..Setup::default() };
    let mut world = s.world();
    world.memory.lose((0..world.actors.len()).map(intent));
    s.check(world, 1, 0);
}
