//! Exhaustive model of a condition's notifications. A notification is a token for one waiter: no token is
//! lost with a dead waiter, and no token is taken twice. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{is_killed, member};
use mp_models::random::at_random;
use mp_sync::steps::condition::{ASLEEP, NOTIFIED, Notify, NotifyOutcome, WAITING};
use mp_sync::steps::slot::{ClaimSlot, EMPTY, FindSlot, HolderSlot, ObservedSlot, ReplaceSlot, Slots, set};

const TURN: Word = Word::at(8);
const SLOTS: Slots = Slots { used: Word::at(0), first: Word::at(16), limit: 4 };

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A dead waiter's token is not taken over.
    NoTakeOver,
    /// A waiter that has taken over a token, and also has got one of its own, notifies no other waiter.
    KeepsBoth,
    /// A waiter announces its sleep without checking whether it was notified.
    SleepsAnyway,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Begin,
    Enlist(ClaimSlot),
    Look,
    FindSlot(FindSlot),
    Clear(ReplaceSlot),
    TakeOver(ReplaceSlot, ObservedSlot),
    GiveUpOwn(ReplaceSlot, ObservedSlot),
    LookAtOwn(ObservedSlot),
    PassOn(Notify, ObservedSlot, ObservedSlot),
    LeaveOwn(ReplaceSlot, ObservedSlot),
    /// Releases the slot of a waiter that has its token. This is its last access.
    Leave(ReplaceSlot),
    FallAsleep(ReplaceSlot),
    Sleep,
    /// Wakes one waiter, as a notifier.
    Notify(Notify),
    /// Wakes all waiters once, as a notifier.
    NotifyAll(Notify),
}

/// Waiter for one token, or notifier.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    doing: Doing,
    mine: ObservedSlot,
    tokens: u32,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    given: u32,
    taken: u32,
    /// Waiters that a notifier has woken.
    woken: Vec<u32>,
    poll_interval: bool,
    /// `true` if all waiters have already announced themselves and none sleeps, so that the world has fewer
    /// states.
    polls: bool,
    /// Number of deaths after which two waiters may have one token.
    spare: u32,
}

fn change(seen: ObservedSlot, to: HolderSlot) -> ReplaceSlot {
    ReplaceSlot::new(SLOTS.at(seen.index), seen.slot, to)
}

fn leave(seen: ObservedSlot) -> ReplaceSlot {
    change(seen, seen.slot.vacated(EMPTY))
}

fn find(from: u32) -> FindSlot {
    FindSlot::new(SLOTS, set(&[WAITING, ASLEEP, NOTIFIED]), from)
}

/// Returns the number of slots with a token.
fn tokens(m: &Memory) -> u32 {
    (0..SLOTS.limit).filter(|&i| HolderSlot::unpack(m.peek(SLOTS.at(i))).state == NOTIFIED).count() as u32
}

impl Process {
    fn new(tokens: u32, bug: Bug) -> Self {
        let mine = ObservedSlot { index: 0, slot: HolderSlot::unpack(0) };
        let doing = if tokens > 0 { Doing::Notify(Notify::new(SLOTS, TURN)) } else { Doing::Begin };
        Self { doing, mine, tokens, bug }
    }

    fn got_it(ghost: &mut Ghost) -> bool {
        ghost.taken += 1;
        assert!(ghost.taken <= ghost.given + ghost.spare, "{} given, {} taken", ghost.given, ghost.taken);
        true
    }

