//! Exhaustive model of the clocks of device streams. Owners claim clocks, order ticks of their devices, and
//! release the clocks. A device writes the clock when it reaches a tick. Other processes check ticks, and end
//! the clocks of dead owners. Any process is killed or stopped at any shared access. Real processes run the
//! same steps.
//!
//! A device executes the ticks that its owner has ordered, one after another. After the owner is killed, the
//! device continues for any time, and then stops. Other processes detect the stop like the end of a process.
//! If `late` is set, the device makes one last write after that.

use std::collections::BTreeMap;

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::clock::{CheckTick, ClaimClock, ClockAt, EndClock, ReleaseClock, TickState};
use mp_core::words::{ClockPhase, ClockState, Tick};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{actor_of, is_killed, member};
use mp_models::random::at_random;

const CLOCK: ClockAt = ClockAt(Word::at(0));

/// Planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A tick is reported to other processes before it is submitted.
    ToldTooEarly,
    /// A clock is ended while its device writes.
    EndedUnderDevice,
    /// The words of dead clocks are not checked for late writes.
    LateWriteKept,
    /// A clock becomes free when its owner releases it, even if work before a tick of the clock is pending.
    FreeWithWork,
    /// A dead owner's clock becomes free again.
    DeadIsFree,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Owner that makes up to `tries` attempts to claim a clock, makes `ticks` ticks of the claimed clock,
    /// and releases the clock.
    Owner { ticks: u8, tries: u8 },
    /// Device that writes the ticks of this owner, and, if `late` is set, writes once more after the owner
    /// has ended.
    Device { owner: usize, late: bool },
    /// Process that checks reported ticks, this many times.
    Looker(u8),
    /// Process that ends clocks of dead owners, until none is left.
    Recoverer,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Next,
    Claim(ClaimClock),
    Order(u64),
    Submit(u64),
    GiveUp(ReleaseClock),
    Free,
    Write(u64),
    /// Check of a tick. The flags have their values from the beginning of the check: whether the tick was
    /// reported, and whether an earlier check has returned an outcome.
    Look(Tick, CheckTick, [bool; 2]),
    End(EndClock),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    bug: Bug,
    pc: Pc,
    last: u64,
    /// `true` if devices write once more after the kernel has reported the end of their process.
    late: bool,
}

/// State for checks, which processes can't read.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    /// Ticks that owners have ordered and devices have not written yet: owner and value.
    orders: Vec<(usize, u64)>,
    /// Ticks that were reported to other processes, with their owners.
    reported: BTreeMap<u64, usize>,
    done: Vec<u64>,
    /// Outcomes of ticks, which are final.
    verdicts: BTreeMap<u64, TickState>,
    /// `true` if a device wrote after its owner had ended.
    late: bool,
    /// Indices of the actors that own the clock.
    owners: Vec<usize>,
}

impl Process {
    fn new(role: Role, bug: Bug, late: bool) -> Self {
        Self { role, bug, pc: Pc::Next, last: 0, late }
    }
}

