//! Exhaustive model of two tables: the chosen order of each device's streams, and the names of events by
//! which streams wait. Members choose an order for their devices. Owners of a clock, one after another, write
//! the names of their events and tick, and other members read the names. Any process is killed or stopped at
//! any shared access. Real processes run the same steps.

use std::collections::BTreeMap;

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::clock::{ClaimClock, ClockAt, EndClock, ReleaseClock};
use mp_core::steps::device::stream_order::{
    ChooseOrder, EventNamesAt, ReadEventName, WriteEventNames, order_entry,
};
use mp_core::words::{ClockState, Tick};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{actor_of, is_killed, member};
use mp_models::random::at_random;

/// Planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// An order is stored in an entry by a plain store instead of a compare-and-swap.
    Stored,
    /// A member whose swap of an entry failed continues with the next entry. It does not check whether the
    /// failed entry is for its device.
    LostNotLookedAt,
    /// An owner writes the names of its events after its first tick.
    TickFirst,
    /// A reader of a name doesn't check whether the tick is still pending.
    TickNotLookedAt,
    /// A reader checks the tick before it reads the name instead of afterwards.
    TickLookedAtFirst,
    /// A reader doesn't compare epochs, so it takes the name of an earlier owner for a name of the next
    /// owner, which has no events.
    EpochNotCompared,
}

mod order {
    use super::*;

    const TABLE: Word = Word::at(0);
    const ENTRIES: u64 = 2;

    /// Member that chooses an order for a device, and then chooses again with another preference.
    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct Chooser {
        key: u64,
        bug: Bug,
        left: u8,
        steps: ChooseOrder,
        /// State of a planted bug: index of the entry, and `true` if the entry was free.
        at: (u64, bool),
    }

    impl Chooser {
        fn new(me: usize, key: u64, bug: Bug) -> Self {
            let steps = ChooseOrder::new(TABLE, ENTRIES, order_entry(key, me as u8 + 1));
            Self { key, bug, left: 2, steps, at: (0, false) }
        }

        fn step(&mut self, me: usize, m: &Memory) -> Option<Option<u8>> {
            if self.bug == Bug::None {
                return self.steps.step(m);
            }
            let ((i, free), mine) = (self.at, order_entry(self.key, me as u8 + 1));
            let at = TABLE.plus(i);
            if free && self.bug == Bug::Stored {
                m.store(at, mine);
                return Some(Some(mine as u8));
            }
            if free {
                if m.cas(at, 0, mine).is_ok() {
                    return Some(Some(mine as u8));
                }
                self.at = (i + 1, false);
                return (i + 1 == ENTRIES).then_some(None);
            }
            match m.load(at) {
                0 => self.at.1 = true,
                word if word >> 8 == self.key => return Some(Some(word as u8)),
                _ => self.at.0 += 1,
            }
            (self.at.0 == ENTRIES).then_some(None)
        }
    }

    impl Actor for Chooser {
        /// Order that was returned for each device.
        type Ghost = BTreeMap<u64, u8>;

        fn step(&mut self, me: usize, m: &Memory, _: &[Fate], reported: &mut Self::Ghost) -> bool {
            let Some(chosen) = Self::step(self, me, m) else { return false };
            let chosen = chosen.expect("there is room for all devices");
            let before = *reported.entry(self.key).or_insert(chosen);
            assert_eq!(before, chosen, "a device has two orders");
            self.left -= 1;
            (self.steps, self.at) = (Self::new(me + 7, self.key, self.bug).steps, (0, false));
            self.left == 0
        }
    }

    fn explore(keys: &[u64], (kills, stops): (u32, u32), bug: Bug) {
        let actors = keys.iter().enumerate().map(|(me, key)| Chooser::new(me, *key, bug)).collect();
        let world = World::new(Memory::new(ENTRIES as usize), actors, BTreeMap::new());
        let end = |w: &World<Chooser>| {
            let entries: Vec<u64> = (0..ENTRIES).map(|i| w.memory.peek(TABLE.plus(i))).collect();
            for (key, order) in &w.ghost {
                let of_key = entries.iter().filter(|word| **word >> 8 == *key);
                assert!(of_key.eq([&order_entry(*key, *order)]), "{entries:x?} have another order of {key}");
            }
        };
        world.explore(kills, stops, end, |_| true);
    }

    #[test]
    fn all_members_agree_on_a_devices_stream_order() {
        explore(&[1, 1, 1], (2, 0), Bug::None);
        explore(&[1, 2, 1], (1, 1), Bug::None);
    }

    #[test]
    #[should_panic(expected = "a device has two orders")]
    fn model_finds_stream_order_stored_without_swap() {
        explore(&[1, 1], (0, 0), Bug::Stored);
    }

