//! Steps of a condition: notifications are tokens in the slots of waiters.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | slot, see [`slot`](super::slot) | [`EMPTY`](super::slot::EMPTY) | a thread that is about to wait → `WAITING`, before it releases the lock |
//! |  | [`WAITING`] | its owner → [`ASLEEP`], or `EMPTY` when its time has expired; a notifier → [`NOTIFIED`] |
//! |  | [`ASLEEP`] | a notifier → `NOTIFIED`, and wakes the owner; its owner → `EMPTY` when its time has expired |
//! |  | [`NOTIFIED`] | its owner, when it takes the notification → `EMPTY`; if the owner is dead, another waiter, or a thread that finds no free slot, takes the slot over → `NOTIFIED` |
//! | turn: one more than the slot of the last notification | a hint: the slot at which a round begins. A running round does not read it, since other notifiers change it | notifiers |
//!
//! # Effect of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | waiting | `WAITING` or `ASLEEP` of a dead process | a waiter clears the slot; if a notification arrives first, see the next row |
//! | notified, before it took its token | `NOTIFIED` of a dead process | a waiter takes over the token by one swap, and is notified |
//! | notified, while all slots are in use | `NOTIFIED` of a dead process | a thread that wants to wait takes the slot with its token, and is notified |
//! | after it took over a token, before it released its own slot | two slots of a dead process | a waiter takes over the token as above, the other slot is cleared |
//! | notifying, before it woke the sleeper | `NOTIFIED` | the sleeper checks within a poll interval |
//!
//! So a notification reaches exactly one live waiter, with one exception. A waiter that took over a dead
//! waiter's token may also find a token in its own slot. It then gives one token to another waiter. If it is
//! killed before it releases its own slot, two waiters get that token. No waiter waits longer than a poll
//! interval for a notification that was given to a dead process.

use mp_core::mem::{Mem, Steps, Word};

use super::slot::{HELD, HolderSlot, OPEN, ObservedSlot, RETAINED, Slots};

/// State of a slot whose owner waits and is awake.
pub const WAITING: u8 = OPEN;
/// State of a slot whose owner waits and has to be woken.
pub const ASLEEP: u8 = HELD;
/// State of a slot whose owner has been notified.
pub const NOTIFIED: u8 = RETAINED;

/// Result of [`Notify`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotifyOutcome {
    /// A waiter got the token.
    Delivered {
        /// Slot of the waiter, in its new state.
        seen: ObservedSlot,
        /// `true` if the waiter has to be woken.
        asleep: bool,
        /// Steps for the next token of the round, unless the round has reached all slots.
        next: Option<Notify>,
    },
    /// No thread waits.
    NoWaiter,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Used,
    Turn,
    Load,
    Deliver(HolderSlot),
    RecordTurn(HolderSlot),
}

/// Gives one token to a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Notify {
    slots: Slots,
    turn: Word,
    used: u32,
    at: u32,
    left: u32,
    pc: Pc,
}

impl Notify {
    /// Creates the steps for the first notification of a round. A round loads every slot once, in a circle
    /// that begins after the slot notified last. Every thread that waits when the round begins, and continues
    /// to wait, is notified, whatever other notifiers do meanwhile.
    pub fn new(slots: Slots, turn: Word) -> Self {
        Self { slots, turn, used: 0, at: 0, left: 0, pc: Pc::Used }
    }

    /// Continues the round at the next slot. Returns `None` at its end.
    fn next(self) -> Option<Self> {
        let at = if self.at + 1 < self.used { self.at + 1 } else { 0 };
        (self.left > 1).then_some(Self { at, left: self.left - 1, pc: Pc::Load, ..self })
    }
}

impl Steps for Notify {
    type Out = NotifyOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<NotifyOutcome> {
        match self.pc {
            Pc::Used => {
                m.fence_after_rmw();
                self.used = (m.load(self.slots.used) as u32).min(self.slots.limit);
                self.left = self.used;
                self.pc = Pc::Turn;
                return (self.left == 0).then_some(NotifyOutcome::NoWaiter);
            }
            Pc::Turn => {
                let turn = m.load_relaxed(self.turn) as u32;
                self.at = if turn < self.used { turn } else { 0 };
                self.pc = Pc::Load;
            }
            Pc::Load => {
                let slot = HolderSlot::unpack(m.load(self.slots.at(self.at)));
                match slot.state {
                    WAITING | ASLEEP => self.pc = Pc::Deliver(slot),
                    _ => match self.next() {
                        Some(next) => *self = next,
                        None => return Some(NotifyOutcome::NoWaiter),
                    },
                }
            }
            Pc::Deliver(slot) => {
                let given = slot.into_state(NOTIFIED);
                if m.cas(self.slots.at(self.at), slot.pack(), given.pack()).is_ok() {
                    self.pc = Pc::RecordTurn(slot);
                } else {
                    // The owner of the slot fell asleep or left: load the slot again.
                    self.pc = Pc::Load;
                }
            }
            Pc::RecordTurn(slot) => {
                m.store_relaxed(self.turn, u64::from(self.at) + 1);
                let seen = ObservedSlot { index: self.at, slot: slot.into_state(NOTIFIED) };
                return Some(NotifyOutcome::Delivered {
                    seen,
                    asleep: slot.state == ASLEEP,
                    next: self.next(),
                });
            }
        }
        None
    }
}
