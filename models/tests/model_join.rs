//! Joining, exhaustively: a worker whose tasks put subtasks, into envelopes before and behind the one that it works on, in
//! a queue that grows meanwhile, and one who counts what is unfinished. The steps are the ones that run in processes.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner, delivered};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::ring::{
    COUNT, META, OWNER, PLACE, chain, free, intent, member, memory, owner, returns, slots,
};
use mp_queue::ring::{Census, ChainAt, Extend, Get, Got, Link, Put, PutEnd, Return};

/// The envelope of each task, which puts the next one before it is done. Each goes into one that was looked at before, or
/// into one that was just freed.
const TASKS: [u32; 4] = [2, 1, 0, 2];
const ENVELOPES: u64 = 3;
const WORKER: usize = 0;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Claim,
    Extend(Extend),
    Put(Put),
    Get(Get),
    Done,
    Free,
    /// The last task is given up.
    GiveUp(Return),
    Count(Census),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    chain: ChainAt,
    /// How many tasks were put, and begun.
    put: usize,
    begun: usize,
    doing: Doing,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Envelopes of tasks that were put, and neither done nor given up.
    open: Vec<u32>,
    given_up: usize,
    zeros: usize,
}

impl Process {
    /// The first task is in the first segment, all others in the second one, if there is one.
    fn segment(&self, task: usize) -> u32 {
        u32::from(task > 0 && self.chain.segments > 1)
    }

    fn census(&self) -> Doing {
        Doing::Count(Census::new(self.chain, COUNT, (OWNER, PLACE)))
    }

    fn to_put(&self, owner: Owner) -> Doing {
        let (e, me) = (TASKS[self.put], member(WORKER));
        let ring = self.chain.segment(self.segment(self.put));
        Doing::Put(Put::new(ring, intent(WORKER), (e, OWNER.of(e), PLACE.of(e)), me, owner))
    }

    fn to_get(&self) -> Doing {
        let ring = self.chain.segment(self.segment(self.begun));
        Doing::Get(Get::new(ring, intent(WORKER), OWNER, member(WORKER)).leasing())
    }

    fn to_finish(&self, m: &Memory) -> Doing {
        let e = TASKS[self.begun - 1];
        if self.begun < TASKS.len() {
            return Doing::Done;
        }
        Doing::GiveUp(Return::new(returns(1), OWNER.of(e), META.of(e), owner(m, e)))
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let mut doing = self.doing.clone();
        self.doing = match &mut doing {
            Doing::Claim => {
                let mine = owner(m, TASKS[self.put]).then(Holder::Member(member(me)));
                m.store(OWNER.of(TASKS[self.put]), mine.pack());
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
                    Some(PutEnd::Done(_)) => {
                        self.put += 1;
                        if self.begun == 0 { self.to_get() } else { self.to_finish(m) }
                    }
                    Some(end) => panic!("{end:?}: there is room"),
                }
            }
            Doing::Get(get) => match get.step(m) {
                None => doing,
                Some(Got::Envelope(e, ..)) => {
                    assert_eq!(e, TASKS[self.begun]);
                    self.begun += 1;
                    if self.put < TASKS.len() { Doing::Claim } else { self.to_finish(m) }
                }
                Some(end) => panic!("{end:?}: there is one"),
            },
            Doing::Done => {
                let e = TASKS[self.begun - 1];
                let mine = owner(m, e);
                assert!(
                    m.cas(OWNER.of(e), mine.pack(), mine.then(Holder::Member(member(me))).pack()).is_ok()
                );
                ghost.open.retain(|open| *open != e);
                Doing::Free
            }
            Doing::Free => {
                free(m, TASKS[self.begun - 1], me);
                self.to_get()
            }
            Doing::GiveUp(back) => {
                let end = back.step(m);
                if owner(m, TASKS[self.begun - 1]).holder == Holder::Undeliverable {
                    ghost.open.clear();
                    ghost.given_up = 1;
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
                        assert!(ghost.open.is_empty(), "joined, and {:?} are unfinished", ghost.open);
                        assert_eq!(found.lost, ghost.given_up);
                        ghost.zeros = (ghost.zeros + 1).min(2);
                    }
                    if fates[WORKER].gone() && found.unfinished == 0 {
                        return true;
                    }
                    self.census()
                }
            },
        };
        false
    }
}

fn explore(slots: u32, most: u32) {
    let chain = chain(slots, most);
    let memory = memory(&chain, 1);
    memory.poke(COUNT, ENVELOPES);
    TASKS.iter().for_each(|&e| memory.poke(META.of(e), delivered(0)));
    let worker = Process { chain, put: 0, begun: 0, doing: Doing::Claim };
    let joiner = Process { doing: worker.census(), ..worker.clone() };
    let world = World::new(memory, vec![worker, joiner], Ghost::default());
    let explored = world.explore(0, 0, |w| assert!(w.ghost.zeros > 0 && w.ghost.given_up == 1), |_| true);
    println!("{} states, {} ends", explored.states, explored.ends);
    assert!(explored.states > 1000 && explored.ends > 0);
}

#[test]
fn who_joins_is_not_told_that_all_is_done_while_a_subtask_is_not() {
    explore(1, 0);
    explore(2, 0);
}

#[test]
fn nor_when_the_queue_grows_meanwhile() {
    explore(1, 2);
}
