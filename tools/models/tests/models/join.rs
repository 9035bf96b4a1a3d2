//! Exhaustive model of joining a queue. A worker's tasks put subtasks into the queue, which grows meanwhile.
//! Envelopes of subtasks come before and after the envelope of their task. A joiner counts unfinished tasks,
//! and recovers dead workers. After the worker's end, another actor (the heir) does the remaining tasks.
//! Actors are killed and stopped at every access. Real processes run the same steps.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner, delivered};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{actor_of, member};
use mp_models::random::at_random;
use mp_models::ring::{
    COUNT, ENVELOPES_AT, META, OWNER, PLACE, Remains, TestContext, chain, find_remains, free, intent, memory,
    owner, returns, slots,
};
use mp_queue::ring::{
    Census, ChainAt, Extend, Get, GetOutcome, Link, NoteReturned, Put, PutOutcome, Reclaim, Return, Settle,
    SettleOutcome, TakenMessage, may_have_returned,
};

/// Envelope of each task. Each task puts the next task before it ends. The envelope of a new task is one that
/// the joiner has already checked, or that was just freed.
const TASKS: [u32; 4] = [2, 1, 0, 2];
/// Number of all tasks. Worlds with many schedules have [`FEW`] tasks.
const ALL: usize = TASKS.len();
const FEW: usize = 2;
const ENVELOPES: u64 = 3;
const WORKER: usize = 0;
const JOINER: usize = 1;
const HEIR: usize = 2;
/// Maximum number of deliveries of a task. With 1, a task that its consumer does not finish is lost.
const LIMIT: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// The joiner reads the envelopes once, and does not check for puts during this read.
    LooksOnce,
    /// A dead worker's task is not recovered.
    NoVisit,
    /// A stopped actor is treated as dead.
    TimeIsDeath,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Claim,
    Extend(Extend),
    Put(Put),
    /// Takes a returned task, if there is one.
    Reclaim(Reclaim),
    Get(Get),
    /// Checks for a second segment.
    Link,
    /// Counts a delivery of a message, in two accesses: a read and a write.
    Deliver(u32, Option<u64>),
    Done(u32),
    Free(u32),
    /// Returns the worker's last task instead of finishing it.
    GiveUp(Return),
    Count(Census),
    /// Planted bug: counts unfinished tasks once, up to this envelope.
    CountOnce(u32, usize),
    /// Finds remains of dead actors, and recovers them.
    Look,
    Settle(Box<Settle<TestContext>>),
    Return(Return),
    Note(NoteReturned),
    Own(u32, u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    chain: ChainAt,
    /// Number of tasks.
    tasks: usize,
    /// Number of tasks that were put, and number of tasks that were begun.
    put: usize,
    begun: usize,
    doing: Doing,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Envelopes of unfinished tasks: put, and neither finished nor lost.
    open: Vec<u32>,
    /// Number of finished tasks.
    done: usize,
    /// `true` if the last task was returned by its consumer.
    given_up: bool,
    /// Number of the joiner's counts that found no unfinished task.
    zeros: usize,
    /// `true` if the joiner gave up, because the unfinished tasks belong to a stopped actor or to no actor.
    gave_up: bool,
}

/// Returns the number of tasks that no actor will receive. Does not count as an access.
fn lost(m: &Memory) -> usize {
    (0..ENVELOPES as u32).filter(|&e| owner(m, e).holder == Holder::Undeliverable).count()
}

/// Returns `true` if there is a returned task, the queue's hint reports no returned task, and an actor was
/// killed. (The killed actor's seat keeps the queue alive until a recovery updates the hint.) Does not
/// count as an access.
fn unnotified(m: &Memory, fates: &[Fate]) -> bool {
    let back = (0..ENVELOPES as u32).any(|e| owner(m, e).holder == Holder::Returned);
    back && !may_have_returned(m.peek(returns(LIMIT).returned)) && fates.contains(&Fate::Killed)
}

/// Returns `true` if a task has not been taken by any actor. Does not count as an access.
fn not_begun(m: &Memory, chain: &ChainAt) -> bool {
    let returned = |e| owner(m, e).holder == Holder::Returned;
    let queued = slots(m, chain).iter().any(|slot| slot.envelope().is_some());
    queued || (0..ENVELOPES as u32).any(returned)
}

/// Returns `true` if a stopped actor has a task, or was putting or taking one: the task is unfinished until
/// that actor continues.
fn waits_for_a_stopped(m: &Memory, fates: &[Fate]) -> bool {
    let stopped = |actor: usize| fates[actor] == Fate::Stopped;
    (0..ENVELOPES as u32).any(|e| match owner(m, e).holder {
        Holder::Leased(o) => stopped(actor_of(o)),
        Holder::Queued => (0..fates.len()).any(|a| stopped(a) && m.peek(intent(a)) == u64::from(e) + 1),
        _ => false,
    })
}

