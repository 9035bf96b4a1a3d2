//! Clocks of streams: the progress of a device's work, visible to every process.
//!
//! [`steps::clock`](crate::steps::clock) describes the words of a clock and their state after a death.
//!
//! `mod.rs` has the operations of an owner, `table.rs` the operations of all members and the clocks of dead
//! members, and `orders.rs` the ordering of each device's streams.

mod orders;
mod table;

use crate::mem::raise;
pub use crate::steps::clock::TickState;
pub use orders::EventHandle;
pub use table::Clocks;

#[doc(inline)]
pub use crate::words::Tick;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::{CLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::steps::clock::{ClaimClock, ClockAt, EndClock, ReleaseClock};
use crate::sys::memory;
use crate::words::{ClockPhase, ClockState, Member};

/// Time in ms for which a clock's owner must have been dead before the clock gets another owner. The dead
/// owner's device may write some milliseconds late, which is much less.
const REST_MS: u64 = 1000;

/// A clock of this process: the order of one stream's work, visible to every process and every device.
///
/// ```
/// use mp_core::Arena;
/// use mp_core::clocks::{Clock, Clocks, TickState};
///
/// let arena = Arena::current()?;
/// let mut clock = Clock::claim(arena)?;
/// let tick = clock.next()?; // the next number, which the stream is asked to write
/// clock.submitted(tick)?; // from here on, other processes may wait for it
/// assert_eq!(Clocks(arena).state(tick), TickState::Pending);
/// clock.complete(tick)?; // normally written by the stream
/// assert_eq!(Clocks(arena).state(tick), TickState::Complete);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Only one stream at a time may tick a clock. Two streams would let the clock run backwards.
///
/// # When a clock is dropped
/// The clock may get another owner as soon as all submitted work has completed. The stream may be destroyed
/// earlier, while its work continues. If a device is lost, so that its work never ends, the owner must call
/// [`declare_dead`](Self::declare_dead). Dropping doesn't block.
///
/// # When the owner dies
/// Any member that [reclaims](Arena::reclaim) dead members releases the devices that wait for the clock's
/// ticks, once the process has ended. Completed ticks stay complete. Other ticks are [`TickState::Died`].
#[derive(Debug)]
#[must_use = "dropping a clock gives it up"]
pub struct Clock {
    arena: Arena,
    index: u32,
    /// Last tick submitted.
    submitted: u64,
}

impl Clock {
    /// Claims a clock for a stream.
    ///
    /// Takes a clock without an owner: released, or never used. If all clocks have owners, takes the clock
    /// whose owner has been dead for the longest time, at least for a second. Doesn't block.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] if all 4,096 clocks have owners. [`Error::OutOfMemory`], [`Error::Forked`].
    pub fn claim(arena: Arena) -> Result<Self> {
        let me = arena.me()?;
        let pid = std::process::id();
        let process = (pid, memory::start_time_of(pid).unwrap_or(0));
        let claim = |index: u32, dead: bool| {
            let epoch = run(ClaimClock::new(clock_at(index), me, process, dead), arena.map())?;
            Some(Self { arena, index, submitted: Tick::base(epoch) })
        };
        let (used, hint) = (Clocks(arena).clocks_used(), Word::at(control::CLOCKS_HINT));
        let first = arena.map().load_relaxed(hint).min(used.into()) as u32;
        for index in first..CLOCKS {
            if index >= used {
                Clocks(arena).use_clock(index)?;
            }
            if let Some(clock) = claim(index, false) {
                arena.map().store_relaxed(hint, u64::from(index) + 1);
                return Ok(clock);
            }
        }
        // Free clocks below the hint.
        if let Some(clock) = (0..first).find_map(|index| claim(index, false)) {
            return Ok(clock);
        }
        let dead = Clocks(arena).clocks_of_dead_owners(memory::monotonic_ms().saturating_sub(REST_MS));
        dead.into_iter().find_map(|index| claim(index, true)).ok_or(Error::ArenaFull {
            what: "clocks of streams (give up streams, or end processes that have many)",
            asked: 1,
            limit: CLOCKS.into(),
        })
    }

    /// Returns the index of the clock, below 4,096.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the tick after the last submitted one. Repeated calls return the same tick until it is
    /// [submitted](Self::submitted).
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] after 2^36 ticks: the stream needs another clock.
    pub fn next(&self) -> Result<Tick> {
        if self.last_count() == Tick::MOST {
            let why = "this clock has used its 2^36 ticks: drop it, and claim another clock";
            return Err(Error::LimitExceeded(why.into()));
        }
        Ok(Tick::new(self.index, self.submitted + 1))
    }

    fn last_count(&self) -> u64 {
        Tick::new(self.index, self.submitted).count()
    }

    /// Returns the last submitted tick, if any.
    #[must_use]
    pub fn last(&self) -> Option<Tick> {
        (self.last_count() != 0).then(|| Tick::new(self.index, self.submitted))
    }

    /// Records that the stream has accepted the command to write this tick. From here on, other processes may
    /// wait for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tick isn't the [next](Self::next) one. [`Error::Forked`].
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

    /// Completes a tick, after all work before it is done. Used if the stream can't write the clock itself,
    /// and the host waits for the stream.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the tick is another clock's, or wasn't submitted. [`Error::Forked`].
    pub fn complete(&mut self, tick: Tick) -> Result<()> {
        self.arena.me()?;
        let first = Tick::new(self.index, Tick::base(Tick::epoch_of(self.submitted)) + 1);
        let last = Tick::new(self.index, self.submitted);
        if !(first..=last).contains(&tick) {
            return Err(Error::InvalidArgument(format!(
                "{tick:?} was not submitted; {last:?} was the last one"
            )));
        }
        // An earlier tick that is completed later changes nothing.
        if self.arena.map().load(clock_at(self.index).done()) < tick.value() {
            self.arena.map().store(clock_at(self.index).done(), tick.value());
        }
        Ok(())
    }

    /// Releases the clock as after the death of its process: the device is lost, and pending ticks never
    /// complete. Completed ticks stay complete.
    pub fn declare_dead(self) {
        if let Ok(me) = self.arena.me() {
            Clocks(self.arena).end_clock(clock_at(self.index), Some(me));
        }
        // The clock no longer names this member, so dropping the handle does not release it a second time.
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if self.arena.is_here()
            && run(ReleaseClock::new(clock_at(self.index), self.submitted), self.arena.map())
        {
            Clocks(self.arena).hint_clock(self.index);
        }
    }
}

