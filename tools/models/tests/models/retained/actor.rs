//! Senders, readers and recovering processes of a ring with retained messages.

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Explored, Fate, Memory, World};
use mp_models::members::{is_killed, member};
use mp_models::ring::{
    ENVELOPES, OWNER, PLACE, RingRecovery, chain, check_touched, intent, item, memory, number_of, owner,
    slots, small, touch, touched_groups,
};
use mp_queue::ring::{
    AssignSkips, Collect, CollectOutcome, DiscardSmall, FindNewest, FindNext, FindPublishSlot, NextMessage,
    Pin, PinOutcome, Pins, Position, PublishSlot, PublishSmall, Put, PutOutcome, ReadSkips, RetainedAt,
    Retire, RingAt, SkipPosition, Slot, SlotState, SmallMessage, Unpin,
};

/// First position of the ring.
const FIRST: Position = Position { lap: 1, index: 0 };

/// History of the ring, for checks. Actors don't read it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Ghost {
    /// Positions and items, in the order in which they became visible.
    published: Vec<(Position, u32)>,
}

/// Next action after an attempt to collect (free) a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Then {
    /// A sender that needs a free slot examines a slot, and skips it if the slot's message can't be freed.
    Room(Option<(Position, Slot)>),
    /// A sender retires more messages, after it has published or found an old message.
    Retire(Position, bool),
    /// A reader continues to read.
    Read,
}

/// Message that a reader has found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum FoundItem {
    Envelope(Slot),
    Small(SmallMessage),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    /// Claims the envelope of the next message, as a sender.
    Claim,
    Room(FindPublishSlot),
    SkipPosition(SkipPosition),
    Count(AssignSkips, Position, Slot),
    PublishSmall(PublishSmall, Position),
    Discard(DiscardSmall, Position),
    Put(Put),
    Retire(Retire, Position, bool),
    Collect(Collect, u32, Then),
    /// Clears the pin of a dead reader, and then collects the message.
    UnpinDead(Unpin, u32, Then),
    Free(u32, Owner, Then),
    /// Searches for the newest message, as a reader.
    FindNewest(FindNewest),
    /// Reads the small message that was found as the newest message.
    ReadSmall(FindNext, Position),
    Next(FindNext, Position),
    ReadSkips(ReadSkips, FoundItem, Position),
    Pin(Pin, Slot, Position),
    Read(u8, u32, Owner, u32, Position),
    Unpin(Unpin, u32),
    Recover(RingRecovery),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Process {
    setup: Setup,
    pub(super) at: RetainedAt,
    /// Messages that a sender has not published yet. `owner` is the owner word of its current message.
    items: std::ops::Range<u32>,
    owner: Owner,
    /// Position of a reader. If the reader reads all messages, position of the next message to read.
    /// Otherwise position of the last message that the reader has read.
    position: Option<Position>,
    /// Number of remaining reads of the newest message. `got` is the number of messages read or missed.
    rounds: u32,
    got: u64,
    /// Number of skipped positions before the next position to read.
    skips: u64,
    /// `true` if every sender had ended before this reader checked for a message.
    last: bool,
    /// `true` if there was a message when this reader last checked.
    there: bool,
    doing: Doing,
}

impl Process {
    fn collect(&self, me: usize, index: u32, then: Then) -> Doing {
        let (ring, pins) = (self.at.ring, self.at.pins);
        let collect = Collect::new(ring, pins, intent(me), OWNER, member(me), index);
        Doing::Collect(collect.touching(touched_groups(me)), index, then)
    }

    fn room(&self) -> Doing {
        Doing::Room(FindPublishSlot::new(self.at))
    }

    fn put(&self, me: usize, position: Position) -> Doing {
        let e = self.items.start - 1;
        let words = (e, OWNER.of(e), PLACE.of(e));
        Doing::Put(Put::new(self.at.ring, intent(me), words, member(me), self.owner).at(position))
    }

    fn retire(&self, newest: Position, published: bool) -> Doing {
        Doing::Retire(Retire::new(self.at, newest), newest, published)
    }

    fn look(&self) -> Doing {
        match self.position {
            Some(position) if self.setup.all => self.look_at(position),
            _ => Doing::FindNewest(FindNewest::new(self.at.ring)),
        }
    }

    fn look_at(&self, position: Position) -> Doing {
        Doing::Next(FindNext::new(self.at, position), position)
    }

