//! Barrier: all parties wait until the last one has arrived.

use std::sync::Arc;

use mp_core::waits::BlockingCall;
use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Error, Parking, Result, Wait};

use crate::barrier::breaking::ActionGuard;
use crate::error::{BarrierError, PeerProcess};
use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::barrier::{
    Arrive, ArriveOutcome, BarrierAt, BreakCause, CompletePhase, Phase, PhaseOutcome,
};
use crate::steps::slot::Slots;
use crate::wait;

mod arrival;
mod breaking;
mod enrollment;

pub use arrival::BarrierArrival;
pub use enrollment::BarrierMember;

const NAME: &str = "mp_sync::Barrier";
const PHASE: u64 = 0;
const USED: u64 = 1;
const PARKING: u64 = 16;
/// Index of the first word of four columns, each with one word for each party: arrivals, processes that
/// arrived, enrolled parties, enrolled processes.
const COLUMNS: u64 = 32;
const MOST: u32 = 1 << 16;
const NO_ACTION: Option<fn()> = None;

/// A barrier between processes: each of `parties` waiters blocks until all have arrived. Afterwards the
/// barrier can be used again.
///
/// ```
/// use mp_sync::Barrier;
///
/// let step = Barrier::new(2)?;
/// let other = step.clone(); // or sent to another process
/// let thread = std::thread::spawn(move || other.wait());
/// let mine = step.wait()?; // 0 or 1: each index is returned once, so that one party can print
/// let theirs = thread.join().expect("the thread does not panic")?;
/// assert_eq!(mine + theirs, 1);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # A broken barrier
/// A time-out, [`abort`](Self::abort), the death of a party, or a panic in the action of
/// [`wait_then`](Self::wait_then) breaks the barrier. All parties that wait or arrive later get an error with
/// the cause, until a process calls [`reset`](Self::reset). Passing and breaking exclude each other: all
/// parties of a phase see the same outcome.
///
/// # When a process dies
/// If a waiting party dies, the barrier breaks, unless all parties have arrived. The other waiters return
/// when the death is noticed (see the [table](crate#latency-after-a-death)). The death of a party that has
/// not arrived breaks the barrier only if the party is [enrolled](Self::enroll). A stopped process is not
/// dead: the other parties wait for it, at most until their time-out. The error then names the enrolled
/// parties that have not arrived.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Barrier")]
pub struct Barrier {
    pub(crate) shared: Shared,
    parties: u32,
    spin: Arc<AdaptiveSpin>,
}

impl Barrier {
    /// Creates a barrier for `parties` parties.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for zero parties, or
    /// [`Error::LimitExceeded`] for more than 65,536.
    pub fn new(parties: u32) -> Result<Self> {
        if !(1..=MOST).contains(&parties) {
            let why = format!("a barrier for {parties} parties: 1 to {MOST} are possible");
            return Err(Error::out_of_range(parties > MOST, why));
        }
        Ok(Self::of(Shared::new(NAME, COLUMNS + 4 * u64::from(parties))?))
    }

    fn of(shared: Shared) -> Self {
        let parties = u32::try_from((shared.len() - COLUMNS) / 4).unwrap_or(MOST);
        Self { shared, parties, spin: Arc::default() }
    }

    fn column(&self, column: u64) -> u64 {
        COLUMNS + column * u64::from(self.parties)
    }

    fn at(&self) -> BarrierAt {
        let (phase, arrivals) = (self.shared.at(PHASE), self.shared.at(self.column(0)));
        BarrierAt { phase, arrivals, parties: self.parties }
    }

    fn enrolled(&self) -> Slots {
        self.shared.slots(USED, self.column(2), self.parties)
    }

    fn parking(&self) -> Parking {
        self.shared.parking(PARKING)
    }

    fn phase(&self) -> Phase {
        Phase::unpack(self.shared.load(PHASE))
    }

    /// Records this process in word `i` of a column.
    fn record_party(&self, column: u64, i: u32, me: Member) {
        let who = me.raw() | u64::from(std::process::id()) << Member::BITS;
        self.shared.store(self.column(column) + u64::from(i), who);
    }

    /// Returns the process that is recorded in word `i` of a column. If the process died before it was
    /// recorded, its pid comes from the member table.
    fn recorded_party(&self, column: u64, i: u32, member: Member) -> PeerProcess {
        let who = self.shared.load(self.column(column) + u64::from(i));
        let pid = (who >> Member::BITS) as u32;
        let known = Member::from_raw(who) == member && pid != 0;
        if known { PeerProcess { member, pid } } else { self.shared.process(member) }
    }