/// Returns the words of a clock.
fn clock_at(index: u32) -> ClockAt {
    ClockAt(Word::at(control::CLOCKS).plus(ClockAt::WORDS * u64::from(index % CLOCKS)))
}

impl Clocks {
    /// Returns the number of clocks that may have had an owner.
    fn clocks_used(self) -> u32 {
        self.0.map().load(Word::at(control::CLOCKS_USED)).min(CLOCKS.into()) as u32
    }

    /// Ends the clock of a member that is dead or has lost its device. With `None`, ends a dead clock again.
    ///
    /// If the clock's work is unfinished, increments [`unfinished_ends`](Self::unfinished_ends) before the
    /// clock ends. Only after that can a stream that waits for this work continue and complete its own tick.
    /// So a process that finds that tick complete also reads the incremented count.
    fn end_clock(self, clock: ClockAt, member: Option<Member>) {
        let m = self.0.map();
        if member.is_some() && m.load(clock.done()) != m.load(clock.submitted()) {
            m.add(Word::at(control::UNFINISHED_ENDS), 1);
        }
        run(EndClock::new(clock, member, memory::monotonic_ms()), m);
    }

    /// Marks a clock as free. If the process is killed before this, the next reclaim marks it.
    fn hint_clock(self, index: u32) {
        let hint = Word::at(control::CLOCKS_HINT);
        if self.0.map().load_relaxed(hint) > index.into() {
            self.0.map().store_relaxed(hint, index.into());
        }
    }

    /// Reserves the memory of a clock, and makes the clock visible to other processes' searches.
    fn use_clock(self, index: u32) -> Result<()> {
        const PAGE: u64 = 4096;
        let at = clock_at(index).done().offset();
        if at.is_multiple_of(PAGE) {
            self.0.commit(at, PAGE)?;
        }
        raise(self.0.map(), Word::at(control::CLOCKS_USED), u64::from(index) + 1);
        Ok(())
    }

    /// Returns the clocks whose owners were already dead at time `since`, longest dead first.
    fn clocks_of_dead_owners(self, since: u64) -> Vec<u32> {
        let died = |&index: &u32| {
            let state = ClockState::unpack(self.0.map().load(clock_at(index).state()));
            state.phase == ClockPhase::Dead
        };
        let when = |index: u32| (self.0.map().load_relaxed(clock_at(index).when()), index);
        let mut dead: Vec<_> =
            (0..CLOCKS).filter(died).map(when).filter(|(when, _)| *when <= since).collect();
        dead.sort_unstable();
        dead.into_iter().map(|(_, index)| index).collect()
    }
}
