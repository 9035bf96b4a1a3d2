//! Rings with retained messages, exhaustively: senders publish, retire and collect, readers pin and read,
//! each killed and stopped at every shared access, while recovering actors settle the intents of dead ones.
//! The steps are the ones that run in processes. A reader of all messages counts the messages read and
//! missed, by number: their sum is the number of published messages.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Explored, Fate, Memory, World};
use mp_models::members::{is_killed, member};
use mp_models::random::at_random;
use mp_models::ring::{
    ENVELOPES, OWNER, PLACE, RingRecovery, chain, check_touched, intent, memory, owner, slots, touch,
    touched_groups,
};
use mp_queue::ring::{
    AssignNumber, ChainAt, Collect, CollectOutcome, FindNewest, FindNext, FindPublishSlot, NextMessage, Pin,
    PinOutcome, Pins, Position, PublishSlot, Put, PutOutcome, ReadNumber, Retire, RingAt, SkipPosition, Slot,
    SlotState, Unpin,
};

/// History that no actor can observe.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    /// Positions and envelopes, in the order in which they became visible.
    published: Vec<(Position, u32)>,
}

/// Continuation after a message was collected, or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Then {
    /// A sender searches for room, and skips messages that it can't collect.
    Room(Option<(Position, Slot)>),
    /// A sender that has published, or found an old message, retires more.
    Retire(Position, bool),
    /// A reader continues.
    Read,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// Sender: claims its next envelope.
    Claim,
    Room(FindPublishSlot),
    SkipPosition(SkipPosition),
    Number(AssignNumber, Position),
    Put(Put),
    Retire(Retire, Position, bool),
    Collect(Collect, u32, Then),
    /// Clears the pin of a dead reader, and then collects.
    UnpinDead(Unpin, u32, Then),
    Free(u32, Owner, Then),
    /// Reader.
    FindNewest(FindNewest),
    Next(FindNext),
    ReadNumber(ReadNumber, Slot, Position),
    Pin(Pin, Slot, Position),
    Read(u8, u32, Owner, u32, Position),
    Unpin(Unpin, u32),
    Recover(RingRecovery),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    setup: Setup,
    ring: RingAt,
    pins: Pins,
    /// Messages that a sender has not published yet.
    items: std::ops::Range<u32>,
    owner: Owner,
    /// Position of a reader: of the last message read, or the next one to read.
    position: Option<Position>,
    /// Remaining reads of the newest message, and numbers of messages read and missed.
    rounds: u32,
    got: u64,
    /// Number of the message that it reads next.
    number: u64,
    /// `true` if every sender had ended before this reader checked for a message.
    last: bool,
    /// `true` if there was a message when this reader checked.
    there: bool,
    doing: Doing,
}

impl Process {
    fn collect(&self, me: usize, index: u32, then: Then) -> Doing {
        let collect = Collect::new(self.ring, self.pins, intent(me), OWNER, member(me), index);
        Doing::Collect(collect.touching(touched_groups(me)), index, then)
    }

    fn room(&self) -> Doing {
        Doing::Room(FindPublishSlot::new(self.ring))
    }

    fn retire(&self, newest: Position, published: bool) -> Doing {
        Doing::Retire(Retire::new(self.ring, self.setup.keep, newest), newest, published)
    }

    fn look(&self) -> Doing {
        match self.position {
            Some(position) if self.setup.all => Doing::Next(FindNext::new(self.ring, position)),
            _ => Doing::FindNewest(FindNewest::new(self.ring)),
        }
    }

    /// Continues after a collection. `left`: it is still pinned.
    fn go_on(&self, then: Then, left: bool) -> Doing {
        match then {
            Then::Room(Some((position, slot))) if left => {
                Doing::SkipPosition(SkipPosition::new(self.ring, position, slot))
            }
            Then::Room(_) => self.room(),
            Then::Retire(newest, published) => self.retire(newest, published),
            Then::Read => self.look(),
        }
    }
}

/// Records the published messages.
fn note(m: &Memory, chain: &ChainAt, ghost: &mut Ghost) {
    for (index, slot) in slots(m, chain).into_iter().enumerate() {
        if let SlotState::Full(content) = slot.state
            && let Some(e) = content.envelope()
            && ghost.published.iter().all(|(_, there)| *there != e)
        {
            ghost.published.push((Position { lap: slot.lap, index: index as u32 }, e));
        }
    }
}

