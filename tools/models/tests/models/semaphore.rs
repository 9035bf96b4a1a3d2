//! Exhaustive model of the semaphore, with kills and stops at any access. A process that returns the permit
//! of a dead process is killed, too. Sleepers have no poll interval. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;
use mp_core::{Announce, NotifyOne};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::is_killed;
use mp_models::random::at_random;
use mp_models::sleepers::Sleepers;
use mp_sync::steps::slot::{
    ClaimSlot, FindSlot, HELD, HolderSlot, OPEN, ObservedSlot, ReplaceSlot, Slots, set,
};

const PARKING: Word = Word::at(8);

fn slots(permits: u32) -> Slots {
    Slots { used: Word::at(0), first: Word::at(16), limit: permits }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    ClaimSlot(ClaimSlot),
    FindSlot(FindSlot),
    GiveBack(ReplaceSlot),
    Announce(Announce),
    ClaimAgain(ClaimSlot, u64),
    Sleep(u64),
    ClaimReader(ObservedSlot),
    Release(ReplaceSlot),
    Notify(NotifyOne),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A stopped process is treated as dead.
    TimeIsDeath,
    /// No process checks for dead processes.
    NoRecovery,
    /// A process that returns a permit wakes no waiter.
    NoWake,
    /// A waiter that has announced its sleep does not check for a permit again.
    NoSecondLook,
}

/// Process that takes a permit and returns it, several times.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    left: u32,
    permits: u32,
    doing: Doing,
    next: u32,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    inside: Vec<usize>,
    sleepers: Sleepers,
}

impl Process {
    fn claim(&self, me: usize) -> ClaimSlot {
        ClaimSlot::new(slots(self.permits), OPEN, (HELD, Member::new(me as u32, 1), 0), 0)
    }

    fn inside(&mut self, me: usize, seen: ObservedSlot, fates: &[Fate], ghost: &mut Ghost) {
        ghost.inside.retain(|&i| fates[i] != Fate::Killed);
        ghost.inside.push(me);
        assert!(ghost.inside.len() <= self.permits as usize, "more holders than permits: {:?}", ghost.inside);
        self.doing = Doing::ClaimReader(seen);
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let slots = slots(self.permits);
        match &mut self.doing {
            Doing::Begin => self.doing = Doing::ClaimSlot(self.claim(me)),
            Doing::ClaimSlot(steps) => match steps.step(m) {
                None => {}
                Some(Some(seen)) => self.inside(me, seen, fates, ghost),
                Some(None) if self.bug == Bug::NoRecovery => {
                    self.doing = Doing::Announce(Announce::new(PARKING))
                }
                Some(None) => self.doing = Doing::FindSlot(FindSlot::new(slots, set(&[HELD]), 0)),
            },
            Doing::FindSlot(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = Doing::Announce(Announce::new(PARKING)),
                Some(Some(seen)) => {
                    let dead = match self.bug {
                        Bug::TimeIsDeath => fates[seen.slot.member.slot() as usize] != Fate::Running,
                        _ => is_killed(fates, seen.slot.member),
                    };
                    self.next = seen.index + 1;
                    self.doing = if dead {
                        let back = seen.slot.vacated(OPEN);
                        Doing::GiveBack(ReplaceSlot::new(slots.at(seen.index), seen.slot, back))
                    } else {
                        Doing::FindSlot(FindSlot::new(slots, set(&[HELD]), self.next))
                    };
                }
            },
            Doing::GiveBack(steps) => {
                steps.step(m);
                self.doing = Doing::ClaimSlot(self.claim(me));
            }
            Doing::Announce(steps) => {
                if let Some(word) = steps.step(m) {
                    self.doing = match self.bug {
                        Bug::NoSecondLook => Doing::Sleep(word),
                        _ => Doing::ClaimAgain(self.claim(me), word),
                    };
                }
            }
            Doing::ClaimAgain(steps, word) => match steps.step(m) {
                None => {}
                Some(Some(seen)) => self.inside(me, seen, fates, ghost),
                Some(None) => self.doing = Doing::Sleep(*word),
            },
            Doing::Sleep(word) => {
                if ghost.sleepers.sleep(me, || m.load(PARKING) as u32 == *word as u32) {
                    return false;
                }
                self.doing = Doing::ClaimSlot(self.claim(me));
            }
            Doing::ClaimReader(seen) => {
                let seen = *seen;
                self.doing = Doing::Release(ReplaceSlot::new(
                    slots.at(seen.index),
                    seen.slot,
                    seen.slot.vacated(OPEN),
                ));
                ghost.inside.retain(|&i| i != me);
            }
            Doing::Release(steps) => {
                assert!(steps.step(m).expect("one step"), "another process gave it back");
                self.doing = Doing::Notify(NotifyOne::new(PARKING));
                if self.bug == Bug::NoWake {
                    return self.again();
                }
            }
            Doing::Notify(steps) => match steps.step(m) {
                None => {}
                Some(counted) => {
                    if counted.is_some() {
                        ghost.sleepers.wake_one();
                    }
                    return self.again();
                }
            },
        }
        false
    }
}

