//! Starting processes and waiting for them.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::{IntoOutcome, Message};
use mp_reduce::Unread;

use crate::api::closure::Closure;
use crate::bounds::{Argument, CapturesNothing};
use crate::error::exit_status::{ExitDetail, ExitStatus, Signal};
use crate::error::{ProcessExited, Result, SpawnError};
use crate::io::captured::CapturedOutput;
use crate::parent::active;
use crate::parent::group::{GRACE, Group};
use crate::parent::options::{OnFailure, SpawnOptions};
use crate::parent::rank::ProcessStatus;
use crate::parent::start::{self, Names, Plan};
use crate::protocol::function::Ranked;
use crate::protocol::outcome::is_unit;
use crate::protocol::payload::{Received, ToChild};
use crate::sys::clock::deadline;

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
/// `function` is a function item, or a closure that captures nothing. A closure that captures a value of a `Copy` type, and a
/// function pointer, pass `cargo check`, and are refused by `cargo build`: no bound of a type says that it has no bytes, so
/// that is known when the call is compiled. Pass values in `args`, or use [`closure!`](crate::closure!).
///
/// This is [`start_processes`] and [`ProcessContext::join`] in one, with the options of [`SpawnOptions::nprocs`].
///
/// Returns what the function returned in each of them, by rank.
///
/// # Errors
///
/// Those of [`start_processes`], and the first failure of a process; the others are ended then.
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
/// Each process executes the running program anew (as by `posix_spawn(3)`), but calls `function` instead of `main`; it gets
/// nothing of this process's memory but `args`, which are encoded once and decoded by each. The processes don't outlive this
/// one, however it ends; they do outlive the thread that started them.
///
/// This blocks until all processes are executed, not until they run the function: while the next one is started, the others
/// load and begin. `cargo xtask bench --only spawn_exec,spawn_64` measures what a start costs.
///
/// # The function
///
/// A function item, generic or not, or a closure that captures nothing. Closures that capture, and function pointers, are
/// refused when the program is compiled, by `cargo build` and not yet by `cargo check`:
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
/// A closure without captured *bytes* can still capture a value of a type without bytes. If such a type is a
/// proof, as in "this process has initialised the library", then the proof does not hold in the other process.
/// Types of that kind should not be `Send + Copy`; this function can't tell.
///
/// # Errors
///
/// - [`SpawnError::NotInitialised`] if this process is itself a worker-to-be that has not become one.
/// - [`SpawnError::Arguments`] if `args` can't be encoded. Nothing has been started then.
/// - [`SpawnError::Launch`] if the system refuses; the limit, or the cause, is named where it is known. Processes that had
///   been started are ended and reaped first.
/// - [`SpawnError::Launch`], before anything is started, if there would be more processes than can share memory: 1,024, or
///   256 where less than 4 GiB of addresses can be mapped, the first one of the tree and this one counted. (Processes that
///   others of the tree start at the same time may still be too many: then a worker fails when it first needs shared memory.)
///
/// The [`ProcessContext`] reports what happens in the processes afterwards.
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
    // Only its type is needed, which says which function it is.
    let _ = function;
    let plan = Plan {
        function: start::reference(Ranked::<F, A, R>::DESC)?,
        returns: !is_unit::<R::Value>(),
        daemon: options.daemon,
        ranked: true,
        names: Names::Ranks(options.name.clone(), options.nprocs),
    };
    let args = ToChild::encode(&args)?;
    let group = start::start(plan, &options, |_| ToChild::pack(&args))?;
    active::note(&group, options.daemon);
    let SpawnOptions { on_failure, grace_period, daemon, .. } = options;
    Ok(ProcessContext { group, on_failure, grace_period, daemon, detached: false, value: PhantomData })
}

/// Starts processes that run a [`Closure`] with what it captures; it is called with rank and arguments. See
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
/// Those of [`start_processes`].
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