/// Makes one step of a collection, which touches a group before it owns an envelope there.
fn collect_touching(collect: &mut Collect, me: usize, m: &Memory) -> Option<CollectOutcome> {
    let end = collect.step(m);
    check_touched(m, me);
    end
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let ring = self.ring;
        let next = match &mut self.doing {
            Doing::Claim => {
                let Some(e) = self.items.next() else { return true };
                self.owner = owner(m, e).then(Holder::Member(member(me)));
                touch(m, me);
                m.store(OWNER.of(e), self.owner.pack());
                self.room()
            }
            Doing::Room(room) => match room.step(m) {
                None => return false,
                Some(PublishSlot::Free(position)) => {
                    Doing::Number(AssignNumber::new(ring, position), position)
                }
                Some(PublishSlot::Retired(position, slot)) => {
                    self.collect(me, position.index, Then::Room(Some((position, slot))))
                }
                Some(PublishSlot::Current(position)) => self.retire(position, false),
                Some(PublishSlot::Inconsistent) => panic!("no room"),
            },
            Doing::SkipPosition(over) => {
                _ = over.step(m);
                self.room()
            }
            Doing::Number(number, position) => match number.step(m) {
                None => return false,
                Some(false) => self.room(),
                Some(true) => {
                    let (e, position) = (self.items.start - 1, *position);
                    let words = (e, OWNER.of(e), PLACE.of(e));
                    Doing::Put(Put::new(ring, intent(me), words, member(me), self.owner).at(position))
                }
            },
            Doing::Put(put) => {
                let end = put.step(m);
                note(m, &chain(ring.slots, 0), ghost);
                match end {
                    None => return false,
                    Some(PutOutcome::Done(position)) => self.retire(position, true),
                    Some(PutOutcome::Full(owner)) => {
                        self.owner = owner;
                        self.room()
                    }
                    Some(PutOutcome::Closed(_)) => panic!("nothing closes it"),
                }
            }
            Doing::Retire(retire, newest, published) => match retire.step(m) {
                None => return false,
                Some(Some(index)) => {
                    let then = Then::Retire(*newest, *published);
                    self.collect(me, index, then)
                }
                Some(None) if *published => Doing::Claim,
                Some(None) => self.room(),
            },
            Doing::Collect(collect, index, then) => match collect_touching(collect, me, m) {
                None => return false,
                Some(CollectOutcome::Taken(e, owner)) => Doing::Free(e, owner, *then),
                Some(CollectOutcome::Nothing) => {
                    let then = *then;
                    self.go_on(then, false)
                }
                Some(CollectOutcome::Pinned(pin, dead)) if is_killed(fates, dead) => {
                    Doing::UnpinDead(Unpin::new(ring, self.pins, dead, pin, *index), *index, *then)
                }
                Some(CollectOutcome::Pinned(..)) => {
                    let then = *then;
                    self.go_on(then, true)
                }
            },
            Doing::UnpinDead(unpin, index, then) => {
                if unpin.step(m).is_none() {
                    return false;
                }
                let (index, then) = (*index, *then);
                self.collect(me, index, then)
            }
            Doing::Free(e, owner, then) => {
                m.store(OWNER.of(*e), owner.then(Holder::Free).pack());
                let then = *then;
                self.go_on(then, false)
            }
            Doing::FindNewest(newest) => {
                let found = newest.step(m);
                match found {
                    None => return false,
                    Some(_) if self.rounds == 0 && !self.setup.all => return true,
                    Some(Some((slot, position))) => {
                        self.there = true;
                        if self.setup.all {
                            self.position = Some(position);
                        } else {
                            let order = |t| ghost.published.iter().position(|(there, _)| *there == t);
                            let seen = self.position.and_then(order);
                            assert!(order(position) >= seen, "an older value than before: {position:?}");
                            self.rounds -= 1;
                        }
                        Doing::Pin(
                            Pin::new(ring, self.pins, member(me), position.index, slot),
                            slot,
                            position,
                        )
                    }
                    Some(None) if self.last => return true,
                    Some(None) => {
                        assert!(!self.there, "there is a value: {:?}", ghost.published);
                        self.there = !ghost.published.is_empty();
                        self.last = fates[..self.setup.senders].iter().all(|f| f.gone());
                        self.look()
                    }
                }
            }
            Doing::Next(next) => match next.step(m) {
                None => return false,
                Some(NextMessage::Message(slot)) => {
                    let position = self.position.expect("it looks at one");
                    Doing::ReadNumber(ReadNumber::new(ring, position.index, slot), slot, position)
                }
                Some(NextMessage::Missed(on, _)) => {
                    self.position = Some(on);
                    self.look()
                }
                Some(NextMessage::Nothing) if self.last => return true,
                Some(NextMessage::Nothing) => {
                    self.last = fates[..self.setup.senders].iter().all(|f| f.gone());
                    self.look()
                }
            },
            Doing::ReadNumber(number, slot, position) => match number.step(m) {
                None => return false,
                Some(None) => self.look(),
                Some(Some(number)) => {
                    let (slot, position) = (*slot, *position);
                    let order = ghost.published.iter().position(|(there, _)| *there == position);
                    assert_eq!(order.map(|i| i as u64 + 1), Some(number), "the number of {position:?}");
                    self.got += number - self.number;
                    self.number = number;
                    Doing::Pin(Pin::new(ring, self.pins, member(me), position.index, slot), slot, position)
                }
            },
            Doing::Pin(pin, slot, position) => match pin.step(m) {
                None => return false,
                Some(PinOutcome::Exhausted) => self.look(),
                Some(PinOutcome::Changed(pin)) => {
                    Doing::Unpin(Unpin::new(ring, self.pins, member(me), pin, position.index), position.index)
                }
                Some(PinOutcome::Pinned(pin)) => {
                    let e = slot.envelope().expect("a message");
                    Doing::Read(2, e, owner(m, e), pin, *position)
                }
            },
            Doing::Read(left, e, seen, pin, position) => {
                let now = Owner::unpack(m.load(OWNER.of(*e)));
                assert_eq!(now, *seen, "message {e} was dropped under its reader");
                assert_eq!(now.holder, Holder::Queued, "message {e} was dropped under its reader");
                assert!(ghost.published.contains(&(*position, *e)), "message {e} from nowhere");
                if *left > 0 {
                    *left -= 1;
                    return false;
                }
                let index = position.index;
                let unpin = Unpin::new(ring, self.pins, member(me), *pin, index);
                let read = *position;
                self.position = Some(if self.setup.all { read.next(ring.slots) } else { read });
                self.got += 1;
                self.number += 1;
                Doing::Unpin(unpin, index)
            }
            Doing::Unpin(unpin, index) => match unpin.step(m) {
                None => return false,
                Some(true) => {
                    let index = *index;
                    self.collect(me, index, Then::Read)
                }
                Some(false) => self.look(),
            },
            Doing::Recover(recovery) => {
                let idle = recovery.step(me, m, fates, chain(ring.slots, 0));
                if !idle {
                    return false;
                }
                let dead = |w: u64| Pins::unpack(w).is_some_and(|(who, _)| is_killed(fates, who));
                if let Some(pin) = (0..self.pins.count).map(|i| self.pins.pin(i)).find(|p| dead(m.peek(*p))) {
                    m.store(pin, 0);
                    return false;
                }
                let others = fates.len() - self.setup.recoverers;
                return fates[..others].iter().all(|f| f.gone());
            }
        };
        self.doing = next;
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Setup {
    senders: usize,
    items: u32,
    readers: usize,
    /// Number of times that a reader reads the newest message.
    rounds: u32,
    /// `true` if readers read all messages instead.
    all: bool,
    recoverers: usize,
    slots: u32,
    keep: u32,
}

impl Setup {
    fn world(self) -> World<Process> {
        let room = chain(self.slots, self.slots + 1);
        let (ring, m) = (chain(self.slots, 0).first, memory(&room, 1));
        let used = room.second;
        let pins = Pins { used, first: used.plus(1), count: self.readers.max(1) as u32 };
        let n = self.senders + self.readers + self.recoverers;
        let actors = (0..n).map(|i| {
            let doing = if i < self.senders {
                Doing::Claim
            } else if i < self.senders + self.readers {
                Doing::FindNewest(FindNewest::new(ring))
            } else {
                Doing::Recover(RingRecovery::Look)
            };
            let items = i as u32 * self.items..(i as u32 + 1) * self.items;
            let first = (self.all).then_some(Position { lap: 1, index: 0 });
            let mut process = Process {
                setup: self,
                ring,
                pins,
                items,
                owner: Owner { holder: Holder::Free, seq: 0 },
                position: first,
                rounds: self.rounds,
                got: 0,
                number: 1,
                last: false,
                there: false,
                doing,
            };
            if self.all && matches!(process.doing, Doing::FindNewest(_)) {
                process.doing = process.look();
            }
            process
        });
        World::new(m, actors.collect(), Ghost::default())
    }

    fn explore(self, kills: u32, stops: u32) -> Explored {
        self.check(self.world(), kills, stops)
    }

    fn check(self, world: World<Process>, kills: u32, stops: u32) -> Explored {
        let senders = 0..self.senders;
        let readers = self.senders..self.senders + self.readers;
        let others = 0..self.senders + self.readers;
        let end = |w: &World<Process>| {
            let published = &w.ghost.published;
            let order: Vec<Position> = published.iter().map(|(position, _)| *position).collect();
            assert!(order.is_sorted_by_key(|t| (t.lap, t.index)), "out of order: {order:?}");
            let gone = w.count(others.clone(), Fate::Killed) + w.count(others.clone(), Fate::Stopped);
            let there = slots(&w.memory, &chain(self.slots, 0));
            let full = there.iter().filter(|s| matches!(s.state, SlotState::Full(_))).count();
            if w.count(senders.clone(), Fate::Ended) == self.senders {
                let all = (self.senders as u32 * self.items) as usize;
                assert_eq!(published.len(), all, "messages are lost");
                assert_eq!(full, all.min(self.keep as usize), "kept: {there:?}");
            }
            for a in readers.clone().filter(|&a| self.all && w.fates[a] == Fate::Ended) {
                assert_eq!(
                    w.actors[a].got,
                    published.len() as u64,
                    "read and missed, of those that were sent"
                );
            }
            if gone == 0 {
                let retired = there.iter().filter(|s| matches!(s.state, SlotState::Last(_))).count();
                assert_eq!(retired, 0, "a retired message leaks");
            }
            if w.count(others.clone(), Fate::Stopped) == 0
                && w.count(others.end..w.actors.len(), Fate::Ended) > 0
            {
                for e in 0..ENVELOPES {
                    let is_there = there.iter().any(|s| s.envelope() == Some(e));
                    let free = owner(&w.memory, e).holder == Holder::Free;
                    assert!(is_there != free, "envelope {e} leaks, or is in a slot and free");
                }
            }
        };
        let wedged = |w: &World<Process>| w.count(0..w.actors.len(), Fate::Running) > 0;
        world.explore(kills, stops, end, wedged)
    }
}

#[test]
fn newest_value_is_read_while_replaced() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 2, slots: 3, keep: 1, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { items: 3, recoverers: 1, ..s }.explore(1, 0);
}

