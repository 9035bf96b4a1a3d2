//! A point at which every party waits until all have arrived.

use std::sync::Arc;

use mp_core::waits::Call;
use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Error, Parking, Result, Wait};

use crate::error::{BarrierError, PeerProcess};
use crate::handle::handle;
use crate::shared::Shared;
use crate::steps::barrier::{Arrive, Arrived, BarrierAt, Break, Complete, How, Phase, Reset, Verdict};
use crate::steps::slot::Slots;
use crate::wait;

mod member;

pub use member::BarrierMember;

const NAME: &str = "mp_sync::Barrier";
const PHASE: u64 = 0;
const USED: u64 = 1;
const PARKING: u64 = 16;
/// Four columns of as many words as there are parties: arrivals, the processes that arrived, parties, their
/// processes.
const COLUMNS: u64 = 32;
const MOST: u32 = 1 << 16;
const NO_ACTION: Option<fn()> = None;

/// A barrier between processes: `parties` of them wait at it, and go on when all have come. Then it serves again.
///
/// ```
/// use mp_sync::Barrier;
///
/// let step = Barrier::new(2)?;
/// let other = step.clone(); // or sent to another process
/// let thread = std::thread::spawn(move || other.wait());
/// let mine = step.wait()?; // 0 or 1: each number is given once, say to let number 0 print
/// let theirs = thread.join().expect("it does not panic")?;
/// assert_eq!(mine + theirs, 1);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # A broken barrier
/// A time-out, [`abort`](Self::abort), or the death of a party breaks it: all parties that wait, and all that
/// come, get an error that says why, until a process calls [`reset`](Self::reset). So does a panic of what is
/// to be done before all [go on](Self::wait_then). Whether all came or it broke is decided once, for all.
///
/// # When a process dies
/// A party that waits at the barrier: it breaks, unless all have come, and its waiters learn it when the
/// death is noticed (the [table](crate#how-soon-a-waiter-hears-of-a-death)). A party that has not come yet:
/// no process knows that it was meant to, unless it is [enrolled](Self::enroll). A process that is stopped is
/// not dead: the others wait for it, or for their time-out, whose error names those that are enrolled and
/// have not come.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Barrier")]
pub struct Barrier {
    pub(crate) shared: Shared,
    parties: u32,
    patience: Arc<AdaptiveSpin>,
}

impl Barrier {
    /// A barrier for `parties` parties.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::InvalidArgument`] for none, or [`Error::LimitExceeded`]
    /// for more than 65,536.
    pub fn new(parties: u32) -> Result<Self> {
        if !(1..=MOST).contains(&parties) {
            let why = format!("a barrier for {parties} parties: 1 to {MOST} are possible");
            return Err(Error::not_within(parties > MOST, why));
        }
        Ok(Self::of(Shared::new(NAME, COLUMNS + 4 * u64::from(parties))?))
    }

