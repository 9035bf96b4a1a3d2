//! One process, with a handle of its own.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::{IntoOutcome, Message};
use mp_core::{Descriptor, WaitPoint, Waitable};

use crate::api::builder::ProcessBuilder;
use crate::api::spawn;
use crate::bounds::CapturesNothing;
use crate::error::Result;
use crate::error::exit_status::{ExitStatus, Signal};
use crate::io::captured::CapturedOutput;
use crate::parent::group::Group;
use crate::parent::rank::ProcessStatus;
use crate::sys::clock::deadline;

/// One process that runs a function; `T` is what the function returns.
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
/// As with a thread, the process continues when its handle is dropped. When this process exits (by returning from `main` or by
/// `exit`), it waits for the processes that it has started like this, or ends them if they are
/// [daemonic](ProcessBuilder::daemon); and prints the failures that the program did not get from [`join`](Self::join),
/// [`wait`](Self::wait), [`status`](Self::status) or [`exit`](Self::exit), and did not cause by [`kill`](Self::kill) or
/// [`terminate`](Self::terminate). However else it ends, they end with it.
///
/// In a copy of this process that was made by `fork` ([`allow_fork`](crate::allow_fork)), the handle is of no child: its calls return
/// [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess), or that there is nothing, and none of them blocks.
#[must_use = "`join` tells how it did; `let _ =` lets it run on"]
pub struct Process<T = ()> {
    group: Arc<Group>,
    name: String,
    daemon: bool,
    value: PhantomData<fn() -> T>,
}

impl Process {
    /// Starts a process that runs `function(args)`.
    ///
    /// It takes the same functions and arguments as [`start_processes`](crate::start_processes), but no rank; and since there
    /// is one process, the arguments move there: they may contain exclusive tensors.
    ///
    /// # Errors
    ///
    /// Those of [`start_processes`](crate::start_processes).
    pub fn spawn<F, A, R>(function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        Process::builder().spawn(function, args)
    }

    /// Sets what the process is started with, and starts it then.
    pub fn builder() -> ProcessBuilder {
        ProcessBuilder::new()
    }
}

impl<T: Message> Process<T> {
    /// Waits for the end of the process, and returns what its function returned, which is moved out of the handle.
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
    /// How the process failed: see [`ProcessContext`](crate::ProcessContext). [`SpawnError::Value`](crate::SpawnError::Value) when the value can't be
    /// decoded here, or an earlier call has taken it; [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) in a process forked from this one.
    pub fn join(&self) -> Result<T> {
        self.group.check_owner()?;
        self.group.wait(None, false);
        self.group.tell_all();
        spawn::result(&self.group, 0)
    }
}

impl<T> Process<T> {
    /// That of a process which was started.
    pub(crate) fn of(group: Arc<Group>, daemon: bool) -> Process<T> {
        Process { name: group.name(0), group, daemon, value: PhantomData }
    }

    /// Waits for the end of the process, and returns how it ended. [`join`](Self::join) reports failures in full, and returns
    /// what the function returned; both can be called, in any order.
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
    pub fn wait(&self) -> Result<ExitStatus> {
        self.group.check_owner()?;
        self.group.wait(None, false);
        self.group.tell_all();
        Ok(self.group.exit(0).unwrap_or(ExitStatus::Unknown))
    }

    /// Waits for the end of the process, at most for this long: true if it has ended, well or not, and its lines are passed on
    /// ([`Stdio::Tee`](crate::Stdio::Tee)). In a process that was forked from the one that started it, false at once: no thread there watches
    /// the process.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.group.check_owner().is_ok() && self.group.wait(deadline(timeout), false)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id. When it has ended, the number may belong to another process. A [supervised](crate::Restart) process has
    /// another one after each start: this is the last, in a process that was forked from this one the last before that.
    #[must_use]
    #[doc(alias = "ident")]
    pub fn pid(&self) -> u32 {
        self.group.pids().first().copied().unwrap_or(0)
    }

