//! Clocks of dead members.
//!
//! Devices wait for ticks of a dead owner's clock. A store by any process releases them, once the device of
//! the dead owner no longer writes. That is certain when the owner's process has ended, since the kernel has
//! then closed its files, including the driver's. The process's locks in the arena's file, by which others
//! detect its death, may be released earlier, since descriptors are closed in the order of their numbers. So
//! the process itself is checked, by its pidfd. Every reclaim checks a clock of a dead member until its
//! process has ended, even if the member was reclaimed long ago.
//!
//! A device may still write late. So a reclaim also checks dead clocks, and releases their waiters again.

use std::os::fd::AsFd;

use crate::clocks::{Clocks, clock_at};
use crate::mem::{Mem, run};
use crate::members::Members;
use crate::steps::clock::{ClockAt, EndClock};
use crate::sys::peer::{self, Liveness};
use crate::sys::{memory, readiness};
use crate::words::{ClockPhase, ClockState};

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
                run(EndClock::new(clock, member, memory::monotonic_ms()), self.0.map());
            }
        }
    }

    /// Returns `true` if the process of a clock's dead member has ended. A claiming process may not have
    /// stored its ID yet, but has no device that writes the clock.
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

/// Returns `true` if the process that has the owner's ID now is the owner, according to their start times. If
/// a start time is unknown (0 or `None`, without `/proc`), the process counts as another one: the locks have
/// shown that the owner is dead, and waiting for a reused ID would last as long as that process lives.
fn is_the_owner(start: u64, now: Option<u64>) -> bool {
    start != 0 && now == Some(start)
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::is_the_owner;

    #[test]
    fn owner_is_matched_by_pid_and_start_time() {
        assert!(is_the_owner(7, Some(7)));
        assert!(!is_the_owner(7, Some(8)), "its number is used again");
        assert!(!is_the_owner(0, Some(8)), "when the owner began was not known");
        assert!(!is_the_owner(7, None) && !is_the_owner(0, None), "when this one began isn't");
    }
}