impl Process {
    fn judge(
        &self,
        tick: Tick,
        found: TickState,
        [was_reported, known]: [bool; 2],
        ghost: &mut Ghost,
        fates: &[Fate],
    ) {
        let value = tick.value();
        let owner = ghost.reported.get(&value).copied();
        if owner.is_none() {
            // A check of a tick of an ended epoch may return any result except "pending", on which a process
            // would wait.
            assert_ne!(found, TickState::Pending, "{tick:?} was not reported, and is pending");
        }
        if !was_reported {
            return;
        }
        match found {
            TickState::Complete => assert!(ghost.done.contains(&value), "{tick:?} is called complete"),
            TickState::Died { .. } => {
                let owner = owner.expect("it was reported");
                assert_eq!(fates[owner], Fate::Killed, "{tick:?} died, and its owner lives");
                assert!(ghost.late || !ghost.done.contains(&value), "{tick:?} died, and is done");
            }
            TickState::Pending => assert!(!known, "{tick:?} is pending again"),
            _ => panic!("{tick:?} is called forged"),
        }
        if matches!(found, TickState::Complete | TickState::Died { .. }) {
            let of = |look| std::mem::discriminant(&look);
            let before = *ghost.verdicts.entry(value).or_insert(found);
            // Only one process may observe a late write.
            let late = ghost.late && before == TickState::Complete;
            assert!(late || of(before) == of(found), "{tick:?} was {before:?}, and is {found:?}");
        }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let mine = member(me);
        self.pc = match (self.pc, self.role) {
            (Pc::Next, Role::Owner { tries: 0, .. }) => return true,
            (Pc::Next, Role::Owner { .. }) => {
                Pc::Claim(ClaimClock::new(CLOCK, mine, (me as u32 + 1, 7), true))
            }
            (Pc::Claim(mut steps), Role::Owner { ticks, tries }) => match steps.step(m) {
                None => Pc::Claim(steps),
                Some(None) => {
                    self.role = Role::Owner { ticks, tries: tries - 1 };
                    Pc::Next
                }
                Some(Some(epoch)) => {
                    let running = |&a: &usize| fates[a] == Fate::Running;
                    assert!(!ghost.owners.iter().any(running), "two have one clock");
                    ghost.owners.push(me);
                    self.last = Tick::base(epoch);
                    Pc::Order(self.last + 1)
                }
            },
            // The owner's stream takes the order: not a shared access.
            (Pc::Order(value), Role::Owner { .. }) => {
                ghost.orders.push((me, value));
                if self.bug == Bug::ToldTooEarly {
                    ghost.reported.insert(value, me);
                }
                Pc::Submit(value)
            }
            (Pc::Submit(value), Role::Owner { ticks, .. }) => {
                m.store(CLOCK.submitted(), value);
                ghost.reported.insert(value, me);
                self.last = value;
                if Tick::new(0, value).count() < ticks.into() {
                    Pc::Order(value + 1)
                } else if self.bug == Bug::FreeWithWork {
                    Pc::Free
                } else {
                    Pc::GiveUp(ReleaseClock::new(CLOCK, value))
                }
            }
            (Pc::Free, Role::Owner { .. }) => {
                let state = ClockState::unpack(m.peek(CLOCK.state()));
                m.store(CLOCK.state(), state.with(ClockPhase::Free).pack());
                ghost.owners.retain(|a| *a != me);
                return true;
            }
            (Pc::GiveUp(mut steps), Role::Owner { .. }) => match steps.step(m) {
                None => Pc::GiveUp(steps),
                Some(_) => {
                    ghost.owners.retain(|a| *a != me);
                    return true;
                }
            },
            (Pc::Next, Role::Device { owner, late }) => {
                let next = ghost.orders.iter().position(|(a, _)| *a == owner);
                match (next, fates[owner]) {
                    // The device is torn down after any number of its steps.
                    (_, Fate::Killed) if !late => return true,
                    (Some(next), _) => Pc::Write(ghost.orders[next].1),
                    (None, Fate::Running) => Pc::Next,
                    (None, _) => return true,
                }
            }
            (Pc::Write(value), Role::Device { owner, .. }) => {
                m.store(CLOCK.done(), value);
                ghost.orders.retain(|order| *order != (owner, value));
                ghost.done.push(value);
                ghost.late |= self.late && fates[owner] == Fate::Killed;
                if ghost.late {
                    return true;
                }
                Pc::Next
            }
            (Pc::Next, Role::Looker(0)) => return true,
            (Pc::Next, Role::Looker(n)) => {
                let reported = ghost.reported.keys().copied().collect::<Vec<_>>();
                // The checked tick is the newest or the oldest reported one, in turn, or a tick that was not
                // reported.
                let pick = if n % 2 == 0 { reported.last() } else { reported.first() };
                let value = pick.copied().unwrap_or(Tick::base(1) + 1);
                self.role = Role::Looker(n - 1);
                let tick = Tick::new(0, value);
                let before = [ghost.reported.contains_key(&value), ghost.verdicts.contains_key(&value)];
                Pc::Look(tick, CheckTick::new(CLOCK, tick), before)
            }
            (Pc::Look(tick, mut steps, before), _) => match steps.step(m) {
                None => Pc::Look(tick, steps, before),
                Some(found) => {
                    self.judge(tick, found, before, ghost, fates);
                    Pc::Next
                }
            },
            (Pc::Next, Role::Recoverer) => {
                let state = ClockState::unpack(m.peek(CLOCK.state()));
                // Actors are owners, each followed by its device.
                let dead = state.member().filter(|p| {
                    let claiming = matches!(state.phase, ClockPhase::Claiming { .. });
                    let not_asked = claiming || self.late || self.bug == Bug::EndedUnderDevice;
                    is_killed(fates, *p) && (not_asked || fates[actor_of(*p) + 1].gone())
                });
                let again = state.phase == ClockPhase::Dead && self.bug != Bug::LateWriteKept;
                let late = again && Tick::epoch_of(m.peek(CLOCK.done())) <= state.epoch;
                if dead.is_some() || late {
                    Pc::End(EndClock::new(CLOCK, dead, 1))
                } else {
                    return fates[..me].iter().all(|fate| fate.gone());
                }
            }
            (Pc::End(mut steps), _) => match steps.step(m) {
                None => Pc::End(steps),
                Some(dead) => {
                    if dead && self.bug == Bug::DeadIsFree {
                        let state = ClockState::unpack(m.peek(CLOCK.state()));
                        m.poke(CLOCK.state(), state.with(ClockPhase::Free).pack());
                    }
                    Pc::Next
                }
            },
            (pc, role) => unreachable!("{pc:?} of {role:?}"),
        };
        let (state, done) = (ClockState::unpack(m.peek(CLOCK.state())), m.peek(CLOCK.done()));
        if matches!(state.phase, ClockPhase::Live(_)) && !ghost.late {
            assert_eq!(Tick::epoch_of(done), state.epoch, "{state:?} says {done:#x}");
        }
        false
    }
}

