//! Clocks as visible to all members.
//!
//! # Clocks of dead members
//! Devices wait for ticks of a dead owner's clock. A store by any process releases them, once the device of
//! the dead owner no longer writes. That is certain when the owner's process has ended, since the kernel has
//! then closed its files, including the driver's. The process's locks in the arena's file, by which others
//! detect its death, may be released earlier, since descriptors are closed in the order of their numbers. So
//! the process itself is checked, by its pidfd. Every reclaim checks a clock of a dead member until the
//! member's process has ended, even if the member was reclaimed long ago.
//!
//! A device may still write late. So a reclaim also checks dead clocks, and releases their waiters again.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use crate::arena::Arena;
use crate::clocks::clock_at;
use crate::error::Result;
use crate::layout::{CLOCK, CLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::steps::clock::{CheckTick, ClockAt, TickState};
use crate::sys::peer::{self, Liveness};
use crate::sys::{memory, readiness};
use crate::words::{ClockPhase, ClockState, Member, Tick};

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
/// The addresses of the table stay the same as long as the process lives, and its memory is never returned.
/// So the table may be registered with a driver. (A child created by `fork` does not have the table.)
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
    /// - forever, if no owner of the clock had died when the tick's owner released the clock;
    /// - otherwise, while the clock has its next 63 owners, and, if the tick's owner died, until one of these
    ///   63 owners dies. After that the tick is reported as dead, which is safe: completed work is repeated,
    ///   or the memory of that work is not reused.
    ///
    /// A dead owner's clock gets another owner only when all other clocks have one.
    ///
    /// In a child created by `fork`, every tick is forged.
    #[must_use]
    pub fn state(&self, tick: Tick) -> TickState {
        if !self.0.is_here() || tick.clock() >= self.clocks_used() {
            return TickState::Forged;
        }
        run(CheckTick::new(clock_at(tick.clock()), tick), self.0.map())
    }

    /// Returns the member that has submitted a tick, if the tick is still pending.
    #[must_use]
    pub fn owner(&self, tick: Tick) -> Option<Member> {
        if !self.0.is_here() || tick.clock() >= self.clocks_used() {
            return None;
        }
        let state = ClockState::unpack(self.0.map().load(clock_at(tick.clock()).state()));
        // If the tick is still pending, its owner is unchanged since the state was read.
        let owner = state.member();
        owner.filter(|_| self.state(tick) == TickState::Pending)
    }

    /// Returns the last value that a clock's owner has submitted.
    #[must_use]
    pub fn submitted(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::submitted)
    }

    /// Returns the last value that a clock's stream has written. If the clock's owner is dead, returns a
    /// value above the value of every tick.
    #[must_use]
    pub fn done(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::done)
    }

    /// Returns the number of clocks that ended with unfinished work, because the owner died or lost its
    /// device. A clock may be counted twice.
    ///
    /// Streams that waited for such work continue without it, so their ticks may complete although the work
    /// before them is unfinished. The number is increased before such a tick completes: read the number after
    /// the state of the tick.
    #[must_use]
    pub fn unfinished_ends(&self) -> u64 {
        if self.0.is_here() { self.0.map().load(Word::at(control::UNFINISHED_ENDS)) } else { 0 }
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

    fn word(&self, clock: u32, which: fn(ClockAt) -> Word) -> u64 {
        let used = self.0.is_here() && clock < self.clocks_used();
        if used { self.0.map().load(which(clock_at(clock))) } else { 0 }
    }
}

impl Clocks {
    /// Ends the clocks of members whose processes have ended.
    pub(crate) fn end_clocks(self) {
        for index in 0..self.clocks_used() {
            let clock = clock_at(index);
            let state = ClockState::unpack(self.0.map().load(clock.state()));
            let member = match state.phase {
                ClockPhase::Free => {
                    self.hint_clock(index);
                    continue;
                }
                ClockPhase::Dead => None,
                _ => state.member().filter(|member| Members(self.0).is_known_dead(*member)),
            };
            let done = || self.0.map().load(clock.done()) == self.0.map().load(clock.submitted());
            if matches!(state.phase, ClockPhase::Left(_)) && member.is_none() && done() {
                self.hint_clock(index);
            }
            let gone = member.is_some() && self.is_gone(clock, state);
            if state.phase == ClockPhase::Dead || gone {
                self.end_clock(clock, member);
            }
        }
    }

    /// Returns `true` if the process of a clock's dead member has ended, or died while it claimed the clock.
    /// (A process that claims a clock may not have stored its ID yet, but none of its devices writes the
    /// clock.)
    fn is_gone(self, clock: ClockAt, state: ClockState) -> bool {
        if matches!(state.phase, ClockPhase::Claiming { .. }) {
            return true;
        }
        let (pid, start) = (self.0.map().load(clock.process()) as u32, self.0.map().load(clock.start()));
        match peer::liveness(pid) {
            Liveness::Ended => true,
            // If the kernel gives no information, the locks decide: the process is dead.
            Liveness::Unknown => true,
            Liveness::Alive(process) => {
                readiness::is_ready(process.as_fd(), false)
                    || !is_the_owner(start, memory::start_time_of(pid))
            }
        }
    }
}

/// Returns `true` if the process that now has the owner's process ID is the owner, according to the start
/// times of both. Returns `false` if a start time is unknown (0 or `None`, without `/proc`): the locks have
/// already shown that the owner is dead, and a later process with the same ID could live long.
fn is_the_owner(start: u64, now: Option<u64>) -> bool {
    start != 0 && now == Some(start)
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    #[test]
    fn clock_owner_with_a_reused_pid_is_not_recognized() {
        assert!(is_the_owner(7, Some(7)));
        assert!(!is_the_owner(7, Some(8)), "the ID was reused");
        assert!(!is_the_owner(0, Some(8)), "the owner's start time is unknown");
        assert!(!is_the_owner(7, None) && !is_the_owner(0, None), "the process's start time is unknown");
    }
}
