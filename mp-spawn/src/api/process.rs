//! Single processes with a handle of their own.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Message;
use mp_core::{Descriptor, WaitPoint, Waitable};

use crate::api::spawn;
use crate::error::{ExitStatus, Result, Signal};
use crate::io::captured::CapturedOutput;
use crate::parent::active;
use crate::parent::group::ChildGroup;
use crate::parent::restart::event::ProcessStatus;
use crate::sys::deadline;

/// A process that runs a function. `T` is the type of the function's result.
///
/// ```
/// use mp_spawn::Process;
///
/// let child = Process::spawn(|text: String| text.parse::<u32>(), "17".to_string())?;
/// println!("{} runs as {}", child.name(), child.pid());
/// assert_eq!(child.join()?, 17);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Like a thread, the process continues when its handle is dropped. When this process exits (by returning
/// from `main` or by `exit`), it waits for the processes that it has started, or ends those that are
/// [daemonic](crate::ProcessBuilder::daemon). It also prints their failures, except those that the program
/// got from [`join`](Self::join), [`wait`](Self::wait), [`status`](Self::status) or [`exit`](Self::exit), or
/// caused by [`kill`](Self::kill) or [`terminate`](Self::terminate). If this process ends in another way, the
/// processes end with it.
///
/// In a process forked from this one ([`allow_fork`](crate::allow_fork)), the handle refers to no child. Its
/// functions return [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) or an empty result, and
/// never block.
#[must_use = "`join` returns its outcome; `let _ =` lets it run on"]
pub struct Process<T = ()> {
    group: Arc<ChildGroup>,
    name: String,
    daemon: bool,
    value: PhantomData<fn() -> T>,
}

impl<T: Message> Process<T> {
    /// Waits for the end of the process, and moves the result of its function out of the handle.
    ///
    /// ```
    /// use mp_spawn::{ExitStatus, Process};
    ///
    /// let child = Process::spawn(|(): ()| std::process::exit(3), ())?;
    /// assert!(child.join().is_err());
    /// assert_eq!(child.exit(), Some(ExitStatus::Code(3)));
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The failure of the process, see [`ProcessContext`](crate::ProcessContext).
    /// [`SpawnError::Value`](crate::SpawnError::Value) if the value can't be decoded, or an earlier call has
    /// taken it. [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) in a process forked from this
    /// one.
    #[track_caller]
    pub fn join(&self) -> Result<T> {
        self.group.join_all()?;
        spawn::result(&self.group, 0)
    }
}

impl<T> Process<T> {
    /// Creates the handle of a started process.
    pub(crate) fn adopt(group: Arc<ChildGroup>, daemon: bool) -> Process<T> {
        active::adopt(&group, daemon);
        Process { name: group.name(0), group, daemon, value: PhantomData }
    }

