//! Exhaustive model of a queue that is bounded by bytes: every interleaving of put, get and recovery, with
//! kills and stops at every shared access. The queue never contains more bytes than its bound, and a producer
//! whose message fits does not wait. Real processes run the same steps.

use mp_core::mem::{Column, Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::member;
use mp_models::random::at_random;
use mp_models::ring::{ENVELOPES, OWNER, PLACE, RingRecovery, chain, free, intent, memory, owner, slots};
use mp_queue::ring::{Get, GetOutcome, PutByteBounded, PutOutcome, RingAt, TakenMessage, Weight};

/// Number of bytes of the message in each envelope.
const BYTES: [u64; ENVELOPES as usize] = [3, 1, 2, 3, 1, 2];

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Claim,
    Put(PutByteBounded),
    Get(Get),
    Free(u32),
    Recover(RingRecovery),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    setup: Setup,
    items: std::ops::Range<u32>,
    /// Envelope that the producer is putting.
    putting: u32,
    /// Remaining number of taken messages that this consumer puts again, each in the same envelope.
    again: u32,
    last: bool,
    doing: Doing,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    committed: Vec<u32>,
    consumed: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Setup {
    producers: usize,
    items: u32,
    /// Number of the envelope that the first producer puts first.
    first: u32,
    consumers: usize,
    /// Number of taken messages that each consumer puts again.
    again: u32,
    recoverers: usize,
    slots: u32,
    limit: u64,
}

impl Setup {
    fn ring(&self) -> RingAt {
        chain(self.slots, 0).first
    }

    /// Returns the words with the end positions of the envelopes. They replace a second segment, which this
    /// queue does not have.
    fn ends(&self) -> Column {
        Column { base: chain(self.slots, self.slots + 1).second, stride: 16 }
    }

    fn first_recoverer(&self) -> usize {
        self.producers + self.consumers
    }
}

impl Process {
    fn put(&self, me: usize, owner: Owner) -> Doing {
        let e = self.putting;
        let (words, bytes) = ((e, OWNER.of(e), PLACE.of(e)), BYTES[e as usize]);
        let weight = Weight { ends: self.setup.ends(), bytes, limit: self.setup.limit };
        Doing::Put(PutByteBounded::new(self.setup.ring(), intent(me), words, member(me), owner, weight))
    }

    fn get(&self, me: usize) -> Doing {
        Doing::Get(Get::new(self.setup.ring(), intent(me), OWNER, member(me)))
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let (setup, chain) = (self.setup, chain(self.setup.slots, 0));
        let mut doing = self.doing.clone();
        let next = match &mut doing {
            Doing::Claim => {
                let Some(e) = self.items.next() else { return true };
                self.putting = e;
                let mine = owner(m, e).then(Holder::Member(member(me)));
                m.store(OWNER.of(e), mine.pack());
                self.put(me, mine)
            }
            Doing::Put(put) => {
                let end = put.step(m);
                let inside: Vec<u32> = slots(m, &chain).iter().filter_map(|s| s.envelope()).collect();
                let bytes: u64 = inside.iter().map(|&e| BYTES[e as usize]).sum();
                assert!(bytes <= setup.limit, "{bytes} bytes in the queue: {inside:?}");
                for e in inside {
                    if !ghost.committed.contains(&e) {
                        ghost.committed.push(e);
                        ghost.committed.sort_unstable();
                    }
                }
                match end {
                    None => doing,
                    Some(PutOutcome::Done(_)) if me < setup.producers => Doing::Claim,
                    Some(PutOutcome::Done(_)) => self.get(me),
                    Some(PutOutcome::Full(owner)) if me < setup.producers => self.put(me, owner),
                    // Perhaps no running process is left that could make room.
                    Some(PutOutcome::Full(_)) => {
                        let e = self.putting;
                        ghost.committed.push(e);
                        ghost.committed.sort_unstable();
                        ghost.consumed.push(e);
                        ghost.consumed.sort_unstable();
                        Doing::Free(e)
                    }
                    Some(PutOutcome::Closed(_)) => unreachable!("no actor closes"),
                }
            }
            Doing::Get(get) => match get.step(m) {
                None => doing,
                // The message counts as put as soon as it is in the queue again.
                Some(GetOutcome::Done(TakenMessage::Envelope(e, owner, _))) if self.again > 0 => {
                    ghost.committed.retain(|&c| c != e);
                    self.again -= 1;
                    self.putting = e;
                    self.put(me, owner)
                }
                Some(GetOutcome::Done(TakenMessage::Envelope(e, ..))) => {
                    assert!(!ghost.consumed.contains(&e), "envelope {e} twice");
                    ghost.consumed.push(e);
                    ghost.consumed.sort_unstable();
                    Doing::Free(e)
                }
                Some(GetOutcome::Empty) if self.last => return true,
                Some(GetOutcome::Empty) => {
                    self.last = fates[..setup.producers].iter().all(|f| f.gone());
                    self.get(me)
                }
                Some(
                    GetOutcome::Done(TakenMessage::Small(..)) | GetOutcome::Done(TakenMessage::Stray(_)),
                ) => {
                    unreachable!("no message is small, and all are there")
                }
                Some(GetOutcome::Closed) => unreachable!("no actor closes"),
            },
            Doing::Free(e) => {
                free(m, *e, me);
                self.get(me)
            }
            Doing::Recover(recovery) => {
                if recovery.step(me, m, fates, chain)
                    && fates[..setup.first_recoverer()].iter().all(|f| f.gone())
                {
                    return true;
                }
                doing
            }
        };
        self.doing = next;
        false
    }
}

impl Setup {
    fn world(self) -> World<Process> {
        let m = memory(&chain(self.slots, self.slots + 1), 1);
        let actors = (0..self.first_recoverer() + self.recoverers).map(|i| {
            let first = self.first + i as u32 * self.items;
            let items = first..first + self.items;
            let (putting, again, doing) = (0, self.again, Doing::Claim);
            let mut p = Process { setup: self, items, putting, again, last: false, doing };
            if i >= self.first_recoverer() {
                p.doing = Doing::Recover(RingRecovery::Look);
            } else if i >= self.producers {
                p.doing = p.get(i);
            }
            p
        });
        World::new(m, actors.collect(), Ghost::default())
    }

    fn explore(self, kills: u32, stops: u32) {
        self.check(self.world(), kills, stops);
    }

    fn check(self, world: World<Process>, kills: u32, stops: u32) {
        let consumers = self.producers..self.first_recoverer();
        let end = |w: &World<Process>| {
            let of = |fate| w.count(consumers.clone(), fate);
            if of(Fate::Ended) > 0 {
                let lost = w.ghost.committed.len() - w.ghost.consumed.len();
                assert!(lost <= of(Fate::Killed) + of(Fate::Stopped), "{lost} messages lost");
            }
        };
        // While a consumer runs, each producer finally gets room.
        let wedged = |w: &World<Process>| w.count(consumers.clone(), Fate::Running) > 0;
        world.explore(kills, stops, end, wedged);
    }
}

const BASE: Setup =
    Setup { producers: 1, items: 3, first: 0, consumers: 1, again: 0, recoverers: 0, slots: 2, limit: 3 };

#[test]
fn one_producer_stays_within_the_byte_bound() {
    BASE.explore(1, 0);
    BASE.explore(0, 1);
    Setup { limit: 4, slots: 3, ..BASE }.explore(1, 1);
    Setup { slots: 1, ..BASE }.explore(1, 0);
    Setup { items: 2, recoverers: 1, ..BASE }.explore(1, 0);
}

#[test]
fn two_producers_together_stay_within_the_byte_bound() {
    let s = Setup { producers: 2, items: 1, ..BASE };
    s.explore(1, 1);
    Setup { limit: 4, ..s }.explore(1, 0);
}

#[test]
fn two_consumers_free_bytes_for_a_waiting_producer() {
    Setup { items: 2, consumers: 2, ..BASE }.explore(1, 1);
    Setup { consumers: 2, limit: 4, slots: 3, ..BASE }.explore(0, 1);
}

/// While a producer computes the used bytes from the envelope of the oldest message, the consumer of this
/// message reuses the envelope for another put.
#[test]
fn reused_envelope_does_not_corrupt_the_byte_count() {
    let s = Setup { items: 2, first: 1, again: 1, ..BASE };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { producers: 2, items: 1, ..s }.explore(0, 0);
}

#[test]
fn byte_bound_holds_in_long_random_schedules() {
    at_random(|| {
        Setup { producers: 2, consumers: 2, limit: 4, slots: 3, recoverers: 1, ..BASE }.explore(2, 1);
        Setup { items: 6, consumers: 2, recoverers: 2, ..BASE }.explore(2, 1);
        Setup { producers: 2, consumers: 2, again: 3, limit: 4, slots: 3, recoverers: 1, ..BASE }
            .explore(2, 1);
    });
}

/// Without the words with end positions, producers compute wrong numbers of used bytes, and exceed the bound.
#[test]
#[should_panic(expected = "bytes in the queue")]
fn model_finds_byte_bound_without_end_positions() {
    let s = Setup { items: 3, ..BASE };
    let mut world = s.world();
    world.memory.lose((0..ENVELOPES).map(|e| s.ends().of(e).plus(1)));
    s.check(world, 0, 0);
}