impl Process {
    /// Returns the segment of a task. The first task is in the first segment. Later tasks are in the second
    /// segment, if it exists.
    fn segment(&self, task: usize) -> u32 {
        u32::from(task > 0 && self.chain.segments > 1)
    }

    fn census(&self) -> Doing {
        match self.bug {
            Bug::LooksOnce => Doing::CountOnce(0, 0),
            _ => Doing::Count(Census::new(self.chain, ENVELOPES_AT)),
        }
    }

    fn to_put(&self, owner: Owner) -> Doing {
        let (e, me) = (TASKS[self.put], member(WORKER));
        let ring = self.chain.segment(self.segment(self.put));
        Doing::Put(Put::new(ring, intent(WORKER), (e, OWNER.of(e), PLACE.of(e)), me, owner))
    }

    fn to_get(&self, me: usize, segment: u32) -> Doing {
        let ring = self.chain.segment(segment);
        Doing::Get(Get::new(ring, intent(me), OWNER, member(me)).leasing())
    }

    fn to_finish(&self, m: &Memory) -> Doing {
        let e = TASKS[self.begun - 1];
        if self.begun < self.tasks {
            return Doing::Done(e);
        }
        Doing::GiveUp(Return::new(returns(LIMIT), OWNER.of(e), META.of(e), owner(m, e)))
    }

    /// Returns the step by which the heir takes a remaining task: a returned task, or else a queued task.
    fn reclaim(&self) -> Doing {
        let wanted = (Holder::Returned, Holder::Leased(member(HEIR)));
        Doing::Reclaim(Reclaim::new(returns(LIMIT), self.chain.first, ENVELOPES_AT, wanted))
    }

    /// Returns the first step to recover remains of a dead actor.
    fn recover(&self, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        let dead: Vec<Fate> = match self.bug {
            Bug::NoVisit => return None,
            Bug::TimeIsDeath => {
                fates.iter().map(|&f| if f == Fate::Stopped { Fate::Killed } else { f }).collect()
            }
            _ => fates.to_vec(),
        };
        match find_remains(m, &dead) {
            Some(Remains::Intent(a)) => {
                let context = TestContext::new(&dead, self.chain, a).redelivering();
                Some(Doing::Settle(context.settle()))
            }
            Some(Remains::Envelope(e, owner)) if matches!(owner.holder, Holder::Leased(_)) => {
                let back = Return::new(returns(LIMIT), OWNER.of(e), META.of(e), owner);
                Some(Doing::Return(back.for_dead_holder()))
            }
            Some(Remains::Envelope(e, owner)) => Some(Doing::Own(e, owner.pack())),
            None => unnotified(m, &dead).then(|| Doing::Note(NoteReturned::new(returns(LIMIT)))),
        }
    }

    /// Returns `true` if no task is left for the heir, and only a stopped actor could put another one.
    fn is_over(&self, m: &Memory, fates: &[Fate]) -> bool {
        let coming = |e| owner(m, e).holder == Holder::Queued && !waits_for_a_stopped(m, fates);
        find_remains(m, fates).is_none()
            && !unnotified(m, fates)
            && !not_begun(m, &self.chain)
            && !(0..ENVELOPES as u32).any(coming)
    }

    /// Returns `true` if no recovery is possible, and the unfinished tasks belong to a stopped actor or to no
    /// actor.
    fn waits_for_ever(&self, m: &Memory, fates: &[Fate]) -> bool {
        let intends =
            |fate: Fate, e: u64| (0..fates.len()).any(|a| fates[a] == fate && m.peek(intent(a)) == e);
        // Only the stopped actor can settle a task that a dead actor also intended.
        let in_doubt = (1..=ENVELOPES).any(|e| intends(Fate::Killed, e) && intends(Fate::Stopped, e));
        let recovered = find_remains(m, fates).is_none() && !unnotified(m, fates);
        let no_actor = fates[HEIR] != Fate::Ended && not_begun(m, &self.chain);
        in_doubt || recovered && (waits_for_a_stopped(m, fates) || no_actor)
    }

    /// Returns the next action after recovery: the joiner counts, the heir does the remaining tasks.
    fn then(&self, me: usize) -> Doing {
        if me == JOINER { self.census() } else { self.reclaim() }
    }

