//! Words of a clock, and its ticks.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Member, bits};

/// Point in the work of one stream: a clock, and a number that the clock reaches when the work is done.
///
/// ```
/// use mp_core::Arena;
/// use mp_core::clocks::{Clock, Clocks, Tick, TickState};
///
/// let arena = Arena::current()?;
/// let mut clock = Clock::claim(arena)?;
/// let tick = clock.next()?;
/// clock.submitted(tick)?; // a stream will write the tick after its work
/// let received = Tick::from_raw(tick.raw()).unwrap(); // a tick is one word, in a message or in the arena
/// assert_eq!(Clocks(arena).state(received), TickState::Pending);
/// clock.complete(tick)?;
/// assert_eq!(Clocks(arena).state(received), TickState::Complete);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Ticks of one clock are ordered like the work of its stream. Ticks of different clocks are not ordered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tick(u64);

impl Tick {
    /// Number of bits of a clock's index.
    pub const CLOCK_BITS: u32 = 12;
    const VALUE_BITS: u32 = u64::BITS - Self::CLOCK_BITS;
    const COUNT_BITS: u32 = 36;
    /// Maximum number of ticks of one owner of a clock.
    pub const MOST: u64 = (1 << Self::COUNT_BITS) - 1;

    /// Creates the tick of a clock with this value.
    pub const fn new(clock: u32, value: u64) -> Self {
        Self((clock as u64) << Self::VALUE_BITS | bits(value, 0, Self::VALUE_BITS))
    }

    /// Returns the value that a clock has at the start of an epoch. It belongs to no tick.
    pub const fn base(epoch: u16) -> u64 {
        (epoch as u64) << Self::COUNT_BITS
    }

    /// Returns the epoch of a value.
    pub const fn epoch_of(value: u64) -> u16 {
        bits(value, Self::COUNT_BITS, 16) as u16
    }

    /// Creates a tick from a word. Returns `None` for 0, which is not a tick.
    pub const fn from_raw(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    /// Encodes the tick as a word, which is never 0 for a tick created by a clock.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the index of the clock.
    #[must_use]
    pub const fn clock(self) -> u32 {
        (self.0 >> Self::VALUE_BITS) as u32
    }

    /// Returns the value of the clock at this tick. The clock's stream writes the value, and other streams
    /// wait for it.
    #[must_use]
    pub const fn value(self) -> u64 {
        bits(self.0, 0, Self::VALUE_BITS)
    }

    /// Returns the epoch of the tick: the number of the clock's owner, counted from 1.
    #[must_use]
    pub const fn epoch(self) -> u16 {
        Self::epoch_of(self.value())
    }

    /// Returns the number of ticks that the owner had submitted with this tick, counted from 1.
    #[must_use]
    pub const fn count(self) -> u64 {
        bits(self.0, 0, Self::COUNT_BITS)
    }
}

impl PartialOrd for Tick {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.clock() == other.clock()).then(|| self.value().cmp(&other.value()))
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tick {}.{} of clock {}", self.epoch(), self.count(), self.clock())
    }
}

/// Value of a clock whose owner is dead: greater than every tick. Devices compare values by the sign of their
/// difference, so this is not the largest unsigned number.
pub const END_OF_TICKS: u64 = i64::MAX as u64;

/// Life cycle of a clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClockPhase {
    /// The clock has no owner, and any member can claim it. All ticks of its epoch are done.
    Free,
    /// The clock is owned by this member, whose stream advances it.
    Live(Member),
    /// This member has released the clock before its last ticks were done.
    Left(Member),
    /// The owner, this member, is dead, and the progress of the owner's work is being recorded.
    Ending(Member),
    /// The epoch was ended by the death of the owner. Work that was not done then will never be done.
    Dead,
    /// A member begins the next epoch. The previous epoch has ended.
    Claiming {
        /// Member that claims the clock.
        by: Member,
        /// `true` if the previous epoch ended with its owner's death.
        died: bool,
    },
}

/// State word of a clock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClockState {
    /// Life cycle.
    pub phase: ClockPhase,
    /// Number of the current or last owner, counted from 1. 0: the clock never had an owner.
    pub epoch: u16,
    /// First epoch that ended with its owner's death, or 0 if each owner has ended normally.
    pub first_died: u16,
}

