//! Claiming and releasing a clock.

use super::{ClockAt, ending_bit};
use crate::mem::{Mem, Steps};
use crate::words::{ClockPhase, ClockState, Member, Tick};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    LeftSubmitted(ClockState),
    LeftDone(ClockState, u64),
    Swap(ClockState),
    EndedAt(ClockState),
    EndedWell(ClockState, u64),
    LoadEndings(ClockState, bool),
    StoreEndings(ClockState, bool, u64),
    /// Writes the owner's process id and start time, and the first values of the clock.
    Fill(ClockState, u8),
    Live(ClockState),
}

/// Claims a clock that is free, that is dead, or that was released and whose ticks are all done. Ends with
/// the new epoch, or `None` if the clock is in another state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimClock {
    at: ClockAt,
    me: Member,
    process: (u32, u64),
    dead: bool,
    pc: Pc,
}

impl ClaimClock {
    /// Creates the steps for the member `me`, with its process id and start time. If `dead` is `true`, a dead
    /// clock may be claimed.
    pub fn new(at: ClockAt, me: Member, process: (u32, u64), dead: bool) -> Self {
        Self { at, me, process, dead, pc: Pc::Load }
    }
}

impl Steps for ClaimClock {
    type Out = Option<u16>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        let at = self.at;
        self.pc = match self.pc {
            Pc::Load => {
                let state = ClockState::unpack(m.load(at.state()));
                match state.phase {
                    // No epoch is left for another owner.
                    _ if state.epoch == u16::MAX => return Some(None),
                    ClockPhase::Free => Pc::Swap(state),
                    ClockPhase::Left(_) => Pc::LeftSubmitted(state),
                    ClockPhase::Dead if self.dead => Pc::Swap(state),
                    _ => return Some(None),
                }
            }
            Pc::LeftSubmitted(state) => Pc::LeftDone(state, m.load(at.submitted())),
            Pc::LeftDone(state, submitted) => {
                if m.load(at.done()) != submitted {
                    return Some(None);
                }
                Pc::Swap(state)
            }
            Pc::Swap(state) => {
                let died = state.phase == ClockPhase::Dead;
                let mine = state.with(ClockPhase::Claiming { by: self.me, died });
                if m.cas(at.state(), state.pack(), mine.pack()).is_err() {
                    return Some(None);
                }
                if died { Pc::EndedAt(mine) } else { Pc::LoadEndings(mine, true) }
            }
            // Checks if all ticks known to any process are done. (Unknown if a claimer died here.)
            Pc::EndedAt(mine) => Pc::EndedWell(mine, m.load(at.died_at())),
            Pc::EndedWell(mine, died_at) => Pc::LoadEndings(mine, m.load(at.submitted()) <= died_at),
            Pc::LoadEndings(mine, well) => Pc::StoreEndings(mine, well, m.load(at.endings())),
            Pc::StoreEndings(mine, well, endings) => {
                let bit = ending_bit(mine.epoch);
                let endings = if well { endings | bit } else { endings & !bit };
                m.store(at.endings(), endings);
                Pc::Fill(mine, 0)
            }
            Pc::Fill(mine, i) => {
                let base = Tick::base(mine.epoch + 1);
                match i {
                    0 => m.store(at.process(), u64::from(self.process.0)),
                    1 => m.store(at.start(), self.process.1),
                    2 => m.store(at.submitted(), base),
                    _ => m.store(at.done(), base),
                }
                if i < 3 { Pc::Fill(mine, i + 1) } else { Pc::Live(mine) }
            }
            Pc::Live(mine) => {
                let epoch = mine.epoch + 1;
                m.store(at.state(), ClockState { phase: ClockPhase::Live(self.me), epoch, ..mine }.pack());
                return Some(Some(epoch));
            }
        };
        None
    }
}

/// Releases a clock of the caller. The caller submits no more ticks in this epoch. Ends with `true` if the
/// clock is free, and with `false` if its last ticks are not done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseClock {
    at: ClockAt,
    submitted: u64,
    pc: Option<(ClockState, Option<bool>)>,
}

impl ReleaseClock {
    /// Creates the steps. `submitted` is the last tick that the owner submitted.
    pub fn new(at: ClockAt, submitted: u64) -> Self {
        Self { at, submitted, pc: None }
    }
}

impl Steps for ReleaseClock {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        match self.pc {
            None => self.pc = Some((ClockState::unpack(m.load(self.at.state())), None)),
            Some((state, None)) => {
                let done = m.load(self.at.done()) == self.submitted;
                self.pc = Some((state, Some(done)));
            }
            Some((state, Some(done))) => {
                let ClockPhase::Live(me) = state.phase else { return Some(false) };
                let next = state.with(if done { ClockPhase::Free } else { ClockPhase::Left(me) });
                return Some(m.cas(self.at.state(), state.pack(), next.pack()).is_ok() && done);
            }
        }
        None
    }
}