    fn of(shared: Shared) -> Self {
        let parties = u32::try_from((shared.len() - COLUMNS) / 4).unwrap_or(MOST);
        Self { shared, parties, patience: Arc::default() }
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

    /// Notes the process that took the place `i` of a column.
    fn sign(&self, column: u64, i: u32, me: Member) {
        let who = me.raw() | u64::from(std::process::id()) << Member::BITS;
        self.shared.store(self.column(column) + u64::from(i), who);
    }

    /// The process that took the place `i` of a column, if it is this member; by the table of members if it
    /// died before it said so.
    fn signed(&self, column: u64, i: u32, member: Member) -> PeerProcess {
        let who = self.shared.load(self.column(column) + u64::from(i));
        let pid = (who >> Member::BITS) as u32;
        let known = Member::from_raw(who) == member && pid != 0;
        PeerProcess { member, pid: if known { pid } else { self.shared.arena().pid_of(member) } }
    }

    /// Waits until all parties have come; the number of this one among them, from 0.
    ///
    /// # Errors
    /// [`BarrierError`], which says how the barrier was broken, by whose death if by one.
    pub fn wait(&self) -> Result<usize, BarrierError> {
        self.within(Wait::Forever, NO_ACTION)
    }

    mp_core::forms! {
        "Waits until all parties have come, or breaks the barrier for all": wait() -> Result<usize, BarrierError>,
        or "[`BarrierError::TimedOut`]";
        |barrier, wait| barrier.within(wait, NO_ACTION);
        at_most wait_timeout;
        until wait_deadline;
    }

    /// Waits until all parties have come; the last one to come does `action` before the others go on. As
    /// [`wait`](Self::wait) otherwise.
    ///
    /// Every party gives its action, of which one is done; a party that waits without one has none to do.
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
    /// thread.join().expect("it does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// As [`wait`](Self::wait). If `action` panics or [aborts](Self::abort), the others get [`BarrierError::Aborted`]; if it
    /// is killed in it, [`BarrierError::MemberDied`].
    #[doc(alias = "action")]
    pub fn wait_then(&self, action: impl FnOnce()) -> Result<usize, BarrierError> {
        self.within(Wait::Forever, Some(action))
    }

    mp_core::forms! {
        "Waits until all parties have come, the last of which does `action`, or breaks the barrier for all":
        wait_then(; action: impl FnOnce()) -> Result<usize, BarrierError>,
        or "[`BarrierError::TimedOut`] (not for the one that acts: its action takes as long as it takes)";
        |barrier, wait| barrier.within(wait, Some(action));
        at_most wait_then_timeout;
        until wait_then_deadline;
    }

    /// Arrives: as the one with this number, in this phase. While the last one of the phase before acts, it waits.
    fn arrive(&self, me: Member, wait: Wait, acts: bool) -> Result<(u32, Phase), BarrierError> {
        loop {
            let arrive = Arrive::new(self.at(), me);
            match self.shared.run(if acts { arrive.acting() } else { arrive }) {
                Arrived::Broken(phase) => {
                    return Err(BarrierError::broken(phase.broken, || self.dead(phase)));
                }
                Arrived::Here { index, phase, helped } => {
                    if helped {
                        self.parking().notify_all();
                    }
                    self.sign(1, index, me);
                    return Ok((index, phase));
                }
                Arrived::Full(phase) => _ = self.end_of(phase, wait)?,
            }
        }
    }

    /// Ends a phase in which all parties have arrived.
    fn complete(&self, complete: Complete) {
        if self.shared.run(complete) {
            self.parking().notify_all();
        }
    }

    fn within(&self, wait: Wait, action: Option<impl FnOnce()>) -> Result<usize, BarrierError> {
        let me = self.shared.me()?;
        let (index, phase) = self.arrive(me, wait, action.is_some())?;
        if index + 1 == self.parties {
            let complete = Complete::new(self.at(), phase);
            match action {
                Some(action) => {
                    let panics = Acting { barrier: self, me, phase };
                    action();
                    std::mem::forget(panics);
                    self.complete(complete.acted());
                }
                None => self.complete(complete),
            }
        }
        match self.end_of(phase, wait)? {
            (Verdict::Broken(how), died) => {
                Err(BarrierError::broken(how, || died.or_else(|| self.dead(phase))))
            }
            (Verdict::Open, _) => Err(Error::Malformed("a barrier that opened again".into()).into()),
            (Verdict::Passed, _) => Ok(index as usize),
        }
    }

    /// Waits for the end of a phase, and breaks it when a party is dead or the time is over; how it ended,
    /// and the party that died if this process found it.
    fn end_of(&self, phase: Phase, wait: Wait) -> Result<(Verdict, Option<PeerProcess>), BarrierError> {
        let look = || Some(phase.verdict(self.phase())).filter(|v| *v != Verdict::Open);
        let mut died = None;
        let ask = || {
            // The last one may have died before it said that all have come.
            self.complete(Complete::new(self.at(), phase));
            if look().is_none() {
                died = self.dead(phase);
                if died.is_some() {
                    self.end(phase, How::Died);
                }
            }
            look()
        };
        let place = (&self.shared, self.parking(), Call::Barrier);
        let verdict = wait::until(place, &self.patience, wait, look, ask)?;
        if verdict.is_none() {
            let arrived: Vec<Member> = self.arrivals(phase).map(|(_, m)| m).collect();
            let missing = self.party_slots().filter(|seen| !arrived.contains(&seen.slot.member));
            let missing = missing.map(|seen| self.signed(3, seen.index, seen.slot.member)).collect();
            if self.end(phase, How::TimedOut) {
                let arrived = arrived.len() as u32;
                return Err(BarrierError::TimedOut { arrived, parties: self.parties, missing });
            }
        }
        // It is over if it could not be broken.
        Ok((verdict.unwrap_or_else(|| phase.verdict(self.phase())), died))
    }

    /// Breaks a phase; whether this did it.
    fn end(&self, phase: Phase, how: How) -> bool {
        let broken = self.shared.run(Break::new(self.at(), phase, how));
        if broken {
            self.parking().notify_all();
        }
        broken
    }

    /// The parties that arrived in this phase: the number and the member.
    fn arrivals(&self, phase: Phase) -> impl Iterator<Item = (u32, Member)> + '_ {
        let column = self.column(0);
        let phase = Phase { broken: None, ..phase };
        let word = move |i: u32| self.shared.load(column + u64::from(i));
        (0..self.parties).filter_map(move |i| phase.arrived(word(i)).map(|m| (i, m)))
    }

