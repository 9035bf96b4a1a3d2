//! Clocks as visible to all members.

use std::ptr::NonNull;

use crate::arena::Arena;
use crate::clocks::clock_at;
use crate::error::Result;
use crate::layout::{CLOCK, CLOCKS, control};
use crate::mem::{Mem, run};
use crate::steps::clock::{CheckTick, ClockAt, TickStatus};
use crate::words::{ClockState, Member, Tick};

/// State of a tick, from the words that the calling process can read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TickState {
    /// The work before the tick is done.
    Complete,
    /// The tick was submitted and is not complete.
    Pending,
    /// The process that submitted the tick died, or lost its device, before the tick was complete. It never
    /// will be.
    Died {
        /// Process ID of the owner, if still known.
        pid: Option<u32>,
    },
    /// No owner of the clock has submitted the tick: a process that waits for it would wait forever.
    Forged,
}

/// Clocks of all streams of all members.
///
/// ```
/// use mp_core::Arena;
/// use mp_core::clocks::{Clock, Clocks, Tick, TickState};
///
/// let clocks = Clocks(Arena::current()?);
/// let mut clock = Clock::claim(Arena::current()?)?;
/// let tick = clock.next()?;
/// assert_eq!(clocks.state(tick), TickState::Forged); // not yet submitted
/// clock.submitted(tick)?;
/// assert_eq!((clocks.state(tick), clocks.submitted(clock.index())), (TickState::Pending, tick.value()));
/// // Word that a device writes and waits for: 64 bits, compared by their signed difference.
/// let done = clocks.address()?.as_ptr().wrapping_add(clocks.done_offset(clock.index())).cast::<u64>();
/// # _ = done;
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// The addresses of the table stay the same as long as the process lives, and its memory is never returned,
/// so it may be registered with a driver. (A child created by `fork` does not have the table.)
#[derive(Clone, Copy, Debug)]
pub struct Clocks(pub Arena);

impl Clocks {
    /// Number of clocks.
    pub const COUNT: u32 = CLOCKS;
    /// Size of the table in bytes, a multiple of the page size.
    pub const BYTES: usize = (CLOCK * CLOCKS as u64) as usize;

    /// Returns the address of the table, which begins at a page. The whole table has memory from here on.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Forked`](crate::Error::Forked).
    pub fn address(&self) -> Result<NonNull<u8>> {
        self.0.me()?;
        self.0.commit(control::CLOCKS, Self::BYTES as u64)?;
        Ok(self.0.map().bytes(control::CLOCKS, Self::BYTES as u64))
    }

    /// Returns the offset in bytes, within the table, of the word that a clock's stream writes.
    #[must_use]
    pub fn done_offset(&self, clock: u32) -> usize {
        (clock_at(clock).done().offset() - control::CLOCKS) as usize
    }

    /// Returns the present state of a tick. A tick that died stays dead. A forged tick may become a submitted
    /// one. A complete tick stays complete
    ///
    /// - always, if no owner of its clock has died until its own owner gave the clock up;
    /// - otherwise for the next 63 owners of the clock, and if its own owner died, as long as none of these
    ///   dies. After that the tick is reported as dead, which is safe: completed work is repeated, or its
    ///   memory is not reused.
    ///
    /// A dead owner's clock gets another owner only when all other clocks have one.
    ///
    /// In a child created by `fork`, every tick is forged.
    #[must_use]
    pub fn state(&self, tick: Tick) -> TickState {
        if !self.0.is_here() || tick.clock() >= self.clocks_used() {
            return TickState::Forged;
        }
        match run(CheckTick::new(clock_at(tick.clock()), tick), self.0.map()) {
            TickStatus::Complete => TickState::Complete,
            TickStatus::Pending => TickState::Pending,
            TickStatus::Died(pid) => TickState::Died { pid },
            TickStatus::Forged => TickState::Forged,
        }
    }

    /// Returns the member that has submitted a tick, if the tick is still pending.
    #[must_use]
    pub fn owner(&self, tick: Tick) -> Option<Member> {
        if !self.0.is_here() || tick.clock() >= self.clocks_used() {
            return None;
        }
        let state = ClockState::unpack(self.0.map().load(clock_at(tick.clock()).state()));
        // A pending tick has the same owner as before.
        let owner = state.member();
        owner.filter(|_| self.state(tick) == TickState::Pending)
    }

    /// Returns the last value that a clock's owner has submitted.
    #[must_use]
    pub fn submitted(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::submitted)
    }

    /// Returns the last value that a clock's stream has written. Exceeds all values if the owner is dead.
    #[must_use]
    pub fn done(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::done)
    }

    /// Returns the number of clocks that have an owner, including dead owners that were not reclaimed. The
    /// other clocks can be claimed, at once or when their owner has been dead for a second.
    #[must_use]
    pub fn owned(&self) -> u32 {
        if !self.0.is_here() {
            return 0;
        }
        let state = |clock| ClockState::unpack(self.0.map().load(clock_at(clock).state()));
        (0..self.clocks_used()).filter(|&clock| state(clock).member().is_some()).count() as u32
    }

    fn word(&self, clock: u32, which: fn(ClockAt) -> crate::mem::Word) -> u64 {
        let used = self.0.is_here() && clock < self.clocks_used();
        if used { self.0.map().load(which(clock_at(clock))) } else { 0 }
    }
}
