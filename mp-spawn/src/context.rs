//! Starting processes and waiting for them.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, SpawnError};
use crate::exit::Signal;
use crate::function;
use crate::group::{self, Group, Status};
use crate::handoff::ToChild;
use crate::launch::{self, Command};
use crate::message::Start;
use crate::options::{OnFailure, Options};
use crate::outcome::Outcome;
use crate::supervisor::{self, Batch};
use crate::token;
use crate::watch::{Common, MAX_FDS, Order, Outbox};
use crate::wire::{self, Kind};

/// How long the others get to obey a SIGTERM when no grace period is set.
const GRACE: Duration = Duration::from_secs(5);

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
/// This is [`start_processes`] and [`ProcessContext::join`] in one, with the options of [`Options::nprocs`].
///
/// # Errors
///
/// Those of [`start_processes`], and the first failure of a process; the others are ended then.
pub fn spawn<F, A, R>(function: F, args: A, nprocs: usize) -> Result<()>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Outcome + 'static,
{
    start_processes(function, args, Options::nprocs(nprocs))?.join()
}

/// Starts processes that run `function(rank, args)`, with ranks from 0.
///
/// ```
/// use mp_spawn::{Options, start_processes};
///
/// fn worker(rank: usize, (low, high): (u32, u32)) -> Result<(), String> {
///     if low < high { Ok(()) } else { Err(format!("rank {rank}: {low} is not below {high}")) }
/// }
///
/// let workers = start_processes(worker, (1, 2), Options::nprocs(2))?;
/// println!("they run as {:?}", workers.pids());
/// workers.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Each process executes the running program anew (`posix_spawn(3)`), but calls `function` instead of `main`;
/// nothing of this process's memory goes along but `args`, which are encoded for each. The processes don't
/// outlive this one, however it ends; they do outlive the thread that started them.
///
/// This blocks until all processes run, about a millisecond each, and not until they do anything.
///
/// # The function
///
/// A function item, generic or not, or a closure that captures nothing. What captures, and function pointers,
/// are refused when the program is compiled:
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
/// - [`SpawnError::Launch`] if the system refuses; the limit is named where it is known. Processes that had been
///   started are ended and reaped first.
///
/// What happens in the processes afterwards is told by the [`ProcessContext`].
#[doc(alias = "spawn_context")]
pub fn start_processes<F, A, R>(function: F, args: A, options: Options) -> Result<ProcessContext>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Outcome + 'static,
{
    if token::unconsumed() {
        return Err(SpawnError::NotInitialised);
    }
    let unknown = || std::io::Error::other("nothing tells this program's build from others");
    let function =
        function::reference(function).ok_or_else(|| launch::failed("the lookup", None, unknown()))?;
    let names = (0..options.nprocs).map(|rank| format!("{}-{rank}", options.name));
    let group = Arc::new(Group::new(names));
    let command = Command::new(options.executable.as_deref())?;
    let common = Common {
        group: Arc::clone(&group),
        program: Arc::new(command.program.clone()),
        function: Arc::from(function.name.as_str()),
        patience: options.handshake,
    };
    let orders = (0..options.nprocs)
        .map(|rank| {
            let start = Start { rank, name: group.name(rank), function: function.clone() };
            let ToChild { bytes, fds, parcel } = ToChild::pack(&args)?;
            Ok(Order { rank, outbox: pack(&start, &bytes, fds)?, parcel })
        })
        .collect::<Result<_>>()?;
    match supervisor::start(Batch { command, common, orders }) {
        Ok(()) => {
            Ok(ProcessContext { group, on_failure: options.on_failure, grace_period: options.grace_period })
        }
        Err(error) => {
            group.reap_incomplete();
            Err(error)
        }
    }
}

/// The frames of a start message, and the file descriptors that go with the first.
fn pack(start: &Start, args: &[u8], fds: Vec<BorrowedFd<'static>>) -> Result<Outbox> {
    let unsendable = |message: String| SpawnError::Arguments { rank: None, message };
    let mut bytes = Vec::new();
    if !fds.is_empty() {
        let count = u32::try_from(fds.len()).ok().filter(|_| fds.len() <= MAX_FDS);
        let too_many =
            || unsendable(format!("{} file descriptors, and at most {MAX_FDS} can be sent", fds.len()));
        wire::append(&mut bytes, Kind::Fds, &count.ok_or_else(too_many)?.to_le_bytes())
            .map_err(|error| unsendable(error.to_string()))?;
    }
    let start = rmp_serde::to_vec(start).map_err(|error| unsendable(error.to_string()))?;
    wire::append(&mut bytes, Kind::Start, &start).map_err(|error| unsendable(error.to_string()))?;
    wire::append(&mut bytes, Kind::Args, args).map_err(|error| unsendable(error.to_string()))?;
    Ok(Outbox::new(bytes, fds))
}

