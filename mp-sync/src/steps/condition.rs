//! Notifications, as tokens in the slots of waiters.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | slot, see [`slot`](super::slot) | [`EMPTY`](super::slot::EMPTY) | a thread that is about to wait → `WAITING`, before it releases the lock |
//! |  | [`WAITING`] | it → [`ASLEEP`], or `EMPTY` when its time is over; a notifier → [`NOTIFIED`] |
//! |  | [`ASLEEP`] | a notifier → `NOTIFIED`, and wakes it; it → `EMPTY` when its time is over |
//! |  | [`NOTIFIED`] | it → `EMPTY`: it has its notification; if it is dead, another one that waits, or finds no slot to wait in → `NOTIFIED`, of its own |
//! | turn: where the last notification went | a hint: where a row begins; never where it goes on, since others set it back | notifiers |
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | waiting | `WAITING` or `ASLEEP` of a dead process | a waiter clears it; a notification may come first, see below |
//! | notified, before it took its token | `NOTIFIED` of a dead process | a waiter takes the token over by one swap, and has it |
//! | notified, while all slots are in use | `NOTIFIED` of a dead process | a thread that wants to wait takes the slot with its token, and has it |
//! | having taken a token over, its own place not yet given up | two slots of a dead process | the token is passed on as above, the other is cleared |
//! | notifying, before it woke the sleeper | `NOTIFIED` | the sleeper looks within a poll interval |
//!
//! So a notification reaches exactly one live waiter, with one exception: a waiter that took over a dead
//! waiter's token and finds that it has one of its own by now gives it to another waiter; if it is killed
//! between that and giving it up, two have it. No waiter waits longer than a poll interval for a notification that
//! was given to a dead process.

use mp_core::mem::{Mem, Steps, Word};

use super::slot::{HELD, KEPT, OPEN, Seen, Slot, Slots};

/// Waits, awake.
pub const WAITING: u8 = OPEN;
/// Waits, and has to be woken.
pub const ASLEEP: u8 = HELD;
/// Has been notified.
pub const NOTIFIED: u8 = KEPT;

/// What a notifier has done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Notified {
    /// It gave the token to this one, which sleeps if `asleep`.
    Given {
        /// The slot, as it is now.
        seen: Seen,
        /// Whether it has to be woken.
        asleep: bool,
        /// What gives the next token of the row, if there are more to look at.
        next: Option<Notify>,
    },
    /// There is no waiter.
    NoWaiter,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Used,
    Turn,
    Look,
    Give(Slot),
    Note(Slot),
}

/// Gives one token to one that waits.
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
    /// The first one of a row: the row looks at every slot once, in a circle that begins after the one that was notified
    /// last. Every thread that waits when it begins, and continues to wait, is notified, whatever other
    /// notifiers do meanwhile.
    pub fn new(slots: Slots, turn: Word) -> Self {
        Self { slots, turn, used: 0, at: 0, left: 0, pc: Pc::Used }
    }

    /// The same row, at the next slot; nothing at its end.
    fn next(self) -> Option<Self> {
        let at = if self.at + 1 < self.used { self.at + 1 } else { 0 };
        (self.left > 1 + u32::from(mp_core::mutant!("condition.notify.last-missed"))).then_some(Self {
            at,
            left: self.left - 1,
            pc: Pc::Look,
            ..self
        })
    }
}

impl Steps for Notify {
    type Out = Notified;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Notified> {
        match self.pc {
            Pc::Used => {
                if !mp_core::mutant!("condition.notify.fence-away") {
                    m.fence_after_rmw();
                }
                self.used = (m.load(self.slots.used) as u32).min(self.slots.limit);
                self.left = self.used;
                self.pc = Pc::Turn;
                return (self.left == 0).then_some(Notified::NoWaiter);
            }
            Pc::Turn => {
                let turn = m.load_relaxed(self.turn) as u32;
                self.at = if turn < self.used { turn } else { 0 };
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let slot = Slot::unpack(m.load(self.slots.at(self.at)));
                match slot.state {
                    WAITING if mp_core::mutant!("condition.notify.sleepers-only") => {
                        return Some(Notified::NoWaiter);
                    }
                    WAITING | ASLEEP => self.pc = Pc::Give(slot),
                    _ => match self.next() {
                        Some(next) => *self = next,
                        None => return Some(Notified::NoWaiter),
                    },
                }
            }
            Pc::Give(slot) => {
                let given = slot.into_state(NOTIFIED);
                if m.cas(self.slots.at(self.at), slot.pack(), given.pack()).is_ok() {
                    self.pc = Pc::Note(slot);
                } else {
                    // It falls asleep, or is gone: it is looked at again.
                    self.pc = Pc::Look;
                    if mp_core::mutant!("condition.notify.not-looked-again") {
                        return Some(Notified::NoWaiter);
                    }
                }
            }
            Pc::Note(slot) => {
                if !mp_core::mutant!("condition.notify.turn-not-written") {
                    m.store_relaxed(self.turn, u64::from(self.at) + 1);
                }
                let seen = Seen { index: self.at, slot: slot.into_state(NOTIFIED) };
                return Some(Notified::Given {
                    seen,
                    asleep: slot.state == ASLEEP && !mp_core::mutant!("condition.notify.wake-dropped"),
                    next: self.next(),
                });
            }
        }
        None
    }
}