    fn fall_asleep(&self, ghost: &Ghost) -> Doing {
        if ghost.polls {
            return Doing::Look;
        }
        if self.mine.slot.state == ASLEEP {
            return Doing::Sleep;
        }
        Doing::FallAsleep(change(self.mine, self.mine.slot.into_state(ASLEEP)))
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match &mut self.doing {
            Doing::Begin => {
                let claim = ClaimSlot::new(SLOTS, EMPTY, (WAITING, member(me), 0), 0).or_grow();
                self.doing = Doing::Enlist(claim);
            }
            Doing::Enlist(steps) => {
                if let Some(seen) = steps.step(m) {
                    self.mine = seen.expect("there are slots for all");
                    self.doing = Doing::Look;
                }
            }
            Doing::Look => {
                let now = HolderSlot::unpack(m.load(SLOTS.at(self.mine.index)));
                self.doing = match now.state {
                    NOTIFIED => Doing::Leave(leave(ObservedSlot { slot: now, ..self.mine })),
                    _ if self.bug == Bug::NoTakeOver || !ghost.poll_interval => self.fall_asleep(ghost),
                    _ => Doing::FindSlot(find(0)),
                };
            }
            Doing::FindSlot(steps) => match steps.step(m) {
                None => {}
                Some(None) => self.doing = self.fall_asleep(ghost),
                Some(Some(seen)) if !is_killed(fates, seen.slot.member) => {
                    self.doing = Doing::FindSlot(find(seen.index + 1));
                }
                Some(Some(seen)) if seen.slot.state == NOTIFIED => {
                    let taken = seen.slot.then(NOTIFIED, member(me), 0);
                    self.doing = Doing::TakeOver(change(seen, taken), ObservedSlot { slot: taken, ..seen });
                }
                Some(Some(seen)) => self.doing = Doing::Clear(leave(seen)),
            },
            Doing::Clear(steps) => {
                steps.step(m);
                self.doing = Doing::Look;
            }
            Doing::TakeOver(steps, taken) => {
                let taken = *taken;
                self.doing = match steps.step(m).expect("one step") {
                    true => Doing::GiveUpOwn(leave(self.mine), taken),
                    false => Doing::Look,
                };
            }
            Doing::GiveUpOwn(steps, taken) => {
                let taken = *taken;
                self.doing = match steps.step(m).expect("one step") {
                    true => Doing::Leave(leave(taken)),
                    false => Doing::LookAtOwn(taken),
                };
            }
            Doing::LookAtOwn(taken) => {
                let own =
                    ObservedSlot { slot: HolderSlot::unpack(m.load(SLOTS.at(self.mine.index))), ..self.mine };
                assert_eq!(own.slot.state, NOTIFIED);
                self.doing = match self.bug {
                    Bug::KeepsBoth => Doing::LeaveOwn(leave(own), *taken),
                    _ => Doing::PassOn(Notify::new(SLOTS, TURN), own, *taken),
                };
            }
            Doing::PassOn(steps, own, taken) => match steps.step(m) {
                None => {}
                Some(notified) => {
                    if let NotifyOutcome::Delivered { seen, .. } = notified {
                        ghost.woken.push(seen.index);
                    }
                    self.doing = Doing::LeaveOwn(leave(*own), *taken);
                }
            },
            Doing::LeaveOwn(steps, taken) => {
                let taken = *taken;
                assert!(steps.step(m).expect("one step"));
                self.doing = Doing::Leave(leave(taken));
            }
            Doing::Leave(steps) => {
                assert!(steps.step(m).expect("one step"), "another one took it away");
                return Self::got_it(ghost);
            }
            Doing::FallAsleep(steps) => {
                if steps.step(m).expect("one step") || self.bug == Bug::SleepsAnyway {
                    self.mine.slot = self.mine.slot.into_state(ASLEEP);
                    self.doing = Doing::Sleep;
                } else {
                    self.doing = Doing::Look;
                }
            }
            Doing::Sleep => {
                // FUTEX_WAIT compares and falls asleep atomically. Then only a wake-up or a poll interval
                // ends the sleep.
                let woken = ghost.woken.contains(&self.mine.index);
                let same = self.bug == Bug::SleepsAnyway
                    || m.load(SLOTS.at(self.mine.index)) as u32 == self.mine.slot.pack() as u32;
                if woken || ghost.poll_interval || !same {
                    ghost.woken.retain(|&i| i != self.mine.index);
                    self.doing = Doing::Look;
                }
            }
            Doing::Notify(steps) => {
                let before = tokens(m);
                let notified = steps.step(m);
                // The swap hands over the token before the notifier reads its result.
                ghost.given += tokens(m) - before;
                match notified {
                    None => {}
                    Some(NotifyOutcome::NoWaiter) => {
                        // Perhaps no further waiter arrives.
                        let waits = (0..fates.len()).any(|i| i != me && fates[i] == Fate::Running);
                        self.doing = Doing::Notify(Notify::new(SLOTS, TURN));
                        return !waits;
                    }
                    Some(NotifyOutcome::Delivered { seen, asleep, .. }) => {
                        if asleep {
                            ghost.woken.push(seen.index);
                        }
                        self.tokens -= 1;
                        self.doing = Doing::Notify(Notify::new(SLOTS, TURN));
                        return self.tokens == 0;
                    }
                }
            }
            Doing::NotifyAll(steps) => {
                let before = tokens(m);
                let notified = steps.step(m);
                ghost.given += tokens(m) - before;
                match notified {
                    Some(NotifyOutcome::Delivered { next: Some(next), .. }) => {
                        self.doing = Doing::NotifyAll(next)
                    }
                    Some(_) => return true,
                    None => {}
                }
            }
        }
        false
    }
}

/// Explores a notifier of `tokens` tokens with a waiter for each token, and an additional waiter for each
/// kill.
fn explore(tokens: u32, kills: u32, stops: u32, poll_interval: bool, bug: Bug) {
    explore_in(tokens, kills, stops, Ghost { poll_interval, ..Ghost::default() }, bug);
}

