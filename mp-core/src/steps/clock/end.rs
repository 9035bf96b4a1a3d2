//! End of a clock whose owner is dead.

use super::ClockAt;
use crate::mem::{Mem, Steps};
use crate::words::{ClockPhase, ClockState, END_OF_TICKS, Member, Tick};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    Begin(ClockState),
    Back(ClockState, ClockPhase),
    DiedAt(ClockState),
    Done(ClockState, u64),
    Raise(ClockState, u64, u64),
    Release(ClockState, u64),
    When(ClockState),
    Dead(ClockState),
    // For a dead clock: checks if a late write of its owner's device has replaced the end of all ticks.
    Recheck(ClockState),
    ReleaseAgain(u64),
}

/// Ends a clock whose owner is dead. If the clock was already ended, and the dead owner's device has replaced
/// [`END_OF_TICKS`] by a late write, restores that value.
///
/// Ends with `true` if the clock is ended. Otherwise ends with `false`: the clock belongs to another member,
/// or has no owner. Any number of processes can run these steps at once, each any number of times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndClock {
    at: ClockAt,
    member: Option<Member>,
    now: u64,
    pc: Pc,
}

impl EndClock {
    /// Creates the steps to end the clock if it belongs to the dead member `member`. If `member` is `None`,
    /// the steps only restore the value of an ended clock. `now` is the time in milliseconds.
    pub fn new(at: ClockAt, member: Option<Member>, now: u64) -> Self {
        Self { at, member, now, pc: Pc::Load }
    }
}

impl Steps for EndClock {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let at = self.at;
        self.pc = match self.pc {
            Pc::Load => {
                let state = ClockState::unpack(m.load(at.state()));
                match state.phase {
                    ClockPhase::Dead => Pc::Recheck(state),
                    _ if state.member().is_none() || state.member() != self.member => {
                        return Some(false);
                    }
                    ClockPhase::Claiming { died: true, .. } => Pc::Back(state, ClockPhase::Dead),
                    ClockPhase::Claiming { died: false, .. } => Pc::Back(state, ClockPhase::Free),
                    ClockPhase::Ending(_) => Pc::DiedAt(state),
                    _ => Pc::Begin(state),
                }
            }
            // The value that a dead claimer wrote may stay: it is above all ticks of the ended epoch.
            Pc::Back(state, phase) => {
                _ = m.cas(at.state(), state.pack(), state.with(phase).pack());
                Pc::Load
            }
            // From here on no process claims the clock.
            Pc::Begin(state) => {
                let Some(member) = state.member() else { return Some(false) };
                let ending = state.with(ClockPhase::Ending(member));
                match m.cas(at.state(), state.pack(), ending.pack()) {
                    Ok(()) => Pc::DiedAt(ending),
                    Err(_) => Pc::Load,
                }
            }
            Pc::DiedAt(state) => Pc::Done(state, m.load(at.died_at())),
            Pc::Done(state, died) => match m.load(at.done()) {
                END_OF_TICKS => Pc::When(state),
                // Other processes have ended the clock, and it has another owner.
                done if Tick::epoch_of(done) > state.epoch => Pc::Load,
                // The progress is recorded before it is overwritten.
                done if died < done => Pc::Raise(state, died, done),
                done => Pc::Release(state, done),
            },
            Pc::Raise(state, died, done) => match m.cas(at.died_at(), died, done) {
                Ok(()) => Pc::Release(state, done),
                Err(_) => Pc::Load,
            },
            Pc::Release(state, done) => {
                let end = END_OF_TICKS;
                match m.cas(at.done(), done, end) {
                    Ok(()) => Pc::When(state),
                    Err(_) => Pc::Load,
                }
            }
            Pc::When(state) => {
                m.store_relaxed(at.when(), self.now);
                Pc::Dead(state)
            }
            Pc::Dead(state) => {
                let first_died = if state.first_died == 0 { state.epoch } else { state.first_died };
                let dead = ClockState { phase: ClockPhase::Dead, first_died, ..state };
                match m.cas(at.state(), state.pack(), dead.pack()) {
                    Ok(()) => return Some(true),
                    Err(_) => Pc::Load,
                }
            }
            Pc::Recheck(state) => {
                let done = m.load(at.done());
                // A dead or a live claimer may have begun the next epoch.
                let next = Tick::epoch_of(done) > state.epoch;
                if next || done == END_OF_TICKS {
                    return Some(true);
                }
                Pc::ReleaseAgain(done)
            }
            Pc::ReleaseAgain(done) => {
                _ = m.cas(at.done(), done, END_OF_TICKS);
                return Some(true);
            }
        };
        None
    }
}