    /// Blocks until all parties have arrived. Returns the index of this party in the order of arrival, from
    /// 0.
    ///
    /// # Errors
    /// [`BarrierError`] with the cause if the barrier is broken. If a death broke it, the error names the
    /// dead process.
    #[track_caller]
    pub fn wait(&self) -> Result<usize, BarrierError> {
        self.wait_with(Wait::Forever, NO_ACTION)
    }

    mp_core::forms! {
        "Waits until all parties have arrived":
        wait() -> Result<usize, BarrierError>,
        or "[`BarrierError::TimedOut`], and the barrier is broken for all parties";
        |barrier, wait| barrier.wait_with(wait, NO_ACTION);
        at_most wait_timeout;
        until wait_deadline;
    }

    /// Blocks until all parties have arrived. The last party to arrive runs its `action` before the others
    /// continue.
    ///
    /// Every party passes an action, and only one of these actions runs. If the last party called
    /// [`wait`](Self::wait), no action runs.
    ///
    /// ```
    /// use mp_sync::RawValue;
    /// use mp_sync::Barrier;
    ///
    /// let (step, epoch) = (Barrier::new(2)?, RawValue::new(0_u64)?);
    /// let (other, theirs) = (step.clone(), epoch.clone());
    /// let thread = std::thread::spawn(move || other.wait_then(|| theirs.set(theirs.get() + 1)));
    /// step.wait_then(|| epoch.set(epoch.get() + 1))?;
    /// assert_eq!(epoch.get(), 1);
    /// thread.join().expect("the thread does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// See [`wait`](Self::wait). The other parties get [`BarrierError::Aborted`] if `action` panics or
    /// [aborts](Self::abort), and [`BarrierError::MemberDied`] if its process is killed.
    #[doc(alias = "action")]
    #[track_caller]
    pub fn wait_then(&self, action: impl FnOnce()) -> Result<usize, BarrierError> {
        self.wait_with(Wait::Forever, Some(action))
    }

    mp_core::forms! {
        "Waits until all parties have arrived and the last one has run `action`":
        wait_then(; action: impl FnOnce()) -> Result<usize, BarrierError>,
        or "[`BarrierError::TimedOut`], and the barrier is broken for all parties. The time does not limit \
            `action`";
        |barrier, wait| barrier.wait_with(wait, Some(action));
        at_most wait_then_timeout;
        until wait_then_deadline;
    }

    /// Arrives, and returns the index and the phase. Returns `Err` with the previous phase while its last
    /// party runs an action.
    fn try_arrive(&self, me: Member, acts: bool) -> Result<Result<(u32, Phase), Phase>, BarrierError> {
        let arrive = Arrive::new(self.at(), me);
        match self.shared.run(if acts { arrive.with_action() } else { arrive }) {
            ArriveOutcome::Broken(phase) => Err(BarrierError::broken(phase.broken, || self.dead(phase))),
            ArriveOutcome::Arrived { index, phase, helped } => {
                if helped {
                    self.parking().notify_all();
                }
                self.record_party(1, index, me);
                Ok(Ok((index, phase)))
            }
            ArriveOutcome::Full(phase) => Ok(Err(phase)),
        }
    }

    /// Arrives, and returns the index and the phase. Waits while the last party of the previous phase runs
    /// its action.
    #[track_caller]
    fn arrive(&self, me: Member, wait: Wait, acts: bool) -> Result<(u32, Phase), BarrierError> {
        loop {
            match self.try_arrive(me, acts)? {
                Ok(arrived) => return Ok(arrived),
                Err(full) => _ = self.wait_phase_end(full, wait)?,
            }
        }
    }

    /// Ends a phase in which all parties have arrived, and wakes its waiters.
    fn complete(&self, complete: CompletePhase) {
        if self.shared.run(complete) {
            self.parking().notify_all();
        }
    }

    #[track_caller]
    fn wait_with(&self, wait: Wait, action: Option<impl FnOnce()>) -> Result<usize, BarrierError> {
        let me = self.shared.me()?;
        let (index, phase) = self.arrive(me, wait, action.is_some())?;
        if index + 1 == self.parties {
            let complete = CompletePhase::new(self.at(), phase);
            match action {
                Some(action) => {
                    let panics = ActionGuard { barrier: self, me, phase };
                    action();
                    std::mem::forget(panics);
                    self.complete(complete.after_action());
                }
                None => self.complete(complete),
            }
        }
        self.result_of(index, phase, self.wait_phase_end(phase, wait)?)
    }

