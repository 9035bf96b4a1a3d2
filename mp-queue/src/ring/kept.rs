//! Rings whose messages stay: readers copy them where they are, and senders replace them.
//!
//! `Watch` and `broadcast` are such rings. A sender publishes as into any other ring ([`Put::at`](super::Put::at)), and then
//! *retires* what is older than the ring keeps: one swap of the slot, from `FULL` to `LAST`. A reader *pins* the slot that it is
//! about to read, and finds in it afterwards the word that it has seen before, or it reads something else. What is retired and
//! not pinned is *collected*: taken out of its slot, as a consumer takes a message out of any other ring, and dropped.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | slot | `(lap, EMPTY)`, `(lap, FULL, e)` | as in any ring; but no consumer takes from `FULL` |
//! | | `(lap, FULL, e)` | any sender that has published a later ticket → `(lap, LAST, e)`: retired |
//! | | `(lap, LAST, e)` | a process that finds it pinned by none → `(lap+1, EMPTY)`; a sender that finds it pinned when its turn comes again → `(lap+1, LAST, e)`: that ticket is passed over |
//! | pin | 0 | a reader → `member, slot + 1` |
//! | | `member, slot + 1` | that reader → 0; if it is dead, any process → 0 |
//! | used | how many pins may be in use | a reader that takes one beyond, before it takes it: a higher number |
//! | head (hint) | the oldest ticket that is not retired | any sender, forward |
//!
//! **No message is dropped under its reader.** A reader writes its pin, and then looks at the slot once more. A collector sees
//! `LAST`, and then looks at the pins. A reader that still finds `FULL` has written its pin before the slot became `LAST`, so
//! the collector sees it (both have a full barrier in between). A reader that unpins looks at the slot after that: one that was
//! retired meanwhile it collects itself.
//!
//! **No process waits for another.** A slot that stays pinned, because its reader is stopped, is passed over. There are more
//! slots than the ring keeps messages and has pins, so there is always one that is neither.
//!
//! **Messages have one order.** A ticket is published by a swap from `(lap, EMPTY)`, and a slot gets there only when its earlier
//! ticket is over; a ticket that was passed over is so for ever.
//!
//! | killed | left | the others |
//! |---|---|---|
//! | publishing, collecting | as in `put` and `get` of any ring | [`Settle`](super::Settle) decides |
//! | published, older ones not retired | more messages than are kept | the next sender retires them |
//! | retired, not collected | a slot that is `LAST` | a process that looks: the next sender after a death, or whose turn comes to this slot |
//! | pinning, reading | a pin that names the dead member | a visitor of the dead member, and a collector that finds it, clear it |
//! | `used` raised, its pin not taken | one more pin to look at | |

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Holder, Member, Owner};

use super::RingAt;
use super::slot::{Lag, Slot, SlotState, Ticket, Turns};

/// Two tickets further apart than this are in the other order.
const FAR: u64 = 1 << 37;

/// How far `ticket` is ahead of `earlier`; `None` if it is behind.
pub(super) fn ahead(ticket: Ticket, earlier: Ticket, slots: u32) -> Option<u64> {
    Some(ticket.since(earlier, slots)).filter(|&n| n < FAR)
}

/// Where the pins of a ring are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pins {
    /// How many of them may be in use.
    pub used: Word,
    /// The first one; the others follow.
    pub first: Word,
    /// How many there are.
    pub count: u32,
}

impl Pins {
    /// Where pin `i` is.
    #[inline]
    pub const fn pin(&self, i: u32) -> Word {
        self.first.plus(i as u64)
    }

    /// The word of `me` for slot `index`.
    #[inline]
    pub const fn word(me: Member, index: u32) -> u64 {
        me.raw() | (index as u64 + 1) << Member::BITS
    }

    /// The member that a pin names, and the slot.
    #[inline]
    pub const fn named(word: u64) -> Option<(Member, u32)> {
        match (word >> Member::BITS) as u32 {
            0 => None,
            n => Some((Member::from_raw(word), n - 1)),
        }
    }
}

