//! Handle to a process that this one has made: detects its end, sends signals, and reaps it.
//!
//! With a pidfd, the kernel does all three. Without pidfds (a kernel before 5.3, a sandbox that refuses
//! `pidfd_open`, valgrind 3.19), a thread waits for the end without reaping the process (`WNOWAIT` in
//! `waitid(2)`), and makes an eventfd readable, which replaces the pidfd. The process keeps its number until
//! it is reaped. Reaping and sending signals happen under one lock.
//!
//! | the process | sentinel | a signal | transition |
//! |---|---|---|---|
//! | runs | not readable | reaches it | its end |
//! | has ended | readable; without a pidfd a moment later | has no effect | [`ProcessHandle::reap`], under the lock |
//! | is reaped | readable | is not sent | none |
//!
//! If this process is killed, the thread ends too, and the kernel makes another process the parent of the
//! child.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use mp_core::mutex::Mutex;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};

use crate::error::{self, ExitStatus, Result, launch_error};
use crate::sys::{self, new_event, notify, wait_readable};

/// Handle to a process that this one has made.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pid: Pid,
    /// Pidfd, or its replacement.
    sentinel: Arc<OwnedFd>,
    is_pidfd: bool,
    /// Exit status, if the process was reaped. The number of a reaped process may be reused.
    reaped: Arc<Mutex<Option<ExitStatus>>>,
}

impl ProcessHandle {
    /// Creates the handle of a process that was made just now and has not been reaped. If this fails, the
    /// process is ended and reaped.
    pub(crate) fn open(pid: Pid) -> Result<ProcessHandle> {
        // Without a handle, the end of the process would not be detected.
        ProcessHandle::find(pid).inspect_err(|_| end(pid))
    }

    /// Creates the handle of a process that was made just now together with its pidfd.
    pub(crate) fn from_pidfd(pid: Pid, pidfd: OwnedFd) -> ProcessHandle {
        ProcessHandle::new(pid, Arc::new(pidfd), true)
    }

    /// Creates the handle of a process that may have ended and been reaped since it was made, so that its
    /// number may be reused. If this fails, the process with that number is not affected.
    pub(crate) fn find(pid: Pid) -> Result<ProcessHandle> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(ProcessHandle::new(pid, Arc::new(pidfd), true)),
            // Filters of sandboxes return EPERM for a call that they don't know.
            Err(Errno::NOSYS | Errno::PERM) => ProcessHandle::without_pidfd(pid),
            // The process was reaped already, by the kernel if SIGCHLD is ignored, or by other code in this
            // program. Its messages are in its socket. Its number may be reused by now.
            Err(Errno::SRCH) => ProcessHandle::over(pid),
            Err(error) => Err(launch_error("pidfd_open", None, error.into())),
        }
    }

    fn new(pid: Pid, sentinel: Arc<OwnedFd>, is_pidfd: bool) -> ProcessHandle {
        ProcessHandle { pid, sentinel, is_pidfd, reaped: Arc::default() }
    }

    /// Creates the handle of a process that was reaped.
    fn over(pid: Pid) -> Result<ProcessHandle> {
        let handle = ProcessHandle::new(pid, Arc::new(new_event(1)?), false);
        *handle.reaped.lock() = Some(ExitStatus::Unknown);
        Ok(handle)
    }

    fn without_pidfd(pid: Pid) -> Result<ProcessHandle> {
        let handle = ProcessHandle::new(pid, Arc::new(new_event(0)?), false);
        let (event, reaped) = (Arc::clone(&handle.sentinel), Arc::clone(&handle.reaped));
        let wait = move || {
            // Signal handlers of the program must run on threads of the program. Blocking a valid set can't
            // fail.
            let _ = sys::block_signals();
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            if retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), options)).is_err() {
                // Reaped elsewhere, for example by the kernel if SIGCHLD is ignored.
                *reaped.lock() = Some(ExitStatus::Unknown);
            }
            notify(&event);
        };
        thread::Builder::new()
            .name("mp-sentinel".to_string())
            .stack_size(64 << 10)
            .spawn(wait)
            .map_err(|error| launch_error("a thread in place of a pidfd", None, error))?;
        Ok(handle)
    }

    pub(crate) fn pid(&self) -> u32 {
        sys::pid_number(self.pid)
    }

    /// Returns the sentinel, which becomes permanently readable when the process ends.
    pub(crate) fn sentinel(&self) -> BorrowedFd<'_> {
        self.sentinel.as_fd()
    }

    /// Returns the sentinel for callers that hold it longer than this handle.
    pub(crate) fn shared_sentinel(&self) -> &Arc<OwnedFd> {
        &self.sentinel
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.sentinel.as_raw_fd()
    }

    /// Sends a signal to the process. Returns `SRCH` if it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> std::result::Result<(), Errno> {
        let reaped = self.reaped.lock();
        if reaped.is_some() {
            return Err(Errno::SRCH);
        }
        if self.is_pidfd {
            match rustix::process::pidfd_send_signal(&self.sentinel, signal) {
                // Filters of sandboxes return EPERM for a call that they don't know. It is also returned if
                // the process has another user, which the other call reports as well.
                Err(Errno::NOSYS | Errno::PERM) if self.has_ended() => return Err(Errno::SRCH),
                Err(Errno::NOSYS | Errno::PERM) => {}
                done => return done,
            }
        }
        rustix::process::kill_process(self.pid, signal)
    }

    /// Returns `true` if the process has ended, according to its sentinel.
    pub(crate) fn has_ended(&self) -> bool {
        wait_readable(self.sentinel(), Some(Instant::now())).unwrap_or(false)
    }

    /// Reaps the process and returns its exit status, if it has ended.
    pub(crate) fn reap(&self) -> Option<ExitStatus> {
        let mut reaped = self.reaped.lock();
        if reaped.is_some() {
            return *reaped;
        }
        let id = if self.is_pidfd { WaitId::PidFd(self.sentinel.as_fd()) } else { WaitId::Pid(self.pid) };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let exit = match retry_on_intr(|| rustix::process::waitid(id.clone(), options)) {
            Ok(None) => return None,
            Ok(Some(status)) => exit_of(&status),
            // Reaped elsewhere.
            Err(_) => ExitStatus::Unknown,
        };
        *reaped = Some(exit);
        *reaped
    }

    /// Reaps the process and returns its exit status, if it ends before the deadline.
    pub(crate) fn reap_until(&self, until: Option<Instant>) -> Option<ExitStatus> {
        loop {
            let exit = self.reap();
            if exit.is_some() || until.is_some_and(|until| until <= Instant::now()) {
                return exit;
            }
            // After a refused wait the loop checks again.
            let _ = wait_readable(self.sentinel(), until);
        }
    }

    /// Kills the process and waits for its end. Returns its exit status, if it ends before the deadline.
    pub(crate) fn end(&self, until: Option<Instant>) -> Option<ExitStatus> {
        // Fails only if the process has ended.
        let _ = self.signal(Signal::KILL);
        self.reap_until(until)
    }
}