impl Process {
    fn again(&mut self) -> bool {
        self.left -= 1;
        self.doing = Doing::Begin;
        self.left == 0
    }
}

fn explore(
    processes: usize,
    permits: u32,
    times: u32,
    (kills, stops): (u32, u32),
    poll_interval: bool,
    bug: Bug,
) {
    let memory = Memory::new(2 + permits as usize);
    memory.poke(Word::at(0), permits.into());
    let open = HolderSlot::unpack(0).vacated(OPEN);
    (0..permits).for_each(|i| memory.poke(slots(permits).at(i), open.pack()));
    let process = Process { left: times, permits, doing: Doing::Begin, next: 0, bug };
    let world = World::new(
        memory,
        vec![process; processes],
        Ghost { sleepers: Sleepers::new(poll_interval), ..Ghost::default() },
    );
    let end = |w: &World<Process>| {
        for i in 0..permits {
            let slot = HolderSlot::unpack(w.memory.peek(slots(permits).at(i)));
            let holder = slot.member.slot() as usize;
            assert!(slot.state == OPEN || w.fates[holder] != Fate::Ended, "a permit of {holder} is lost");
        }
    };
    // Stopped processes may keep all permits. Processes wait forever for no other reason.
    let wedged = |w: &World<Process>| {
        let stopped = (w.count(0..processes, Fate::Stopped) as u32) < permits;
        w.fates.contains(&Fate::Running) && stopped
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn semaphore_waiters_wake_without_poll_intervals() {
    explore(3, 1, 1, (0, 0), false, Bug::None);
    explore(2, 1, 2, (0, 0), false, Bug::None);
    explore(3, 2, 1, (0, 0), false, Bug::None);
}

#[test]
fn permits_of_dead_holders_return_to_the_semaphore() {
    explore(2, 1, 2, (1, 0), true, Bug::None);
    explore(3, 2, 1, (1, 0), true, Bug::None);
}

#[test]
fn semaphore_survives_killed_recoverers() {
    explore(3, 1, 1, (2, 0), true, Bug::None);
}

#[test]
fn stopped_process_keeps_only_its_permit() {
    explore(3, 2, 1, (0, 1), true, Bug::None);
    explore(2, 1, 1, (1, 1), true, Bug::None);
}

#[test]
fn semaphore_holds_in_long_random_schedules() {
    at_random(|| {
        explore(6, 2, 4, (0, 0), false, Bug::None);
        explore(6, 2, 4, (3, 0), true, Bug::None);
        explore(6, 3, 4, (2, 2), true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "more holders than permits")]
fn model_finds_stopped_permit_holder_treated_as_dead() {
    explore(3, 1, 1, (0, 1), true, Bug::TimeIsDeath);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_semaphore_without_death_checks() {
    explore(2, 1, 1, (1, 0), true, Bug::NoRecovery);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_returned_permit_without_wake_up() {
    explore(2, 1, 1, (0, 0), false, Bug::NoWake);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_permit_waiter_without_second_check() {
    explore(2, 1, 1, (0, 0), false, Bug::NoSecondLook);
}
