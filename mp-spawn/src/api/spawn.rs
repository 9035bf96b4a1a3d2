//! Functions that start processes, and the handle of a group of processes.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::{IntoOutcome, Message};
use mp_reduce::Unread;

use crate::api::closure::Closure;
use crate::bounds::{Argument, CapturesNothing};
use crate::error::{ExitDetail, ExitStatus, ProcessExited, Result, Signal, SpawnError};
use crate::io::captured::CapturedOutput;
use crate::parent::active;
use crate::parent::control::GRACE;
use crate::parent::group::ChildGroup;
use crate::parent::options::{OnFailure, SpawnOptions};
use crate::parent::restart::event::ProcessStatus;
use crate::parent::start::{self, ProcessNames, StartPlan};
use crate::protocol::function::RankedFunction;
use crate::protocol::payload::{ChildPayload, ReceivedValue};
use crate::protocol::report::{is_unit, unit};
use crate::sys::deadline;

/// Starts `nprocs` processes that run `function(rank, args)`, and waits for all of them.
///
/// ```
/// fn worker(rank: usize, greeting: String) {
///     println!("{greeting} from rank {rank}");
/// }
///
/// mp_spawn::spawn(worker, "hello".to_string(), 3)?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// `function` is a function item, or a closure without captures. A function pointer, and a closure that
/// captures a value of a `Copy` type, pass `cargo check`, but `cargo build` refuses them. No trait bound
/// expresses that a type has no bytes. Pass values in `args`, or use [`closure!`](crate::closure!).
///
/// This function combines [`start_processes`] with [`SpawnOptions::nprocs`] and [`ProcessContext::join`].
///
/// Returns the results of the function, by rank.
///
/// # Errors
///
/// The errors of [`start_processes`], and the first failure of a process, which also ends the other
/// processes.
#[track_caller]
pub fn spawn<F, A, R>(function: F, args: A, nprocs: usize) -> Result<Vec<R::Value>>
where
    F: Fn(usize, A) -> R + CapturesNothing,
    A: Argument,
    R: IntoOutcome,
{
    start_processes(function, args, SpawnOptions::nprocs(nprocs))?.join()
}

/// Starts processes that run `function(rank, args)`, with ranks from 0.
///
/// ```
/// use mp_spawn::{SpawnOptions, start_processes};
///
/// fn worker(rank: usize, (low, high): (u32, u32)) -> Result<(), String> {
///     if low < high { Ok(()) } else { Err(format!("rank {rank}: {low} is not below {high}")) }
/// }
///
/// let workers = start_processes(worker, (1, 2), SpawnOptions::nprocs(2))?;
/// println!("they run as {:?}", workers.pids());
/// workers.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Each process executes the running program again (like `posix_spawn(3)`), but calls `function` instead of
/// `main`. From this process's memory it gets only `args`, which are encoded once and decoded by each
/// process. The processes do not outlive this process, however it ends, but they outlive the thread that
/// started them.
///
/// This function blocks until all processes are executed, but not until they run `function`: processes load
/// while further processes are started. `cargo xtask bench --only spawn_exec,spawn_64` measures the cost of a
/// start.
///
/// # The function
///
/// A function item, generic or not, or a closure without captures. `cargo build` refuses closures with
/// captures and function pointers, `cargo check` does not:
///
/// ```compile_fail
/// let factor = 3;
/// mp_spawn::spawn(move |rank: usize, (): ()| println!("{}", factor * rank), (), 1);
/// ```
/// ```compile_fail
/// let pointer: fn(usize, ()) = |_, ()| {};
/// mp_spawn::spawn(pointer, (), 1);
/// ```
///
/// A closure without captured *bytes* can still capture a value of a zero-sized type. If such a type is a
/// proof, such as "this process has initialised the library", the proof does not hold in the other process.
/// Such types should not be `Send + Copy`. This function can't detect them.
///
/// # Errors
///
/// - [`SpawnError::NotInitialised`] if this process was started as a worker, and has not become one.
/// - [`SpawnError::Arguments`] if `args` can't be encoded. No process is started then.
/// - [`SpawnError::Launch`] if the system refuses. The error names the limit or the cause, if it is known.
///   Processes that were already started are ended and reaped first.
/// - [`SpawnError::Launch`] before any start, if more processes would exist than can share memory: 1,024, or
///   256 if less than 4 GiB of addresses can be mapped, including this process and the first process of the
///   tree. (If other processes of the tree start processes concurrently, the limit may still be exceeded:
///   then a worker fails when it first needs shared memory.)
///
/// Later failures of the processes are reported by the [`ProcessContext`].
#[doc(alias = "spawn_context")]
pub fn start_processes<F, A, R>(
    function: F,
    args: A,
    options: SpawnOptions,
) -> Result<ProcessContext<R::Value>>
where
    F: Fn(usize, A) -> R + CapturesNothing,
    A: Argument,
    R: IntoOutcome,
{
    // Only the type of `function` is needed: it identifies the function.
    let _ = function;
    let plan = StartPlan {
        function: RankedFunction::<F, A, R>::DESC.start_reference()?,
        returns: !is_unit::<R::Value>(),
        daemon: options.daemon,
        ranked: true,
        names: ProcessNames::Ranks(options.name.clone(), options.nprocs),
    };
    let args = ChildPayload::encode(&args)?;
    let group = start::start(plan, &options, |_| ChildPayload::pack(&args))?;
    active::register(&group, options.daemon);
    let SpawnOptions { on_failure, grace_period, daemon, .. } = options;
    Ok(ProcessContext { group, on_failure, grace_period, daemon, detached: false, value: PhantomData })
}

