//! Clocks of the streams of devices: see [`steps::clock`](crate::steps::clock) for their words, and for what a death leaves.
//!
//! `mod.rs` is what an owner does, `table.rs` what all others see, `ending.rs` what becomes of the clocks of the dead, `orders.rs` how
//! the streams of each device are ordered.

mod ending;
mod orders;
mod table;

pub use orders::EventHandle;
pub use table::{Clocks, TickState};

use crate::arena::Arena;
use crate::arena::layout::{CLOCKS, control};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::clock::{ClaimClock, ClockAt, EndClock, GiveUpClock};
use crate::sys::memory;
use crate::words::{ClockPhase, ClockState, Tick};

/// How long a clock's owner has been dead before it gets another one. The device of the dead owner may write late, for some
/// milliseconds; this is much more.
const REST_MS: u64 = 1000;

/// A clock of this process: the order of the work of one stream, for every process and every device to see.
///
/// ```
/// use mp_core::Arena;
/// use mp_core::clocks::{Clock, TickState};
///
/// let arena = Arena::current()?;
/// let mut clock = Clock::claim(arena)?;
/// let tick = clock.next()?; // the next number: the stream is asked to write it, and if it takes that:
/// clock.submitted(tick)?; // from here on, other processes may learn of it
/// assert_eq!(arena.clocks().state(tick), TickState::Pending);
/// clock.complete(tick)?; // what the stream does, when it has come so far
/// assert_eq!(arena.clocks().state(tick), TickState::Complete);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// One stream at a time ticks it: two would let the clock run backwards.
///
/// # When it is dropped
/// It may get another owner, at once if all that was submitted is done, else when it is: the stream may be gone by then, its
/// work may not. Of a device that is lost, whose work never ends, its owner [says so](Self::declare_dead). Dropping doesn't
/// block.
///
/// # When its process dies
/// Devices that wait for its ticks are released, by any member that [sweeps](Arena::sweep), once the process is gone. Ticks that
/// were done stay done; others are [`TickState::Died`].
#[derive(Debug)]
#[must_use = "dropping a clock gives it up"]
pub struct Clock {
    arena: Arena,
    index: u32,
    /// The last tick submitted.
    submitted: u64,
}

impl Clock {
    /// A clock for a stream.
    ///
    /// It takes one that was given up, else one that had no owner yet, else the one whose owner has been dead for longest, if that
    /// was a second ago. It doesn't block.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] if all 4,096 have owners; [`Error::OutOfMemory`], [`Error::Forked`].
    pub fn claim(arena: Arena) -> Result<Self> {
        let me = arena.me()?;
        let pid = std::process::id();
        let process = (pid, memory::start_time_of(pid).unwrap_or(0));
        let claim = |index: u32, dead: bool| {
            let epoch = run(ClaimClock::new(clock_at(index), me, process, dead), arena.map())?;
            Some(Self { arena, index, submitted: Tick::base(epoch) })
        };
        let (used, hint) = (arena.clocks_used(), Word::at(control::CLOCKS_HINT));
        let first = arena.map().load_relaxed(hint).min(used.into()) as u32;
        for index in first..CLOCKS {
            if index >= used {
                arena.use_clock(index)?;
            }
            if let Some(clock) = claim(index, false) {
                arena.map().store_relaxed(hint, u64::from(index) + 1);
                return Ok(clock);
            }
        }
        // Those that no hint tells of.
        if let Some(clock) = (0..first).find_map(|index| claim(index, false)) {
            return Ok(clock);
        }
        let dead = arena.clocks_of_dead_owners(memory::monotonic_ms().saturating_sub(REST_MS));
        dead.into_iter().find_map(|index| claim(index, true)).ok_or(Error::ArenaFull {
            what: "clocks of streams (give up streams, or end processes that have many)",
            asked: 1,
            limit: CLOCKS.into(),
        })
    }

    /// Which clock it is: less than 4,096.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The tick after the last one that was submitted. As long as it isn't [submitted](Self::submitted), it is the next one still.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] after 2^36 ticks: the stream needs another clock.
    pub fn next(&self) -> Result<Tick> {
        if self.last_count() == Tick::MOST {
            let why = "this clock has told 2^36 ticks, and has no more: drop it, and claim another one";
            return Err(Error::LimitExceeded(why.into()));
        }
        Ok(Tick::new(self.index, self.submitted + 1))
    }