    /// Returns the next state of a reader of all messages that has found a message at its position.
    fn read(&mut self, me: usize, found: FoundItem, position: Position, ghost: &Ghost) -> Doing {
        match found {
            FoundItem::Envelope(slot) => self.pin(me, slot, position),
            FoundItem::Small(message) => {
                let there = (position, number_of(message));
                assert!(ghost.published.contains(&there), "message {there:?} from nowhere");
                self.got += 1;
                self.position = Some(position.next(self.at.ring.slots));
                self.look()
            }
        }
    }

    fn pin(&self, me: usize, slot: Slot, position: Position) -> Doing {
        let pin = Pin::new(self.at.ring, self.at.pins, member(me), position.index, slot);
        Doing::Pin(pin, slot, position)
    }

    /// Returns the next state after an attempt to collect a message. `left` is `true` if the message is still
    /// pinned.
    fn go_on(&self, then: Then, left: bool) -> Doing {
        match then {
            Then::Room(Some((position, slot))) if left => {
                Doing::SkipPosition(SkipPosition::new(self.at.ring, position, slot))
            }
            Then::Room(_) => self.room(),
            Then::Retire(newest, published) => self.retire(newest, published),
            Then::Read => self.look(),
        }
    }
}

/// Records newly published messages in the state for checks.
fn note(m: &Memory, ring: RingAt, ghost: &mut Ghost) {
    for (index, slot) in slots(m, &chain(ring.slots, 0)).into_iter().enumerate() {
        if let SlotState::Full(_) = slot.state
            && let Some(e) = item(m, ring.slot(index as u32))
            && ghost.published.iter().all(|(_, there)| *there != e)
        {
            ghost.published.push((Position { lap: slot.lap, index: index as u32 }, e));
        }
    }
}

