//! Steps of a barrier: arrivals, and phases that end with the last arrival.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | phase: `broken 2, era 14, trips 24, base 24` | open | a party that finds all arrivals of this phase → open, trips + 1 |
//! |  |  | a process that times out, aborts, or finds a party dead → broken |
//! |  | open or broken | a reset → open, era + 1, base = trips |
//! | arrival: `arrived 1, era 14, trips 24, member 24, acts 1` | of an earlier phase: free | an arriving party → arrived in this phase; the last party, if it has an action to run, also sets `acts` |
//! |  | of this phase | unchanged until the phase has ended |
//! | who: `member 24, pid 22` | | the party that took this arrival, afterwards; valid only if it names the same member |
//! | party: a slot, see [`slot`](super::slot) | | a process that enrolls; a reset clears the slots of dead processes |
//!
//! **One swap of the phase decides** its outcome: passed or broken. A party is counted if the swap of its
//! arrival succeeded. A phase is passed only after all its arrivals were taken. Taking an arrival changes the
//! word of the arrival, so a late swap fails. Arrivals are taken in order, so the party that takes the last
//! arrival has read all other arrivals, and ends the phase. Between the load of an arrival and its swap, the
//! phase is loaded again. If the phase is unchanged, the loaded arrival belongs to an earlier phase, and is
//! free. If the phase has changed, the loaded arrival may count for a later phase, so the party begins again.
//!
//! **A last party with an action ends the phase itself** after the action. No other party ends it. Until then
//! the phase is open and full, and a new party waits before it arrives. If the last party dies or its action
//! fails, the phase is broken.
//!
//! A waiter compares the phase of its arrival with the current phase. If the era is the same and the trips
//! differ, the phase has passed. After one more reset, the phase has passed if `base`, the trips at that
//! reset, differs from the trips of the arrival. After more resets, the phase counts as broken, to be safe.
//! (Trips are compared modulo 2^24, eras modulo 2^14: a process that sleeps during an exact multiple mistakes
//! the current phase for its own.)
//!
//! # Effect of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | before it arrived | nothing; if enrolled, a slot that names the process | if enrolled: a waiter breaks the barrier |
//! | arrived | an arrival of a dead party | a waiter breaks the barrier, unless all have arrived |
//! | as the last to arrive, before it ended the phase | all arrived, phase open | a party that waits, or arrives next, ends the phase |
//! | as the last to arrive, before its action was done | all arrived, phase open, the last arrival acts | a party that waits, or arrives next, breaks the barrier |
//! | after it ended or broke the phase, before it woke the others | phase ended | waiters check within a poll interval |
//! | during a reset | reset, or not; slots of dead parties | a party that finds the slots breaks the barrier, which has to be reset again |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;

/// Cause of a broken phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BreakCause {
    /// A process called `abort`.
    Aborted = 1,
    /// A party timed out.
    TimedOut = 2,
    /// A party died.
    Died = 3,
}

const ERA_BITS: u32 = 14;
const TRIPS_BITS: u32 = 24;
const ERA: u64 = (1 << ERA_BITS) - 1;
const TRIPS: u64 = (1 << TRIPS_BITS) - 1;
const ACTS: u64 = 1 << 63;

/// Content of the phase word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Phase {
    /// Cause, if the phase is broken.
    pub broken: Option<BreakCause>,
    /// Number of resets, modulo 2^14.
    pub era: u16,
    /// Number of phases passed, modulo 2^24.
    pub trips: u32,
    /// Value of `trips` at the last reset.
    pub base: u32,
}

/// Outcome of a phase for a party that arrived in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PhaseOutcome {
    /// The phase is still open.
    Open,
    /// All parties arrived.
    Passed,
    /// The phase was broken by this cause, or by a reset if `None`.
    Broken(Option<BreakCause>),
}

impl Phase {
    /// Packs the phase into a word.
    pub const fn pack(self) -> u64 {
        let broken = match self.broken {
            None => 0,
            Some(how) => how as u64,
        };
        broken
            | (self.era as u64 & ERA) << 2
            | (self.trips as u64 & TRIPS) << (2 + ERA_BITS)
            | (self.base as u64 & TRIPS) << (2 + ERA_BITS + TRIPS_BITS)
    }

    /// Unpacks a word.
    pub const fn unpack(w: u64) -> Self {
        let broken = match w & 3 {
            0 => None,
            1 => Some(BreakCause::Aborted),
            2 => Some(BreakCause::TimedOut),
            _ => Some(BreakCause::Died),
        };
        Self {
            broken,
            era: (w >> 2 & ERA) as u16,
            trips: (w >> (2 + ERA_BITS) & TRIPS) as u32,
            base: (w >> (2 + ERA_BITS + TRIPS_BITS)) as u32,
        }
    }

