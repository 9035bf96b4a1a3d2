//! Exhaustive model of waiting for two counts at once. An observer sleeps on the words of both counts, while
//! another actor takes from the first count. Actors are killed and stopped at any access. Sleepers have no
//! poll interval. Real processes run the same steps on these words.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::{Announce, NotifyOne, withdraw_announcement};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;

/// Words of the two counts: number of available pieces of each thing.
const THINGS: [Word; 2] = [Word::at(0), Word::at(8)];
/// Words on which actors sleep until a piece of a thing is available.
const PARKING: [Word; 2] = [Word::at(16), Word::at(24)];

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// An actor that was woken but takes no piece does not wake another actor.
    NotPassedOn,
    /// An actor that waits for both things announces itself at both, but checks only the first one before it
    /// sleeps.
    LooksAtOne,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Announce(usize, Announce),
    Look(usize),
    Take(u64),
    PassOn(usize, NotifyOne),
    Sleep,
    Put,
    Wake(usize, NotifyOne),
    TakeBack(usize, u64),
    WakeRest(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Observer: waits until a piece of either thing is available, and takes none.
    Looks,
    /// Taker: waits until a piece of the first thing is available, and takes it.
    Takes,
    /// Maker: adds one piece of this thing.
    Makes(usize),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    doing: Doing,
    /// Values of the words on which the actor sleeps.
    seen: [u64; 2],
    ready: [bool; 2],
    /// Index of the first actor that is a maker.
    makers: usize,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Queues of sleepers in the kernel, one for each word. An actor that is woken at one word stays in the
    /// queue of the other word until it runs.
    queues: [Vec<usize>; 2],
    asleep: Vec<usize>,
    woken: Vec<usize>,
    poll_interval: bool,
}

impl Ghost {
    /// Models FUTEX_WAKE: wakes up to `most` actors that sleep on a word. Returns the number of woken actors.
    fn wake(&mut self, word: usize, most: usize) -> usize {
        let n = most.min(self.queues[word].len());
        for i in self.queues[word].drain(..n) {
            if !self.woken.contains(&i) {
                self.woken.push(i);
            }
        }
        n
    }

    /// Removes an actor that no longer sleeps from all queues.
    fn forget(&mut self, me: usize) {
        self.queues.iter_mut().for_each(|q| q.retain(|&i| i != me));
        self.woken.retain(|&i| i != me);
        self.asleep.retain(|&i| i != me);
    }
}

impl Process {
    fn new(role: Role, makers: usize, bug: Bug) -> Self {
        let doing = match role {
            Role::Makes(_) => Doing::Put,
            Role::Looks | Role::Takes => Doing::Announce(0, Announce::new(PARKING[0])),
        };
        Self { role, doing, seen: [0; 2], ready: [false; 2], makers, bug }
    }

    fn words(&self) -> usize {
        if self.role == Role::Looks { 2 } else { 1 }
    }

    /// Sets the next action after a check of all things. Returns `true` if the actor ends.
    fn record_poll(&mut self) -> bool {
        if self.role == Role::Looks && self.ready.contains(&true) {
            return self.pass_on(0);
        }
        self.doing = Doing::Sleep;
        false
    }

    fn pass_on(&mut self, from: usize) -> bool {
        match (from..2).find(|&i| self.ready[i]) {
            Some(i) if self.bug != Bug::NotPassedOn => {
                self.doing = Doing::PassOn(i, NotifyOne::new(PARKING[i]));
                false
            }
            _ => true,
        }
    }

    /// Returns `true` if an actor may end instead of sleeping, because no piece is available and no maker is
    /// left. Real processes can't check this.
    fn gives_up(&self, m: &Memory, fates: &[Fate]) -> bool {
        let nothing = (0..self.words()).all(|i| m.peek(THINGS[i]) == 0);
        nothing && (self.makers..fates.len()).all(|maker| fates[maker].gone())
    }

