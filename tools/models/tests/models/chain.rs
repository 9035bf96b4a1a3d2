//! Exhaustive model of a growing queue, with a segment of one slot and then a segment of two slots. The model
//! has every interleaving of put, opening of the next segment, get, close and recovery, with kills and stops
//! at every shared access. Real processes run the same steps.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::member;
use mp_models::random::at_random;
use mp_models::ring::{
    ENVELOPES, Ghost, OWNER, PLACE, RingRecovery, chain, find_remains, free, intent, memory, owner, slots,
};
use mp_queue::ring::{ChainAt, CloseChain, Extend, Get, GetOutcome, Link, Put, PutOutcome, TakenMessage};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Claim,
    Put(u32, Put),
    Extend(u32, Owner, Extend),
    Get(u32, Get),
    /// Reads the link of a closed segment.
    Follow(u32),
    Free(u32),
    Close(CloseChain),
    Recover(RingRecovery),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    chain: ChainAt,
    /// Envelopes that a producer has not put yet.
    items: std::ops::Range<u32>,
    /// `true` if all producers had ended before the current check for messages began.
    last: bool,
    producers: usize,
    recoverers: usize,
    doing: Doing,
}

impl Process {
    fn put(&self, me: usize, segment: u32, owner: Owner) -> Doing {
        let e = self.items.start - 1;
        let at = (e, OWNER.of(e), PLACE.of(e));
        Doing::Put(segment, Put::new(self.chain.segment(segment), intent(me), at, member(me), owner))
    }

    fn get(&self, me: usize, segment: u32) -> Doing {
        Doing::Get(segment, Get::new(self.chain.segment(segment), intent(me), OWNER, member(me)))
    }

    fn again(&mut self, me: usize, fates: &[Fate]) -> Option<Doing> {
        if self.last {
            return None;
        }
        self.last = fates[..self.producers].iter().all(|f| f.gone());
        Some(self.get(me, 0))
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let mut doing = self.doing.clone();
        let next = match &mut doing {
            Doing::Claim => match self.items.next() {
                None => None,
                Some(e) => {
                    let mine = owner(m, e).then(Holder::Member(member(me)));
                    m.store(OWNER.of(e), mine.pack());
                    Some(self.put(me, 0, mine))
                }
            },
            Doing::Put(i, put) => {
                let end = put.step(m);
                for slot in slots(m, &self.chain) {
                    if let Some(e) = slot.envelope()
                        && !ghost.committed.contains(&e)
                    {
                        assert!(!ghost.closed, "a message was published after the close");
                        ghost.committed.push(e);
                    }
                }
                let i = *i;
                match end {
                    None => Some(doing),
                    Some(PutOutcome::Done(_)) => Some(Doing::Claim),
                    Some(PutOutcome::Full(owner)) if i == 1 => Some(self.put(me, 1, owner)),
                    Some(PutOutcome::Closed(_)) if i == 1 => {
                        assert!(ghost.closed, "an open queue refused a put as closed");
                        Some(Doing::Free(self.items.start - 1))
                    }
                    Some(PutOutcome::Full(owner) | PutOutcome::Closed(owner)) => {
                        let link = self.chain.link(0).expect("there are two");
                        Some(Doing::Extend(i, owner, Extend::new(self.chain.first, link)))
                    }
                }
            }
            Doing::Extend(i, owner, extend) => match extend.step(m) {
                None => Some(doing),
                Some(Link::Open) => Some(self.put(me, *i + 1, *owner)),
                Some(Link::End) => {
                    assert!(ghost.closed);
                    Some(Doing::Free(self.items.start - 1))
                }
                Some(Link::None) => panic!("a closed segment has a link"),
            },
            Doing::Get(i, get) => match get.step(m) {
                None => Some(doing),
                Some(GetOutcome::Done(TakenMessage::Envelope(e, _, _))) => {
                    let next = ghost.committed.iter().find(|e| !ghost.consumed.contains(e));
                    // With one consumer at a time, and none killed, the order is exact.
                    assert!(self.recoverers - self.producers > 1 || next == Some(&e), "out of order");
                    assert!(!ghost.consumed.contains(&e), "envelope {e} twice");
                    ghost.consumed.push(e);
                    Some(Doing::Free(e))
                }
                Some(GetOutcome::Empty) => self.again(me, fates),
                Some(
                    GetOutcome::Done(TakenMessage::Small(..)) | GetOutcome::Done(TakenMessage::Stray(_)),
                ) => {
                    unreachable!("no message is small, and all are there")
                }
                Some(GetOutcome::Closed) if *i == 1 => None,
                Some(GetOutcome::Closed) => Some(Doing::Follow(*i)),
            },
            Doing::Follow(i) => match Link::unpack(m.load(self.chain.link(*i).expect("not the last"))) {
                Link::None => self.again(me, fates),
                Link::Open => Some(self.get(me, *i + 1)),
                Link::End => None,
            },
            Doing::Free(e) => {
                free(m, *e, me);
                Some(if me < self.producers { Doing::Claim } else { self.get(me, 0) })
            }
            Doing::Close(close) => match close.step(m) {
                None => Some(doing),
                Some(_) => None,
            },
            Doing::Recover(recovery) => {
                let idle = recovery.step(me, m, fates, self.chain);
                (!idle || !fates[..self.recoverers].iter().all(|f| f.gone())).then_some(doing)
            }
        };
        // The queue is closed at one instant: by the mark in the last open segment, or by its link.
        let end = |i: u32| match self.chain.link(i) {
            Some(link) => Link::unpack(m.peek(link)) == Link::End,
            None => slots(m, &self.chain)[self.chain.segment(i).before as usize..].iter().any(|s| {
                use mp_queue::ring::SlotState::{Closed, Last};
                matches!(s.state, Closed | Last(_))
            }),
        };
        ghost.closed |= (0..self.chain.segments).any(end);
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
    closers: usize,
    recoverers: usize,
}

impl Setup {
    fn first_recoverer(&self) -> usize {
        self.producers + self.consumers + self.closers
    }