    /// Continues after the joiner has counted `unfinished` tasks. Returns `true` if the joiner ends.
    fn counted(&self, m: &Memory, fates: &[Fate], ghost: &mut Ghost, unfinished: usize) -> bool {
        let others_gone = fates[WORKER].gone() && fates[HEIR].gone();
        if unfinished > 0 {
            // The joiner's time limit expires when no actor is left that could do the unfinished tasks.
            ghost.gave_up = others_gone && self.waits_for_ever(m, fates);
            return ghost.gave_up;
        }
        assert!(ghost.open.is_empty(), "joined while {:?} are unfinished", ghost.open);
        ghost.zeros = (ghost.zeros + 1).min(2);
        others_gone && find_remains(m, fates).is_none()
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Claim => {
                let e = TASKS[self.put];
                let mine = owner(m, e).then(Holder::Member(member(me)));
                m.store(OWNER.of(e), mine.pack());
                // The word is written with the message, which no other actor can read yet.
                m.poke(META.of(e), 0);
                match self.chain.link(0) {
                    Some(link) if self.put == 1 => Doing::Extend(Extend::new(self.chain.first, link)),
                    _ => self.to_put(mine),
                }
            }
            Doing::Extend(extend) => match extend.step(m) {
                None => doing,
                Some(end) => {
                    assert_eq!(end, Link::Open);
                    self.to_put(owner(m, TASKS[self.put]))
                }
            },
            Doing::Put(put) => {
                let end = put.step(m);
                let e = TASKS[self.put];
                let published = slots(m, &self.chain).iter().any(|slot| slot.envelope() == Some(e));
                if published && !ghost.open.contains(&e) {
                    ghost.open.push(e);
                }
                match end {
                    None => doing,
                    Some(PutOutcome::Done(_)) => {
                        self.put += 1;
                        if self.begun == 0 { self.to_get(me, 0) } else { self.to_finish(m) }
                    }
                    Some(end) => panic!("{end:?}: there is room"),
                }
            }
            Doing::Reclaim(reclaim) => match reclaim.step(m) {
                None => doing,
                Some(Some((e, _))) => Doing::Deliver(e, None),
                Some(None) => self.to_get(me, 0),
            },
            Doing::Get(get) => match get.step(m) {
                None => doing,
                Some(GetOutcome::Done(TakenMessage::Envelope(e, ..))) => {
                    assert!(me != WORKER || e == TASKS[self.begun], "envelope {e}");
                    Doing::Deliver(e, None)
                }
                // The actor is the heir. The end of the first segment does not show whether a second segment
                // exists.
                Some(GetOutcome::Closed) => Doing::Link,
                Some(GetOutcome::Empty) if me == HEIR => {
                    if self.is_over(m, fates) {
                        return true;
                    }
                    Doing::Look
                }
                Some(end) => panic!("{end:?}: there is one"),
            },
            Doing::Link => match Link::unpack(m.load(self.chain.link(0).expect("it grows"))) {
                Link::Open => self.to_get(me, 1),
                // The actor that should open the segment is dead, and has put nothing there.
                _ if self.is_over(m, fates) => return true,
                _ => Doing::Look,
            },
            Doing::Deliver(e, None) => {
                assert_eq!(owner(m, *e).holder, Holder::Leased(member(me)), "another actor has it, too");
                Doing::Deliver(*e, Some(m.load(META.of(*e))))
            }
            Doing::Deliver(e, Some(meta)) => {
                m.store(META.of(*e), delivered(*meta));
                self.begun += 1;
                match me {
                    WORKER if self.put < self.tasks => Doing::Claim,
                    WORKER => self.to_finish(m),
                    _ => Doing::Done(*e),
                }
            }
            Doing::Done(e) => {
                let mine = owner(m, *e);
                assert!(
                    m.cas(OWNER.of(*e), mine.pack(), mine.then(Holder::Member(member(me))).pack()).is_ok()
                );
                ghost.open.retain(|open| open != e);
                ghost.done += 1;
                Doing::Free(*e)
            }
            Doing::Free(e) => {
                free(m, *e, me);
                match me {
                    WORKER => self.to_get(me, self.segment(self.begun)),
                    _ => Doing::Look,
                }
            }
            Doing::GiveUp(back) => {
                let end = back.step(m);
                if owner(m, TASKS[self.begun - 1]).holder == Holder::Undeliverable {
                    ghost.open.clear();
                    ghost.given_up = true;
                }
                if end.is_some() {
                    return true;
                }
                doing
            }
            Doing::Count(census) => match census.step(m) {
                None => doing,
                Some(found) => {
                    if found.unfinished == 0 {
                        assert_eq!(found.lost, lost(m));
                    }
                    if self.counted(m, fates, ghost, found.unfinished) {
                        return true;
                    }
                    Doing::Look
                }
            },
            Doing::CountOnce(e, n) => {
                let holder = Owner::unpack(m.load(OWNER.of(*e))).holder;
                let n =
                    *n + usize::from(matches!(holder, Holder::Queued | Holder::Leased(_) | Holder::Returned));
                match u64::from(*e) + 1 < ENVELOPES {
                    true => Doing::CountOnce(*e + 1, n),
                    false if self.counted(m, fates, ghost, n) => return true,
                    false => Doing::Look,
                }
            }
            // The heir begins after the worker has ended.
            Doing::Look if me == HEIR && !fates[WORKER].gone() => Doing::Look,
            Doing::Look => self.recover(m, fates).unwrap_or_else(|| self.then(me)),
            Doing::Settle(settle) => match settle.step(m) {
                None => doing,
                Some(SettleOutcome::Owned(_)) => unreachable!("everything is delivered again here"),
                Some(SettleOutcome::Undecided(_)) => self.then(me),
                Some(_) => Doing::Look,
            },
            Doing::Return(back) => {
                let before = lost(m);
                let end = back.step(m);
                if lost(m) > before {
                    ghost.open.retain(|&e| owner(m, e).holder != Holder::Undeliverable);
                }
                if end.is_some() { Doing::Look } else { doing }
            }
            Doing::Note(note) => match note.step(m) {
                None => doing,
                Some(()) => Doing::Look,
            },
            Doing::Own(e, found) => {
                let mine = Owner::unpack(*found).then(Holder::Member(member(me)));
                match m.cas(OWNER.of(*e), *found, mine.pack()) {
                    Ok(()) => Doing::Free(*e),
                    Err(_) => Doing::Look,
                }
            }
        };
        false
    }
}

