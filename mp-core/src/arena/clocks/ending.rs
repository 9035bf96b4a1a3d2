//! What becomes of the clocks of dead members.
//!
//! Devices wait for their ticks, and are released by a store that any process may make, once the device of the dead owner writes no
//! more. That is so when its process is gone: the kernel has closed its files then, the driver's among them. Its locks in the
//! arena's file, by which others learn that it is dead, may be gone earlier, since descriptors are closed in the order of their
//! numbers. So the process is asked for itself, by its pidfd; and a clock of a dead member is looked at in every sweep, also
//! when the member was swept long ago, until its process is gone.
//!
//! A device may write late all the same. So a sweep looks at dead clocks, too, and releases their waiters again.

use std::os::fd::AsFd;

use crate::arena::Arena;
use crate::arena::clocks::clock_at;
use crate::mem::{Mem, run};
use crate::steps::clock::{ClockAt, EndClock};
use crate::sys::peer::{self, Life};
use crate::sys::{memory, readiness};
use crate::words::{ClockPhase, ClockState};

impl Arena {
    /// Ends the clocks of members whose processes are gone.
    pub(in crate::arena) fn end_clocks(&self) {
        for index in 0..self.clocks_used() {
            let clock = clock_at(index);
            let state = ClockState::unpack(self.map().load(clock.state()));
            let member = match state.phase {
                ClockPhase::Free => {
                    self.hint_clock(index);
                    continue;
                }
                ClockPhase::Dead => None,
                _ => state.member().filter(|member| self.is_known_dead(*member)),
            };
            let done = || self.map().load(clock.done()) == self.map().load(clock.submitted());
            if matches!(state.phase, ClockPhase::Left(_)) && member.is_none() && done() {
                self.hint_clock(index);
            }
            let gone = member.is_some() && self.is_gone(clock, state);
            if state.phase == ClockPhase::Dead || gone {
                run(EndClock::new(clock, member, memory::monotonic_ms()), self.map());
            }
        }
    }

    /// Whether the process that has a clock, and that is dead as a member, is gone. A claimer's process may not be noted yet; it
    /// has no device that writes there.
    fn is_gone(&self, clock: ClockAt, state: ClockState) -> bool {
        if matches!(state.phase, ClockPhase::Claiming { .. }) {
            return true;
        }
        let (pid, start) = (self.map().load(clock.process()) as u32, self.map().load(clock.start()));
        match peer::life(pid) {
            Life::Ended => true,
            // No kernel to ask: the locks say that it is dead.
            Life::Unknown => true,
            Life::Lives(process) => {
                readiness::is_ready(process.as_fd(), false)
                    || !is_the_owner(start, memory::start_time_of(pid))
            }
        }
    }
}

/// Whether the process that has the owner's number now is the owner, by when either began. If one of them isn't known (0, or none: no
/// `/proc`), it is taken for another one: the locks have said that the owner is dead, and who waited for a number that is used again
/// would wait as long as that process lives.
fn is_the_owner(start: u64, now: Option<u64>) -> bool {
    start != 0 && now == Some(start)
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::is_the_owner;

    #[test]
    fn a_process_is_the_owner_only_if_it_began_when_that_did() {
        assert!(is_the_owner(7, Some(7)));
        assert!(!is_the_owner(7, Some(8)), "its number is used again");
        assert!(!is_the_owner(0, Some(8)), "when the owner began was not known");
        assert!(!is_the_owner(7, None) && !is_the_owner(0, None), "when this one began isn't");
    }
}