#[test]
fn two_senders_replace_each_others_values() {
    let s = Setup { senders: 2, items: 1, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    at_random(|| {
        Setup { items: 2, recoverers: 1, ..s }.explore(1, 1);
    });
}

#[test]
fn two_readers_leave_one_message() {
    let s = Setup { senders: 1, items: 2, readers: 2, rounds: 1, slots: 4, keep: 1, ..Setup::default() };
    s.explore(0, 0);
    s.explore(1, 0);
    at_random(|| {
        Setup { recoverers: 1, ..s }.explore(1, 1);
    });
}

/// The ring wraps: the slot of a stopped reader is skipped.
#[test]
fn slot_of_a_stopped_reader_is_skipped() {
    let s = Setup { senders: 1, items: 5, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    s.explore(0, 1);
    at_random(|| {
        Setup { all: true, ..s }.explore(0, 1);
        Setup { senders: 2, items: 2, ..s }.explore(0, 1);
    });
}

#[test]
fn every_message_is_read_or_counted_as_missed() {
    let s = Setup { senders: 1, items: 4, readers: 1, all: true, slots: 4, keep: 2, ..Setup::default() };
    s.explore(1, 0);
    s.explore(0, 1);
    Setup { senders: 2, items: 2, ..s }.explore(0, 0);
    Setup { items: 3, recoverers: 1, ..s }.explore(1, 0);
}

/// Slots of a stopped reader are skipped: their positions have no messages, and are not counted.
#[test]
fn skipped_positions_are_not_counted() {
    let s = Setup { senders: 1, items: 4, readers: 2, all: true, slots: 3, keep: 1, ..Setup::default() };
    at_random(|| {
        s.explore(1, 1);
        Setup { senders: 2, items: 2, recoverers: 1, ..s }.explore(1, 1);
    });
}

#[test]
#[should_panic(expected = "the number of")]
fn missing_numbers_miscount_lost_messages() {
    let s = Setup { senders: 1, items: 3, readers: 1, all: true, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let ring = world.actors[0].ring;
    world.memory.lose((0..ring.slots).map(|i| ring.slot(i).plus(1)));
    s.check(world, 0, 0);
}

/// A collector that ignores pins drops a message during a read.
#[test]
#[should_panic(expected = "dropped under its reader")]
fn missing_pins_drop_a_message_during_a_read() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let pins = world.actors[0].pins;
    world.memory.lose((0..pins.count).map(|i| pins.pin(i)));
    s.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "dropped under its reader")]
fn pin_outside_of_the_used_range_is_found() {
    let s = Setup { senders: 1, items: 2, readers: 1, rounds: 1, slots: 3, keep: 1, ..Setup::default() };
    let mut world = s.world();
    let used = world.actors[0].pins.used;
    world.memory.lose([used]);
    s.check(world, 0, 0);
}

#[test]
#[should_panic(expected = "leaks")]
fn missing_intents_leak_a_collected_message() {
    let s = Setup { senders: 1, items: 2, recoverers: 1, slots: 2, keep: 1, ..Setup::default() };
    let mut world = s.world();
    world.memory.lose((0..world.actors.len()).map(intent));
    s.check(world, 1, 0);
}