/// Processes that were started together.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{Options, start_processes};
///
/// let workers = start_processes(|_rank: usize, (): ()| {}, (), Options::nprocs(2))?;
/// while !workers.join_timeout(Duration::from_millis(100))? {
///     println!("{workers:?}");
/// }
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Dropping it ends the processes that still run: SIGTERM, the grace period, SIGKILL. That blocks until they are
/// gone and reaped, or for the grace period and 10 seconds more if the kernel can't let go of one.
///
/// What the failures look like:
///
/// | the process | `join` returns |
/// |---|---|
/// | returns `Err` or panics | [`SpawnError::ProcessRaised`] |
/// | calls `exit(n)`, n ≠ 0 | [`SpawnError::ProcessExited`] with the code |
/// | gets a signal, or crashes | [`SpawnError::ProcessExited`] with the signal, and what is known about the cause |
/// | is of another build | [`SpawnError::Refused`] |
/// | can't decode its arguments | [`SpawnError::Arguments`] |
/// | is another program | [`SpawnError::NeverReported`] or [`SpawnError::Timeout`] |
#[doc(alias = "SpawnContext")]
#[must_use = "dropping it ends the processes"]
pub struct ProcessContext {
    group: Arc<Group>,
    on_failure: OnFailure,
    grace_period: Option<Duration>,
}

impl ProcessContext {
    /// Waits until all processes have ended, or one has failed.
    ///
    /// After a failure the others are ended as [`Options::grace_period`] says, unless
    /// [`OnFailure::Continue`] lets them run on; this returns when they are gone. It may be called again, and
    /// then says the same.
    ///
    /// # Errors
    ///
    /// The failure that happened first. [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn join(&self) -> Result<()> {
        self.join_until(None, self.grace_period).map(|_| ())
    }

    /// Waits like [`join`](Self::join), but at most for this long: true if all have ended, false if some still
    /// run. Ending the others after a failure takes its time in addition.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join).
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool> {
        self.join_until(Some(timeout), self.grace_period)
    }

    /// Waits like [`join_timeout`](Self::join_timeout), for ever without a time-out, and with a grace period of
    /// its own.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join).
    pub fn join_with_grace(&self, timeout: Option<Duration>, grace: Duration) -> Result<bool> {
        self.join_until(timeout, Some(grace))
    }

    fn join_until(&self, timeout: Option<Duration>, grace: Option<Duration>) -> Result<bool> {
        self.group.check_owner()?;
        let or_failure = self.on_failure == OnFailure::EndAll;
        if !self.group.wait(timeout.and_then(group::deadline), or_failure) {
            return Ok(false);
        }
        if or_failure && self.group.first_failure().is_some() {
            self.group.end_all(grace, grace.unwrap_or(GRACE));
        }
        self.group.first_failure().map_or(Ok(true), Err)
    }

    /// The process ids, by rank. Those of processes that have ended may belong to others by now.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.group.pids()
    }

    /// How the process of this rank is doing. Does not block.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`].
    pub fn status(&self, rank: usize) -> Result<Status> {
        self.group.status(rank)
    }

    /// All failures so far, in the order in which they happened. Does not block.
    #[must_use]
    pub fn failures(&self) -> Vec<SpawnError> {
        self.group.failures()
    }

    /// Sends a SIGKILL to the process of this rank; nothing happens if it has ended. That is a failure of the
    /// process, as any death by a signal is. Does not block. See `pidfd_send_signal(2)`.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NoSuchRank`]; [`SpawnError::Launch`] if the system refuses;
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
}

impl Drop for ProcessContext {
    fn drop(&mut self) {
        if self.group.check_owner().is_ok() {
            self.group.end_all(None, self.grace_period.unwrap_or(GRACE));
        }
    }
}

impl fmt::Debug for ProcessContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessContext ")?;
        let mut list = f.debug_list();
        for line in self.group.describe() {
            list.entry(&format_args!("{line}"));
        }
        list.finish()
    }
}