/// How a [`Pin`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pinned {
    /// The slot keeps what was seen in it until this pin is cleared.
    Held(u32),
    /// The slot has changed; the pin has to be cleared.
    Changed(u32),
    /// All pins are in use.
    NoneFree,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PinPc {
    Used,
    Raise(u64),
    Claim,
    Look,
}

/// Pins a slot in which `seen` was seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pin {
    pins: Pins,
    me: Member,
    slot: Word,
    index: u32,
    seen: u64,
    at: u32,
    tried: u32,
    pc: PinPc,
}

impl Pin {
    /// For `me`, at slot `index` of `ring`.
    pub fn new(ring: RingAt, pins: Pins, me: Member, index: u32, seen: Slot) -> Self {
        let (slot, at) = (ring.slot(index), me.slot() % pins.count.max(1));
        Self { pins, me, slot, index: ring.index(index), seen: seen.pack(), at, tried: 0, pc: PinPc::Used }
    }
}

impl Steps for Pin {
    type Out = Pinned;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Pinned> {
        match self.pc {
            PinPc::Used => {
                let used = m.load(self.pins.used);
                let raised = used > u64::from(self.at);
                self.pc = if raised { PinPc::Claim } else { PinPc::Raise(used) };
            }
            PinPc::Raise(used) => match m.cas(self.pins.used, used, u64::from(self.at) + 1) {
                Err(now) if now <= u64::from(self.at) => self.pc = PinPc::Raise(now),
                _ => self.pc = PinPc::Claim,
            },
            PinPc::Claim => match m.cas(self.pins.pin(self.at), 0, Pins::word(self.me, self.index)) {
                Ok(()) => self.pc = PinPc::Look,
                Err(_) => {
                    self.tried += 1;
                    if self.tried >= self.pins.count {
                        return Some(Pinned::NoneFree);
                    }
                    self.at = (self.at + 1) % self.pins.count;
                    self.pc = PinPc::Used;
                }
            },
            PinPc::Look => {
                m.fence_after_rmw();
                let same = m.load(self.slot) == self.seen;
                return Some(if same { Pinned::Held(self.at) } else { Pinned::Changed(self.at) });
            }
        }
        None
    }
}

/// Clears a pin of `who`'s: its own, or a dead member's. Ends with whether its slot was retired meanwhile, and is to be
/// collected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unpin {
    pin: Word,
    named: u64,
    slot: Word,
    cleared: bool,
}

impl Unpin {
    /// The pin `pin`, of slot `index` of `ring`.
    pub fn new(ring: RingAt, pins: Pins, who: Member, pin: u32, index: u32) -> Self {
        let named = Pins::word(who, ring.index(index));
        Self { pin: pins.pin(pin), named, slot: ring.slot(index), cleared: false }
    }
}

impl Steps for Unpin {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if !self.cleared {
            self.cleared = true;
            // A read-modify-write: the look that follows must not come before it.
            _ = m.cas(self.pin, self.named, 0);
            return None;
        }
        m.fence_after_rmw();
        let retired = matches!(Slot::unpack(m.load(self.slot)).state, SlotState::Last(_));
        Some(retired)
    }
}

/// How a [`Collect`] ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Collected {
    /// The envelope is the caller's now, with this owner word.
    Taken(EnvelopeId, Owner),
    /// A reader has pinned it: by this pin.
    Pinned(u32, Member),
    /// There is nothing to collect.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum CollectPc {
    Look,
    Used,
    Scan(u32, u32),
    Intend,
    Take,
    Lost,
    Claim,
    Undo,
    Clear(bool),
}

/// Takes a retired message out of its slot, if no reader has pinned it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Collect {
    ring: RingAt,
    pins: Pins,
    intent: Word,
    owners: Column,
    me: Member,
    index: u32,
    slot: Slot,
    owner: Owner,
    all: bool,
    pc: CollectPc,
}

