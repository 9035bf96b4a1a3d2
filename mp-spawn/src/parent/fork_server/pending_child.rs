//! Process that a fork server makes or has made, before a start takes it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::process::Pid;

use crate::error::Result;
use crate::sys::deadline;
use crate::sys::process_handle::{self, ProcessHandle};

/// Time to wait for a process that has closed its files, the last step before its end.
pub(super) const EXIT_TIME: Duration = Duration::from_secs(1);

/// Process that was requested from a server and that no start has taken yet.
#[derive(Debug)]
pub(super) struct PendingChild {
    /// Parent's end of the socket to the process.
    pub(super) socket: OwnedFd,
    pub(super) nonce: u64,
}

/// Process that a server has made.
pub(super) struct ReadyChild {
    pub(super) pid: Pid,
    pub(super) handle: ProcessHandle,
    pub(super) pending: PendingChild,
}

impl ReadyChild {
    pub(super) fn new(pid: Pid, pending: PendingChild) -> Result<ReadyChild> {
        match ProcessHandle::find(pid) {
            Ok(handle) => Ok(ReadyChild { pid, handle, pending }),
            Err(error) => {
                // The process is alive, so its number can't be reused.
                if !hung_up(&pending.socket) {
                    process_handle::end(pid);
                }
                Err(error)
            }
        }
    }

    /// Returns `true` if the process waits for its start message. Otherwise reaps it.
    ///
    /// A process that has waited for a long time may have ended and been reaped. The kernel reaps it if
    /// SIGCHLD is ignored, and other code may wait for any child. Then the handle may refer to another
    /// process. If the other end of the socket is open now, the handle refers to the right process, because
    /// the handle was made before this check.
    pub(super) fn is_waiting(&self) -> bool {
        let sentinel = self.handle.sentinel();
        let mut both =
            [PollFd::new(&self.pending.socket, PollFlags::empty()), PollFd::new(&sentinel, PollFlags::IN)];
        // Neither descriptor has events to report.
        let asked = retry_on_intr(|| rustix::event::poll(&mut both, Some(&Timespec::default())));
        let is_there = asked == Ok(0);
        if !is_there {
            self.handle.reap_until(deadline(EXIT_TIME));
        }
        is_there
    }
}

/// Returns `true` if the process at the other end of this socket has ended.
pub(super) fn hung_up(socket: &OwnedFd) -> bool {
    let mut end = [PollFd::new(socket, PollFlags::empty())];
    let asked = retry_on_intr(|| rustix::event::poll(&mut end, Some(&Timespec::default())));
    asked.is_ok() && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Instant;

    use super::*;
    use crate::parent::launch::socket_pair;

    #[test]
    fn interrupted_poll_of_a_pending_child_reports_no_end() {
        let mut child = std::process::Command::new("sleep").arg("120").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let (socket, _theirs) = socket_pair().unwrap();
        let made = ReadyChild {
            pid,
            handle: ProcessHandle::open(pid).unwrap(),
            pending: PendingChild { socket, nonce: 0 },
        };
        let until = Instant::now() + std::time::Duration::from_secs(60);
        crate::sys::interrupted(|handled| {
            let before = handled();
            while handled().wrapping_sub(before) < 1_000 {
                assert!(Instant::now() < until, "no signals arrive");
                assert!(made.is_waiting(), "it waits for its start message");
                assert!(!hung_up(&made.pending.socket));
            }
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!made.is_waiting());
    }
}
