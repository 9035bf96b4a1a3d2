//! Process of a fork server, which the supervisor reaps.

use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::error::exit_status::ExitStatus;
use crate::sys::clock::{deadline, timespec};
use crate::sys::pid_number;
use crate::sys::process_handle::ProcessHandle;

/// Time to wait for a process that got a SIGKILL.
pub(crate) const AFTER_KILL: Duration = Duration::from_secs(10);

/// State of a fork server process.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    pub(crate) pid: u32,
    pub(crate) handle: ProcessHandle,
    exit: Mutex<Option<ExitStatus>>,
}

impl ServerProcess {
    pub(crate) fn new(pid: Pid, handle: ProcessHandle) -> ServerProcess {
        ServerProcess { pid: pid_number(pid), handle, exit: Mutex::new(None) }
    }

    /// Returns the exit status, if the server has ended, and reaps it.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.lock();
        if exit.is_none() {
            *exit = self.handle.reap();
        }
        *exit
    }

    /// Kills the server, and waits for its end.
    pub(crate) fn end(&self) -> Option<ExitStatus> {
        let over = self.exit();
        if over.is_some() {
            return over;
        }
        // Fails only if the server has just ended.
        let _ = self.handle.signal(Signal::KILL);
        // The processes that it has made are known only after its end.
        let until = deadline(AFTER_KILL);
        loop {
            let left = until.map_or(AFTER_KILL, |until| until.saturating_duration_since(Instant::now()));
            match rustix::event::poll(
                &mut [PollFd::new(&self.handle.sentinel(), PollFlags::IN)],
                Some(&timespec(left)),
            ) {
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return self.exit(),
            }
        }
    }
}