const fn owner(ticks: u8) -> Role {
    Role::Owner { ticks, tries: 1 }
}

/// Explores a world with these owners, a device for each owner, the actors in `others`, and a reclaiming
/// process.
fn explore(owners: &[Role], others: &[Role], late: bool, (kills, stops): (u32, u32), bug: Bug) {
    let pairs = owners.iter().enumerate().flat_map(|(i, &role)| [role, Role::Device { owner: 2 * i, late }]);
    let roles = pairs.chain(others.iter().copied()).chain([Role::Recoverer]);
    let actors = roles.map(|role| Process::new(role, bug, late)).collect();
    let world = World::new(Memory::new(8), actors, Ghost::default());
    let devices: Vec<usize> = (0..owners.len()).map(|i| 2 * i + 1).collect();
    let end = |w: &World<Process>| {
        if w.fates.last() != Some(&Fate::Ended) {
            return;
        }
        let state = ClockState::unpack(w.memory.peek(CLOCK.state()));
        if let Some(p) = state.member() {
            let a = actor_of(p);
            let lives = w.fates[a] != Fate::Killed || w.fates[a + 1] == Fate::Stopped;
            assert!(lives, "{state:?} is a dead process's");
        }
        // No device waits for a write that never happens.
        let done = w.memory.peek(CLOCK.done());
        for (&value, &a) in &w.ghost.reported {
            let reached = done.wrapping_sub(value).cast_signed() >= 0;
            let still =
                w.fates[a] == Fate::Stopped || w.fates[a + 1] != Fate::Ended || w.fates[a] == Fate::Ended;
            let pending = w.ghost.orders.contains(&(a, value));
            assert!(reached || (still && pending), "a device waits for {value:#x}, at {done:#x}");
        }
    };
    // A device isn't a process: its owner's kill ends it.
    let wedged = move |w: &World<Process>| {
        w.count(0..w.fates.len(), Fate::Stopped) == 0 && devices.iter().all(|d| w.fates[*d] != Fate::Killed)
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn clock_survives_owner_killed_at_any_step() {
    explore(&[owner(2)], &[Role::Looker(2)], false, (1, 0), Bug::None);
}

#[test]
fn clock_survives_killed_and_stopped_recoverers() {
    explore(&[owner(1)], &[Role::Looker(1), Role::Recoverer], false, (2, 0), Bug::None);
    explore(&[owner(1)], &[Role::Looker(1), Role::Recoverer], false, (1, 1), Bug::None);
}

#[test]
fn stream_clock_serves_successive_owners() {
    explore(&[owner(1), owner(1)], &[Role::Looker(2)], false, (1, 0), Bug::None);
}

#[test]
fn clock_of_a_dead_owner_gets_another_owner() {
    explore(&[owner(1), owner(1)], &[Role::Recoverer], false, (2, 0), Bug::None);
}

#[test]
fn late_device_write_changes_no_tick_outcome() {
    explore(&[owner(2)], &[Role::Looker(2)], true, (1, 0), Bug::None);
}

#[test]
fn clock_invariants_hold_in_random_schedules() {
    at_random(|| {
        let owners = [Role::Owner { ticks: 3, tries: 4 }; 3];
        explore(&owners, &[Role::Looker(6), Role::Looker(5), Role::Recoverer], false, (3, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "is called forged")]
fn model_finds_tick_published_before_submission() {
    explore(&[owner(1)], &[Role::Looker(1)], false, (0, 0), Bug::ToldTooEarly);
}

#[test]
#[should_panic(expected = "died, and is done")]
fn model_finds_clock_ended_while_its_device_writes() {
    explore(&[owner(2)], &[Role::Looker(2), Role::Recoverer], false, (1, 0), Bug::EndedUnderDevice);
}

#[test]
#[should_panic(expected = "a device waits")]
fn model_finds_unchecked_late_write_of_dead_clock() {
    explore(&[owner(2)], &[], true, (1, 0), Bug::LateWriteKept);
}

#[test]
#[should_panic(expected = "is called complete")]
fn model_finds_reused_clock_with_pending_work() {
    explore(&[owner(1)], &[Role::Looker(1)], false, (0, 0), Bug::FreeWithWork);
}

#[test]
#[should_panic(expected = "is called complete")]
fn model_finds_freed_clock_of_a_dead_owner() {
    explore(&[owner(1)], &[Role::Looker(1)], false, (1, 0), Bug::DeadIsFree);
}