/// Processes that were started together.
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
/// Dropping it ends the processes that still run: SIGTERM, the grace period, SIGKILL. That blocks until they are
/// gone and reaped, or for the grace period and 10 seconds more if the kernel can't let go of one. If they are to live on,
/// [`detach`](Self::detach) it. If this process exits while the context lives (`exit` is called, or `main` returns while
/// another thread has it), it waits for the processes, or ends them if they are [daemons](SpawnOptions::daemon).
///
/// A failure that no call has returned is printed on stderr when the context is dropped, or when this process exits: the first one, unless
/// the program caused it by [`kill`](Self::kill) or [`terminate`](Self::terminate). [`failures`](Self::failures), a call that waits, and a
/// failed [`status`](Self::status) return it.
///
/// `T` is what the function returns. [`SpawnError`] lists what each failure looks like.
#[doc(alias = "SpawnContext")]
#[must_use = "dropping it ends the processes"]
#[doc(alias = "_prctl_pr_set_pdeathsig")]
pub struct ProcessContext<T = ()> {
    group: Arc<Group>,
    on_failure: OnFailure,
    grace_period: Option<Duration>,
    daemon: bool,
    /// Whether the processes continue when this is dropped.
    detached: bool,
    value: PhantomData<fn() -> T>,
}

impl<T: Message> ProcessContext<T> {
    /// Waits until all processes have ended, or one has failed, and returns what the function returned in each, by
    /// rank.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let square = |rank: usize, (): ()| Ok::<usize, String>(rank * rank);
    /// assert_eq!(start_processes(square, (), SpawnOptions::nprocs(3))?.join()?, [0, 1, 4]);
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// After a failure, the context returns the status of each process:
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
    /// The values are moved out of the context: a second call succeeds only for functions that return nothing.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait); [`SpawnError::Value`] when a value can't be decoded here, or an earlier call has taken
    /// it. Where this process has no descriptors to spare for those in the values, all of them stay: close some, and call it again.
    pub fn join(&self) -> Result<Vec<T>> {
        self.wait()?;
        let mut all: Vec<Found<T>> = Vec::with_capacity(self.group.len());
        // All are ready before one is read: where descriptors are too few for one, a later call finds all.
        for rank in 0..self.group.len() {
            match find(&self.group, rank) {
                Ok(found) => all.push(found),
                Err(error) => {
                    let others = all.into_iter().enumerate();
                    others.for_each(|(rank, found)| found.put_aside(&self.group, rank, &error));
                    return Err(error);
                }
            }
        }
        all.into_iter().enumerate().map(|(rank, found)| found.read(&self.group, rank)).collect()
    }

    /// Waits until all processes have ended, whatever happened to the others, and returns how each of them did, by
    /// rank. No process is ended because another one failed.
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
    /// [`SpawnError::OtherProcess`] in a process forked from this one. Values that an earlier call has taken are
    /// [`SpawnError::Value`].
    pub fn results(&self) -> Result<Vec<Result<T>>> {
        self.group.check_owner()?;
        self.group.wait(None, false);
        self.group.tell_all();
        Ok((0..self.group.len()).map(|rank| result(&self.group, rank)).collect())
    }
}

/// How a process that is over did.
pub(crate) fn result<T: Message>(group: &Group, rank: usize) -> Result<T> {
    match group.status(rank)? {
        ProcessStatus::Failed(error) => Err(error),
        ProcessStatus::EndedByUs(_) => Err(SpawnError::ProcessExited(Box::new(ProcessExited {
            who: group.who(rank),
            exit: group.exit(rank).unwrap_or(ExitStatus::Unknown),
            begun: group.had_begun(rank),
            detail: Some(ExitDetail::AskedFor),
            stderr: None,
        }))),
        ProcessStatus::Running | ProcessStatus::Restarting { .. } | ProcessStatus::Ended => {
            value(group, rank)
        }
    }
}

/// What the function returned in a process that ended well.
fn value<T: Message>(group: &Group, rank: usize) -> Result<T> {
    find::<T>(group, rank)?.read(group, rank)
}