    #[test]
    #[should_panic(expected = "a device has two orders")]
    fn model_finds_unread_order_entry_of_a_failed_swap() {
        explore(&[1, 1], (0, 0), Bug::LostNotLookedAt);
    }
}

const CLOCK: ClockAt = ClockAt(Word::at(0));
const NAMES: EventNamesAt = EventNamesAt { row: Word::at(64), words: 2 };
const KEY: u64 = 9;
/// Number of words of each name. A mixture of two names differs from the names of all owners.
const WORDS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Owner of the clock, which makes one tick. The owner has events, or has none.
    Owner { has_events: bool },
    /// Device that executes the work of this owner.
    Device { owner: usize },
    /// Member that reads the event name of the last reported tick, this many times.
    Reader(u8),
    /// Process that ends clocks of dead owners.
    Recoverer,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Next,
    Claim(ClaimClock),
    Write(WriteEventNames<WORDS>),
    Order,
    Submit,
    GiveUp(ReleaseClock),
    Read(Tick, ReadEventName<WORDS>),
    /// Reader with a planted bug: the tick, the words read so far, and the index of the next word.
    Blindly(Tick, [u64; 2 + WORDS], usize),
    End(EndClock),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    bug: Bug,
    pc: Pc,
    first: u64,
}

#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    /// Submitted work that devices have not executed yet: owner and value of its tick.
    orders: Vec<(usize, u64)>,
    /// Reported ticks, with the name of the event that was recorded for each tick, if any.
    reported: BTreeMap<u64, Option<[u64; WORDS]>>,
}

/// Returns the name of an owner's event.
fn name_of(owner: usize) -> [u64; WORDS] {
    [owner as u64 + 1; WORDS]
}

impl Process {
    fn judge(tick: Tick, name: Option<[u64; WORDS]>, ghost: &Ghost) {
        if let Some(name) = name {
            assert_eq!(Some(name), ghost.reported[&tick.value()], "{tick:?} has another event");
        }
    }

    fn write(&self, me: usize) -> Pc {
        Pc::Write(WriteEventNames::new(NAMES, KEY, Tick::epoch_of(self.first), name_of(me)))
    }

    /// Makes a step like [`ReadEventName`], with a planted bug.
    fn blindly(&mut self, tick: Tick, mut words: [u64; 4], i: usize, m: &Memory, ghost: &Ghost) -> Pc {
        if i < words.len() {
            words[i] = m.load(NAMES.row.plus(i as u64));
            return Pc::Blindly(tick, words, i + 1);
        }
        let pending = m.load(CLOCK.done()) < tick.value() || self.bug != Bug::EpochNotCompared;
        let fits = words[1] == u64::from(tick.epoch()) || self.bug == Bug::EpochNotCompared;
        let found = pending && fits && words[0] == KEY;
        Self::judge(tick, found.then_some([words[2], words[3]]), ghost);
        Pc::Next
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        self.pc = match (self.pc.clone(), self.role) {
            (Pc::Next, Role::Owner { .. }) => {
                Pc::Claim(ClaimClock::new(CLOCK, member(me), (me as u32 + 1, 7), true))
            }
            (Pc::Claim(mut steps), Role::Owner { has_events }) => match steps.step(m) {
                None => Pc::Claim(steps),
                Some(None) => return true,
                Some(Some(epoch)) => {
                    self.first = Tick::base(epoch) + 1;
                    if has_events && self.bug != Bug::TickFirst { self.write(me) } else { Pc::Order }
                }
            },
            (Pc::Write(mut steps), Role::Owner { .. }) => match steps.step(m) {
                None => Pc::Write(steps),
                Some(()) if self.bug == Bug::TickFirst => Pc::GiveUp(ReleaseClock::new(CLOCK, self.first)),
                Some(()) => Pc::Order,
            },
            // The owner's stream accepts the order. Not a shared access.
            (Pc::Order, Role::Owner { .. }) => {
                ghost.orders.push((me, self.first));
                Pc::Submit
            }
            (Pc::Submit, Role::Owner { has_events }) => {
                m.store(CLOCK.submitted(), self.first);
                ghost.reported.insert(self.first, has_events.then(|| name_of(me)));
                if has_events && self.bug == Bug::TickFirst {
                    self.write(me)
                } else {
                    Pc::GiveUp(ReleaseClock::new(CLOCK, self.first))
                }
            }
            (Pc::GiveUp(mut steps), Role::Owner { .. }) => match steps.step(m) {
                None => Pc::GiveUp(steps),
                Some(_) => return true,
            },
            (Pc::Next, Role::Device { owner }) => {
                let next = ghost.orders.iter().position(|(a, _)| *a == owner);
                match (next, fates[owner]) {
                    (_, Fate::Killed) => return true,
                    (Some(next), _) => {
                        let (_, value) = ghost.orders.remove(next);
                        m.store(CLOCK.done(), value);
                        return true;
                    }
                    (None, Fate::Running) => Pc::Next,
                    (None, _) => return true,
                }
            }
            (Pc::Next, Role::Reader(0)) => return true,
            (Pc::Next, Role::Reader(n)) => {
                self.role = Role::Reader(n - 1);
                let Some(&value) = ghost.reported.keys().next_back() else { return false };
                let tick = Tick::new(0, value);
                match self.bug {
                    Bug::TickNotLookedAt | Bug::EpochNotCompared => Pc::Blindly(tick, [0; 4], 0),
                    // The tick was reported, so it is pending or was pending.
                    Bug::TickLookedAtFirst if m.load(CLOCK.done()) >= value => Pc::Next,
                    Bug::TickLookedAtFirst => Pc::Blindly(tick, [0; 4], 0),
                    _ => Pc::Read(tick, ReadEventName::new(NAMES, CLOCK, tick, 0, KEY)),
                }
            }
            (Pc::Blindly(tick, words, i), _) => self.blindly(tick, words, i, m, ghost),
            (Pc::Read(tick, mut steps), _) => match steps.step(m) {
                None => Pc::Read(tick, steps),
                Some(name) => {
                    Self::judge(tick, name, ghost);
                    Pc::Next
                }
            },
            (Pc::Next, Role::Recoverer) => {
                let state = ClockState::unpack(m.peek(CLOCK.state()));
                let dead = state.member().filter(|p| is_killed(fates, *p) && fates[actor_of(*p) + 1].gone());
                match dead {
                    Some(_) => Pc::End(EndClock::new(CLOCK, dead, 1)),
                    None => return fates[..me].iter().all(|fate| fate.gone()),
                }
            }
            (Pc::End(mut steps), _) => match steps.step(m) {
                None => Pc::End(steps),
                Some(_) => Pc::Next,
            },
            (pc, role) => unreachable!("{pc:?} of {role:?}"),
        };
        false
    }
}

