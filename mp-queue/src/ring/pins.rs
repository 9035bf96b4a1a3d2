//! Rings with retained messages: readers copy them in place, and senders replace them.
//!
//! `watch` and `broadcast` use such rings. A sender publishes as into any other ring
//! ([`Put::at`](super::Put::at)). Then it *retires* messages beyond the ring's limit, each by one swap of the
//! slot from `FULL` to `LAST`. A reader *pins* the slot of a message, and then checks that the slot's word is
//! unchanged. If so, it reads the message. Otherwise it searches for another message. A retired message that
//! is not pinned is *collected*: taken out of its slot, as a consumer takes a message out of any other ring,
//! and dropped. Small messages are neither pinned nor retired nor collected: see [`RetainedAt`].
//!
//! | word | states | changed by |
//! |---|---|---|
//! | slot | `(lap, EMPTY)`, `(lap, FULL, e)` | as in any ring, but no consumer takes from `FULL` |
//! | | `(lap, FULL, e)` | any sender that has published a later position → `(lap, LAST, e)`: retired |
//! | | `(lap, LAST, e)` | a process that finds no pin for it → `(lap+1, EMPTY)`; a sender that finds it pinned at the slot's next position → `(lap+1, LAST, e)`: that position is skipped |
//! | pin | 0 | a reader → `member, slot + 1` |
//! | | `member, slot + 1` | that reader → 0; if it is dead, any process → 0 |
//! | used | number of pins that may be in use | a reader, before it takes a pin beyond that number → a higher number |
//! | head (hint) | all messages in envelopes before this position are retired | any sender, forward |
//!
//! **No message is dropped while a reader reads it.** A reader writes its pin and then reads the slot again.
//! A collector reads `LAST` in the slot and then reads the pins. Each of them has a full barrier between its
//! two accesses. A reader that still finds `FULL` has written its pin before the slot became `LAST`, so the
//! collector finds the pin. After a reader has cleared its pin, it reads the slot again. If the message was
//! retired meanwhile, the reader collects it.
//!
//! **No process waits for another.** A slot that stays pinned because its reader is stopped is skipped. There
//! are more slots than retained messages and pins together, so at least one slot always has neither a
//! retained nor a pinned message.
//!
//! **Messages have one order.** A position is published by a swap from `(lap, EMPTY)`. A slot reaches that
//! state only after the message of its earlier position was taken out. A skipped position stays skipped
//! forever.
//!
//! | killed | left | other processes |
//! |---|---|---|
//! | while publishing or collecting | the same as in `put` and `get` of any ring | [`Settle`](super::Settle) decides who owns the envelope |
//! | after publishing, before retiring older messages | more envelopes than the limit | the next sender of an envelope retires them |
//! | after retiring, before collecting | a slot that is `LAST` | the next sender after a death, or the next sender that reaches this slot, collects the message |
//! | while pinning or reading | a pin that names the dead member | a process that recovers the dead member, or a collector that finds the pin, clears it |
//! | after increasing `used`, before taking the pin | a pin that is free but counted in `used` | collectors check one pin more |

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::steps::TouchedGroups;
use mp_core::words::{EnvelopeId, Holder, Member, Owner};

use super::RingAt;
use super::get::{claim, unclaim};
use super::retained::{Pins, RetainedAt};
use super::slot::{Lag, Position, Slot, SlotState, Turns};

/// Half of all laps. If the distance from one position to another is at least this number of laps, the second
/// position is the earlier one.
const FAR: u64 = 1 << 37;

/// Returns the number of positions from `earlier` to `position`, or `None` if `position` is before `earlier`.
pub(super) fn distance(position: Position, earlier: Position, slots: u32) -> Option<u64> {
    Some(position.distance_from(earlier, slots)).filter(|&n| n < u64::from(slots) * FAR)
}

/// Result of a [`Pin`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PinOutcome {
    /// The slot is pinned, and keeps its message until this pin is cleared.
    Pinned(u32),
    /// The slot has changed. The caller must clear this pin.
    Changed(u32),
    /// All pins are in use.
    Exhausted,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PinPc {
    Used,
    Raise(u64),
    Claim,
    Load,
}

/// Pins the slot of a message. Checks afterwards that the slot still contains `seen`.
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
    /// Creates the steps for the reader `me`, at slot `index` of `ring`, which contained `seen`.
    pub fn new(ring: RingAt, pins: Pins, me: Member, index: u32, seen: Slot) -> Self {
        let (slot, at) = (ring.slot(index), me.slot() % pins.count.max(1));
        Self { pins, me, slot, index: ring.index(index), seen: seen.pack(), at, tried: 0, pc: PinPc::Used }
    }
}