fn world((slots, most): (u32, u32), tasks: usize, bug: Bug) -> World<Process> {
    let chain = chain(slots, most);
    let memory = memory(&chain, 1);
    memory.poke(COUNT, ENVELOPES);
    let worker = Process { chain, tasks, put: 0, begun: 0, doing: Doing::Claim, bug };
    let joiner = Process { doing: worker.census(), ..worker.clone() };
    let heir = Process { doing: Doing::Look, ..worker.clone() };
    World::new(memory, vec![worker, joiner, heir], Ghost::default())
}

fn explore(slots: (u32, u32), tasks: usize, (kills, stops): (u32, u32), bug: Bug) {
    let end = |w: &World<Process>| {
        // At most one task of each dead actor, and the returned task, are lost.
        let killed = w.count(0..3, Fate::Killed);
        let lost = lost(&w.memory);
        assert!(!w.ghost.gave_up || w.count(0..3, Fate::Stopped) + killed > 0, "an unsuccessful joiner");
        assert!(lost <= killed + usize::from(w.ghost.given_up), "{lost} tasks are lost, and {killed} died");
        if w.fates[JOINER] == Fate::Ended && !w.ghost.gave_up {
            assert!(w.ghost.zeros > 0 && w.ghost.open.is_empty());
        }
        if w.fates[WORKER] == Fate::Ended {
            assert!(w.ghost.given_up && w.ghost.done == tasks - 1);
        }
    };
    let explored = world(slots, tasks, bug).explore(kills, stops, end, |w| w.fates.contains(&Fate::Running));
    assert!(explored.states > 1000);
}

const ONE: (u32, u32) = (1, 0);
const TWO: (u32, u32) = (2, 0);
const GROWS: (u32, u32) = (1, 2);

#[test]
fn join_waits_for_each_subtask() {
    explore(ONE, ALL, (0, 0), Bug::None);
    explore(TWO, ALL, (0, 0), Bug::None);
}

#[test]
fn join_waits_while_the_queue_grows() {
    explore(GROWS, ALL, (0, 0), Bug::None);
}

/// A killed worker's task is lost, and the joiner does not wait for it. The heir does the tasks that the
/// killed worker had not begun.
#[test]
fn task_of_a_killed_consumer_is_counted_as_lost() {
    explore(ONE, ALL, (1, 0), Bug::None);
    explore(GROWS, FEW, (1, 0), Bug::None);
}

#[test]
fn join_survives_a_killed_recoverer() {
    explore(ONE, FEW, (2, 0), Bug::None);
}

#[test]
fn stopped_consumer_delays_only_joins_of_its_task() {
    explore(ONE, ALL, (0, 1), Bug::None);
    explore(GROWS, FEW, (0, 1), Bug::None);
    explore(ONE, FEW, (1, 1), Bug::None);
}

#[test]
fn join_holds_in_long_random_schedules() {
    at_random(|| {
        for segments in [ONE, TWO, GROWS] {
            explore(segments, ALL, (2, 1), Bug::None);
        }
    });
}

#[test]
#[should_panic(expected = "are unfinished")]
fn model_finds_join_that_checks_only_once() {
    explore(TWO, ALL, (0, 0), Bug::LooksOnce);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_join_blocked_by_a_dead_consumer() {
    explore(ONE, FEW, (1, 0), Bug::NoVisit);
}

#[test]
#[should_panic(expected = "tasks are lost")]
fn model_finds_join_treating_stopped_as_dead() {
    explore(ONE, ALL, (0, 1), Bug::TimeIsDeath);
}