const WITH: Role = Role::Owner { has_events: true };
const WITHOUT: Role = Role::Owner { has_events: false };

/// Explores a world with these owners, a device for each owner, the actors in `others`, and a reclaiming
/// process.
fn explore(owners: &[Role], others: &[Role], (kills, stops): (u32, u32), bug: Bug) {
    let pairs = owners.iter().enumerate().flat_map(|(i, &role)| [role, Role::Device { owner: 2 * i }]);
    let roles = pairs.chain(others.iter().copied()).chain([Role::Recoverer]);
    let of = |role| Process { role, bug, pc: Pc::Next, first: 0 };
    let world = World::new(Memory::new(8 + 4), roles.map(of).collect(), Ghost::default());
    let devices: Vec<usize> = (0..owners.len()).map(|i| 2 * i + 1).collect();
    // A device isn't a process: its owner's kill ends it.
    let wedged = move |w: &World<Process>| {
        w.count(0..w.fates.len(), Fate::Stopped) == 0 && devices.iter().all(|d| w.fates[*d] != Fate::Killed)
    };
    world.explore(kills, stops, |_| {}, wedged);
}

#[test]
fn event_name_belongs_to_its_ticks_owner() {
    explore(&[WITH, WITH], &[Role::Reader(2)], (1, 0), Bug::None);
    explore(&[WITH, WITHOUT], &[Role::Reader(2)], (1, 0), Bug::None);
}

#[test]
fn event_names_survive_one_kill_and_one_stop() {
    explore(&[WITH, WITH], &[Role::Reader(1)], (1, 1), Bug::None);
}

#[test]
fn event_names_hold_in_random_schedules() {
    at_random(|| {
        let owners = [WITH, WITHOUT, WITH, WITH];
        explore(&owners, &[Role::Reader(6), Role::Reader(5), Role::Recoverer], (3, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "has another event")]
fn model_finds_event_name_written_after_its_tick() {
    explore(&[WITH, WITH], &[Role::Reader(1)], (0, 0), Bug::TickFirst);
}

#[test]
#[should_panic(expected = "has another event")]
fn model_finds_event_name_read_without_tick_check() {
    explore(&[WITH, WITH], &[Role::Reader(1)], (0, 0), Bug::TickNotLookedAt);
}

#[test]
#[should_panic(expected = "has another event")]
fn model_finds_tick_checked_before_event_name() {
    explore(&[WITH, WITH], &[Role::Reader(1)], (0, 0), Bug::TickLookedAtFirst);
}

#[test]
#[should_panic(expected = "has another event")]
fn model_finds_event_name_of_an_earlier_owner() {
    explore(&[WITH, WITHOUT], &[Role::Reader(1)], (0, 0), Bug::EpochNotCompared);
}