    fn last_count(&self) -> u64 {
        Tick::new(self.index, self.submitted).count()
    }

    /// The last tick that was submitted; none if none was.
    #[must_use]
    pub fn last(&self) -> Option<Tick> {
        (self.last_count() != 0).then(|| Tick::new(self.index, self.submitted))
    }

    /// Notes that the stream has taken the order to write this tick. From here on other processes may wait for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it isn't the [next](Self::next) one, [`Error::Forked`].
    pub fn submitted(&mut self, tick: Tick) -> Result<()> {
        self.arena.me()?;
        if tick != self.next()? {
            return Err(Error::InvalidArgument(format!(
                "{tick:?} is submitted, and {:?} is the next",
                self.next()?
            )));
        }
        self.arena.map().store(clock_at(self.index).submitted(), tick.value());
        self.submitted = tick.value();
        Ok(())
    }

    /// Says that the work before a tick is done: for a stream that can't write it itself, and is waited for by the host.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is another clock's tick, or wasn't submitted; [`Error::Forked`].
    pub fn complete(&mut self, tick: Tick) -> Result<()> {
        self.arena.me()?;
        let first = Tick::new(self.index, Tick::base(Tick::epoch_of(self.submitted)) + 1);
        let last = Tick::new(self.index, self.submitted);
        if !(first..=last).contains(&tick) {
            return Err(Error::InvalidArgument(format!(
                "{tick:?} was not submitted; {last:?} was the last one"
            )));
        }
        // An earlier one that comes later changes nothing.
        if self.arena.map().load(clock_at(self.index).done()) < tick.value() {
            self.arena.map().store(clock_at(self.index).done(), tick.value());
        }
        Ok(())
    }

    /// Gives it up as a dead process's: its device is lost, and what is not done will never be. Ticks that are done stay done.
    pub fn declare_dead(self) {
        if let Ok(me) = self.arena.me() {
            run(EndClock::new(clock_at(self.index), Some(me), memory::monotonic_ms()), self.arena.map());
        }
        // It has nothing else to give up: what is no member's any more isn't given up twice.
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if self.arena.is_here()
            && run(GiveUpClock::new(clock_at(self.index), self.submitted), self.arena.map())
        {
            self.arena.hint_clock(self.index);
        }
    }
}

/// Where a clock is.
fn clock_at(index: u32) -> ClockAt {
    ClockAt(Word::at(control::CLOCKS).plus(ClockAt::WORDS * u64::from(index % CLOCKS)))
}

impl Arena {
    /// Clocks below this may have had an owner.
    fn clocks_used(&self) -> u32 {
        self.map().load(Word::at(control::CLOCKS_USED)).min(CLOCKS.into()) as u32
    }

    /// Notes that a clock is free. Killed before it, a process leaves that to the next sweep.
    fn hint_clock(&self, index: u32) {
        let hint = Word::at(control::CLOCKS_HINT);
        if self.map().load_relaxed(hint) > index.into() {
            self.map().store_relaxed(hint, index.into());
        }
    }

    /// Makes sure that there is memory behind a clock, and that others look at it.
    fn use_clock(&self, index: u32) -> Result<()> {
        const PAGE: u64 = 4096;
        let at = clock_at(index).done().offset();
        if at.is_multiple_of(PAGE) {
            self.commit_at(at, PAGE)?;
        }
        self.raise(Word::at(control::CLOCKS_USED), u64::from(index) + 1);
        Ok(())
    }

    /// The clocks of owners that were dead at that time, those of the longest dead first.
    fn clocks_of_dead_owners(&self, since: u64) -> Vec<u32> {
        let died = |&index: &u32| {
            let state = ClockState::unpack(self.map().load(clock_at(index).state()));
            state.phase == ClockPhase::Dead
        };
        let when = |index: u32| (self.map().load_relaxed(clock_at(index).when()), index);
        let mut dead: Vec<_> =
            (0..CLOCKS).filter(died).map(when).filter(|(when, _)| *when <= since).collect();
        dead.sort_unstable();
        dead.into_iter().map(|(_, index)| index).collect()
    }
}
