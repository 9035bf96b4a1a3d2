//! Arrival and wait as separate steps, for callers that wait in several attempts.

use std::sync::Arc;
use std::time::Duration;

use mp_core::words::Member;
use mp_core::{Wait, WaitPoint, Waitable};

use super::Barrier;
use crate::error::BarrierError;
use crate::steps::barrier::{BreakCause, CompletePhase, Phase, PhaseOutcome};

/// Arrival of a party at a [`Barrier`], by [`Barrier::arrive_timeout`].
///
/// If this value is dropped before a wait has returned the outcome, the barrier breaks: the other parties get
/// [`BarrierError::Aborted`].
#[derive(Debug)]
#[must_use = "dropping it breaks the barrier"]
pub struct BarrierArrival {
    barrier: Barrier,
    me: Member,
    index: u32,
    phase: Phase,
    ended: bool,
}

impl Barrier {
    /// Arrives without waiting for the other parties. Waits, at most `timeout`, only while the last party of
    /// the previous phase runs its action. Returns `None` when the time has expired, without breaking the
    /// barrier.
    ///
    /// If `acts` is `true` and this party is the [last](BarrierArrival::is_last), it has to
    /// [complete](BarrierArrival::complete) the phase.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_sync::Barrier;
    ///
    /// let (step, short) = (Barrier::new(2)?, Duration::from_millis(1));
    /// let mut first = step.arrive_timeout(short, false)?.expect("no action runs");
    /// assert_eq!(first.wait_timeout(short)?, None); // the caller may wait again
    /// let mut last = step.arrive_timeout(short, false)?.expect("no action runs");
    /// assert_eq!((first.wait_timeout(short)?, last.wait_timeout(short)?), (Some(0), Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// [`BarrierError`] with the cause if the barrier is broken.
    #[track_caller]
    pub fn arrive_timeout(
        &self,
        timeout: Duration,
        acts: bool,
    ) -> Result<Option<BarrierArrival>, BarrierError> {
        let me = self.shared.me()?;
        loop {
            match self.try_arrive(me, acts)? {
                Ok(arrived) => return Ok(Some(self.arrived(me, arrived, acts))),
                Err(full) => {
                    if self.watch_phase(full, Wait::at_most(timeout))?.0.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn arrived(&self, me: Member, (index, phase): (u32, Phase), acts: bool) -> BarrierArrival {
        let arrival = BarrierArrival { barrier: self.clone(), me, index, phase, ended: false };
        if arrival.is_last() && !acts {
            self.complete(CompletePhase::new(self.at(), phase));
        }
        arrival
    }

    /// Arrives asynchronously, like [`arrive_timeout`](Self::arrive_timeout) without a limit.
    ///
    /// # Errors
    /// [`BarrierError`] with the cause if the barrier is broken, or [`BarrierError::Failed`] if the thread
    /// that waits for all tasks can't be started.
    #[doc(hidden)]
    pub async fn arrive_async(&self) -> Result<BarrierArrival, BarrierError> {
        let me = self.shared.me()?;
        loop {
            match self.try_arrive(me, false)? {
                Ok(arrived) => return Ok(self.arrived(me, arrived, false)),
                Err(full) => _ = self.phase_end(full).await?,
            }
        }
    }

    /// Arrives at once, for a caller whose time has expired. While the last party of the previous phase runs
    /// its action, breaks that phase.
    ///
    /// # Errors
    /// [`BarrierError::TimedOut`], or the cause if the barrier was broken before.
    #[doc(hidden)]
    pub fn arrive_late(&self) -> Result<BarrierArrival, BarrierError> {
        let me = self.shared.me()?;
        loop {
            match self.try_arrive(me, false)? {
                Ok(arrived) => return Ok(self.arrived(me, arrived, false)),
                Err(full) => {
                    if let Some(late) = self.time_out(full) {
                        return Err(late);
                    }
                }
            }
        }
    }

    /// Waits asynchronously for the end of a phase, and breaks it if a party is dead. Returns the outcome.
    async fn phase_end(&self, phase: Phase) -> Result<PhaseOutcome, BarrierError> {
        let ended = || Ok(Some(phase.outcome(self.phase())).filter(|v| *v != PhaseOutcome::Open));
        let what = || -> mp_core::SharedWaitable { Arc::new(PhaseEnd { barrier: self.clone(), phase }) };
        Ok(mp_core::until::<_, mp_core::Error>(what, ended).await?)
    }
}

/// End of a phase, as an object that a task waits for.
struct PhaseEnd {
    barrier: Barrier,
    phase: Phase,
}

impl Waitable for PhaseEnd {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.barrier.parking().into())
    }

    fn is_ready(&self) -> bool {
        self.phase.outcome(self.barrier.phase()) != PhaseOutcome::Open
    }

    fn is_ready_recheck(&self) -> bool {
        self.barrier.break_if_dead(self.phase);
        self.is_ready()
    }
}

impl BarrierArrival {
    /// Returns the index of this party in the order of arrival, from 0.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns `true` if all other parties had arrived before this party.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.barrier.parties
    }

    /// Ends the phase after the action of the last party. Has no effect if this party is not the last one.
    pub fn complete(&self) {
        if self.is_last() {
            let complete = CompletePhase::new(self.barrier.at(), self.phase);
            self.barrier.complete(complete.after_action());
        }
    }

    /// Waits asynchronously until all parties have arrived. Returns the index of this party. If the future is
    /// dropped, this party remains at the barrier.
    ///
    /// # Errors
    /// [`BarrierError`] with the cause if the barrier is broken, or [`BarrierError::Failed`] if the thread
    /// that waits for all tasks can't be started.
    #[doc(hidden)]
    pub async fn wait_async(&mut self) -> Result<usize, BarrierError> {
        let outcome = self.barrier.phase_end(self.phase).await?;
        self.ended = true;
        self.barrier.result_of(self.index, self.phase, (outcome, None))
    }

    /// Breaks the barrier as if this party had died, unless all parties have arrived. The other parties get
    /// [`BarrierError::MemberDied`]. Returns `true` if this call broke the barrier. Used for an arrival on
    /// behalf of another process.
    #[doc(hidden)]
    pub fn lose(mut self) -> bool {
        self.ended = true;
        // The last party may have died before it ended the phase.
        self.barrier.complete(CompletePhase::new(self.barrier.at(), self.phase));
        (self.is_last() || self.barrier.acting(self.phase).is_none())
            && self.barrier.break_phase(self.phase, BreakCause::Died)
    }

    /// Waits until all parties have arrived, at most `timeout`. Returns the index of this party. Returns
    /// `None` when the time has expired. The barrier is not broken then, and this party can wait again.
    ///
    /// # Errors
    /// [`BarrierError`] with the cause if the barrier is broken.
    #[track_caller]
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<usize>, BarrierError> {
        let (outcome, died) = self.barrier.watch_phase(self.phase, Wait::at_most(timeout))?;
        let Some(outcome) = outcome else { return Ok(None) };
        self.ended = true;
        self.barrier.result_of(self.index, self.phase, (outcome, died)).map(Some)
    }

    /// Breaks the barrier because the caller's time has expired. Returns the index of this party if all
    /// parties have arrived meanwhile.
    ///
    /// # Errors
    /// [`BarrierError::TimedOut`], or the cause if the barrier was broken meanwhile.
    pub fn time_out(mut self) -> Result<usize, BarrierError> {
        self.ended = true;
        match self.barrier.time_out(self.phase) {
            Some(late) => Err(late),
            None => {
                let outcome = self.phase.outcome(self.barrier.phase());
                self.barrier.result_of(self.index, self.phase, (outcome, None))
            }
        }
    }
}

impl Drop for BarrierArrival {
    fn drop(&mut self) {
        // The arrival belongs to the parent, not to a forked copy.
        if !self.ended && self.barrier.shared.me().ok() == Some(self.me) {
            self.barrier.break_phase(self.phase, BreakCause::Aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn arrive(barrier: &Barrier, acts: bool) -> BarrierArrival {
        barrier.arrive_timeout(SHORT, acts).unwrap().unwrap()
    }

    #[test]
    fn dropped_arrival_breaks_the_barrier() {
        let barrier = Barrier::new(2).unwrap();
        let mut first = arrive(&barrier, false);
        assert_eq!(first.wait_timeout(SHORT).unwrap(), None);
        assert_eq!(barrier.n_waiting(), 1);
        drop(first);
        assert!(matches!(barrier.arrive_timeout(SHORT, false), Err(BarrierError::Aborted)));
        barrier.reset().unwrap();
        let late = arrive(&barrier, false).time_out();
        assert!(matches!(late, Err(BarrierError::TimedOut { arrived: 1, parties: 2, .. })));
    }

    #[test]
    fn last_barrier_party_completes_after_its_action() {
        let barrier = Barrier::new(2).unwrap();
        let (mut first, mut last) = (arrive(&barrier, true), arrive(&barrier, true));
        assert!(last.is_last() && !first.is_last());
        assert_eq!(first.wait_timeout(SHORT).unwrap(), None);
        assert!(barrier.arrive_timeout(SHORT, true).unwrap().is_none(), "the action runs");
        last.complete();
        assert_eq!(last.wait_timeout(SHORT).unwrap(), Some(1));
        assert_eq!(first.wait_timeout(SHORT).unwrap(), Some(0));
        // A party that is lost during the action breaks nothing.
        let (first, mut last) = (arrive(&barrier, true), arrive(&barrier, true));
        first.lose();
        last.complete();
        assert_eq!(last.wait_timeout(SHORT).unwrap(), Some(1));
        // If the last party does not complete the phase, the barrier breaks.
        let (mut first, last) = (arrive(&barrier, true), arrive(&barrier, true));
        drop(last);
        assert!(matches!(first.wait_timeout(SHORT), Err(BarrierError::Aborted)));
    }
}