    fn woken(&mut self, word: usize, counted: Option<u64>, ghost: &mut Ghost) -> bool {
        match counted {
            Some(counted) if ghost.wake(word, 1) == 0 => {
                self.doing = Doing::TakeBack(word, counted);
                false
            }
            _ if self.role == Role::Looks => self.pass_on(word + 1),
            _ => true,
        }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match &mut self.doing {
            Doing::Announce(i, steps) => {
                let i = *i;
                if let Some(seen) = steps.step(m) {
                    self.seen[i] = seen;
                    self.doing = match i + 1 {
                        next if next < self.words() => Doing::Announce(next, Announce::new(PARKING[next])),
                        _ => Doing::Look(0),
                    };
                }
            }
            Doing::Look(i) => {
                let i = *i;
                let there = m.load(THINGS[i]);
                self.ready[i] = there > 0;
                if self.role == Role::Takes && there > 0 {
                    self.doing = Doing::Take(there);
                } else if i + 1 < self.words() && self.bug != Bug::LooksAtOne {
                    self.doing = Doing::Look(i + 1);
                } else {
                    return self.record_poll();
                }
            }
            Doing::Take(there) => {
                if m.cas(THINGS[0], *there, *there - 1).is_ok() {
                    return true;
                }
                self.doing = Doing::Look(0);
            }
            Doing::Sleep => {
                if self.gives_up(m, fates) {
                    ghost.forget(me);
                    return true;
                }
                if ghost.woken.contains(&me) || ghost.asleep.contains(&me) && ghost.poll_interval {
                    ghost.forget(me);
                    self.doing = Doing::Announce(0, Announce::new(PARKING[0]));
                } else if !ghost.asleep.contains(&me) {
                    // futex_waitv compares all words and falls asleep. A waker observes both as one step.
                    if (0..self.words()).all(|i| m.peek(PARKING[i]) as u32 == self.seen[i] as u32) {
                        (0..self.words()).for_each(|i| ghost.queues[i].push(me));
                        ghost.asleep.push(me);
                    } else {
                        self.doing = Doing::Announce(0, Announce::new(PARKING[0]));
                    }
                }
            }
            Doing::Put => {
                let Role::Makes(i) = self.role else { unreachable!("only makers put") };
                m.add(THINGS[i], 1);
                self.doing = Doing::Wake(i, NotifyOne::new(PARKING[i]));
            }
            Doing::Wake(i, steps) | Doing::PassOn(i, steps) => {
                let i = *i;
                if let Some(counted) = steps.step(m) {
                    return self.woken(i, counted, ghost);
                }
            }
            &mut Doing::TakeBack(i, counted) => {
                if !withdraw_announcement(PARKING[i], counted, m) {
                    return self.role != Role::Looks || self.pass_on(i + 1);
                }
                self.doing = Doing::WakeRest(i);
            }
            Doing::WakeRest(i) => {
                let i = *i;
                ghost.wake(i, usize::MAX);
                return self.role != Role::Looks || self.pass_on(i + 1);
            }
        }
        false
    }
}

/// Explores one observer, `takers` takers, and for each thing the number of makers in `makers`. All actors
/// must end, except killed and stopped actors.
fn explore(takers: usize, makers: (usize, usize), (kills, stops): (u32, u32), poll_interval: bool, bug: Bug) {
    let process = |role| Process::new(role, 1 + takers, bug);
    let mut actors = vec![process(Role::Looks)];
    actors.extend((0..takers).map(|_| process(Role::Takes)));
    actors.extend((0..makers.0).map(|_| process(Role::Makes(0))));
    actors.extend((0..makers.1).map(|_| process(Role::Makes(1))));
    let world = World::new(Memory::new(4), actors, Ghost { poll_interval, ..Ghost::default() });
    world.explore(kills, stops, |_| (), |w| w.fates.contains(&Fate::Running));
}

#[test]
fn waiters_for_one_and_two_sources_never_oversleep() {
    // No actor takes, so that the observer finds the things.
    explore(0, (1, 0), (0, 0), false, Bug::None);
    explore(0, (0, 1), (0, 0), false, Bug::None);
    explore(1, (1, 1), (0, 0), false, Bug::None);
    explore(1, (2, 0), (0, 0), false, Bug::None);
}

#[test]
fn killed_actors_delay_waiters_one_poll_interval() {
    explore(1, (1, 1), (1, 0), true, Bug::None);
    explore(1, (2, 0), (2, 0), true, Bug::None);
}

#[test]
fn stopped_actors_delay_waiters_one_poll_interval() {
    explore(1, (1, 1), (0, 1), true, Bug::None);
    explore(1, (2, 0), (0, 1), true, Bug::None);
    explore(1, (2, 0), (1, 1), true, Bug::None);
}

#[test]
fn wait_for_two_holds_in_long_random_schedules() {
    at_random(|| {
        explore(3, (3, 2), (0, 0), false, Bug::None);
        explore(3, (3, 2), (3, 0), true, Bug::None);
        explore(3, (3, 2), (2, 2), true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_wake_up_that_is_not_passed_on() {
    explore(1, (1, 1), (0, 0), false, Bug::NotPassedOn);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_waiter_that_skips_a_source() {
    explore(0, (0, 1), (0, 0), false, Bug::LooksAtOne);
}

/// A maker adds one piece, and is stopped before it wakes a waiter.
#[test]
#[should_panic(expected = "wedged")]
fn stopped_actors_block_waiters_without_polling() {
    explore(0, (1, 0), (0, 1), false, Bug::None);
}

#[test]
#[should_panic(expected = "wedged")]
fn killed_actors_block_waiters_without_polling() {
    explore(0, (1, 0), (1, 0), false, Bug::None);
}