    const fn passed(self) -> Self {
        Self { trips: (self.trips + 1) & TRIPS as u32, ..self }
    }

    fn reset(self) -> Self {
        let base = self.trips;
        Self { broken: None, era: (self.era + 1) & ERA as u16, base, ..self }
    }

    /// Returns the word of an arrival of `m` in this phase.
    pub const fn arrival(self, m: Member) -> u64 {
        1 | (self.era as u64) << 1
            | (self.trips as u64) << (1 + ERA_BITS)
            | m.raw() << (1 + ERA_BITS + TRIPS_BITS)
    }

    /// Returns `true` if `word` is the last arrival of a phase, and its party runs an action before the phase
    /// ends.
    pub const fn acts(word: u64) -> bool {
        word & ACTS != 0
    }

    /// Returns the member that arrived, if `word` is an arrival in this phase.
    pub fn arrived(self, word: u64) -> Option<Member> {
        let word = word & !ACTS;
        let m = Member::from_raw(word >> (1 + ERA_BITS + TRIPS_BITS));
        if self.arrival(m) == word { Some(m) } else { None }
    }

    /// Returns the outcome of this phase, if the phase word is `now`.
    pub fn outcome(self, now: Self) -> PhaseOutcome {
        if now.era == self.era {
            return match now.broken {
                _ if now.trips != self.trips => PhaseOutcome::Passed,
                None => PhaseOutcome::Open,
                how => PhaseOutcome::Broken(how),
            };
        }
        let next = now.era == self.reset().era;
        if next && now.base != self.trips { PhaseOutcome::Passed } else { PhaseOutcome::Broken(None) }
    }
}

/// Location of a barrier's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BarrierAt {
    /// Phase word.
    pub phase: Word,
    /// Word of the first arrival. The other arrivals follow.
    pub arrivals: Word,
    /// Number of parties, at least 1.
    pub parties: u32,
}

impl BarrierAt {
    /// Returns the word of arrival `i`.
    pub const fn arrival(&self, i: u32) -> Word {
        self.arrivals.plus(i as u64)
    }
}

/// Result of [`Arrive`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArriveOutcome {
    /// The caller arrived, with this index and in this phase.
    Arrived {
        /// Order of arrival, less than the number of parties.
        index: u32,
        /// Phase of the arrival.
        phase: Phase,
        /// `true` if the caller also ended an earlier phase, whose waiters it has to wake.
        helped: bool,
    },
    /// The barrier is broken.
    Broken(Phase),
    /// All parties have arrived, and the last one runs its action: try again when this phase has ended.
    Full(Phase),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Phase,
    Load(u32),
    Recheck(u32, u64),
    Swap(u32, u64),
    End,
}

/// Arrives at a barrier. Never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arrive {
    at: BarrierAt,
    me: Member,
    acts: u64,
    phase: Phase,
    helped: bool,
    /// Last arrival that was loaded.
    last: u64,
    pc: Pc,
}

impl Arrive {
    /// Creates the steps for a thread of `me`.
    pub fn new(at: BarrierAt, me: Member) -> Self {
        Self { at, me, acts: 0, phase: Phase::unpack(0), helped: false, last: 0, pc: Pc::Phase }
    }

    /// Announces that the caller has an action. If its arrival is the last one, the caller runs the action,
    /// and ends the phase by [`CompletePhase::after_action`].
    #[must_use]
    pub fn with_action(self) -> Self {
        Self { acts: ACTS, ..self }
    }
}

impl Steps for Arrive {
    type Out = ArriveOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<ArriveOutcome> {
        match self.pc {
            Pc::Phase => {
                self.phase = Phase::unpack(m.load(self.at.phase));
                if self.phase.broken.is_some() {
                    return Some(ArriveOutcome::Broken(self.phase));
                }
                self.pc = Pc::Load(0);
            }
            Pc::Load(i) if i == self.at.parties && Phase::acts(self.last) => {
                return Some(ArriveOutcome::Full(self.phase));
            }
            // All have arrived, and the phase word is still open.
            Pc::Load(i) if i == self.at.parties => self.pc = Pc::End,
            Pc::Load(i) => {
                let word = m.load(self.at.arrival(i));
                self.last = word;
                self.pc = match self.phase.arrived(word) {
                    Some(_) => Pc::Load(i + 1),
                    None => Pc::Recheck(i, word),
                };
            }
            // If the phase has changed, the word may be an arrival of a later phase instead of a free place.
            Pc::Recheck(i, word) => {
                let now = m.load(self.at.phase);
                self.pc = if now == self.phase.pack() { Pc::Swap(i, word) } else { Pc::Phase };
            }
            Pc::Swap(i, word) => {
                let last = i + 1;
                let acts = if last == self.at.parties { self.acts } else { 0 };
                if m.cas(self.at.arrival(i), word, self.phase.arrival(self.me) | acts).is_ok() {
                    let (phase, helped) = (self.phase, self.helped);
                    return Some(ArriveOutcome::Arrived { index: i, phase, helped });
                }
                // Another party arrived there, or the phase has ended.
                self.pc = Pc::Phase;
            }
            Pc::End => {
                self.helped |= m.cas(self.at.phase, self.phase.pack(), self.phase.passed().pack()).is_ok();
                self.pc = Pc::Phase;
            }
        }
        None
    }
}