/// Starts processes that run a [`Closure`] with its captures, rank and arguments. See
/// [`closure!`](crate::closure!).
///
/// ```
/// use mp_spawn::{SpawnOptions, closure, start_closure};
///
/// let factor = 3;
/// let workers = start_closure(
///     closure!([factor] |rank: usize, base: usize| Ok::<_, String>(base + factor * rank)),
///     100,
///     SpawnOptions::nprocs(3),
/// )?;
/// assert_eq!(workers.join()?, [100, 103, 106]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// # Errors
///
/// See [`start_processes`].
pub fn start_closure<A, R>(
    closure: Closure<(usize, A), R>,
    args: A,
    options: SpawnOptions,
) -> Result<ProcessContext<R::Value>>
where
    A: Argument,
    R: IntoOutcome,
{
    fn call<A: 'static, R: 'static>(rank: usize, (closure, args): (Closure<(usize, A), R>, A)) -> R {
        closure.call((rank, args))
    }
    start_processes(call::<A, R>, (closure, args), options)
}

/// A group of processes that were started together.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{SpawnOptions, start_processes};
///
/// let workers = start_processes(|_rank: usize, (): ()| {}, (), SpawnOptions::nprocs(2))?;
/// while !workers.join_timeout(Duration::from_millis(100))? {
///     println!("{workers:?}");
/// }
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Dropping a context ends its running processes: SIGTERM, the grace period, SIGKILL. The drop blocks until
/// they have ended and are reaped. If the kernel can't end a process, the drop blocks for the grace period
/// and 10 more seconds. [`detach`](Self::detach) lets the processes continue. If this process exits while the
/// context lives (`exit` is called, or `main` returns while another thread owns the context), the exit waits
/// for the processes, or ends them if they are [daemons](SpawnOptions::daemon).
///
/// When the context is dropped or this process exits, the first failure is printed on stderr, unless a call
/// has returned the failure, or the program caused it by [`kill`](Self::kill) or
/// [`terminate`](Self::terminate). Failures are returned by [`failures`](Self::failures), by calls that wait,
/// and by [`status`](Self::status).
///
/// `T` is the type of the function's result. [`SpawnError`] lists all kinds of failures.
#[doc(alias = "SpawnContext")]
#[must_use = "dropping it ends the processes"]
#[doc(alias = "_prctl_pr_set_pdeathsig")]
pub struct ProcessContext<T = ()> {
    group: Arc<ChildGroup>,
    on_failure: OnFailure,
    grace_period: Option<Duration>,
    daemon: bool,
    /// `true` if the processes continue when the context is dropped.
    detached: bool,
    value: PhantomData<fn() -> T>,
}

