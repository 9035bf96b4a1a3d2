//! Activity of a silent process, read from `/proc`: see `proc_pid_stat(5)`.
//!
//! A process that has not reported in time may still do so. A stopped process can't report. A process whose
//! program is read from a busy disk can't report while the kernel waits for the page (more than ten seconds
//! were observed, during a compilation). A process that has had no processor has had no time at all.

use std::time::Duration;
use std::{fmt, fs};

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Number of ticks in a second, in `/proc`: the same on all architectures that Rust supports. Not requested
/// from rustix, whose function crashes under valgrind.
const USER_HZ: u64 = 100;

/// Present state of a process, and its activity so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProcessActivity {
    state: char,
    /// Processor time used.
    ran: Duration,
    /// Kernel function in which the process waits, if known (`/proc/pid/wchan`, see `proc(5)`).
    place: Option<String>,
}

impl ProcessActivity {
    /// Reads the activity of a process. Returns `None` if there is no such process.
    pub(crate) fn read(pid: u32) -> Option<ProcessActivity> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, ticks) = state_and_ticks(&stat)?;
        let ran = Duration::from_millis(ticks.saturating_mul(1000 / USER_HZ));
        let place = fs::read_to_string(format!("/proc/{pid}/wchan")).ok();
        let place =
            place.map(|place| place.trim().to_owned()).filter(|place| !place.is_empty() && place != "0");
        Some(ProcessActivity { state, ran, place })
    }

    /// Returns `true` if the process is stopped by job control or by a debugger.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Returns `true` if the process could not have reported in the time `waited` since its start, because it
    /// is stopped, waits for a disk, or has had no processor.
    pub(crate) fn is_excused(&self, waited: Duration) -> bool {
        match self.state {
            // Uninterruptible wait, as for a disk.
            'D' => true,
            'R' => self.ran < waited / 10,
            _ => self.is_stopped(),
        }
    }
}

/// Returns `true` if a child of this process is stopped, by job control or by a debugger. Without `/proc`,
/// only stops by job control are detected.
#[doc(hidden)]
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    if let Some(activity) = ProcessActivity::read(pid) {
        return activity.is_stopped();
    }
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // The stop stays visible to other waiters.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// Returns the state, and the sum of user and system time.
fn state_and_ticks(stat: &str) -> Option<(char, u64)> {
    // The name before the state may contain anything, blanks and parentheses included.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((state, user.saturating_add(system)))
}

impl fmt::Display for ProcessActivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            'S' | 'I' => "it sleeps",
            'R' => "it runs",
            'D' => "it waits uninterruptibly, as for a disk",
            'T' | 't' => "it is stopped",
            'Z' | 'X' => "it has ended",
            _ => "it is in an unknown state",
        })?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        write!(f, ", and has used {:?} of CPU time", self.ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_line_is_parsed_despite_odd_names() {
        let stat = "4242 (a) b (c) D 1 4242 4242 0 -1 4194304 99 0 3 0 17 25 0 0 20 0 1 0 13407 8396800 900";
        assert_eq!(state_and_ticks(stat), Some(('D', 42)));
        assert_eq!(state_and_ticks("4242 (a"), None);
        assert_eq!(state_and_ticks("4242 (a) S 1 2"), None);
        let own = ProcessActivity::read(std::process::id()).unwrap();
        assert!(own.to_string().contains(" of CPU time"), "{own}");
        assert_eq!(ProcessActivity::read(u32::MAX), None);
    }

    #[test]
    fn stopped_or_starved_process_gets_more_time() {
        let activity = |state, ran| ProcessActivity { state, ran: Duration::from_millis(ran), place: None };
        let waited = Duration::from_secs(10);
        for state in ['T', 't', 'D'] {
            assert!(activity(state, 0).is_excused(waited) && activity(state, 9999).is_excused(waited));
        }
        assert!(activity('R', 900).is_excused(waited) && !activity('R', 1000).is_excused(waited));
        assert!(!activity('S', 0).is_excused(waited) && !activity('Z', 0).is_excused(waited));
    }
}