/// Ends a phase if all parties have arrived and the last party has no action to run. Ends with `true` if
/// these steps ended the phase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompletePhase {
    at: BarrierAt,
    phase: Phase,
    acted: bool,
    i: u32,
}

impl CompletePhase {
    /// Creates the steps for the last party, or for a party that completes the phase in case the last party
    /// died.
    pub fn new(at: BarrierAt, phase: Phase) -> Self {
        Self { at, phase, acted: false, i: 0 }
    }

    /// Changes the steps for the last party after its action: the mark `acts` is ignored.
    #[must_use]
    pub fn after_action(self) -> Self {
        Self { acted: true, ..self }
    }
}

impl Steps for CompletePhase {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if self.i == self.at.parties {
            return Some(m.cas(self.at.phase, self.phase.pack(), self.phase.passed().pack()).is_ok());
        }
        let word = m.load(self.at.arrival(self.i));
        self.i += 1;
        let acts = self.i == self.at.parties && Phase::acts(word) && !self.acted;
        let missing = self.phase.arrived(word).is_none();
        if missing || acts { Some(false) } else { None }
    }
}

/// Breaks a phase. Ends with `false` if the phase has ended or is already broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Break {
    at: BarrierAt,
    phase: Phase,
    how: BreakCause,
}

impl Break {
    /// Creates the steps that break this phase, which the caller has found open.
    pub fn new(at: BarrierAt, phase: Phase, how: BreakCause) -> Self {
        Self { at, phase, how }
    }
}

impl Steps for Break {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let broken = Phase { broken: Some(self.how), ..self.phase };
        Some(m.cas(self.at.phase, self.phase.pack(), broken.pack()).is_ok())
    }
}

/// Repairs a barrier. For waiters, the barrier was broken by a reset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reset {
    at: BarrierAt,
    seen: Option<Phase>,
}

impl Reset {
    /// Creates the steps for this barrier.
    pub fn new(at: BarrierAt) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for Reset {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let Some(seen) = self.seen else {
            self.seen = Some(Phase::unpack(m.load(self.at.phase)));
            return None;
        };
        match m.cas(self.at.phase, seen.pack(), seen.reset().pack()) {
            Ok(()) => Some(()),
            Err(now) => {
                self.seen = Some(Phase::unpack(now));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_words_round_trip() {
        for broken in [None, Some(BreakCause::Aborted), Some(BreakCause::TimedOut), Some(BreakCause::Died)] {
            let phase = Phase { broken, era: (1 << 14) - 1, trips: (1 << 24) - 1, base: 7 };
            assert_eq!(Phase::unpack(phase.pack()), phase);
            assert_eq!((phase.passed().trips, phase.reset().era), (0, 0));
        }
        let (m, phase) = (Member::new(4095, 4095), Phase { broken: None, era: 3, trips: 5, base: 1 });
        assert_eq!(phase.arrived(phase.arrival(m)), Some(m));
        assert_eq!(phase.passed().arrived(phase.arrival(m)), None);
        assert_eq!(Phase::unpack(0).arrived(0), None);
    }

    #[test]
    fn barrier_outcome_depends_on_the_later_phase_word() {
        let mine = Phase::unpack(0);
        let broken = Phase { broken: Some(BreakCause::Died), ..mine };
        assert_eq!(mine.outcome(mine), PhaseOutcome::Open);
        assert_eq!(mine.outcome(broken), PhaseOutcome::Broken(Some(BreakCause::Died)));
        assert_eq!(mine.outcome(mine.passed()), PhaseOutcome::Passed);
        let passed_then_broken = Phase { broken: Some(BreakCause::Aborted), ..mine.passed() };
        assert_eq!(mine.outcome(passed_then_broken), PhaseOutcome::Passed);
        assert_eq!(mine.outcome(passed_then_broken.reset().passed()), PhaseOutcome::Passed);
        assert_eq!(mine.outcome(broken.reset()), PhaseOutcome::Broken(None));
        assert_eq!(mine.outcome(broken.reset().passed()), PhaseOutcome::Broken(None));
        assert_eq!(mine.outcome(mine.passed().reset().reset()), PhaseOutcome::Broken(None));
    }
}