impl Steps for Pin {
    type Out = PinOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PinOutcome> {
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
            PinPc::Claim => match m.cas(self.pins.pin(self.at), 0, Pins::pack(self.me, self.index)) {
                Ok(()) => self.pc = PinPc::Load,
                Err(_) => {
                    self.tried += 1;
                    if self.tried >= self.pins.count {
                        return Some(PinOutcome::Exhausted);
                    }
                    self.at = (self.at + 1) % self.pins.count;
                    self.pc = PinPc::Used;
                }
            },
            PinPc::Load => {
                m.fence_after_rmw();
                let same = m.load(self.slot) == self.seen;
                return Some(if same { PinOutcome::Pinned(self.at) } else { PinOutcome::Changed(self.at) });
            }
        }
        None
    }
}

/// Clears a pin of `who`, which is the caller or a dead member. Ends with `true` if the message in the slot
/// was retired meanwhile, so that the caller must collect it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unpin {
    pin: Word,
    named: u64,
    slot: Word,
    cleared: bool,
}

impl Unpin {
    /// Creates the steps for pin `pin`, with which `who` has pinned slot `index` of `ring`.
    pub fn new(ring: RingAt, pins: Pins, who: Member, pin: u32, index: u32) -> Self {
        let named = Pins::pack(who, ring.index(index));
        Self { pin: pins.pin(pin), named, slot: ring.slot(index), cleared: false }
    }
}

impl Steps for Unpin {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if !self.cleared {
            self.cleared = true;
            // A read-modify-write: the load that follows must not be reordered before it.
            _ = m.cas(self.pin, self.named, 0);
            return None;
        }
        m.fence_after_rmw();
        let retired = matches!(Slot::unpack(m.load(self.slot)).state, SlotState::Last(_));
        Some(retired)
    }
}

/// Result of a [`Collect`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CollectOutcome {
    /// The message was taken out. Contains the envelope and its new owner word, which names the caller.
    Taken(EnvelopeId, Owner),
    /// A reader has pinned the slot. Contains the number of the pin and the reader.
    Pinned(u32, Member),
    /// The slot has no retired message in an envelope.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum CollectPc {
    Load,
    Used,
    Scan(u32, u32),
    Touch,
    Mark,
    Intend,
    Take,
    Lost,
    Claim,
    Undo,
    Clear(bool),
}

/// Takes a retired message out of its slot, unless a reader has pinned the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Collect {
    ring: RingAt,
    pins: Pins,
    intent: Word,
    owners: Column,
    touched: Option<TouchedGroups>,
    me: Member,
    index: u32,
    slot: Slot,
    owner: Owner,
    all: bool,
    pc: CollectPc,
}

impl Collect {
    /// Creates the steps for slot `index` of `ring`. The new owner of the envelope is `me`, the calling
    /// process. `intent` is the intent word of the calling thread's lane.
    pub fn new(ring: RingAt, pins: Pins, intent: Word, owners: Column, me: Member, index: u32) -> Self {
        let (slot, owner) = (Slot::NONE, Owner { holder: Holder::Free, seq: 0 });
        let (index, touched) = (ring.index(index), None);
        Self { ring, pins, intent, owners, touched, me, index, slot, owner, all: false, pc: CollectPc::Load }
    }

    /// Before an envelope is taken, records in `groups` that the calling process touches the envelope's
    /// group.
    #[must_use]
    pub fn touching(self, groups: TouchedGroups) -> Self {
        Self { touched: Some(groups), ..self }
    }

    /// Takes the message even if it is pinned or not retired, for a ring without readers and senders.
    #[must_use]
    pub fn unconditional(self) -> Self {
        Self { all: true, ..self }
    }

    fn envelope(&self) -> EnvelopeId {
        self.slot.envelope().unwrap_or(0)
    }

    /// Returns the first step after the check of the pins.
    fn first(&self) -> CollectPc {
        if self.touched.is_some() { CollectPc::Touch } else { CollectPc::Intend }
    }
}

