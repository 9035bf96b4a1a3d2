//! State of a tick.

use super::{ClockAt, ending_bit};
use crate::mem::{Mem, Steps};
use crate::words::{ClockPhase, ClockState, END_OF_TICKS, Tick};

/// State of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TickStatus {
    /// The work before it is done.
    Complete,
    /// Submitted: it will be done, or its owner dies before.
    Pending,
    /// Never done: its owner died before. The process id of the owner, if the clock has no later owner.
    Died(Option<u32>),
    /// No owner has submitted it.
    Forged,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    Submitted(ClockState),
    Done(ClockState),
    DiedAt(ClockState),
    Process(ClockState),
    OldEndings(ClockState),
    OldDiedAt(ClockState),
    Recheck(ClockState, TickStatus),
}

/// Checks if a tick of a clock is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CheckTick {
    at: ClockAt,
    tick: Tick,
    pc: Pc,
}

impl CheckTick {
    /// Creates the steps. `at`: position of the tick's clock.
    pub fn new(at: ClockAt, tick: Tick) -> Self {
        Self { at, tick, pc: Pc::Load }
    }

    fn of_an_epoch_before(&self, state: ClockState) -> Result<Pc, TickStatus> {
        let (epoch, died) = (self.tick.epoch(), state.first_died);
        match state.epoch - epoch {
            _ if died == 0 || epoch < died => Err(TickStatus::Complete),
            1..64 => Ok(Pc::OldEndings(state)),
            _ => Err(TickStatus::Died(None)),
        }
    }
}

impl Steps for CheckTick {
    type Out = TickStatus;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<TickStatus> {
        let (at, tick) = (self.at, self.tick);
        self.pc = match self.pc {
            Pc::Load => {
                let state = ClockState::unpack(m.load(at.state()));
                match state.phase {
                    _ if tick.count() == 0 || tick.epoch() == 0 => return Some(TickStatus::Forged),
                    _ if tick.epoch() > state.epoch => return Some(TickStatus::Forged),
                    _ if tick.epoch() < state.epoch => match self.of_an_epoch_before(state) {
                        Ok(next) => next,
                        Err(known) => return Some(known),
                    },
                    _ => Pc::Submitted(state),
                }
            }
            Pc::Submitted(state) => {
                let submitted = m.load(at.submitted());
                match state.phase {
                    _ if tick.value() > submitted => Pc::Recheck(state, TickStatus::Forged),
                    ClockPhase::Free | ClockPhase::Claiming { died: false, .. } => {
                        Pc::Recheck(state, TickStatus::Complete)
                    }
                    ClockPhase::Dead | ClockPhase::Claiming { died: true, .. } => Pc::DiedAt(state),
                    ClockPhase::Live(_) | ClockPhase::Left(_) | ClockPhase::Ending(_) => Pc::Done(state),
                }
            }
            Pc::Done(state) => match m.load(at.done()) {
                END_OF_TICKS => Pc::DiedAt(state),
                done if done >= tick.value() => Pc::Recheck(state, TickStatus::Complete),
                _ => Pc::Recheck(state, TickStatus::Pending),
            },
            Pc::DiedAt(state) => {
                let died_at = m.load(at.died_at());
                match state.phase {
                    _ if tick.value() <= died_at => Pc::Recheck(state, TickStatus::Complete),
                    // Claimed again: the process id belongs to the next owner.
                    ClockPhase::Claiming { .. } => Pc::Recheck(state, TickStatus::Died(None)),
                    ClockPhase::Dead => Pc::Process(state),
                    // Other processes may find more of it done.
                    _ => Pc::Recheck(state, TickStatus::Pending),
                }
            }
            Pc::Process(state) => {
                let pid = Some(m.load(at.process()) as u32).filter(|pid| *pid != 0);
                Pc::Recheck(state, TickStatus::Died(pid))
            }
            Pc::OldEndings(state) => {
                if m.load(at.endings()) & ending_bit(tick.epoch()) != 0 {
                    Pc::Recheck(state, TickStatus::Complete)
                } else {
                    Pc::OldDiedAt(state)
                }
            }
            Pc::OldDiedAt(state) => {
                let died_at = m.load(at.died_at());
                let done = Tick::epoch_of(died_at) == tick.epoch() && tick.value() <= died_at;
                Pc::Recheck(state, if done { TickStatus::Complete } else { TickStatus::Died(None) })
            }
            Pc::Recheck(state, found) => {
                if m.load(at.state()) == state.pack() {
                    return Some(found);
                }
                Pc::Load
            }
        };
        None
    }
}