    /// Waits for the end of the process, and returns its exit status. [`join`](Self::join) reports failures
    /// in full, and returns the function's result. Both can be called, in any order.
    ///
    /// ```
    /// use mp_spawn::{ExitStatus, Process};
    ///
    /// let child = Process::spawn(|(): ()| Ok::<_, String>(17), ())?;
    /// assert_eq!(child.wait()?, ExitStatus::Code(0));
    /// assert_eq!(child.join()?, 17);
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) in a process forked from this one.
    #[track_caller]
    pub fn wait(&self) -> Result<ExitStatus> {
        self.group.join_all()?;
        Ok(self.group.exit(0)?.unwrap_or(ExitStatus::Unknown))
    }

    /// Waits for the end of the process for at most `timeout`. Returns `true` if it has ended, successfully
    /// or not, and its output was forwarded ([`Stdio::Tee`](crate::Stdio::Tee)). Returns `false` at once in a
    /// process forked from this one, where no thread watches the process.
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.group.check_owner().is_ok() && self.group.wait(deadline(timeout), false)
    }

    /// Returns the name of the process.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id. After the end, the id may belong to another process. A
    /// [supervised](crate::Restart) process has a new id after each start. This function returns the id of
    /// the last start. In a process forked from this one, returns the last id before the fork.
    #[must_use]
    #[doc(alias = "ident")]
    pub fn pid(&self) -> u32 {
        self.group.pids().first().copied().unwrap_or(0)
    }

    /// Returns the number of restarts. Returns 0 if the process is not [supervised](crate::Restart), and in a
    /// process forked from this one.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.group.attempt().map_or(0, |attempt| attempt.saturating_sub(1))
    }

    /// Returns `true` if an exit of this process ends the child, and `false` if the exit waits for the
    /// child's end.
    #[must_use]
    pub fn daemon(&self) -> bool {
        self.daemon
    }

    /// Returns `true` if the process runs, or, if it is [supervised](crate::Restart), waits for its next
    /// start. Does not block. Returns `false` in a process forked from this one.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.group.any_runs()
    }

    /// Returns the status of the process. Does not block. In a process forked from this one, the status is
    /// [`Failed`](ProcessStatus::Failed) with [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess).
    #[must_use]
    pub fn status(&self) -> ProcessStatus {
        self.group.status(0).unwrap_or_else(ProcessStatus::Failed)
    }

    /// Returns the exit status, or `None` while the process runs. The status is available as soon as the
    /// [`sentinel`](Self::sentinel) is readable. Does not block. Always `None` in a process forked from this
    /// one.
    #[must_use]
    #[doc(alias = "exitcode")]
    pub fn exit(&self) -> Option<ExitStatus> {
        self.group.exit(0).ok().flatten()
    }

    /// Returns a descriptor that becomes readable when the process ends, for `poll(2)` and similar functions,
    /// together with sockets and other sentinels. The descriptor is a pidfd (see `pidfd_open(2)`), or an
    /// eventfd on kernels without pidfds. A descriptor that is requested before the process ends stays open
    /// until this handle is dropped. Otherwise the pidfd is closed at the end of the process, and this
    /// function returns an eventfd afterwards. In a process forked from this one, the descriptor is readable
    /// at once.
    ///
    /// Example of an asynchronous wait in any runtime. The future may be dropped at any time:
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     struct Unpark(std::thread::Thread);
    /// #     impl std::task::Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
    /// #     let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
    /// #             std::task::Poll::Ready(value) => return value,
    /// #             std::task::Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// use mp_core::{Descriptor, wait_async};
    /// use mp_spawn::Process;
    ///
    /// let child = Process::spawn(|x: u32| Ok::<_, String>(x + 1), 5)?;
    /// let end = child.sentinel().try_clone_to_owned()?;
    /// block_on(async { wait_async(Descriptor(end)).await })?;
    /// assert_eq!(child.join()?, 6); // at once
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sentinel(&self) -> BorrowedFd<'_> {
        self.group.sentinels().next().expect("a process that was started has a sentinel")
    }

    /// Calls `call` when the process has ended and was reaped, successfully or not. If the process was reaped
    /// already, `call` runs at once.
    ///
    /// ```
    /// use mp_spawn::Process;
    ///
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let child = Process::spawn(|(): ()| {}, ())?;
    /// child.on_exit(move || _ = sender.send("it is over"));
    /// assert_eq!(receiver.recv().unwrap(), "it is over");
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// `call` runs in the thread that watches all processes. So `call` must be quick, and neither start a
    /// process nor wait for one. A panic in `call` is caught. `call` may exit this process, which then does
    /// not wait for non-daemonic children. In a process forked from this one, `call` is dropped.
    pub fn on_exit(&self, call: impl FnOnce() + Send + 'static) {
        self.group.on_end(call);
    }

    /// Sends SIGTERM to the process, unless it has ended. A [supervised](crate::Restart) process is not
    /// restarted afterwards.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NotSignalled`](crate::SpawnError::NotSignalled) if the system refuses,
    /// [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) in a process forked from this one.
    pub fn terminate(&self) -> Result<()> {
        self.group.send_signal(0, Signal::TERM)
    }

    /// Sends SIGKILL to the process. Otherwise like [`terminate`](Self::terminate).
    ///
    /// # Errors
    ///
    /// See [`terminate`](Self::terminate).
    pub fn kill(&self) -> Result<()> {
        self.group.send_signal(0, Signal::KILL)
    }

    /// Returns the standard output so far, if it is captured, see [`Stdio`](crate::Stdio). Empty in a process
    /// forked from this one.
    #[must_use]
    pub fn stdout(&self) -> CapturedOutput {
        self.group.streams(0).map(|streams| streams.stdout()).unwrap_or_default()
    }

    /// Returns the standard error so far, if it is captured.
    #[must_use]
    pub fn stderr(&self) -> CapturedOutput {
        self.group.streams(0).map(|streams| streams.stderr()).unwrap_or_default()
    }
}

/// A process is ready when it has ended. The wait uses the [`sentinel`](Process::sentinel).
///
/// ```
/// use mp_spawn::{Process, wait};
///
/// let slow = Process::spawn(|_: ()| std::thread::park(), ())?;
/// let quick = Process::spawn(|_: ()| {}, ())?;
/// assert_eq!(wait(&[&slow, &quick], None).unwrap(), [1]);
/// slow.kill()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
impl<T> Waitable for Process<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.sentinel())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.sentinel()).is_ready()
    }
}

impl<T> fmt::Debug for Process<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.group.describe();
        write!(f, "Process ({})", state.first().map_or("", String::as_str))
    }
}