const EPOCH_AT: u32 = 3 + Member::BITS;
const FIRST_DIED_AT: u32 = EPOCH_AT + 16;

impl ClockState {
    /// Encodes the state as a word. Zero, the value of every word of a new arena, is a clock that never had
    /// an owner.
    pub const fn pack(self) -> u64 {
        let (phase, member) = match self.phase {
            ClockPhase::Free => (0, 0),
            ClockPhase::Live(m) => (1, m.raw()),
            ClockPhase::Left(m) => (2, m.raw()),
            ClockPhase::Ending(m) => (3, m.raw()),
            ClockPhase::Dead => (4, 0),
            ClockPhase::Claiming { by, died: false } => (5, by.raw()),
            ClockPhase::Claiming { by, died: true } => (6, by.raw()),
        };
        phase | member << 3 | (self.epoch as u64) << EPOCH_AT | (self.first_died as u64) << FIRST_DIED_AT
    }

    /// Creates the state from a word.
    pub const fn unpack(w: u64) -> Self {
        let member = Member::from_raw(w >> 3);
        let phase = match w & 7 {
            0 => ClockPhase::Free,
            1 => ClockPhase::Live(member),
            2 => ClockPhase::Left(member),
            3 => ClockPhase::Ending(member),
            4 => ClockPhase::Dead,
            n => ClockPhase::Claiming { by: member, died: n != 5 },
        };
        Self { phase, epoch: bits(w, EPOCH_AT, 16) as u16, first_died: bits(w, FIRST_DIED_AT, 16) as u16 }
    }

    /// Returns the state of the same clock in another phase.
    #[must_use]
    pub const fn with(self, phase: ClockPhase) -> Self {
        Self { phase, ..self }
    }

    /// Returns the member whose death would change the clock.
    pub const fn member(self) -> Option<Member> {
        match self.phase {
            ClockPhase::Live(m)
            | ClockPhase::Left(m)
            | ClockPhase::Ending(m)
            | ClockPhase::Claiming { by: m, .. } => Some(m),
            ClockPhase::Free | ClockPhase::Dead => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_words_round_trip() {
        let m = Member::new(4095, 4094);
        let claiming = [false, true].map(|died| ClockPhase::Claiming { by: m, died });
        let phases = [ClockPhase::Free, ClockPhase::Live(m), ClockPhase::Left(m), ClockPhase::Ending(m)];
        for phase in phases.into_iter().chain([ClockPhase::Dead]).chain(claiming) {
            for (epoch, first_died) in [(u16::MAX, 0), (1, u16::MAX), (0, 0)] {
                let state = ClockState { phase, epoch, first_died };
                assert_eq!(ClockState::unpack(state.pack()), state);
            }
        }
        assert_eq!(ClockState::unpack(0), ClockState { phase: ClockPhase::Free, epoch: 0, first_died: 0 });
        let tick = Tick::new(4095, Tick::base(u16::MAX) + Tick::MOST);
        assert_eq!((tick.clock(), tick.epoch(), tick.count()), (4095, u16::MAX, Tick::MOST));
        assert_eq!(Tick::from_raw(tick.raw()), Some(tick));
        assert_eq!(Tick::from_raw(0), None);
    }

    #[test]
    fn ticks_are_ordered_within_a_clock() {
        let at = |clock, epoch, count| Tick::new(clock, Tick::base(epoch) + count);
        assert!(at(3, 1, 2) < at(3, 1, 3) && at(3, 1, 9) < at(3, 2, 1));
        assert_eq!(at(3, 1, 2).partial_cmp(&at(4, 1, 3)), None);
        // Compares like a device.
        let past = |done: u64, tick: Tick| done.wrapping_sub(tick.value()).cast_signed() >= 0;
        assert!(past(END_OF_TICKS, at(0, u16::MAX, Tick::MOST)) && !past(u64::MAX, at(0, 1, 1)));
        assert_eq!(format!("{:?}", at(3, 1, 2)), "tick 1.2 of clock 3");
    }
}
