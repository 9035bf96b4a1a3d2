//! Arrivals at a barrier, and the phase that ends with the last of them.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | phase: `broken 2, era 14, trips 24, base 24` | open | a party that sees all slots arrived in this phase → open, trips + 1 |
//! |  |  | a process that gives up, aborts, or finds a party dead → broken |
//! |  | open or broken | a reset → open, era + 1, base = trips |
//! | arrival: `arrived 1, era 14, trips 24, member 24, acts 1` | of an earlier phase: free | a party that arrives → arrived in this phase; the last one, if it has something to do before the others go on: and acts |
//! |  | of this phase | nothing, until the phase is over |
//! | who: `member 24, pid 22` | | the party that arrived there, afterwards: counts only if it names the same member |
//! | party: a slot, see [`slot`](super::slot) | | a process that enrolls; a reset clears those of dead processes |
//!
//! **One swap of the phase decides** how it ends: as passed, or as broken. A party has been counted if the
//! swap of its arrival succeeded: a phase that is over had changed that word. Arrivals are taken in order, so
//! that the party that takes the last one has seen all the others, and ends the phase. Between the look at an
//! arrival and its swap the phase is looked at again: was it the same, then what was read was of an earlier
//! phase, and not of a later phase, on which another party counts.
//!
//! **The party that acts ends the phase itself**, when its action is done: no other does it in its place.
//! Until then the phase is open, and full: a party that comes meanwhile waits before it arrives. If the party
//! that acts dies, or its action fails, the phase is broken.
//!
//! A waiter compares the phase in which it arrived with the current one: as many resets, another number of
//! trips: passed. One reset more: passed if the trips at that reset (base) are others. More resets than one:
//! broken, to be safe. (Trips compare modulo 2^24, eras modulo 2^14: a process that slept through an exact
//! multiple sees its own phase again.)
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | before it arrived | nothing; if it was known as a party, a slot that names it | a waiter breaks the barrier, in the latter case |
//! | arrived | an arrival of a dead party | a waiter breaks the barrier, unless all have arrived |
//! | as the last to arrive, before it ended the phase | all arrived, phase open | a party that waits, or comes next, ends it |
//! | as the last to arrive, before it has done what it had to do | all arrived, phase open, the last arrival acts | a party that waits, or comes next, breaks the barrier |
//! | having ended or broken it, before it woke the others | they look within a poll interval | |
//! | resetting | reset, or not; slots of dead parties | a party that finds them breaks it again, and it is reset again |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;

/// How a phase was broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum How {
    /// A process called `abort`.
    Aborted = 1,
    /// A party's time was over.
    TimedOut = 2,
    /// A party died.
    Died = 3,
}

const ERA_BITS: u32 = 14;
const TRIPS_BITS: u32 = 24;
const ERA: u64 = (1 << ERA_BITS) - 1;
const TRIPS: u64 = (1 << TRIPS_BITS) - 1;
const ACTS: u64 = 1 << 63;

/// What the phase word says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Phase {
    /// How it was broken, if it was.
    pub broken: Option<How>,
    /// How often it was reset, modulo 2^14.
    pub era: u16,
    /// How often it was passed, modulo 2^24.
    pub trips: u32,
    /// How often it had been passed at the last reset.
    pub base: u32,
}

/// What a phase became for a party that arrived in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It is open still.
    Open,
    /// All parties arrived.
    Passed,
    /// It was broken like this; by a reset if `None`.
    Broken(Option<How>),
}

impl Phase {
    /// As a word.
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

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        let broken = match w & 3 {
            0 => None,
            1 => Some(How::Aborted),
            2 => Some(How::TimedOut),
            _ => Some(How::Died),
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
        let base = if mp_core::mutant!("barrier.reset.base-not-written") { self.base } else { self.trips };
        Self { broken: None, era: (self.era + 1) & ERA as u16, base, ..self }
    }

    /// The word of an arrival of `m` in this phase.
    pub const fn arrival(self, m: Member) -> u64 {
        1 | (self.era as u64) << 1
            | (self.trips as u64) << (1 + ERA_BITS)
            | m.raw() << (1 + ERA_BITS + TRIPS_BITS)
    }

