//! Closing of a ring.

use mp_core::mem::{Mem, Steps};

use super::RingAt;
use super::slot::{Lag, Position, Slot, SlotState, Turns};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Tail,
    Load,
    Help,
    Mark,
}

/// Closes a ring by marking its next slot. Every message published before the mark can still be taken, and
/// none is published after it. (A separate flag would not be enough: a producer that has read the flag before
/// it was set could publish after the consumers have found the end.)
///
/// In a full ring, the next message would go to the slot of the oldest message. This slot is then marked as
/// `LAST`: when its message is taken, the slot becomes `CLOSED`.
///
/// Ends with `true` if this call closed the ring, and with `false` if it was closed already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Close {
    ring: RingAt,
    position: Position,
    slot: Slot,
    turns: Turns,
    pc: Pc,
}

impl Close {
    /// Creates the steps to close `ring`.
    pub fn new(ring: RingAt) -> Self {
        Self { ring, position: Position::NONE, slot: Slot::NONE, turns: Turns::default(), pc: Pc::Tail }
    }
}

impl Steps for Close {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let slot_at = self.ring.slot(self.position.index);
        match self.pc {
            Pc::Tail => {
                self.position = Position::unpack(m.load(self.ring.tail));
                self.pc = Pc::Load;
            }
            Pc::Load => {
                self.slot = Slot::unpack(m.load(slot_at));
                match (self.position.lag(self.slot), self.slot.state) {
                    (Lag::Equal, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return Some(false);
                    }
                    (Lag::Equal, SlotState::Empty) | (Lag::Behind, _) => self.pc = Pc::Mark,
                    (Lag::Equal | Lag::Ahead, _) => self.pc = Pc::Help,
                }
            }
            Pc::Help if !self.turns.one_more() => return Some(false),
            Pc::Help => {
                self.ring.help(m, self.ring.tail, self.position, self.slot);
                self.pc = Pc::Tail;
            }
            Pc::Mark => {
                let state = match self.slot.state {
                    SlotState::Full(e) => SlotState::Last(e),
                    _ => SlotState::Closed,
                };
                let marked = Slot { lap: self.slot.lap, state };
                match m.cas(slot_at, self.slot.pack(), marked.pack()) {
                    Ok(()) => return Some(true),
                    Err(_) => self.pc = Pc::Tail,
                }
            }
        }
        None
    }
}
