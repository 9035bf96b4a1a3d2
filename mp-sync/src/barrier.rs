//! A place that nobody leaves before all have come.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::words::Member;
use mp_core::{Error, LockWait, Parking, Patience, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{BarrierError, Holder};
use crate::shared::Shared;
use crate::steps::barrier::{Arrive, Arrived, BarrierAt, Break, Complete, How, Phase, Reset, Verdict};
use crate::steps::slot::{Change, Claim, EMPTY, Find, HELD, Seen, Slots, set};
use crate::wait;

const NAME: &str = "mp_sync::Barrier";
const PHASE: u64 = 0;
const USED: u64 = 1;
const PARKING: u64 = 16;
/// Four columns of as many words as there are parties: arrivals, who arrived, parties, who they are.
const COLUMNS: u64 = 32;
const MOST: u32 = 1 << 16;

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
/// A time-out, [`abort`](Self::abort), or the death of a party breaks it: all who wait, and all who come, get an error that
/// says why, until somebody calls [`reset`](Self::reset). Whether everybody came or it broke is decided once, for all.
///
/// # When a process dies
/// One that waits at the barrier: it breaks, unless all have come, and those who wait learn it within 100 ms. One that has
/// not come yet: nobody knows that it was meant to, unless it is [enrolled](Self::enroll). A process that is stopped is not
/// dead: the others wait for it, or for their time-out.
#[derive(Clone)]
#[doc(alias = "multiprocessing.Barrier")]
pub struct Barrier {
    shared: Shared,
    parties: u32,
    patience: Arc<Patience>,
}

/// That this process is a party of a [`Barrier`]: if it dies, the barrier breaks, wherever the process was.
///
/// It is used as the barrier itself. Dropping it, as when the process ends by itself, leaves without breaking anything.
#[must_use = "dropping it leaves the barrier"]
pub struct Party {
    barrier: Barrier,
    me: Member,
    seen: Seen,
}

impl Barrier {
    /// A barrier for so many parties.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for none and for more than 65,536.
    pub fn new(parties: u32) -> Result<Self> {
        if !(1..=MOST).contains(&parties) {
            return Err(Error::Shape(format!("a barrier for {parties} parties: 1 to {MOST} are possible")));
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

    /// Notes who took the place `i` of a column.
    fn sign(&self, column: u64, i: u32, me: Member) {
        let who = me.raw() | u64::from(std::process::id()) << Member::BITS;
        self.shared.store(self.column(column) + u64::from(i), who);
    }

    /// Who took the place `i` of a column, if it is this member; by the table of members if it died before it said so.
    fn signed(&self, column: u64, i: u32, member: Member) -> Holder {
        let who = self.shared.load(self.column(column) + u64::from(i));
        let pid = (who >> Member::BITS) as u32;
        let known = Member::from_raw(who) == member && pid != 0;
        Holder { member, pid: if known { pid } else { self.shared.arena().pid_of(member) } }
    }

    /// Waits until all parties have come; the number of this one among them, from 0.
    ///
    /// # Errors
    /// [`BarrierError`], which says how the barrier was broken, by whose death if by one.
    pub fn wait(&self) -> Result<usize, BarrierError> {
        self.within(LockWait::Forever)
    }

    /// As [`wait`](Self::wait), at most `timeout`: then it breaks the barrier for all.
    ///
    /// # Errors
    /// [`BarrierError::TimedOut`], and as [`wait`](Self::wait).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<usize, BarrierError> {
        self.within(LockWait::at_most(timeout))
    }

    /// As [`wait_timeout`](Self::wait_timeout), until `deadline`.
    ///
    /// # Errors
    /// As [`wait_timeout`](Self::wait_timeout).
    pub fn wait_deadline(&self, deadline: Instant) -> Result<usize, BarrierError> {
        self.within(LockWait::Until(deadline))
    }

    fn within(&self, wait: LockWait) -> Result<usize, BarrierError> {
        let me = self.shared.me()?;
        let (index, phase) = match self.shared.run(Arrive::new(self.at(), me)) {
            Arrived::Broken(phase) => {
                return Err(BarrierError::broken(phase.broken, || self.dead(phase)));
            }
            Arrived::Here { index, phase, helped } => {
                if helped {
                    self.parking().notify_all();
                }
                (index, phase)
            }
        };
        self.sign(1, index, me);
        let complete = || {
            if self.shared.run(Complete::new(self.at(), phase)) {
                self.parking().notify_all();
            }
        };
        if index + 1 == self.parties {
            complete();
        }
        let look = || Some(phase.verdict(self.phase())).filter(|v| *v != Verdict::Open);
        let mut died = None;
        let ask = || {
            // The last one may have died before it said that all have come.
            complete();
            if look().is_none() {
                died = self.dead(phase);
                if died.is_some() {
                    self.end(phase, How::Died);
                }
            }
            look()
        };
        let place = (self.shared.arena(), self.parking());
        let mut verdict = wait::until(place, &self.patience, wait, look, ask)?;
        if verdict.is_none() {
            let arrived = self.arrivals(phase).count() as u32;
            if self.end(phase, How::TimedOut) {
                return Err(BarrierError::TimedOut { arrived, parties: self.parties });
            }
            verdict = look();
        }
        match verdict {
            Some(Verdict::Passed) | None => Ok(index as usize),
            Some(Verdict::Open) => Err(Error::Malformed("a barrier that opened again".into()).into()),
            Some(Verdict::Broken(how)) => {
                Err(BarrierError::broken(how, || died.or_else(|| self.dead(phase))))
            }
        }
    }

    /// Breaks a phase; whether this did it.
    fn end(&self, phase: Phase, how: How) -> bool {
        let broken = self.shared.run(Break::new(self.at(), phase, how));
        if broken {
            self.parking().notify_all();
        }
        broken
    }

    /// Who arrived in this phase: the number and the member.
    fn arrivals(&self, phase: Phase) -> impl Iterator<Item = (u32, Member)> + '_ {
        let column = self.column(0);
        let phase = Phase { broken: None, ..phase };
        let word = move |i: u32| self.shared.load(column + u64::from(i));
        (0..self.parties).filter_map(move |i| phase.arrived(word(i)).map(|m| (i, m)))
    }

    fn party_slots(&self) -> impl Iterator<Item = Seen> + '_ {
        let (slots, mut next) = (self.enrolled(), 0);
        std::iter::from_fn(move || {
            let seen = self.shared.run(Find::new(slots, set(&[HELD]), next))?;
            next = seen.index + 1;
            Some(seen)
        })
    }

    /// A party that is dead, if there is one: it has arrived in this phase, or is enrolled.
    fn dead(&self, phase: Phase) -> Option<Holder> {
        let arena = self.shared.arena();
        let mut arrived = self.arrivals(phase).filter(|&(_, m)| arena.is_dead(m));
        if let Some((i, m)) = arrived.next() {
            return Some(self.signed(1, i, m));
        }
        let party = self.party_slots().find(|seen| arena.is_dead(seen.slot.member))?;
        Some(self.signed(3, party.index, party.slot.member))
    }

    /// Makes this process known as a party, until the handle is dropped: if it dies, the barrier breaks, also while it is
    /// elsewhere. Each process enrols itself, once.
    ///
    /// ```
    /// use mp_sync::Barrier;
    ///
    /// let party = Barrier::new(1)?.enroll()?;
    /// party.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// [`BarrierError::TooMany`] when as many are enrolled as there are parties (dead ones included, until a reset);
    /// [`BarrierError::Failed`] in a forked copy.
    pub fn enroll(&self) -> Result<Party, BarrierError> {
        let me = self.shared.me()?;
        let seen = self.shared.run(Claim::new(self.enrolled(), EMPTY, (HELD, me, 0), 0).or_new());
        let Some(seen) = seen else { return Err(BarrierError::TooMany { parties: self.parties }) };
        self.sign(3, seen.index, me);
        Ok(Party { barrier: self.clone(), me, seen })
    }

    /// Breaks it: who waits, and who comes, gets [`BarrierError::Aborted`]. Nothing happens if it is broken already.
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

    /// Makes it whole again, with nobody waiting: who waits gets [`BarrierError::Reset`]. Enrolled processes that are dead
    /// are parties no more.
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

    fn leave(&self, seen: Seen) {
        let at = self.enrolled().at(seen.index);
        self.shared.run(Change::new(at, seen.slot, seen.slot.given_back(EMPTY)));
    }

    /// How many have to come.
    pub fn parties(&self) -> usize {
        self.parties as usize
    }

    /// How many wait at it: a moment's picture. None if it is broken, and in a forked copy.
    pub fn n_waiting(&self) -> usize {
        if self.shared.me().is_err() {
            return 0;
        }
        let phase = self.phase();
        if phase.broken.is_some() { 0 } else { self.arrivals(phase).count() }
    }

    /// Whether it is broken: a moment's picture. In a forked copy it is.
    #[doc(alias = "broken")]
    pub fn is_broken(&self) -> bool {
        self.shared.me().is_err() || self.phase().broken.is_some()
    }
}

impl Deref for Party {
    type Target = Barrier;

    fn deref(&self) -> &Barrier {
        &self.barrier
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // In a forked copy it is not ours.
        if self.barrier.shared.me().ok() == Some(self.me) {
            self.barrier.leave(self.seen);
        }
    }
}

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Party({} of {:?})", self.seen.index, self.barrier)
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = if self.is_broken() { ", broken" } else { "" };
        let (n, hold) = (self.n_waiting(), self.shared.structure().hold());
        write!(f, "Barrier({n} of {}{broken}, {hold:?})", self.parties)
    }
}

impl Serialize for Barrier {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.shared.send("a Barrier", s)
    }
}

impl<'de> Deserialize<'de> for Barrier {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Shared::receive("a Barrier", NAME, COLUMNS + 4, d).map(Self::of)
    }
}
