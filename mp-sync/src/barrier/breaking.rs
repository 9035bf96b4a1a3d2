//! Breaking and repair of a barrier. Causes of a break are a time-out, an abort, a dead party and a failed
//! action.

use mp_core::Result;
use mp_core::words::Member;

use super::Barrier;
use crate::error::PeerProcess;
use crate::steps::barrier::{Break, BreakCause, CompletePhase, Phase, PhaseOutcome, Reset};

impl Barrier {
    /// Breaks a phase. Returns `true` if this call broke it.
    pub(super) fn break_phase(&self, phase: Phase, how: BreakCause) -> bool {
        let broken = self.shared.run(Break::new(self.at(), phase, how));
        if broken {
            self.parking().notify_all();
        }
        broken
    }

    /// Returns the last party of a phase if it has arrived and runs its action.
    pub(super) fn acting(&self, phase: Phase) -> Option<Member> {
        let word = self.shared.load(self.column(0) + u64::from(self.parties - 1));
        Phase { broken: None, ..phase }.arrived(word).filter(|_| Phase::acts(word))
    }

    /// Returns a dead party that has arrived in this phase or is enrolled. While the last party runs its
    /// action, only the death of that party counts.
    pub(super) fn dead(&self, phase: Phase) -> Option<PeerProcess> {
        if let Some(m) = self.acting(phase) {
            return self.shared.is_dead(m).then(|| self.recorded_party(1, self.parties - 1, m));
        }
        let mut arrived = self.arrivals(phase).filter(|&(_, m)| self.shared.is_dead(m));
        if let Some((i, m)) = arrived.next() {
            return Some(self.recorded_party(1, i, m));
        }
        let party = self.party_slots().find(|seen| self.shared.is_dead(seen.slot.member))?;
        Some(self.recorded_party(3, party.index, party.slot.member))
    }

    /// Breaks a phase if it has not ended and a party is dead. Returns the dead party.
    pub(super) fn break_if_dead(&self, phase: Phase) -> Option<PeerProcess> {
        // The last party may have died before it ended the phase.
        self.complete(CompletePhase::new(self.at(), phase));
        if phase.outcome(self.phase()) != PhaseOutcome::Open {
            return None;
        }
        let died = self.dead(phase)?;
        self.break_phase(phase, BreakCause::Died);
        Some(died)
    }

    /// Breaks the barrier: parties that wait or arrive get
    /// [`BarrierError::Aborted`](crate::BarrierError::Aborted). Does nothing if the barrier is broken
    /// already.
    ///
    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn abort(&self) -> Result<()> {
        self.shared.me()?;
        loop {
            let phase = self.phase();
            if phase.broken.is_some() || self.break_phase(phase, BreakCause::Aborted) {
                return Ok(());
            }
        }
    }

    /// Repairs the barrier. Waiters get [`BarrierError::Reset`](crate::BarrierError::Reset). Enrollments of
    /// dead processes end.
    ///
    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn reset(&self) -> Result<()> {
        self.shared.me()?;
        for seen in self.party_slots() {
            if self.shared.is_dead(seen.slot.member) {
                self.leave(seen);
            }
        }
        self.shared.run(Reset::new(self.at()));
        self.parking().notify_all();
        Ok(())
    }
}

/// Guard of a party that runs its action. If the action panics, unwinding drops the guard, and the drop
/// breaks the barrier.
pub(super) struct ActionGuard<'a> {
    pub(super) barrier: &'a Barrier,
    pub(super) me: Member,
    pub(super) phase: Phase,
}

impl Drop for ActionGuard<'_> {
    fn drop(&mut self) {
        // The action belongs to the parent, not to a forked copy.
        if self.barrier.shared.me().ok() == Some(self.me) {
            self.barrier.break_phase(self.phase, BreakCause::Aborted);
        }
    }
}