/// What a function returned.
enum Found<T> {
    Nothing(T),
    /// It can be read.
    Ready(Received),
}

/// Looks what the function returned in a process that ended well; where there are too few descriptors for it, it stays there.
fn find<T: Message>(group: &Group, rank: usize) -> Result<Found<T>> {
    let nothing: Box<dyn Any> = Box::new(());
    if let Ok(nothing) = nothing.downcast::<T>() {
        return Ok(Found::Nothing(*nothing));
    }
    let value = group.take_value(rank).map_err(|why| unreadable(group, rank, why, None))?;
    value.ready().map(Found::Ready).map_err(|(error, unread)| {
        if let Some(unread) = &unread {
            group.put_aside(rank, Received::Unread(unread.clone()));
        }
        unreadable(group, rank, error, unread)
    })
}

fn unreadable(group: &Group, rank: usize, why: impl ToString, unread: Option<Unread>) -> SpawnError {
    SpawnError::Value { who: group.who(rank).into(), message: why.to_string(), unread }
}

impl<T: Message> Found<T> {
    fn read(self, group: &Group, rank: usize) -> Result<T> {
        match self {
            Found::Nothing(nothing) => Ok(nothing),
            Found::Ready(value) => value.unpack().map_err(|error| unreadable(group, rank, error, None)),
        }
    }

    /// It is not read, for another one can't be: it stays for a later call, if that one does.
    fn put_aside(self, group: &Group, rank: usize, error: &SpawnError) {
        if let Found::Ready(value) = self
            && error.unread().is_some()
        {
            group.put_aside(rank, value);
        }
    }
}