impl Steps for Collect {
    type Out = CollectOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<CollectOutcome> {
        match self.pc {
            CollectPc::Load => {
                self.slot = Slot::unpack(m.load(self.ring.slot(self.index)));
                let retired = matches!(self.slot.state, SlotState::Last(_)) || self.all;
                if !retired || self.slot.envelope().is_none_or(|e| e >= self.ring.envelopes) {
                    return Some(CollectOutcome::Nothing);
                }
                let look = !self.all;
                self.pc = if look { CollectPc::Used } else { self.first() };
            }
            CollectPc::Used => {
                m.fence_after_rmw();
                let used = m.load(self.pins.used).min(u64::from(self.pins.count)) as u32;
                self.pc = if used == 0 { self.first() } else { CollectPc::Scan(0, used) };
            }
            CollectPc::Scan(i, used) => {
                if let Some((member, index)) = Pins::unpack(m.load(self.pins.pin(i)))
                    && index == self.index
                {
                    return Some(CollectOutcome::Pinned(i, member));
                }
                let more = i + 1 < used;
                self.pc = if more { CollectPc::Scan(i + 1, used) } else { self.first() };
            }
            CollectPc::Touch => {
                let has = self.touched.is_none_or(|groups| groups.has(m, self.envelope()));
                self.pc = if has { CollectPc::Intend } else { CollectPc::Mark };
            }
            CollectPc::Mark => {
                self.touched.into_iter().for_each(|groups| groups.add(m, self.envelope()));
                self.pc = CollectPc::Intend;
            }
            CollectPc::Intend => {
                m.store(self.intent, u64::from(self.envelope()) + 1);
                self.pc = CollectPc::Take;
            }
            CollectPc::Take => {
                let free = Slot { state: SlotState::Empty, ..self.slot.after_take() };
                let slot = self.ring.slot(self.index);
                let taken = m.cas(slot, self.slot.pack(), free.pack()).is_ok();
                self.pc = if taken { CollectPc::Claim } else { CollectPc::Lost };
            }
            CollectPc::Lost => {
                m.store(self.intent, 0);
                return Some(CollectOutcome::Nothing);
            }
            // As in `Get`: while the caller's intent names the envelope, no recovery takes the envelope over.
            CollectPc::Claim => {
                let (owner, queued) = claim(m, self.owners.of(self.envelope()), Holder::Member(self.me));
                self.owner = owner;
                self.pc = if queued { CollectPc::Clear(true) } else { CollectPc::Undo };
            }
            CollectPc::Undo => {
                unclaim(m, self.owners.of(self.envelope()), Holder::Member(self.me));
                self.pc = CollectPc::Clear(false);
            }
            CollectPc::Clear(mine) => {
                m.store(self.intent, 0);
                return Some(match mine {
                    true => CollectOutcome::Taken(self.envelope(), self.owner),
                    false => CollectOutcome::Nothing,
                });
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RetirePc {
    Head,
    Load,
    Swap,
    Advance(Option<u32>),
}

/// Retires one envelope if the ring has more messages than its limit, after a message was published at
/// `newest`. Ends with the index of a slot to collect, after which the caller must run these steps again.
/// Ends with `None` if no envelope is left to retire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Retire {
    ring: RingAt,
    keep: u32,
    /// Position after the newest message.
    end: Position,
    head: Position,
    /// Position that is examined. Envelopes before it are retired.
    position: Position,
    slot: Slot,
    pc: RetirePc,
}

impl Retire {
    /// Creates the steps for the ring at `at`, after a message was published at `newest`.
    pub fn new(at: RetainedAt, newest: Position) -> Self {
        let (ring, keep, end) = (at.ring, at.keep, newest.next(at.ring.slots));
        Self { ring, keep, end, head: newest, position: newest, slot: Slot::NONE, pc: RetirePc::Head }
    }

    /// Returns the number of positions from `position` to the newest message, or `None` if the ring may keep
    /// all of them.
    fn excess(&self) -> Option<u64> {
        distance(self.end, self.position, self.ring.slots).filter(|&n| n > u64::from(self.keep))
    }
}

impl Steps for Retire {
    type Out = Option<u32>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u32>> {
        match self.pc {
            RetirePc::Head => {
                self.head = Position::unpack(m.load(self.ring.head));
                self.position = self.head;
                let Some(n) = self.excess() else { return Some(None) };
                if n > u64::from(self.ring.slots) {
                    // The slots of all earlier positions are used by later ones.
                    self.position = self.end.minus(self.ring.slots, self.ring.slots);
                }
                self.pc = RetirePc::Load;
            }
            RetirePc::Load => {
                self.slot = Slot::unpack(m.load(self.ring.slot(self.position.index)));
                let in_envelope = self.slot.envelope().is_some();
                self.pc = match (self.position.lag(self.slot), self.slot.state) {
                    (Lag::Equal, SlotState::Full(_)) if in_envelope => RetirePc::Swap,
                    (Lag::Equal, SlotState::Last(_)) if in_envelope => {
                        RetirePc::Advance(Some(self.position.index))
                    }
                    (Lag::Equal, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _) => {
                        self.position = self.position.next(self.ring.slots);
                        if self.excess().is_some() { RetirePc::Load } else { RetirePc::Advance(None) }
                    }
                    _ => return Some(None),
                };
            }
            RetirePc::Swap => {
                let Some(content) = self.slot.content() else { return Some(None) };
                let retired = Slot { state: SlotState::Last(content), ..self.slot };
                _ = m.cas(self.ring.slot(self.position.index), self.slot.pack(), retired.pack());
                self.pc = RetirePc::Advance(Some(self.position.index));
            }
            // The head is advanced after the slot was changed, so all messages in envelopes before the head
            // are retired.
            RetirePc::Advance(collect) => {
                let passed = u32::from(collect.is_some());
                let to = self.position.plus(passed, self.ring.slots);
                _ = m.cas(self.ring.head, self.head.pack(), to.pack());
                return Some(collect);
            }
        }
        None
    }
}

/// Result of `FindPublishSlot`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PublishSlot {
    /// Position at which a sender may publish, and its slot, which is empty or has a replaced small message.
    Free(Position, Slot),
    /// Position whose slot has a retired message. The sender must collect the message or skip the position.
    Retired(Position, Slot),
    /// The slot for the next message still has an envelope that is not retired. The sender must run
    /// [`Retire`] with this position as the newest one.
    Current(Position),
    /// The words of the ring are inconsistent.
    Inconsistent,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PublishSlotPc {
    Tail,
    Load,
    Help(Slot),
}

/// Finds the position at which a sender may publish.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindPublishSlot {
    at: RetainedAt,
    position: Position,
    turns: Turns,
    pc: PublishSlotPc,
}

impl FindPublishSlot {
    /// Creates the steps for the ring at `at`.
    pub fn new(at: RetainedAt) -> Self {
        Self { at, position: Position::NONE, turns: Turns::default(), pc: PublishSlotPc::Tail }
    }
}

impl Steps for FindPublishSlot {
    type Out = PublishSlot;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PublishSlot> {
        let ring = &self.at.ring;
        match self.pc {
            PublishSlotPc::Tail => {
                self.position = Position::unpack(m.load(ring.tail));
                // Fetches the line once, for writing, as `PutSmall` does.
                m.will_write(ring.slot(self.position.index));
                self.pc = PublishSlotPc::Load;
            }
            PublishSlotPc::Load => {
                let slot = Slot::unpack(m.load(ring.slot(self.position.index)));
                let in_envelope = slot.envelope().is_some();
                // The same slot's position in the previous lap.
                let before = self.position.minus(ring.slots, ring.slots);
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Empty) => return Some(PublishSlot::Free(self.position, slot)),
                    (Lag::Equal, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _) => {
                        self.pc = PublishSlotPc::Help(slot);
                    }
                    (Lag::Behind, SlotState::Last(_)) if in_envelope => {
                        return Some(PublishSlot::Retired(self.position, slot));
                    }
                    (Lag::Behind, SlotState::Full(_)) if in_envelope => {
                        return Some(PublishSlot::Current(self.at.replacement(before)));
                    }
                    (Lag::Behind, SlotState::Full(_) | SlotState::Last(_)) if slot.lap == before.lap => {
                        return Some(PublishSlot::Free(self.position, slot));
                    }
                    _ => return Some(PublishSlot::Inconsistent),
                }
            }
            PublishSlotPc::Help(slot) => {
                if !self.turns.one_more() {
                    return Some(PublishSlot::Inconsistent);
                }
                ring.help(m, ring.tail, self.position, slot);
                self.pc = PublishSlotPc::Tail;
            }
        }
        None
    }
}

/// Skips a position whose slot has a pinned message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SkipPosition {
    slot: Word,
    seen: Slot,
    lap: u64,
}

impl SkipPosition {
    /// Creates the steps for a position and its slot, as found in [`PublishSlot::Retired`].
    pub fn new(ring: RingAt, position: Position, seen: Slot) -> Self {
        Self { slot: ring.slot(position.index), seen, lap: position.lap }
    }
}

impl Steps for SkipPosition {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let over = Slot { lap: self.lap, ..self.seen };
        _ = m.cas(self.slot, self.seen.pack(), over.pack());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_distance_is_none_beyond_half_of_all_laps() {
        let (first, far) = (Position { lap: 1, index: 0 }, Position { lap: 1 << 36, index: 3 });
        assert_eq!(distance(far, first, 265), Some(((1 << 36) - 1) * 265 + 3));
        assert_eq!(distance(first, far, 265), None);
    }
}