/// Makes one step of a collection. Checks that the actor records a group as touched before it owns an
/// envelope of the group.
fn collect_touching(collect: &mut Collect, me: usize, m: &Memory) -> Option<CollectOutcome> {
    let end = collect.step(m);
    check_touched(m, me);
    end
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let (at, ring, pins) = (self.at, self.at.ring, self.at.pins);
        let next = match &mut self.doing {
            Doing::Claim => {
                let Some(e) = self.items.next() else { return true };
                if self.setup.is_small(e) {
                    self.doing = self.room();
                    return false;
                }
                self.owner = owner(m, e).then(Holder::Member(member(me)));
                touch(m, me);
                m.store(OWNER.of(e), self.owner.pack());
                self.room()
            }
            Doing::Room(room) => match room.step(m) {
                None => return false,
                Some(PublishSlot::Free(position, slot)) => {
                    Doing::Count(AssignSkips::new(at, (position, slot)), position, slot)
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
            Doing::Count(count, position, slot) => match count.step(m) {
                None => return false,
                Some(false) => self.room(),
                Some(true) => {
                    let (e, position, slot) = (self.items.start - 1, *position, *slot);
                    match slot.state {
                        _ if self.setup.is_small(e) => {
                            Doing::PublishSmall(PublishSmall::new(at, (position, slot), small(e)), position)
                        }
                        SlotState::Empty => self.put(me, position),
                        _ => Doing::Discard(DiscardSmall::new(at, (position, slot)), position),
                    }
                }
            },
            Doing::PublishSmall(publish, position) => {
                let end = publish.step(m);
                note(m, ring, ghost);
                match end {
                    None => return false,
                    Some(None) => self.room(),
                    Some(Some(true)) => {
                        let position = *position;
                        self.retire(position, true)
                    }
                    Some(Some(false)) => Doing::Claim,
                }
            }
            Doing::Discard(discard, position) => {
                if discard.step(m).is_none() {
                    return false;
                }
                let position = *position;
                self.put(me, position)
            }
            Doing::Put(put) => {
                let end = put.step(m);
                note(m, ring, ghost);
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
                    Doing::UnpinDead(Unpin::new(ring, pins, dead, pin, *index), *index, *then)
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
                        match slot.envelope() {
                            Some(_) => self.pin(me, slot, position),
                            None => Doing::ReadSmall(FindNext::new(at, position), position),
                        }
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
            Doing::ReadSmall(next, position) => match next.step(m) {
                None => return false,
                Some(NextMessage::Small(message)) => {
                    let position = *position;
                    let there = (position, number_of(message));
                    assert!(ghost.published.contains(&there), "message {there:?} from nowhere");
                    self.position = Some(position);
                    self.look()
                }
                Some(_) => self.look(),
            },
            Doing::Next(next, position) => match next.step(m) {
                None => return false,
                Some(NextMessage::Missed(on)) => self.look_at(on),
                Some(NextMessage::Nothing) if self.last => return true,
                Some(NextMessage::Nothing) => {
                    self.last = fates[..self.setup.senders].iter().all(|f| f.gone());
                    self.look()
                }
                Some(message @ (NextMessage::Envelope(_) | NextMessage::Small(_))) => {
                    let position = *position;
                    let found = match message {
                        NextMessage::Small(message) => FoundItem::Small(message),
                        NextMessage::Envelope(slot) => FoundItem::Envelope(slot),
                        _ => unreachable!("matched above"),
                    };
                    if self.position == Some(position) {
                        self.read(me, found, position, ghost)
                    } else {
                        Doing::ReadSkips(ReadSkips::new(at, position), found, position)
                    }
                }
            },
            Doing::ReadSkips(skips, found, position) => match skips.step(m) {
                None => return false,
                Some(None) => {
                    let position = *position;
                    self.look_at(position)
                }
                Some(Some(skips)) => {
                    let (found, position) = (*found, *position);
                    let order = ghost.published.iter().position(|(there, _)| *there == position);
                    let number = position.distance_from(FIRST, ring.slots) - skips;
                    assert_eq!(order.map(|i| i as u64), Some(number), "the number of {position:?}");
                    let before = self.position.expect("it reads all");
                    let missed = position.distance_from(before, ring.slots) - (skips - self.skips);
                    self.got += missed;
                    (self.position, self.skips) = (Some(position), skips);
                    if missed > 0 { self.look() } else { self.read(me, found, position, ghost) }
                }
            },
            Doing::Pin(pin, slot, position) => match pin.step(m) {
                None => return false,
                Some(PinOutcome::Exhausted) => self.look(),
                Some(PinOutcome::Changed(pin)) => {
                    Doing::Unpin(Unpin::new(ring, pins, member(me), pin, position.index), position.index)
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
                let unpin = Unpin::new(ring, pins, member(me), *pin, index);
                let read = *position;
                self.position = Some(if self.setup.all { read.next(ring.slots) } else { read });
                self.got += 1;
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
                if let Some(pin) = (0..pins.count).map(|i| pins.pin(i)).find(|p| dead(m.peek(*p))) {
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
pub(super) struct Setup {
    pub(super) senders: usize,
    pub(super) items: u32,
    pub(super) readers: usize,
    /// Number of times that each reader reads the newest message.
    pub(super) rounds: u32,
    /// `true` if readers read all messages instead of the newest one.
    pub(super) all: bool,
    pub(super) recoverers: usize,
    pub(super) slots: u32,
    pub(super) keep: u32,
    /// Bit set of the items that are small messages.
    pub(super) small: u32,
}

impl Setup {
    fn is_small(self, item: u32) -> bool {
        self.small >> item & 1 != 0
    }

    pub(super) fn world(self) -> World<Process> {
        let room = chain(self.slots, self.slots + 1);
        let (ring, m) = (chain(self.slots, 0).first, memory(&room, 1));
        let used = room.second;
        let pins = Pins { used, first: used.plus(1), count: self.readers.max(1) as u32 };
        let at = RetainedAt { ring, pins, skips: used.plus(8), keep: self.keep };
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
            let first = self.all.then_some(FIRST);
            let mut process = Process {
                setup: self,
                at,
                items,
                owner: Owner { holder: Holder::Free, seq: 0 },
                position: first,
                rounds: self.rounds,
                got: 0,
                skips: 0,
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

    pub(super) fn explore(self, kills: u32, stops: u32) -> Explored {
        self.check(self.world(), kills, stops)
    }

    pub(super) fn check(self, world: World<Process>, kills: u32, stops: u32) -> Explored {
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
                if self.small == 0 {
                    assert_eq!(full, all.min(self.keep as usize), "kept: {there:?}");
                }
                let (position, e) = published[all - 1];
                let ring = w.actors[0].at.ring;
                assert_eq!(item(&w.memory, ring.slot(position.index)), Some(e), "newest: {there:?}");
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