impl<T> ProcessContext<T> {
    /// Waits until all processes have ended, or one has failed.
    ///
    /// After a failure the others are ended as [`SpawnOptions::grace_period`] says, unless
    /// [`OnFailure::Continue`] lets them continue; this returns when they are gone. It may be called again, and returns the
    /// same then.
    ///
    /// # Errors
    ///
    /// The failure that happened first. [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn wait(&self) -> Result<()> {
        self.join_until(None, self.grace_period).map(|_| ())
    }

    /// Waits like [`wait`](Self::wait), but at most for this long: true if all have ended, false if some still
    /// run. Ending the others after a failure takes its time in addition.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool> {
        self.join_until(Some(timeout), self.grace_period)
    }

    /// Waits like [`join_timeout`](Self::join_timeout), for ever without a time-out, and with a grace period of
    /// its own.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub fn join_with_grace(&self, timeout: Option<Duration>, grace: Duration) -> Result<bool> {
        self.join_until(timeout, Some(grace))
    }

    fn join_until(&self, timeout: Option<Duration>, grace: Option<Duration>) -> Result<bool> {
        self.group.check_owner()?;
        let or_failure = self.on_failure == OnFailure::EndAll;
        if !self.group.wait(timeout.and_then(deadline), or_failure) {
            return Ok(false);
        }
        if or_failure && self.group.ends_others() {
            self.group.end_all(grace, grace.unwrap_or(GRACE));
        }
        self.group.tell_all();
        self.group.first_failure().map_or(Ok(true), Err)
    }

    /// Lets the processes continue without the context. This process waits for them when it exits, or ends them if they are
    /// [daemons](SpawnOptions::daemon), and prints the first failure.
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

    /// The process ids, by rank. Ids of processes that have ended may belong to other processes by now.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.group.pids()
    }

    /// Descriptors that become readable when a process ends, by rank: for `poll(2)` and its like, and for
    /// [`wait`](crate::wait) together with other things. They stay open, and readable, until this is dropped. (A sentinel that
    /// is not asked for is closed when its process has ended.)
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
    /// They are pidfds (see `pidfd_open(2)`), or eventfds where the kernel gives none and of processes that have ended before
    /// this was called; in a process forked from this one they are readable at once. A process whose sentinel is readable has ended: its [`exit`](Self::exit) is known.
    #[must_use]
    pub fn sentinels(&self) -> Vec<BorrowedFd<'_>> {
        self.group.sentinels().collect()
    }

    /// How the process of this rank is doing. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn status(&self, rank: usize) -> Result<ProcessStatus> {
        let status = self.group.status(rank)?;
        if matches!(status, ProcessStatus::Failed(_)) {
            self.group.tell(rank);
        }
        Ok(status)
    }

    /// How the process of this rank ended; `None` while it runs. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn exit(&self, rank: usize) -> Result<Option<ExitStatus>> {
        self.group.status(rank)?;
        let exit = self.group.exit(rank);
        if exit.is_some() {
            self.group.tell(rank);
        }
        Ok(exit)
    }

    /// What the process of this rank has written to its standard output so far, where that is captured: see
    /// [`Stdio`](crate::Stdio). Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn stdout(&self, rank: usize) -> Result<CapturedOutput> {
        Ok(self.group.streams_of(rank)?.stdout())
    }

    /// The same for its standard error.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn stderr(&self, rank: usize) -> Result<CapturedOutput> {
        Ok(self.group.streams_of(rank)?.stderr())
    }

    /// All failures so far, in the order in which they happened. Does not block. In a process forked from this one, the one that
    /// there is: [`SpawnError::OtherProcess`].
    #[must_use]
    pub fn failures(&self) -> Vec<SpawnError> {
        let failures = self.group.failures();
        failures.iter().filter_map(SpawnError::rank).for_each(|rank| self.group.tell(rank));
        failures
    }

    /// Sends a SIGKILL to the process of this rank; nothing happens if it has ended. That is a failure of the
    /// process, as any death by a signal is. Does not block. See `pidfd_send_signal(2)`.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::NotSignalled`] if the system refuses;
    /// [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn kill(&self, rank: usize) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask(rank, Signal::KILL)
    }

    /// Sends a SIGTERM to the process of this rank, as [`kill`](Self::kill) sends a SIGKILL.
    ///
    /// # Errors
    ///
    /// Those of [`kill`](Self::kill).
    pub fn terminate(&self, rank: usize) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask(rank, Signal::TERM)
    }

    /// [Kills](Self::kill) each process that has not ended. Does not block: [`results`](ProcessContext::results) waits for
    /// them.
    ///
    /// ```
    /// use mp_spawn::{ExitDetail, SpawnOptions, SpawnError, start_processes};
    ///
    /// let sleep = |_: usize, (): ()| std::thread::sleep(std::time::Duration::from_secs(600));
    /// let workers = start_processes(sleep, (), SpawnOptions::nprocs(3))?;
    /// workers.kill_all()?;
    /// for result in workers.results()? {
    ///     let Err(SpawnError::ProcessExited(exited)) = result else { panic!("{result:?}") };
    ///     assert_eq!(exited.detail, Some(ExitDetail::AskedFor));
    /// }
    /// # Ok::<(), SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SpawnError::NotSignalled`] if the system refuses one, after all were tried; [`SpawnError::OtherProcess`] in a process
    /// forked from this one.
    pub fn kill_all(&self) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask_all(Signal::KILL)
    }

    /// Sends a SIGTERM to each process that has not ended, as [`kill_all`](Self::kill_all) sends a SIGKILL. A process that
    /// ignores it continues.
    ///
    /// # Errors
    ///
    /// Those of [`kill_all`](Self::kill_all).
    pub fn terminate_all(&self) -> Result<()> {
        self.group.check_owner()?;
        self.group.ask_all(Signal::TERM)
    }
}

impl<T> Drop for ProcessContext<T> {
    fn drop(&mut self) {
        if !self.detached && self.group.check_owner().is_ok() {
            self.group.end_all(None, self.grace_period.unwrap_or(GRACE));
            // While the stack unwinds as well: the failure may be the cause of the panic.
            active::tell_untold(&self.group);
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