    /// Whether the arrival in that word, the last one of a phase, has something to do before the others go on.
    pub const fn acts(word: u64) -> bool {
        word & ACTS != 0
    }

    /// The member that arrived, if that word is of an arrival in this phase.
    pub fn arrived(self, word: u64) -> Option<Member> {
        let word = word & !ACTS;
        let m = Member::from_raw(word >> (1 + ERA_BITS + TRIPS_BITS));
        if self.arrival(m) == word || word & 1 == 1 && mp_core::mutant!("barrier.arrived.in-any-phase") {
            Some(m)
        } else {
            None
        }
    }

    /// What this phase has become, if the word says `now`.
    pub fn verdict(self, now: Self) -> Verdict {
        if now.era == self.era {
            return match now.broken {
                how if how.is_some() && mp_core::mutant!("barrier.verdict.broken-first") => {
                    Verdict::Broken(how)
                }
                _ if now.trips != self.trips => Verdict::Passed,
                None => Verdict::Open,
                how => Verdict::Broken(how),
            };
        }
        let next = now.era == self.reset().era;
        let next = next || mp_core::mutant!("barrier.verdict.eras-not-compared");
        if next && now.base != self.trips { Verdict::Passed } else { Verdict::Broken(None) }
    }
}

/// Where the words of a barrier are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BarrierAt {
    /// The phase.
    pub phase: Word,
    /// The first arrival; the others follow.
    pub arrivals: Word,
    /// How many parties, at least 1.
    pub parties: u32,
}

impl BarrierAt {
    /// Where arrival `i` is.
    pub const fn arrival(&self, i: u32) -> Word {
        self.arrivals.plus(i as u64)
    }
}

/// How an arrival ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrived {
    /// The caller is the one with this number, in this phase.
    Here {
        /// From 0 to one less than the parties.
        index: u32,
        /// The phase.
        phase: Phase,
        /// Whether it ended an earlier phase for waiters that are to be woken.
        helped: bool,
    },
    /// The barrier is broken.
    Broken(Phase),
    /// All have come, and the last one acts: come again when this phase is over.
    Full(Phase),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Phase,
    Look(u32),
    Again(u32, u64),
    Swap(u32, u64),
    End,
}

/// Arrives. It never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arrive {
    at: BarrierAt,
    me: Member,
    acts: u64,
    phase: Phase,
    helped: bool,
    /// The last arrival that was seen.
    last: u64,
    pc: Pc,
}

impl Arrive {
    /// Of a thread of `me`.
    pub fn new(at: BarrierAt, me: Member) -> Self {
        Self { at, me, acts: 0, phase: Phase::unpack(0), helped: false, last: 0, pc: Pc::Phase }
    }

    /// If it is the last to arrive, it acts: it ends the phase with [`Complete::acted`].
    #[must_use]
    pub fn acting(self) -> Self {
        Self { acts: ACTS, ..self }
    }
}

impl Steps for Arrive {
    type Out = Arrived;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Arrived> {
        match self.pc {
            Pc::Phase => {
                self.phase = Phase::unpack(m.load(self.at.phase));
                if self.phase.broken.is_some() && !mp_core::mutant!("barrier.arrive.broken-ignored") {
                    return Some(Arrived::Broken(self.phase));
                }
                self.pc = Pc::Look(0);
            }
            Pc::Look(i)
                if i == self.at.parties
                    && Phase::acts(self.last)
                    && !mp_core::mutant!("barrier.arrive.acting-not-waited-for") =>
            {
                return Some(Arrived::Full(self.phase));
            }
            // All have arrived, and the phase does not say so yet.
            Pc::Look(i) if i == self.at.parties => self.pc = Pc::End,
            Pc::Look(i) => {
                let word = m.load(self.at.arrival(i));
                self.last = word;
                self.pc = match self.phase.arrived(word) {
                    Some(_) => Pc::Look(i + 1),
                    None if mp_core::mutant!("barrier.arrive.second-look-away") => Pc::Swap(i, word),
                    None => Pc::Again(i, word),
                };
            }
            // Else it may be an arrival of a later phase, and no free place.
            Pc::Again(i, word) => {
                let now = m.load(self.at.phase);
                self.pc = if now == self.phase.pack() { Pc::Swap(i, word) } else { Pc::Phase };
            }
            Pc::Swap(i, word) => {
                let last = i + 1 + u32::from(mp_core::mutant!("barrier.arrive.one-before-acts"));
                let acts = if last == self.at.parties { self.acts } else { 0 };
                if m.cas(self.at.arrival(i), word, self.phase.arrival(self.me) | acts).is_ok() {
                    let (phase, helped) = (self.phase, self.helped);
                    return Some(Arrived::Here { index: i, phase, helped });
                }
                // Another party arrived there, or the phase is over, or it is our own that is.
                self.pc = Pc::Phase;
            }
            Pc::End => {
                self.helped |= !mp_core::mutant!("barrier.arrive.helped-not-told")
                    & m.cas(self.at.phase, self.phase.pack(), self.phase.passed().pack()).is_ok();
                self.pc = Pc::Phase;
            }
        }
        None
    }
}