    /// Waits for the end of a phase, and breaks it if a party is dead or the time has expired. Returns the
    /// outcome, and the dead party if this process found it.
    #[track_caller]
    fn wait_phase_end(
        &self,
        phase: Phase,
        wait: Wait,
    ) -> Result<(PhaseOutcome, Option<PeerProcess>), BarrierError> {
        let (outcome, died) = self.watch_phase(phase, wait)?;
        if outcome.is_none()
            && let Some(late) = self.time_out(phase)
        {
            return Err(late);
        }
        // If the phase could not be broken, it had ended.
        Ok((outcome.unwrap_or_else(|| phase.outcome(self.phase())), died))
    }

    /// Waits for the end of a phase, and breaks it if a party is dead. Returns the outcome, or `None` when
    /// the time has expired, and the dead party if this process found it.
    #[track_caller]
    fn watch_phase(
        &self,
        phase: Phase,
        wait: Wait,
    ) -> Result<(Option<PhaseOutcome>, Option<PeerProcess>), BarrierError> {
        let poll = || Some(phase.outcome(self.phase())).filter(|v| *v != PhaseOutcome::Open);
        let mut died = None;
        let check_dead = || {
            died = self.break_if_dead(phase);
            poll()
        };
        let target = (&self.shared, self.parking(), BlockingCall::Barrier);
        let outcome = wait::until(target, &self.spin, wait, poll, check_dead, false)?;
        Ok((outcome, died))
    }

    /// Breaks a phase because the time of a party has expired. Returns the error for that party, or `None` if
    /// the phase had ended.
    fn time_out(&self, phase: Phase) -> Option<BarrierError> {
        let arrived: Vec<Member> = self.arrivals(phase).map(|(_, m)| m).collect();
        let missing = self.party_slots().filter(|seen| !arrived.contains(&seen.slot.member));
        let missing = missing.map(|seen| self.recorded_party(3, seen.index, seen.slot.member)).collect();
        let broken = self.break_phase(phase, BreakCause::TimedOut);
        let (arrived, parties) = (arrived.len() as u32, self.parties);
        broken.then_some(BarrierError::TimedOut { arrived, parties, missing })
    }

    /// Returns the result for the party with this index, given the outcome of its phase.
    fn result_of(
        &self,
        index: u32,
        phase: Phase,
        (outcome, died): (PhaseOutcome, Option<PeerProcess>),
    ) -> Result<usize, BarrierError> {
        match outcome {
            PhaseOutcome::Broken(how) => Err(BarrierError::broken(how, || died.or_else(|| self.dead(phase)))),
            PhaseOutcome::Open => Err(Error::Malformed("a barrier that opened again".into()).into()),
            PhaseOutcome::Passed => Ok(index as usize),
        }
    }

    /// Returns the parties that arrived in this phase: index and member.
    fn arrivals(&self, phase: Phase) -> impl Iterator<Item = (u32, Member)> + '_ {
        let column = self.column(0);
        let phase = Phase { broken: None, ..phase };
        let word = move |i: u32| self.shared.load(column + u64::from(i));
        (0..self.parties).filter_map(move |i| phase.arrived(word(i)).map(|m| (i, m)))
    }

    /// Returns the number of parties.
    pub fn parties(&self) -> usize {
        self.parties as usize
    }

    /// Returns the number of parties that wait: a snapshot. 0 if the barrier is broken, and in a forked copy.
    pub fn n_waiting(&self) -> usize {
        if self.shared.me().is_err() {
            return 0;
        }
        let phase = self.phase();
        if phase.broken.is_some() { 0 } else { self.arrivals(phase).count() }
    }

    /// Returns `true` if the barrier is broken: a snapshot. Always `true` in a forked copy.
    #[doc(alias = "broken")]
    pub fn is_broken(&self) -> bool {
        self.shared.me().is_err() || self.phase().broken.is_some()
    }
}

handle! {
    Barrier, "a Barrier", |barrier| barrier.shared, {
        let broken = if barrier.is_broken() { ", broken" } else { "" };
        format!("{} of {}{broken}, ", barrier.n_waiting(), barrier.parties)
    };
    |d| Shared::receive("a Barrier", NAME, COLUMNS + 4, d).map(Self::of)
}