impl<T: Message> ProcessContext<T> {
    /// Waits until all processes have ended, or one has failed. Returns the results of the function, by rank.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let square = |rank: usize, (): ()| Ok::<usize, String>(rank * rank);
    /// assert_eq!(start_processes(square, (), SpawnOptions::nprocs(3))?.join()?, [0, 1, 4]);
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// After a failure, the context still has the status of each process:
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, ProcessStatus, start_processes};
    ///
    /// let picky = |rank: usize, (): ()| if rank == 1 { Err("not for me") } else { Ok(rank) };
    /// let workers = start_processes(picky, (), SpawnOptions::nprocs(2))?;
    /// assert_eq!(workers.join().unwrap_err().rank(), Some(1));
    /// assert!(matches!(workers.status(1)?, ProcessStatus::Failed(_)));
    /// assert!(workers.exit(0)?.is_some() && workers.exit(1)?.is_some());
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// The results are moved out of the context: a second call succeeds only for functions without a result.
    ///
    /// # Errors
    ///
    /// See [`wait`](Self::wait). [`SpawnError::Value`] if a value can't be decoded, or an earlier call has
    /// taken it. If this process has too few spare descriptors for the descriptors in the values, no value is
    /// taken: close some descriptors, and call `join` again.
    #[track_caller]
    pub fn join(&self) -> Result<Vec<T>> {
        self.wait()?;
        let mut all = Vec::with_capacity(self.group.len());
        // Checks all values before the first is read, so that after a lack of descriptors a later call finds
        // all values.
        for rank in 0..self.group.len() {
            match take_value::<T>(&self.group, rank) {
                Ok(value) => all.push(value),
                Err(error) => {
                    let others = all.into_iter().enumerate().filter(|_| error.unread().is_some());
                    let others = others.filter_map(|(rank, value)| Some((rank, value?)));
                    others.for_each(|(rank, value)| self.group.return_value(rank, value));
                    return Err(error);
                }
            }
        }
        all.into_iter().enumerate().map(|(rank, value)| read_value(&self.group, rank, value)).collect()
    }

    /// Waits until all processes have ended, successfully or not. Returns their results by rank. No process
    /// is ended because another one failed.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let picky = |rank: usize, (): ()| if rank == 1 { Err("not for me") } else { Ok(rank) };
    /// let results = start_processes(picky, (), SpawnOptions::nprocs(3))?.results()?;
    /// assert!(matches!(results[..], [Ok(0), Err(_), Ok(2)]));
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SpawnError::OtherProcess`] in a process forked from this one. The list contains
    /// [`SpawnError::Value`] for each value that an earlier call has taken.
    pub fn results(&self) -> Result<Vec<Result<T>>> {
        self.group.join_all()?;
        Ok((0..self.group.len()).map(|rank| result(&self.group, rank)).collect())
    }
}

/// Returns the result of a process that has ended.
pub(crate) fn result<T: Message>(group: &ChildGroup, rank: usize) -> Result<T> {
    match group.status(rank)? {
        ProcessStatus::Failed(error) => Err(error),
        ProcessStatus::Terminated(_) => Err(SpawnError::ProcessExited(Box::new(ProcessExited {
            who: group.process_name(rank),
            exit: group.exit(rank)?.unwrap_or(ExitStatus::Unknown),
            begun: group.with_rank(rank, |rank| rank.begun).unwrap_or(false),
            detail: Some(ExitDetail::Requested),
            stderr: None,
        }))),
        ProcessStatus::Running | ProcessStatus::Restarting { .. } | ProcessStatus::Ended => {
            read_value(group, rank, take_value::<T>(group, rank)?)
        }
    }
}

/// Takes the value that a process returned, after a check that it can be decoded. Returns `None` for `()`,
/// which is not sent.
fn take_value<T: Message>(group: &ChildGroup, rank: usize) -> Result<Option<ReceivedValue>> {
    if is_unit::<T>() {
        return Ok(None);
    }
    let value = group.take_value(rank).map_err(|why| value_error(group, rank, why, None))?;
    value.ready().map(Some).map_err(|(error, unread)| {
        if let Some(unread) = &unread {
            group.return_value(rank, ReceivedValue::Unread(unread.clone()));
        }
        value_error(group, rank, error, unread)
    })
}

/// Decodes the value that a process returned. `None` means `()`.
fn read_value<T: Message>(group: &ChildGroup, rank: usize, value: Option<ReceivedValue>) -> Result<T> {
    match value {
        Some(value) => value.unpack().map_err(|error| value_error(group, rank, error, None)),
        None => unit().ok_or_else(|| value_error(group, rank, "it did not arrive", None)),
    }
}

fn value_error(group: &ChildGroup, rank: usize, why: impl ToString, unread: Option<Unread>) -> SpawnError {
    SpawnError::Value { who: group.process_name(rank).into(), message: why.to_string(), unread }
}

impl<T> ProcessContext<T> {
    /// Waits until all processes have ended, or one has failed.
    ///
    /// After a failure the other processes are ended, see [`SpawnOptions::grace_period`], and this function
    /// returns after all processes have ended. With [`OnFailure::Continue`] they are not ended. Further calls
    /// return the same result.
    ///
    /// # Errors
    ///
    /// The first failure. [`SpawnError::OtherProcess`] in a process forked from this one.
    #[track_caller]
    pub fn wait(&self) -> Result<()> {
        self.join_until(None, self.grace_period).map(|_| ())
    }

    /// Waits for the processes, for at most `timeout`. Returns `true` if all of them have ended, `false` if
    /// some still run. After a failure, the end of the other processes takes additional time. Otherwise like
    /// [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// See [`wait`](Self::wait).
    #[track_caller]
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool> {
        self.join_until(Some(timeout), self.grace_period)
    }

    /// Waits for the processes with a specific grace period, and without a limit if `timeout` is `None`.
    /// Otherwise like [`join_timeout`](Self::join_timeout).
    ///
    /// # Errors
    ///
    /// See [`wait`](Self::wait).
    #[track_caller]
    pub fn join_with_grace(&self, timeout: Option<Duration>, grace: Duration) -> Result<bool> {
        self.join_until(timeout, Some(grace))
    }

    #[track_caller]
    fn join_until(&self, timeout: Option<Duration>, grace: Option<Duration>) -> Result<bool> {
        self.group.check_owner()?;
        let or_failure = self.on_failure == OnFailure::EndAll;
        if !self.group.wait(timeout.and_then(deadline), or_failure) {
            return Ok(false);
        }
        if or_failure && self.group.ends_others() {
            self.group.end_all(grace, grace.unwrap_or(GRACE));
        }
        self.group.mark_all_reported();
        self.group.first_failure().map_or(Ok(true), Err)
    }

    /// Lets the processes continue without the context. When this process exits, it waits for them, or ends
    /// them if they are [daemons](SpawnOptions::daemon), and prints the first failure.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let quick = |_: usize, (): ()| {};
    /// start_processes(quick, (), SpawnOptions::nprocs(2))?.detach();
    /// // Both run to their end: this process waits for that before it exits.
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    pub fn detach(mut self) {
        if self.group.check_owner().is_ok() {
            active::release(&self.group, self.daemon);
        }
        self.detached = true;
    }

    /// Returns the process ids, by rank. After the end of a process, its id may belong to another process.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.group.pids()
    }

    /// Returns descriptors that become readable when a process ends, by rank, for `poll(2)` and similar
    /// functions, and for [`wait`](crate::wait) together with other objects. The descriptors stay open and
    /// readable until the context is dropped. (A sentinel that is not requested is closed when its process
    /// has ended.)
    ///
    /// ```
    /// use mp_spawn::{Descriptor, ExitStatus, SpawnOptions, Waitable, start_processes, wait};
    /// use std::time::Duration;
    ///
    /// let workers = start_processes(
    ///     |rank: usize, (): ()| if rank == 0 { std::thread::sleep(Duration::from_secs(600)) },
    ///     (),
    ///     SpawnOptions::nprocs(3),
    /// )?;
    /// // The process that ends first, without waiting for the others.
    /// let ends: Vec<_> = workers.sentinels().into_iter().map(Descriptor).collect();
    /// let things: Vec<_> = ends.iter().map(|end| end as &dyn Waitable).collect();
    /// let ended = wait(&things, Some(Duration::from_secs(60)))?;
    /// assert_eq!(workers.exit(ended[0])?, Some(ExitStatus::Code(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Sentinels are pidfds (see `pidfd_open(2)`), or eventfds on kernels without pidfds and for processes
    /// that ended before this call. If a sentinel is readable, the [`exit`](Self::exit) of its process is
    /// known. In a process forked from this one, all descriptors are readable at once.
    #[must_use]
    pub fn sentinels(&self) -> Vec<BorrowedFd<'_>> {
        self.group.sentinels().collect()
    }

    /// Returns the status of the process with this rank. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`], and [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn status(&self, rank: usize) -> Result<ProcessStatus> {
        self.group.status(rank)
    }

    /// Returns the exit status of the process with this rank, or `None` while it runs. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`], and [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn exit(&self, rank: usize) -> Result<Option<ExitStatus>> {
        self.group.exit(rank)
    }

    /// Returns the standard output so far of the process with this rank, if it is captured, see
    /// [`Stdio`](crate::Stdio). Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`], and [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn stdout(&self, rank: usize) -> Result<CapturedOutput> {
        Ok(self.group.streams(rank)?.stdout())
    }

    /// Returns the standard error so far of the process with this rank, if it is captured. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`], and [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn stderr(&self, rank: usize) -> Result<CapturedOutput> {
        Ok(self.group.streams(rank)?.stderr())
    }

    /// Returns all failures so far, in order of occurrence. Does not block. In a process forked from this
    /// one, the only failure is [`SpawnError::OtherProcess`].
    #[must_use]
    pub fn failures(&self) -> Vec<SpawnError> {
        self.group.failures()
    }

    /// Sends SIGKILL to the process with this rank, unless it has ended. The process counts as failed, as
    /// after any death by a signal. Does not block. See `pidfd_send_signal(2)`.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`], [`SpawnError::NotSignalled`] if the system refuses, and
    /// [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn kill(&self, rank: usize) -> Result<()> {
        self.group.send_signal(rank, Signal::KILL)
    }

    /// Sends SIGTERM to the process with this rank. Otherwise like [`kill`](Self::kill).
    ///
    /// # Errors
    ///
    /// See [`kill`](Self::kill).
    pub fn terminate(&self, rank: usize) -> Result<()> {
        self.group.send_signal(rank, Signal::TERM)
    }

    /// [Kills](Self::kill) all processes that have not ended. Does not block:
    /// [`results`](ProcessContext::results) waits for them.
    ///
    /// ```
    /// use mp_spawn::{ExitDetail, SpawnOptions, SpawnError, start_processes};
    ///
    /// let sleep = |_: usize, (): ()| std::thread::sleep(std::time::Duration::from_secs(600));
    /// let workers = start_processes(sleep, (), SpawnOptions::nprocs(3))?;
    /// workers.kill_all()?;
    /// for result in workers.results()? {
    ///     let Err(SpawnError::ProcessExited(exited)) = result else { panic!("{result:?}") };
    ///     assert_eq!(exited.detail, Some(ExitDetail::Requested));
    /// }
    /// # Ok::<(), SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SpawnError::NotSignalled`] if the system refuses a signal. All other signals are sent nevertheless.
    /// [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn kill_all(&self) -> Result<()> {
        self.group.send_signal_to_all(Signal::KILL)
    }

    /// Sends SIGTERM to all processes that have not ended. A process that ignores it continues. Otherwise
    /// like [`kill_all`](Self::kill_all).
    ///
    /// # Errors
    ///
    /// See [`kill_all`](Self::kill_all).
    pub fn terminate_all(&self) -> Result<()> {
        self.group.send_signal_to_all(Signal::TERM)
    }
}

impl<T> Drop for ProcessContext<T> {
    fn drop(&mut self) {
        if !self.detached && self.group.check_owner().is_ok() {
            self.group.end_all(None, self.grace_period.unwrap_or(GRACE));
            // Printed also during unwinding, since the failure may be the cause of the panic.
            active::print_unreported_failure(&self.group);
        }
    }
}

impl<T> fmt::Debug for ProcessContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessContext ")?;
        let mut list = f.debug_list();
        for line in self.group.describe() {
            list.entry(&format_args!("{line}"));
        }
        list.finish()
    }
}