/// Ends a phase if all have arrived, and no party acts; ends with whether this did it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Complete {
    at: BarrierAt,
    phase: Phase,
    acted: bool,
    i: u32,
}

impl Complete {
    /// Of this phase. For the one that arrived last, and for those that ask whether it died before it said so.
    pub fn new(at: BarrierAt, phase: Phase) -> Self {
        Self { at, phase, acted: false, i: 0 }
    }

    /// By the one that arrived last, and acted.
    #[must_use]
    pub fn acted(self) -> Self {
        Self { acted: true, ..self }
    }
}

impl Steps for Complete {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if self.i + u32::from(mp_core::mutant!("barrier.complete.one-too-early")) == self.at.parties {
            return Some(m.cas(self.at.phase, self.phase.pack(), self.phase.passed().pack()).is_ok());
        }
        let word = m.load(self.at.arrival(self.i));
        self.i += 1;
        let acts = self.i == self.at.parties && Phase::acts(word) && !self.acted;
        let acts = acts && !mp_core::mutant!("barrier.complete.while-acting");
        let missing =
            self.phase.arrived(word).is_none() && !mp_core::mutant!("barrier.complete.with-one-missing");
        if missing || acts { Some(false) } else { None }
    }
}

/// Breaks a phase; ends with whether it did: not if it is over, or broken already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Break {
    at: BarrierAt,
    phase: Phase,
    how: How,
}

impl Break {
    /// This phase, which the caller has seen open.
    pub fn new(at: BarrierAt, phase: Phase, how: How) -> Self {
        Self { at, phase, how }
    }
}

impl Steps for Break {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if mp_core::mutant!("barrier.break.not-written") {
            return Some(true);
        }
        let broken = Phase { broken: Some(self.how), ..self.phase };
        Some(m.cas(self.at.phase, self.phase.pack(), broken.pack()).is_ok())
    }
}

/// Makes a barrier whole again; a waiter finds it broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reset {
    at: BarrierAt,
    seen: Option<Phase>,
}

impl Reset {
    /// Of this barrier.
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
    fn words_keep_their_fields() {
        for broken in [None, Some(How::Aborted), Some(How::TimedOut), Some(How::Died)] {
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
    fn a_phase_is_judged_by_what_followed() {
        let mine = Phase::unpack(0);
        let broken = Phase { broken: Some(How::Died), ..mine };
        assert_eq!(mine.verdict(mine), Verdict::Open);
        assert_eq!(mine.verdict(broken), Verdict::Broken(Some(How::Died)));
        assert_eq!(mine.verdict(mine.passed()), Verdict::Passed);
        let passed_then_broken = Phase { broken: Some(How::Aborted), ..mine.passed() };
        assert_eq!(mine.verdict(passed_then_broken), Verdict::Passed);
        assert_eq!(mine.verdict(passed_then_broken.reset().passed()), Verdict::Passed);
        assert_eq!(mine.verdict(broken.reset()), Verdict::Broken(None));
        assert_eq!(mine.verdict(broken.reset().passed()), Verdict::Broken(None));
        assert_eq!(mine.verdict(mine.passed().reset().reset()), Verdict::Broken(None));
    }
}