/// Announces all waiters in the initial memory.
fn all_wait(memory: &Memory, waiters: &mut [Process]) {
    memory.poke(SLOTS.used, waiters.len() as u64);
    for (i, waiter) in waiters.iter_mut().enumerate() {
        waiter.mine =
            ObservedSlot { index: i as u32, slot: HolderSlot::unpack(0).then(WAITING, member(i), 0) };
        waiter.doing = Doing::Look;
        memory.poke(SLOTS.at(waiter.mine.index), waiter.mine.slot.pack());
    }
}

/// Explores three waiters and two concurrent notifiers. One notifier notifies all waiters. The other also
/// notifies all, or `other` waiters if given.
fn explore_rows(other: Option<u32>, kills: u32) {
    const WAITERS: usize = 3;
    let all = Process { doing: Doing::NotifyAll(Notify::new(SLOTS, TURN)), ..Process::new(1, Bug::None) };
    let mut actors = vec![Process::new(0, Bug::None); WAITERS];
    let memory = Memory::new(6);
    all_wait(&memory, &mut actors);
    actors.push(all.clone());
    actors.push(other.map_or(all, |tokens| Process::new(tokens, Bug::None)));
    let world = World::new(memory, actors, Ghost { polls: true, ..Ghost::default() });
    // A notifier of all waiters always ends, and a living waiter is always notified.
    let wedged = |w: &World<Process>| {
        let alls = if other.is_some() { WAITERS..WAITERS + 1 } else { WAITERS..WAITERS + 2 };
        let done = w.fates[alls].iter().any(|f| matches!(f, Fate::Running | Fate::Ended));
        w.count(0..WAITERS, Fate::Running) > 0 && done
    };
    world.explore(kills, 0, |_| {}, wedged);
}

fn explore_in(tokens: u32, kills: u32, stops: u32, ghost: Ghost, bug: Bug) {
    let waiters = (tokens + kills) as usize;
    let mut actors = vec![Process::new(0, bug); waiters];
    actors.push(Process::new(tokens, bug));
    let memory = Memory::new(6);
    if ghost.polls {
        all_wait(&memory, &mut actors[..waiters]);
    }
    // If a waiter dies after it has passed a token on and before it has released the token, the token can be
    // taken again.
    let spare = kills.saturating_sub(1);
    let world = World::new(memory, actors, Ghost { spare, ..ghost });
    let wedged = |w: &World<Process>| {
        let died = w.count(0..waiters, Fate::Killed) as u32 == kills;
        let notifies = matches!(w.fates[waiters], Fate::Running | Fate::Ended);
        w.count(0..waiters, Fate::Running) > 0 && w.count(0..waiters, Fate::Stopped) == 0 && died && notifies
    };
    world.explore(kills, stops, |_| {}, wedged);
}

#[test]
fn condition_token_wakes_one_waiter_without_polling() {
    explore(1, 0, 0, false, Bug::None);
    explore(2, 0, 0, false, Bug::None);
}

#[test]
fn condition_token_of_a_dead_waiter_is_passed_on() {
    explore(1, 1, 0, true, Bug::None);
}

#[test]
fn condition_tokens_of_two_dead_waiters_are_passed_on() {
    explore_in(1, 2, 0, Ghost { poll_interval: true, polls: true, ..Ghost::default() }, Bug::None);
}

#[test]
fn second_condition_token_of_a_waiter_is_not_lost() {
    explore_in(2, 1, 0, Ghost { poll_interval: true, polls: true, ..Ghost::default() }, Bug::None);
}

#[test]
fn concurrent_notify_all_reaches_each_waiter() {
    explore_rows(None, 0);
    explore_rows(None, 1);
    explore_rows(Some(1), 0);
}

#[test]
fn stopped_waiter_keeps_its_condition_token() {
    explore(1, 1, 1, true, Bug::None);
}

#[test]
fn condition_holds_in_long_random_schedules() {
    at_random(|| {
        explore(4, 0, 0, false, Bug::None);
        explore(1, 3, 1, true, Bug::None);
        explore_in(2, 2, 0, Ghost { poll_interval: true, polls: true, ..Ghost::default() }, Bug::None);
        explore_rows(None, 2);
    });
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_token_left_with_a_dead_waiter() {
    explore(1, 1, 0, true, Bug::NoTakeOver);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_waiter_dropping_one_of_two_tokens() {
    explore_in(2, 1, 0, Ghost { poll_interval: true, polls: true, ..Ghost::default() }, Bug::KeepsBoth);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_waiter_asleep_with_a_token() {
    explore(1, 0, 0, false, Bug::SleepsAnyway);
}
