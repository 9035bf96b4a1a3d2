//! The envelope ring under long random schedules: rings of up to four slots, up to thirty messages, envelopes that
//! are used again and again, processes that are killed, stopped and resumed, against a plain queue.
//!
//! The exhaustive models go through every schedule of a few messages; this goes far where they can't. The steps are
//! the ones that run in processes.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{BlockId, Holder, Member, Owner};
use mp_queue::ring::{
    Close, Get, Got, Put, PutEnd, RingAt, Settle, Settled, Slot, SlotState, Surroundings, Ticket,
};
use mp_tests::explore::{Actor, Fate, Memory, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const MAX_SLOTS: u64 = 4;
/// Four that are scheduled, and one that cleans up in the end.
const MAX_ACTORS: u64 = 5;
const LAST_SWEEPER: usize = 4;
const ENVELOPES: u32 = 6;

const HEAD: Word = Word::at(0);
const TAIL: Word = HEAD.plus(1);
const FIRST_SLOT: Word = HEAD.plus(2);
const INTENTS: Word = FIRST_SLOT.plus(MAX_SLOTS);
const OWNERS: Word = INTENTS.plus(MAX_ACTORS);
const PLACES: Word = OWNERS.plus(ENVELOPES as u64);
const WORDS: u64 = PLACES.offset() / 8 + ENVELOPES as u64;
const OWNER: Column = Column { base: OWNERS, stride: 8 };
const PLACE: Column = Column { base: PLACES, stride: 8 };

fn intent(actor: usize) -> Word {
    INTENTS.plus(actor as u64)
}
fn member(actor: usize) -> Member {
    Member::new(actor as u32, 1)
}
fn owner(m: &Memory, e: u32) -> Owner {
    Owner::unpack(m.peek(OWNER.of(e)))
}

/// What a sweeper finds around it: the actors that are not known to be dead.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Around(Vec<Word>);

impl Surroundings for Around {
    fn intents(&self) -> Vec<Word> {
        self.0.clone()
    }
    fn slot(&self, _: BlockId, slot: u32) -> Option<Word> {
        Some(FIRST_SLOT.plus(u64::from(slot)))
    }
}

type Sweep = Settle<Around>;
/// Who made it, and its number among that producer's messages.
type Message = (usize, u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    Producer { messages: u32 },
    Consumer,
    Closer,
    Sweeper,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// What the role does first.
    Start,
    Put(u32, Put),
    Get(Get),
    Close(Close),
    Settle(Box<Sweep>),
    /// Takes over an envelope of a dead member.
    Own(u32, u64),
    /// Gives up an envelope of one's own.
    Free(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    ring: RingAt,
    /// Messages made so far.
    made: u32,
    doing: Doing,
}

/// The plain queue, and who has seen what.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Ghost {
    content: Vec<Option<Message>>,
    queue: VecDeque<Message>,
    taken: Vec<Message>,
    received: Vec<Message>,
    closed: bool,
    refused: u32,
    /// For each actor, whether the queue was empty, or full, at some time since its present call began.
    was_empty: [bool; MAX_ACTORS as usize],
    was_full: [bool; MAX_ACTORS as usize],
}

impl Ghost {
    /// Follows the change that a step made to the slots.
    fn follow(&mut self, before: &[Slot], after: &[Slot]) {
        for (&before, &after) in before.iter().zip(after) {
            let (left, came) = (before.envelope(), after.envelope());
            if left == came {
                continue;
            }
            if let Some(e) = left {
                let message = self.content[e as usize].expect("an envelope with a message in it");
                assert_eq!(self.queue.pop_front(), Some(message), "taken in another order");
                self.taken.push(message);
            }
            if let Some(e) = came {
                assert!(!self.closed, "published after the end");
                self.queue.push_back(self.content[e as usize].expect("an envelope with a message in it"));
            }
        }
        assert!(self.queue.len() <= before.len(), "more messages than slots");
        let (empty, full) = (self.queue.is_empty(), self.queue.len() == before.len());
        self.was_empty.iter_mut().for_each(|was| *was |= empty);
        self.was_full.iter_mut().for_each(|was| *was |= full);
    }

    fn begin(&mut self, me: usize, slots: u32) {
        self.was_empty[me] = self.queue.is_empty();
        self.was_full[me] = self.queue.len() == slots as usize;
    }
}

fn slots(m: &Memory, ring: RingAt) -> Vec<Slot> {
    (0..ring.slots).map(|i| Slot::unpack(m.peek(ring.slot(i)))).collect()
}

impl Process {
    fn start(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> Option<Doing> {
        match self.role {
            Role::Producer { messages } if self.made == messages => None,
            Role::Producer { .. } => {
                let free = (0..ENVELOPES).find(|&e| owner(m, e).holder == Holder::Free);
                let Some(e) = free else { return Some(Doing::Start) };
                let mine = owner(m, e).then(Holder::Member(member(me)));
                m.cas(OWNER.of(e), owner(m, e).pack(), mine.pack()).expect("one step at a time");
                ghost.content[e as usize] = Some((me, self.made));
                self.made += 1;
                Some(self.put(me, e, mine, ghost))
            }
            Role::Consumer => {
                ghost.begin(me, self.ring.slots);
                Some(Doing::Get(Get::new(self.ring, intent(me), OWNER, member(me))))
            }
            Role::Closer => Some(Doing::Close(Close::new(self.ring))),
            Role::Sweeper => Some(self.look(me, m, fates).unwrap_or(Doing::Start)),
        }
    }

    fn put(&self, me: usize, e: u32, owner: Owner, ghost: &mut Ghost) -> Doing {
        ghost.begin(me, self.ring.slots);
        let at = (e, OWNER.of(e), PLACE.of(e));
        Doing::Put(e, Put::new(self.ring, intent(me), at, member(me), owner))
    }

    /// What a dead member left, if anything.
    fn look(&self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        let dead = |a: &usize| fates[*a] == Fate::Killed;
        if let Some(d) = (0..fates.len()).filter(dead).find(|&d| m.peek(intent(d)) != 0) {
            let others = (0..fates.len()).filter(|a| !dead(a)).map(intent).collect();
            let settle = Settle::new((intent(d), intent(me)), (OWNER, PLACE), Around(others), member(me));
            return Some(Doing::Settle(Box::new(settle)));
        }
        (0..ENVELOPES).find_map(|e| match owner(m, e).holder {
            Holder::Member(o) if dead(&(o.slot() as usize)) => Some(Doing::Own(e, owner(m, e).pack())),
            _ => None,
        })
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let before = slots(m, self.ring);
        let mut doing = std::mem::replace(&mut self.doing, Doing::Start);
        let next = match &mut doing {
            Doing::Start => self.start(me, m, fates, ghost),
            Doing::Put(e, put) => match put.step(m) {
                None => Some(doing),
                Some(PutEnd::Done(_)) => Some(Doing::Start),
                Some(PutEnd::Full(owner)) => {
                    assert!(ghost.was_full[me], "refused as full, which it never was");
                    Some(self.put(me, *e, owner, ghost))
                }
                Some(PutEnd::Closed(_)) => {
                    assert!(ghost.closed, "refused as closed, which it was not");
                    ghost.refused += 1;
                    Some(Doing::Free(*e))
                }
            },
            Doing::Get(get) => match get.step(m) {
                None => Some(doing),
                Some(Got::Envelope(e, owner)) => {
                    assert_eq!(owner.holder, Holder::Member(member(me)));
                    ghost.received.push(ghost.content[e as usize].expect("a message"));
                    Some(Doing::Free(e))
                }
                Some(Got::Empty) => {
                    assert!(ghost.was_empty[me], "found empty, which it never was");
                    let more = fates.contains(&Fate::Running) && me != LAST_SWEEPER;
                    more.then_some(Doing::Start)
                }
                Some(Got::Closed) => {
                    assert!(ghost.closed && ghost.queue.is_empty(), "an end before the end");
                    None
                }
            },
            Doing::Close(close) => match close.step(m) {
                None => Some(doing),
                Some(was_open) => {
                    assert_eq!(was_open, !ghost.closed);
                    ghost.closed = true;
                    None
                }
            },
            Doing::Settle(settle) => match settle.step(m) {
                None => Some(doing),
                Some(Settled::Clear | Settled::Later) => Some(Doing::Start),
                Some(Settled::TakenOver(e)) => Some(Doing::Free(e)),
            },
            Doing::Own(e, found) => {
                let mine = Owner::unpack(*found).then(Holder::Member(member(me)));
                let won = m.cas(OWNER.of(*e), *found, mine.pack()).is_ok();
                Some(if won { Doing::Free(*e) } else { Doing::Start })
            }
            Doing::Free(e) => {
                assert_eq!(owner(m, *e).holder, Holder::Member(member(me)));
                ghost.content[*e as usize] = None;
                m.store(OWNER.of(*e), owner(m, *e).then(Holder::Free).pack());
                Some(Doing::Start)
            }
        };
        ghost.follow(&before, &slots(m, self.ring));
        match next {
            Some(doing) => self.doing = doing,
            None => return true,
        }
        false
    }
}

#[derive(Clone, Debug)]
enum Event {
    Steps(usize, u32),
    Kill(usize),
    Stop(usize),
    Resume(usize),
}

#[derive(Clone, Debug)]
struct Case {
    slots: u32,
    messages: u32,
    roles: usize,
    events: Vec<Event>,
}

/// Producers' messages are filled in by the case.
const P: Role = Role::Producer { messages: 0 };
const CASTS: [[Role; 4]; 6] = [
    [P, P, Role::Consumer, Role::Consumer],
    [P, P, Role::Consumer, Role::Sweeper],
    [P, Role::Consumer, Role::Consumer, Role::Sweeper],
    [P, P, Role::Consumer, Role::Closer],
    [P, Role::Consumer, Role::Sweeper, Role::Sweeper],
    [P, Role::Consumer, Role::Closer, Role::Sweeper],
];

fn case() -> impl Strategy<Value = Case> {
    let event = prop_oneof![
        30 => (0..4_usize, 1..15_u32).prop_map(|(a, n)| Event::Steps(a, n)),
        1 => (0..4_usize).prop_map(Event::Kill),
        2 => (0..4_usize).prop_map(Event::Stop),
        2 => (0..4_usize).prop_map(Event::Resume),
    ];
    let events = proptest::collection::vec(event, 0..300);
    (1..=MAX_SLOTS as u32, 1..=30_u32, 0..CASTS.len(), events)
        .prop_map(|(slots, messages, roles, events)| Case { slots, messages, roles, events })
}

fn world(case: &Case) -> World<Process> {
    let ring = RingAt { block: 0, slots: case.slots, head: HEAD, tail: TAIL, first: FIRST_SLOT };
    let m = Memory::new(WORDS as usize);
    // Just before the laps wrap, so that they do.
    let lap = (1 << 38) - 2;
    let first = Ticket { lap, index: 0 }.pack();
    m.poke(HEAD, first);
    m.poke(TAIL, first);
    (0..case.slots).for_each(|i| m.poke(ring.slot(i), Slot { lap, state: SlotState::Empty }.pack()));
    let cast = CASTS[case.roles];
    let producers = cast.iter().filter(|&&role| role == P).count() as u32;
    let role = |role| match role {
        Role::Producer { .. } => Role::Producer { messages: case.messages / producers },
        other => other,
    };
    let process = |r| Process { role: role(r), ring, made: 0, doing: Doing::Start };
    let actors = cast.into_iter().chain([Role::Sweeper]).map(process).collect();
    World::new(m, actors, Ghost { content: vec![None; ENVELOPES as usize], ..Ghost::default() })
}

/// Steps an actor as long as `go_on` says, at most so often.
fn drive(w: &mut World<Process>, actor: usize, go_on: impl Fn(&World<Process>) -> bool) {
    for _ in 0..10_000 {
        if w.fates[actor] != Fate::Running || !go_on(w) {
            return;
        }
        w.step(actor);
    }
    panic!("actor {actor} comes to no end");
}

fn play(case: &Case, mut w: World<Process>) -> Ghost {
    let mut stopped = HashSet::new();
    for event in &case.events {
        match *event {
            Event::Steps(a, n) => (0..n).for_each(|_| {
                if w.fates[a] == Fate::Running && !stopped.contains(&a) {
                    w.step(a);
                }
            }),
            Event::Kill(a) if w.fates[a] == Fate::Running => w.fates[a] = Fate::Killed,
            Event::Kill(_) => {}
            Event::Stop(a) => drop(stopped.insert(a)),
            Event::Resume(a) => drop(stopped.remove(&a)),
        }
    }
    // Nobody is stopped any more, and all who live get their turns.
    let made = |w: &World<Process>| w.actors.iter().map(|p| p.made).sum::<u32>();
    for _ in 0..3000 {
        (0..LAST_SWEEPER).for_each(|a| {
            if w.fates[a] == Fate::Running {
                w.step(a);
            }
        });
    }
    let all = |w: &World<Process>, role: Role, fate: Fate| {
        (0..LAST_SWEEPER).filter(|&a| w.actors[a].role == role && w.fates[a] == fate).count()
    };
    let killed = all(&w, Role::Consumer, Fate::Killed);
    let alive = all(&w, Role::Consumer, Fate::Running) + all(&w, Role::Consumer, Fate::Ended) > 0;
    let swept = all(&w, Role::Sweeper, Fate::Running) > 0;
    if alive && (swept || !w.fates.contains(&Fate::Killed)) {
        for a in 0..LAST_SWEEPER {
            let role = w.actors[a].role;
            let done = w.fates[a] != Fate::Running || !matches!(role, Role::Producer { .. } | Role::Closer);
            assert!(done, "{role:?} is not done");
        }
        assert!(w.ghost.queue.is_empty(), "messages are left though somebody takes them");
    }
    // The end of all four; then one sweeps, and takes what is still queued.
    let cut_short = all(&w, Role::Consumer, Fate::Running);
    for fate in w.fates[..LAST_SWEEPER].iter_mut().filter(|fate| **fate == Fate::Running) {
        *fate = Fate::Killed;
    }
    let busy = |w: &World<Process>| {
        let p = &w.actors[LAST_SWEEPER];
        p.doing != Doing::Start || p.look(LAST_SWEEPER, &w.memory, &w.fates).is_some()
    };
    drive(&mut w, LAST_SWEEPER, busy);
    w.actors[LAST_SWEEPER].role = Role::Consumer;
    drive(&mut w, LAST_SWEEPER, |_| true);

    let g = &w.ghost;
    let unique: HashSet<_> = g.received.iter().collect();
    assert_eq!(unique.len(), g.received.len(), "a message was received twice");
    let lost = g.taken.iter().filter(|m| !unique.contains(m)).count();
    assert!(lost <= killed + cut_short, "{lost} lost, {killed} + {cut_short} consumers killed");
    assert_eq!(g.received.len() + lost, g.taken.len());
    assert!(g.taken.len() + g.refused as usize <= made(&w) as usize);
    for e in 0..ENVELOPES {
        assert_eq!(owner(&w.memory, e).holder, Holder::Free, "envelope {e} leaks");
    }
    assert!((0..MAX_ACTORS as usize).all(|a| w.memory.peek(intent(a)) == 0), "an intent is left");
    w.ghost
}

fn runner() -> TestRunner {
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn random_schedules_behave_like_a_plain_queue() {
    let (received, lost) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let run = runner().run(&case(), |case| {
        let ghost = play(&case, world(&case));
        received.set(received.get() + ghost.received.len());
        lost.set(lost.get() + ghost.taken.len() - ghost.received.len());
        Ok(())
    });
    run.unwrap();
    println!("{} messages received, {} lost with their consumers", received.get(), lost.get());
    // The schedules reach what they are for.
    assert!(received.get() > 2000 && lost.get() > 10);
}

/// Whether some schedule finds a bug that is planted by losing all writes to these words.
fn finds(words: impl Fn() -> Vec<Word>) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let run = runner().run(&case(), |case| {
        let mut world = world(&case);
        world.memory.lose(words());
        let played = catch_unwind(AssertUnwindSafe(|| play(&case, world)));
        played.map(drop).map_err(|_| TestCaseError::fail("found"))
    });
    let _ = std::panic::take_hook();
    run.is_err()
}

#[test]
fn planted_bugs_are_found() {
    // Without intents, an envelope whose taker was killed is nobody's.
    assert!(finds(|| (0..MAX_ACTORS as usize).map(intent).collect()));
    // Without places, a sweep looks in the wrong slot.
    assert!(finds(|| (0..ENVELOPES).map(|e| PLACE.of(e)).collect()));
}