/// Ends a process without a handle, and reaps it. The process has not been reaped, so its number can't be
/// reused.
pub(crate) fn end(pid: Pid) {
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    let _ = retry_on_intr(|| rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()));
}

fn exit_of(status: &WaitIdStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => {
            ExitStatus::Signal { signal: error::Signal::from_number(signal), core_dumped: status.dumped() }
        }
        (None, None) => ExitStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Starts a shell script twice, with a pidfd and without.
    fn both(script: &str) -> [ProcessHandle; 2] {
        #[allow(clippy::zombie_processes, reason = "the handle reaps it")]
        let start = || {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            Pid::from_raw(child.id().cast_signed()).unwrap()
        };
        [ProcessHandle::open(start()).unwrap(), ProcessHandle::without_pidfd(start()).unwrap()]
    }

    fn wait(handle: &ProcessHandle) {
        let until = Instant::now() + std::time::Duration::from_secs(20);
        assert!(wait_readable(handle.sentinel(), Some(until)).unwrap());
    }

    #[test]
    fn process_exit_is_reported_and_reaped_once() {
        for handle in both("exit 3") {
            wait(&handle);
            // Permanently, and not only for the first check.
            assert!(handle.has_ended());
            assert_eq!(handle.reap(), Some(ExitStatus::Code(3)), "{handle:?}");
            assert!(handle.has_ended());
            assert_eq!(handle.reap(), Some(ExitStatus::Code(3)));
            assert_eq!(handle.signal(Signal::KILL), Err(Errno::SRCH));
        }
    }

    /// After the reap, the number may be reused. Here it belongs to a live process that can't be reaped.
    #[test]
    fn reaped_process_receives_no_signal() {
        let handle = ProcessHandle::open(rustix::process::getpid()).unwrap();
        assert_eq!(handle.reap(), Some(ExitStatus::Unknown));
        assert_eq!(handle.signal(Signal::CONT), Err(Errno::SRCH));
    }

    #[test]
    fn sigkill_by_a_process_handle_ends_its_process() {
        for handle in both("kill -STOP $$; exec sleep 100") {
            assert!(!handle.has_ended() && handle.reap().is_none());
            handle.signal(Signal::KILL).unwrap();
            wait(&handle);
            let exit = handle.reap();
            let Some(ExitStatus::Signal { signal, .. }) = exit else { panic!("{exit:?}") };
            assert_eq!(signal, error::Signal::KILL);
        }
    }

    #[test]
    fn end_of_a_process_handle_kills_its_process() {
        for handle in both("exec sleep 100") {
            assert!(matches!(handle.end(None), Some(ExitStatus::Signal { .. })));
            assert!(handle.has_ended());
        }
    }
}