    /// How often it was started again: 0 unless it is [supervised](crate::Restart), and in a process that was forked from this one.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.group.attempt().map_or(0, |attempt| attempt.saturating_sub(1))
    }

    /// Whether it is ended when this process exits, instead of being waited for.
    #[must_use]
    pub fn daemon(&self) -> bool {
        self.daemon
    }

    /// Whether it runs; if it is [supervised](crate::Restart), also while it waits for its next start. Does not block. In a process
    /// that was forked from this one, false: that one has no such child.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.group.any_runs()
    }

    /// How it is doing. Does not block. In a process that was forked from this one, it has
    /// [failed](ProcessStatus::Failed) with [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess).
    #[must_use]
    pub fn status(&self) -> ProcessStatus {
        let status = self.group.status(0).unwrap_or_else(ProcessStatus::Failed);
        if matches!(status, ProcessStatus::Failed(_)) {
            self.group.tell(0);
        }
        status
    }

    /// How it ended; `None` while it runs: once its [`sentinel`](Self::sentinel) is readable, no more. Does not block. In a process
    /// that was forked from this one, always `None`.
    #[must_use]
    #[doc(alias = "exitcode")]
    pub fn exit(&self) -> Option<ExitStatus> {
        let exit = self.group.exit(0);
        if exit.is_some() {
            self.group.tell(0);
        }
        exit
    }

    /// Becomes readable when the process ends: for `poll(2)` and its like, together with sockets and other sentinels.
    /// It is a pidfd (see `pidfd_open(2)`), or an eventfd where the kernel gives none. It stays open until this is dropped, if
    /// it was asked for before the process had ended; otherwise it is closed at that end, and this returns an eventfd then. In a
    /// process that was forked from this one, it is readable at once: there is no end to wait for.
    ///
    /// As a future, in any runtime; it may be dropped at any time:
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

    /// Calls `call` when it has ended and was reaped, well or not; at once if it has.
    ///
    /// ```
    /// use mp_spawn::Process;
    ///
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let child = Process::spawn(|(): ()| {}, ())?;
    /// child.on_exit(move || _ = tell.send("it is over"));
    /// assert_eq!(told.recv().unwrap(), "it is over");
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// It runs in the thread that watches all processes: it must be quick, and neither start a process nor wait for one. A
    /// panic in it ends there. In a process that was forked from this one, it is dropped. It may exit: then processes that are not daemons are not waited for, and end with this one.
    pub fn on_exit(&self, call: impl FnOnce() + Send + 'static) {
        self.group.at_end(call);
    }

    /// Sends it a SIGTERM; nothing happens if it has ended. If it is [supervised](crate::Restart), it is not started again from
    /// now on.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NotSignalled`](crate::SpawnError::NotSignalled) if the system refuses; [`SpawnError::OtherProcess`](crate::SpawnError::OtherProcess) in a process forked from this one.
    pub fn terminate(&self) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask(0, Signal::TERM)
    }

    /// Sends it a SIGKILL, as [`terminate`](Self::terminate) sends a SIGTERM.
    ///
    /// # Errors
    ///
    /// Those of [`terminate`](Self::terminate).
    pub fn kill(&self) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask(0, Signal::KILL)
    }

    /// What it has written to its standard output so far, where that is captured: see [`Stdio`](crate::Stdio). Nothing, in a process
    /// that was forked from this one.
    #[must_use]
    pub fn stdout(&self) -> CapturedOutput {
        self.group.streams_of(0).map(|streams| streams.stdout()).unwrap_or_default()
    }

    /// What it has written to its standard error so far, where that is captured.
    #[must_use]
    pub fn stderr(&self) -> CapturedOutput {
        self.group.streams_of(0).map(|streams| streams.stderr()).unwrap_or_default()
    }
}

/// For waits on several things: it is ready when it has ended, by its [`sentinel`](Process::sentinel).
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
    fn place(&self) -> WaitPoint<'_> {
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
