//! State of a tick.

use super::{ClockAt, ending_bit};
use crate::mem::{Mem, Steps};
use crate::words::{ClockPhase, ClockState, END_OF_TICKS, Tick};

/// State of a tick, according to the words of its clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TickState {
    /// The work before the tick is done.
    Complete,
    /// The tick was submitted and is not complete.
    Pending,
    /// The process that submitted the tick died, or lost its device, before the tick was complete. The tick
    /// never completes.
    Died {
        /// Process ID of the owner, if the clock has no later owner.
        pid: Option<u32>,
    },
    /// No owner of the clock has submitted the tick: a process that waits for it would wait forever.
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
    Recheck(ClockState, TickState),
}

/// Checks if a tick is done. Ends with the state of the tick.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CheckTick {
    at: ClockAt,
    tick: Tick,
    pc: Pc,
}

impl CheckTick {
    /// Creates the steps to check `tick`, whose clock is at `at`.
    pub fn new(at: ClockAt, tick: Tick) -> Self {
        Self { at, tick, pc: Pc::Load }
    }

    fn of_an_epoch_before(&self, state: ClockState) -> Result<Pc, TickState> {
        let (epoch, died) = (self.tick.epoch(), state.first_died);
        match state.epoch - epoch {
            _ if died == 0 || epoch < died => Err(TickState::Complete),
            1..64 => Ok(Pc::OldEndings(state)),
            _ => Err(TickState::Died { pid: None }),
        }
    }
}

impl Steps for CheckTick {
    type Out = TickState;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<TickState> {
        let (at, tick) = (self.at, self.tick);
        self.pc = match self.pc {
            Pc::Load => {
                let state = ClockState::unpack(m.load(at.state()));
                match state.phase {
                    _ if tick.count() == 0 || tick.epoch() == 0 => return Some(TickState::Forged),
                    _ if tick.epoch() > state.epoch => return Some(TickState::Forged),
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
                    _ if tick.value() > submitted => Pc::Recheck(state, TickState::Forged),
                    ClockPhase::Free | ClockPhase::Claiming { died: false, .. } => {
                        Pc::Recheck(state, TickState::Complete)
                    }
                    ClockPhase::Dead | ClockPhase::Claiming { died: true, .. } => Pc::DiedAt(state),
                    ClockPhase::Live(_) | ClockPhase::Left(_) | ClockPhase::Ending(_) => Pc::Done(state),
                }
            }
            Pc::Done(state) => match m.load(at.done()) {
                END_OF_TICKS => Pc::DiedAt(state),
                done if done >= tick.value() => Pc::Recheck(state, TickState::Complete),
                _ => Pc::Recheck(state, TickState::Pending),
            },
            Pc::DiedAt(state) => {
                let died_at = m.load(at.died_at());
                match state.phase {
                    _ if tick.value() <= died_at => Pc::Recheck(state, TickState::Complete),
                    // A claimer may have written its own process id.
                    ClockPhase::Claiming { .. } => Pc::Recheck(state, TickState::Died { pid: None }),
                    ClockPhase::Dead => Pc::Process(state),
                    // Processes that end the clock may still find the tick done.
                    _ => Pc::Recheck(state, TickState::Pending),
                }
            }
            Pc::Process(state) => {
                let pid = Some(m.load(at.process()) as u32).filter(|pid| *pid != 0);
                Pc::Recheck(state, TickState::Died { pid })
            }
            Pc::OldEndings(state) => {
                if m.load(at.endings()) & ending_bit(tick.epoch()) != 0 {
                    Pc::Recheck(state, TickState::Complete)
                } else {
                    Pc::OldDiedAt(state)
                }
            }
            Pc::OldDiedAt(state) => {
                let died_at = m.load(at.died_at());
                let done = Tick::epoch_of(died_at) == tick.epoch() && tick.value() <= died_at;
                Pc::Recheck(state, if done { TickState::Complete } else { TickState::Died { pid: None } })
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
