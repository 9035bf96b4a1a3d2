//! Exhaustive model of the event. A waiter detects each time that the event is set, even if the event is
//! cleared at once. Any process is killed or stopped at any access. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::{Announce, NotifyAll};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;
use mp_sync::steps::event::{Clear, EventWord, Set};

const EVENT: Word = Word::at(0);
const PARKING: Word = Word::at(8);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A waiter checks whether the event is set, but not whether it was set and cleared during the wait.
    ForgetsSettings,
    /// A waiter that has announced its sleep does not check the event again.
    NoSecondLook,
    /// The setter wakes no waiter.
    NoWake,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// A waiter reads the state of the event.
    Begin,
    Announce(Announce),
    Look(u64),
    Sleep(u64),
    Set(Set),
    Wake(NotifyAll),
    Clear(Clear),
}

/// Waiter that waits once, or setter that sets and clears the event several times.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    doing: Doing,
    before: EventWord,
    left: u32,
    bug: Bug,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Number of times that the event was set: in total, and until each waiter began.
    set: u32,
    begun: Vec<(usize, u32)>,
    asleep: Vec<usize>,
    poll_interval: bool,
}

impl Process {
    fn waiter(bug: Bug) -> Self {
        Self { doing: Doing::Begin, before: EventWord(0), left: 0, bug }
    }

    fn setter(times: u32, bug: Bug) -> Self {
        Self { doing: Doing::Set(Set::new(EVENT)), left: times, ..Self::waiter(bug) }
    }

    /// Returns `true` if the state of the event ends the wait.
    fn is_over(&self, me: usize, now: EventWord, ghost: &Ghost) -> bool {
        let over = match self.bug {
            Bug::ForgetsSettings => now.is_set(),
            _ => now.was_set_since(self.before),
        };
        let begun = ghost.begun.iter().find(|b| b.0 == me).map_or(0, |b| b.1);
        assert!(!over || now.is_set() || ghost.set > begun, "detected a setting that never was");
        over
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, _: &[Fate], ghost: &mut Ghost) -> bool {
        match &mut self.doing {
            Doing::Begin => {
                self.before = EventWord(m.load(EVENT));
                ghost.begun.push((me, ghost.set));
                self.doing = Doing::Announce(Announce::new(PARKING));
                return self.before.is_set();
            }
            Doing::Announce(steps) => match steps.step(m) {
                Some(word) if self.bug == Bug::NoSecondLook => self.doing = Doing::Sleep(word),
                Some(word) => self.doing = Doing::Look(word),
                None => {}
            },
            Doing::Look(word) => {
                let word = *word;
                self.doing = Doing::Sleep(word);
                return self.is_over(me, EventWord(m.load(EVENT)), ghost);
            }
            Doing::Sleep(word) => {
                // FUTEX_WAIT compares and falls asleep atomically. A wake-up of all waiters removes this
                // waiter from the list.
                let same = m.load(PARKING) as u32 == *word as u32;
                if ghost.asleep.contains(&me) {
                    if ghost.poll_interval {
                        ghost.asleep.retain(|&i| i != me);
                        self.doing = Doing::Announce(Announce::new(PARKING));
                    }
                } else if same {
                    ghost.asleep.push(me);
                    ghost.asleep.sort_unstable();
                } else {
                    self.doing = Doing::Announce(Announce::new(PARKING));
                }
            }
            Doing::Set(steps) => {
                let was = EventWord(m.peek(EVENT));
                let ended = steps.step(m);
                ghost.set += u32::from(!was.is_set() && EventWord(m.peek(EVENT)).is_set());
                if ended.is_some() {
                    self.doing = match self.bug {
                        Bug::NoWake => Doing::Clear(Clear(EVENT)),
                        _ => Doing::Wake(NotifyAll::new(PARKING)),
                    };
                }
            }
            Doing::Wake(steps) => {
                if let Some(woken) = steps.step(m) {
                    if woken {
                        ghost.asleep.clear();
                    }
                    self.left -= 1;
                    self.doing = Doing::Clear(Clear(EVENT));
                    return self.left == 0;
                }
            }
            Doing::Clear(steps) => {
                steps.step(m);
                self.doing = Doing::Set(Set::new(EVENT));
                if self.bug == Bug::NoWake {
                    self.left -= 1;
                    return self.left == 0;
                }
            }
        }
        false
    }
}

/// Explores `waiters` waiters, and one setter for each number in `setters`. A setter sets the event that many
/// times, and clears it at once, except after the last time.
fn explore(waiters: usize, setters: &[u32], (kills, stops): (u32, u32), poll_interval: bool, bug: Bug) {
    let mut actors = vec![Process::waiter(bug); waiters];
    actors.extend(setters.iter().map(|&times| Process::setter(times, bug)));
    let all = actors.len();
    let world = World::new(Memory::new(2), actors, Ghost { poll_interval, ..Ghost::default() });
    // No setter is left, and the event is not set: a waiter that began after the last setting correctly waits
    // forever.
    let unset = move |w: &World<Process>| {
        let sets = |p: &Process| !matches!(p.doing, Doing::Wake(_)) || p.left > 1;
        let no_actor_sets = (waiters..all).all(|i| w.fates[i] != Fate::Running || !sets(&w.actors[i]));
        let set = EventWord(w.memory.peek(EVENT)).is_set();
        let saw_none = |i: usize| !w.ghost.begun.iter().any(|b| b.0 == i && b.1 < w.ghost.set);
        no_actor_sets && !set && (0..waiters).any(|i| w.fates[i] == Fate::Running && saw_none(i))
    };
    let wedged = move |w: &World<Process>| w.fates.contains(&Fate::Running) && !unset(w);
    world.explore(kills, stops, |_| {}, wedged);
}

#[test]
fn event_waiters_wake_without_poll_intervals() {
    explore(2, &[1], (0, 0), false, Bug::None);
    explore(2, &[2], (0, 0), false, Bug::None);
    explore(1, &[2, 1], (0, 0), false, Bug::None);
}

#[test]
fn event_set_by_a_killed_process_is_observed() {
    explore(2, &[2], (1, 0), true, Bug::None);
    explore(1, &[1, 2], (2, 0), true, Bug::None);
}

#[test]
fn stopped_event_user_delays_only_itself() {
    explore(2, &[2], (0, 1), true, Bug::None);
    explore(1, &[1, 1], (1, 1), true, Bug::None);
}

#[test]
fn event_holds_in_long_random_schedules() {
    at_random(|| {
        explore(4, &[4, 3], (0, 0), false, Bug::None);
        explore(4, &[4, 3, 2], (2, 2), true, Bug::None);
    });
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_missed_set_and_cleared_event() {
    explore(1, &[2, 1], (1, 0), true, Bug::ForgetsSettings);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_event_waiter_without_second_check() {
    explore(1, &[1], (0, 0), false, Bug::NoSecondLook);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_event_setter_without_wake_up() {
    explore(1, &[1], (0, 0), false, Bug::NoWake);
}