    fn explore(self, kills: u32, stops: u32) {
        self.check(self.world(), kills, stops);
    }

    fn world(self) -> World<Process> {
        let chain = chain(1, 2);
        let first_recoverer = self.first_recoverer();
        let n = first_recoverer + self.recoverers;
        let actors = (0..n).map(|i| {
            let mut p = Process {
                chain,
                items: i as u32 * self.items..(i as u32 + 1) * self.items,
                last: false,
                producers: self.producers,
                recoverers: first_recoverer,
                doing: Doing::Claim,
            };
            if i >= first_recoverer {
                p.doing = Doing::Recover(RingRecovery::Look);
            } else if i >= self.producers + self.consumers {
                p.doing = Doing::Close(CloseChain::new(chain));
            } else if i >= self.producers {
                p.doing = p.get(i, 0);
            }
            p
        });
        World::new(memory(&chain, 1), actors.collect(), Ghost::default())
    }

    fn check(self, world: World<Process>, kills: u32, stops: u32) {
        let consumers = self.producers..self.producers + self.consumers;
        let recoverers = self.first_recoverer()..world.actors.len();
        let end = |w: &World<Process>| {
            let of = |fate| w.count(consumers.clone(), fate);
            if of(Fate::Ended) > 0 {
                let lost = w.ghost.committed.len() - w.ghost.consumed.len();
                let taken_along = of(Fate::Killed) + of(Fate::Stopped);
                assert!(lost <= taken_along, "{lost} messages lost, {taken_along} consumers");
            }
            let unrecovered = find_remains(&w.memory, &w.fates).is_some();
            if of(Fate::Ended) > 0
                && stops == 0
                && !unrecovered
                && w.count(recoverers.clone(), Fate::Ended) > 0
            {
                (0..ENVELOPES).for_each(|e| {
                    assert_eq!(owner(&w.memory, e).holder, Holder::Free, "envelope {e} leaks");
                });
            }
        };
        // A producer without consumers may wait for room forever, but not while a consumer runs.
        let wedged = |w: &World<Process>| w.count(consumers.clone(), Fate::Running) > 0;
        world.explore(kills, stops, end, wedged);
    }
}

const BASE: Setup = Setup { producers: 1, items: 3, consumers: 1, closers: 0, recoverers: 0 };

#[test]
fn growing_queue_survives_its_killed_producer() {
    BASE.explore(1, 0);
    Setup { items: 2, recoverers: 1, ..BASE }.explore(1, 0);
}

#[test]
fn two_producers_opening_a_segment_lose_no_message() {
    Setup { producers: 2, items: 2, ..BASE }.explore(0, 0);
    Setup { producers: 2, items: 1, ..BASE }.explore(1, 1);
}

#[test]
fn two_consumers_continue_at_the_linked_segment() {
    Setup { items: 2, consumers: 2, ..BASE }.explore(1, 0);
    Setup { items: 2, consumers: 2, ..BASE }.explore(0, 1);
}

#[test]
fn close_of_growing_queue_strands_no_message() {
    Setup { items: 2, closers: 1, ..BASE }.explore(1, 1);
}

#[test]
fn close_with_two_producers_strands_no_message() {
    Setup { items: 1, producers: 2, closers: 1, ..BASE }.explore(1, 0);
}

#[test]
fn double_close_of_growing_queue_strands_no_message() {
    Setup { items: 1, closers: 2, ..BASE }.explore(0, 0);
}

#[test]
fn growing_queue_holds_in_long_random_schedules() {
    at_random(|| {
        Setup { producers: 2, closers: 1, recoverers: 1, ..BASE }.explore(2, 1);
        Setup { items: 6, consumers: 2, closers: 1, recoverers: 1, ..BASE }.explore(3, 1);
        Setup { items: 6, consumers: 2, recoverers: 2, ..BASE }.explore(3, 1);
    });
}

/// Without the links, consumers don't find messages in the next segment.
#[test]
#[should_panic(expected = "lost")]
fn model_finds_loss_without_segment_links() {
    let mut world = BASE.world();
    world.memory.lose([chain(1, 2).link(0).expect("there are two")]);
    BASE.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "wedged")]
fn random_schedules_find_missing_segment_links() {
    at_random(|| {
        let setup = Setup { items: 6, consumers: 2, ..BASE };
        let mut world = setup.world();
        world.memory.lose([chain(1, 2).link(0).expect("there are two")]);
        setup.check(world, 0, 0);
    });
}