    /// A party that is dead, if there is one: it has arrived in this phase, or is enrolled. When all have come and the last one
    /// acts, only that one matters.
    fn dead(&self, phase: Phase) -> Option<PeerProcess> {
        let arena = self.shared.arena();
        let last = self.parties - 1;
        let word = self.shared.load(self.column(0) + u64::from(last));
        if let Some(m) = (Phase { broken: None, ..phase }).arrived(word)
            && Phase::acts(word)
        {
            return arena.is_dead(m).then(|| self.signed(1, last, m));
        }
        let mut arrived = self.arrivals(phase).filter(|&(_, m)| arena.is_dead(m));
        if let Some((i, m)) = arrived.next() {
            return Some(self.signed(1, i, m));
        }
        let party = self.party_slots().find(|seen| arena.is_dead(seen.slot.member))?;
        Some(self.signed(3, party.index, party.slot.member))
    }

    /// Breaks it: a party that waits, or comes, gets [`BarrierError::Aborted`]. Nothing happens if it is
    /// broken already.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn abort(&self) -> Result<()> {
        self.shared.me()?;
        loop {
            let phase = self.phase();
            if phase.broken.is_some() || self.end(phase, How::Aborted) {
                return Ok(());
            }
        }
    }

    /// Makes it whole again, with no waiters: a party that waits gets [`BarrierError::Reset`]. Enrolled
    /// processes that are dead are parties no more.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn reset(&self) -> Result<()> {
        self.shared.me()?;
        for seen in self.party_slots() {
            if self.shared.arena().is_dead(seen.slot.member) {
                self.leave(seen);
            }
        }
        self.shared.run(Reset::new(self.at()));
        self.parking().notify_all();
        Ok(())
    }

    /// How many have to come.
    pub fn parties(&self) -> usize {
        self.parties as usize
    }

    /// How many wait at it: a snapshot. None if it is broken, and in a forked copy.
    pub fn n_waiting(&self) -> usize {
        if self.shared.me().is_err() {
            return 0;
        }
        let phase = self.phase();
        if phase.broken.is_some() { 0 } else { self.arrivals(phase).count() }
    }

    /// Whether it is broken: a snapshot. In a forked copy it is.
    #[doc(alias = "broken")]
    pub fn is_broken(&self) -> bool {
        self.shared.me().is_err() || self.phase().broken.is_some()
    }
}

/// A party acts. Dropped by a panic: it breaks the barrier.
struct Acting<'a> {
    barrier: &'a Barrier,
    me: Member,
    phase: Phase,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        // In a forked copy it is not ours.
        if self.barrier.shared.me().ok() == Some(self.me) {
            self.barrier.end(self.phase, How::Aborted);
        }
    }
}

handle! {
    Barrier, "a Barrier", |barrier| barrier.shared, {
        let broken = if barrier.is_broken() { ", broken" } else { "" };
        format!("{} of {}{broken}, ", barrier.n_waiting(), barrier.parties)
    };
    |d| Shared::receive("a Barrier", NAME, COLUMNS + 4, d).map(Self::of)
}