impl Collect {
    /// Out of slot `index` of `ring`, for `me`. `intent` is the intent word of the calling thread's lane.
    pub fn new(ring: RingAt, pins: Pins, intent: Word, owners: Column, me: Member, index: u32) -> Self {
        let slot = Slot { lap: 0, state: SlotState::Empty };
        let owner = Owner { holder: Holder::Free, seq: 0 };
        let index = ring.index(index);
        Self { ring, pins, intent, owners, me, index, slot, owner, all: false, pc: CollectPc::Look }
    }

    /// Whether it is retired or not: no reader and no sender is left.
    #[must_use]
    pub fn whatever_it_is(self) -> Self {
        Self { all: true, ..self }
    }

    fn envelope(&self) -> EnvelopeId {
        self.slot.envelope().unwrap_or(0)
    }
}

impl Steps for Collect {
    type Out = Collected;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Collected> {
        match self.pc {
            CollectPc::Look => {
                self.slot = Slot::unpack(m.load(self.ring.slot(self.index)));
                let retired = matches!(self.slot.state, SlotState::Last(_)) || self.all;
                if !retired || self.slot.envelope().is_none_or(|e| e >= self.ring.envelopes) {
                    return Some(Collected::Nothing);
                }
                let look = !self.all;
                self.pc = if look { CollectPc::Used } else { CollectPc::Intend };
            }
            CollectPc::Used => {
                m.fence_after_rmw();
                let used = m.load(self.pins.used).min(u64::from(self.pins.count)) as u32;
                self.pc = if used == 0 { CollectPc::Intend } else { CollectPc::Scan(0, used) };
            }
            CollectPc::Scan(i, used) => {
                if let Some((member, index)) = Pins::named(m.load(self.pins.pin(i)))
                    && index == self.index
                {
                    return Some(Collected::Pinned(i, member));
                }
                let more = i + 1 < used;
                self.pc = if more { CollectPc::Scan(i + 1, used) } else { CollectPc::Intend };
            }
            CollectPc::Intend => {
                m.store(self.intent, u64::from(self.envelope()) + 1);
                self.pc = CollectPc::Take;
            }
            CollectPc::Take => {
                let free = Slot { state: SlotState::Empty, ..self.slot.taken() };
                let slot = self.ring.slot(self.index);
                let taken = m.cas(slot, self.slot.pack(), free.pack()).is_ok();
                self.pc = if taken { CollectPc::Claim } else { CollectPc::Lost };
            }
            CollectPc::Lost => {
                m.store(self.intent, 0);
                return Some(Collected::Nothing);
            }
            // As a consumer does: the caller's intent keeps sweepers away.
            CollectPc::Claim => {
                let to = Holder::Member(self.me);
                let found = m.add(self.owners.of(self.envelope()), Owner::queued_to(to));
                let found = Owner::unpack(found);
                self.owner = found.then(to);
                let queued = found.holder == Holder::Queued;
                self.pc = if queued { CollectPc::Clear(true) } else { CollectPc::Undo };
            }
            CollectPc::Undo => {
                let to = Holder::Member(self.me);
                m.add(self.owners.of(self.envelope()), Owner::queued_to(to).wrapping_neg());
                self.pc = CollectPc::Clear(false);
            }
            CollectPc::Clear(mine) => {
                m.store(self.intent, 0);
                return Some(match mine {
                    true => Collected::Taken(self.envelope(), self.owner),
                    false => Collected::Nothing,
                });
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RetirePc {
    Head,
    Look,
    Swap,
    Advance(Option<u32>),
}

/// Retires the oldest message, if there are more than are kept once the ticket `newest` is published. Ends with the slot that is
/// to be collected; then there may be more to retire. `None`: there is no more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Retire {
    ring: RingAt,
    keep: u32,
    newest: Ticket,
    head: Ticket,
    slot: Slot,
    pc: RetirePc,
}

impl Retire {
    /// Of `ring`, which keeps `keep` messages.
    pub fn new(ring: RingAt, keep: u32, newest: Ticket) -> Self {
        let slot = Slot { lap: 0, state: SlotState::Empty };
        Self { ring, keep, newest, head: newest, slot, pc: RetirePc::Head }
    }
}

impl Steps for Retire {
    type Out = Option<u32>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u32>> {
        match self.pc {
            RetirePc::Head => {
                self.head = Ticket::unpack(m.load(self.ring.head));
                let there = ahead(self.newest.next(self.ring.slots), self.head, self.ring.slots);
                if there.is_none_or(|n| n <= u64::from(self.keep)) {
                    return Some(None);
                }
                self.pc = RetirePc::Look;
            }
            RetirePc::Look => {
                self.slot = Slot::unpack(m.load(self.ring.slot(self.head.index)));
                self.pc = match (self.head.lag(self.slot), self.slot.state) {
                    (Lag::At, SlotState::Full(_)) => RetirePc::Swap,
                    (Lag::At, SlotState::Last(_)) => RetirePc::Advance(Some(self.head.index)),
                    (Lag::Ahead, _) => RetirePc::Advance(None),
                    _ => return Some(None),
                };
            }
            RetirePc::Swap => {
                let Some(content) = self.slot.content() else { return Some(None) };
                let retired = Slot { state: SlotState::Last(content), ..self.slot };
                _ = m.cas(self.ring.slot(self.head.index), self.slot.pack(), retired.pack());
                self.pc = RetirePc::Advance(Some(self.head.index));
            }
            // After the slot: what is before the head is retired.
            RetirePc::Advance(collect) => {
                _ = m.cas(self.ring.head, self.head.pack(), self.head.next(self.ring.slots).pack());
                self.pc = RetirePc::Head;
                return collect.map(Some);
            }
        }
        None
    }
}

/// Where a sender may publish.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Room {
    /// Under this ticket.
    At(Ticket),
    /// The slot of this ticket has a retired message, to be collected or passed over.
    Retired(Ticket, Slot),
    /// The slot of this ticket has a message that is not even retired.
    Old(Ticket),
    /// Nowhere: the words make no sense.
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RoomPc {
    Tail,
    Look,
    Help(Slot),
}

/// Looks where a sender may publish.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindRoom {
    ring: RingAt,
    ticket: Ticket,
    turns: Turns,
    pc: RoomPc,
}

impl FindRoom {
    /// In `ring`.
    pub fn new(ring: RingAt) -> Self {
        Self { ring, ticket: Ticket { lap: 0, index: 0 }, turns: Turns::default(), pc: RoomPc::Tail }
    }
}

impl Steps for FindRoom {
    type Out = Room;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Room> {
        match self.pc {
            RoomPc::Tail => {
                self.ticket = Ticket::unpack(m.load(self.ring.tail));
                self.pc = RoomPc::Look;
            }
            RoomPc::Look => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.ticket.index)));
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Empty) => return Some(Room::At(self.ticket)),
                    (Lag::At, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _) => {
                        self.pc = RoomPc::Help(slot);
                    }
                    (Lag::Behind, SlotState::Last(_)) => return Some(Room::Retired(self.ticket, slot)),
                    (Lag::Behind, SlotState::Full(_)) => return Some(Room::Old(self.ticket)),
                    _ => return Some(Room::None),
                }
            }
            RoomPc::Help(slot) => {
                if !self.turns.one_more() {
                    return Some(Room::None);
                }
                let next = self.ticket.over(slot, self.ring.slots);
                _ = m.cas(self.ring.tail, self.ticket.pack(), next.pack());
                self.pc = RoomPc::Tail;
            }
        }
        None
    }
}

/// Passes over a ticket whose slot is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PassOver {
    slot: Word,
    seen: Slot,
    lap: u64,
}

impl PassOver {
    /// Of a [`Room::Retired`].
    pub fn new(ring: RingAt, ticket: Ticket, seen: Slot) -> Self {
        Self { slot: ring.slot(ticket.index), seen, lap: ticket.lap }
    }
}

impl Steps for PassOver {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let over = Slot { lap: self.lap, ..self.seen };
        _ = m.cas(self.slot, self.seen.pack(), over.pack());
        Some(())
    }
}
