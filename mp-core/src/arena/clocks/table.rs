//! The clocks as all members see them.

use std::ptr::NonNull;

use crate::arena::Arena;
use crate::arena::clocks::clock_at;
use crate::arena::layout::{CLOCK, CLOCKS, control};
use crate::error::Result;
use crate::mem::{Mem, run};
use crate::steps::clock::{ClockAt, LookAtTick, TickLook};
use crate::words::{ClockState, Member, Tick};

/// What a tick is, as far as the process that looks can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TickState {
    /// The work before it is done.
    Complete,
    /// It was submitted, and isn't done yet.
    Pending,
    /// The process that submitted it died before it was done, or lost its device: it never will be.
    Died {
        /// Its process id, if that is known still.
        pid: Option<u32>,
    },
    /// No owner of the clock has submitted it: a process that waits for it would wait for ever.
    Forged,
}

/// The clocks of all streams of all members.
///
/// ```
/// use mp_core::Arena;
/// use mp_core::clocks::{Clock, Tick, TickState};
///
/// let clocks = Arena::current()?.clocks();
/// let mut clock = Clock::claim(Arena::current()?)?;
/// let tick = clock.next()?;
/// assert_eq!(clocks.state(tick), TickState::Forged); // not yet submitted
/// clock.submitted(tick)?;
/// assert_eq!((clocks.state(tick), clocks.submitted(clock.index())), (TickState::Pending, tick.value()));
/// // Where a device writes it, and waits for it: 64 bits, of which the device's comparison is a signed difference.
/// let done = clocks.address()?.as_ptr().wrapping_add(clocks.done_offset(clock.index())).cast::<u64>();
/// # _ = done;
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Its addresses stay what they are as long as the process lives, and its memory is never given back: it may be registered with
/// a driver. (In a copy of the process by `fork` it isn't there.)
#[derive(Clone, Copy, Debug)]
pub struct Clocks(pub(super) Arena);

impl Arena {
    /// The clocks of the streams of all members.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        Clocks(*self)
    }
}

impl Clocks {
    /// How many clocks there are.
    pub const COUNT: u32 = CLOCKS;
    /// The bytes of the table, a multiple of a page's.
    pub const BYTES: usize = (CLOCK * CLOCKS as u64) as usize;

    /// The first byte of the table, at the beginning of a page. All of it has memory from here on.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Forked`](crate::Error::Forked).
    pub fn address(&self) -> Result<NonNull<u8>> {
        self.0.me()?;
        self.0.commit_at(control::CLOCKS, Self::BYTES as u64)?;
        Ok(self.0.map().bytes(control::CLOCKS, Self::BYTES as u64))
    }

    /// Where in the table the word is that a clock's stream writes, in bytes.
    #[must_use]
    pub fn done_offset(&self, clock: u32) -> usize {
        (clock_at(clock).done().offset() - control::CLOCKS) as usize
    }

    /// What a tick is now. A tick that died stays so; a forged one may become a tick. One that is complete stays so
    ///
    /// - if no owner of its clock has died until its own owner gave the clock up, always;
    /// - else for the next 63 owners of the clock; and if its own owner died, as long as none of these dies. Then it is said to have died, which
    ///   is on the safe side: what was done is done again, or its memory not used again.
    ///
    /// A dead owner's clock gets another owner only when all others have one.
    ///
    /// In a copy of the process by `fork`, it is forged.
    #[must_use]
    pub fn state(&self, tick: Tick) -> TickState {
        if !self.0.is_here() || tick.clock() >= self.0.clocks_used() {
            return TickState::Forged;
        }
        match run(LookAtTick::new(clock_at(tick.clock()), tick), self.0.map()) {
            TickLook::Complete => TickState::Complete,
            TickLook::Pending => TickState::Pending,
            TickLook::Died(pid) => TickState::Died { pid },
            TickLook::Forged => TickState::Forged,
        }
    }

    /// The member that has submitted a tick, if it is pending still.
    #[must_use]
    pub fn owner(&self, tick: Tick) -> Option<Member> {
        if !self.0.is_here() || tick.clock() >= self.0.clocks_used() {
            return None;
        }
        let state = ClockState::unpack(self.0.map().load(clock_at(tick.clock()).state()));
        // A tick that is pending has the owner that it had before.
        let owner = state.member();
        owner.filter(|_| self.state(tick) == TickState::Pending)
    }

    /// The last value that a clock's owner has submitted.
    #[must_use]
    pub fn submitted(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::submitted)
    }

    /// The value that a clock's stream has written last; more than all values, if its owner is dead.
    #[must_use]
    pub fn done(&self, clock: u32) -> u64 {
        self.word(clock, ClockAt::done)
    }

    /// How many clocks have an owner, those of dead ones included that were not swept yet. Others can be claimed: at once, or when their
    /// owner has been dead for a second.
    #[must_use]
    pub fn owned(&self) -> u32 {
        if !self.0.is_here() {
            return 0;
        }
        let state = |clock| ClockState::unpack(self.0.map().load(clock_at(clock).state()));
        (0..self.0.clocks_used()).filter(|&clock| state(clock).member().is_some()).count() as u32
    }

    fn word(&self, clock: u32, which: fn(ClockAt) -> crate::mem::Word) -> u64 {
        let used = self.0.is_here() && clock < self.0.clocks_used();
        if used { self.0.map().load(which(clock_at(clock))) } else { 0 }
    }
}
