//! Start methods of processes, and the default method.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it declares [`allow_fork`], whose caller vouches for the whole program. It
//! does nothing unsafe itself. [`fork`](crate::parent::launch::fork) relies on the call of `allow_fork`.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use serde::{Deserialize, Serialize};

/// Method that starts processes.
///
/// ```
/// use mp_spawn::{SpawnOptions, StartMethod, start_processes};
///
/// let square = |rank: usize, (): ()| Ok::<_, String>(rank * rank);
/// let options = SpawnOptions::nprocs(4).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(square, (), options)?.join()?, [0, 1, 4, 9]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// | | [`Spawn`](Self::Spawn) | [`ForkServer`](Self::ForkServer) | [`Fork`](Self::Fork) |
/// |---|---|---|---|
/// | a process is | this program, executed again | a copy of a server process that was executed once and waits | a copy of this process in its present state |
/// | costs | a start of the program | a copy of few pages, made in advance; two waiting processes, the server and the next worker | a copy of this process's page tables, which grow with its memory |
/// | static data | as at the start of a program | as the preloaded function left it: see [`set_forkserver_preload`] | this process's at the time of the start |
/// | environment, directory | this process's at the time of the start | this process's when the server was started; the options of a start apply | this process's at the time of the start |
/// | open files | the standard streams, and the files of [`SpawnOptions::inherit_fds`] | the same, and files that the preloaded function left open | this process's at the time of the start, and the files of [`SpawnOptions::inherit_fds`] |
/// | `atexit(3)` | as in any program | functions registered in the copy itself (with glibc) | the same |
/// | available | unless the program would get privileges (see [`SpawnOptions::executable`](crate::SpawnOptions::executable)), or the effective user or group of the process differs from the real one | the same | after [`allow_fork`], which is `unsafe` |
/// | parent, signals, exit code, errors | this process's child | the same: the copies are this process's children, not the server's | the same |
///
/// The first start that needs the server starts it, in about the time of a process. While a process works,
/// the server makes the process for the next start (`mp-next-worker` in `ps`), which waits for its start
/// message. Both count against limits on processes (RLIMIT_NPROC, `pids.max`), and have the user and groups
/// that this process had when the server was started. The server has no other threads and no shared memory,
/// and has not run `main`, so it copies none of the state that makes `fork` dangerous. Functions that were
/// registered with `pthread_atfork(3)` are not called. The server ends with this process.
///
/// A copy of this process is a worker like any other: it is a separate member of the arena, and gets its
/// arguments in the same way, tensors and queues without a copy of their data. [`allow_fork`] lists what a
/// copy must not do.
///
/// [`set_forkserver_preload`]: crate::set_forkserver_preload
/// [`SpawnOptions::inherit_fds`]: crate::SpawnOptions::inherit_fds
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StartMethod {
    /// Executes the running program again for each process.
    #[default]
    Spawn,
    /// Copies a server for each process. The server is the running program, executed again once.
    ForkServer,
    /// Copies this process for each process: see [`allow_fork`].
    Fork,
}

impl StartMethod {
    /// Returns the name that Python uses for this method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StartMethod::Spawn => "spawn",
            StartMethod::ForkServer => "forkserver",
            StartMethod::Fork => "fork",
        }
    }
}

impl fmt::Display for StartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error returned for the name of an unknown start method.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownStartMethod(String);

impl fmt::Display for UnknownStartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = get_all_start_methods().iter().map(|method| method.name()).collect();
        write!(f, "there is no start method {:?}; there are {}", self.0, names.join(", "))
    }
}

mp_core::readable_debug!(UnknownStartMethod);

impl std::error::Error for UnknownStartMethod {}

impl FromStr for StartMethod {
    type Err = UnknownStartMethod;

    fn from_str(name: &str) -> Result<StartMethod, UnknownStartMethod> {
        let mut all = get_all_start_methods().iter().copied();
        all.find(|method| method.name() == name).ok_or_else(|| UnknownStartMethod(name.to_string()))
    }
}

/// Start settings of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StartSettings {
    pub(crate) method: StartMethod,
    /// `true` if a caller has called [`allow_fork`].
    pub(crate) fork: bool,
}

static SETTINGS: PerProcess<Mutex<StartSettings>> =
    mp_core::per_process!(Mutex::new(StartSettings { method: StartMethod::Spawn, fork: false }));

/// Returns all start methods, the default one first.
///
/// ```
/// use mp_spawn::{StartMethod, get_all_start_methods};
///
/// for method in get_all_start_methods() {
///     assert_eq!(method.to_string().parse(), Ok(*method));
/// }
/// let error = "thread".parse::<StartMethod>().unwrap_err();
/// assert!(error.to_string().contains("there are spawn, forkserver, fork"));
/// ```
#[must_use]
pub fn get_all_start_methods() -> &'static [StartMethod] {
    &[StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork]
}

/// Returns the start method of processes whose options name no start method.
///
/// ```
/// use mp_spawn::{Process, StartMethod, get_start_method, set_start_method};
///
/// assert_eq!(get_start_method(), StartMethod::Spawn);
/// set_start_method(StartMethod::ForkServer);
/// // Processes begin with the setting of their parent.
/// let child = Process::spawn(|(): ()| Ok::<_, String>(get_start_method().to_string()), ())?;
/// assert_eq!(child.join()?, "forkserver");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[must_use]
pub fn get_start_method() -> StartMethod {
    SETTINGS.lock().method
}

/// Sets the start method of processes whose options name no start method, for later starts in this process
/// and in the processes that it starts. May be called more than once.
pub fn set_start_method(method: StartMethod) {
    SETTINGS.lock().method = method;
}

/// Allows [`StartMethod::Fork`] in this process and in the processes that it starts.
///
/// ```
/// use mp_spawn::{SpawnOptions, StartMethod, allow_fork, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// _ = TABLE.set((0..1000).map(|n| n * n).collect());
/// // SAFETY: this program has one thread, and nothing in it must exist only once.
/// unsafe { allow_fork() };
/// // Each process has the table that was computed here. Only the pages that it writes to are copied.
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = SpawnOptions::nprocs(3).start_method(StartMethod::Fork);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// This is a separate function, not an option of a start, because its caller vouches for the whole program,
/// with its threads and libraries. Before it is called, a start by `fork` returns
/// [`SpawnError::ForkRefused`](crate::SpawnError::ForkRefused), so a method that comes from a command line is
/// safe.
///
/// # State of a copy
///
/// A copy of this process has one thread, which runs the function. If the main thread starts the process,
/// that thread is a copy of the main thread. Otherwise the thread is a copy of a thread of this crate, so the
/// function finds fresh thread-local variables.
///
/// - Handles of shared memory that are passed as arguments work. Handles that are copied along, in static
///   variables for example, return `Error::Forked`, as in any forked process: they belong to the original,
///   and only the original can release what they hold.
/// - Static data, files, the working directory and the environment are the original's at the time of the
///   start. If the main thread starts the process, buffered output that has not been written is written by
///   the original only.
/// - Buffered input is copied: bytes that `std::io::stdin` has read but not returned are returned in the
///   original and again in each copy. The descriptor is shared with the original, so each byte that is read
///   later reaches one process. (CPython gives a worker an empty standard input.) A worker that must not
///   consume that input must not use `stdin`.
/// - Processes that the original has started are not children of the copy. The copy neither waits for them at
///   its exit nor ends them.
/// - Signals have no handlers and are not blocked, because a handler could notify the original of a signal
///   that the copy got. `SIGHUP`, `SIGINT` and `SIGQUIT` stay ignored if the original ignores them
///   (`nohup(1)`), as with the other methods.
/// - Functions that were registered with `atexit(3)` before the copy are not called when the copy exits
///   (with glibc). Functions that the copy registers are called. `pthread_atfork(3)` handlers run.
///
/// If the copy is blocked before it runs the function, for example by a lock of the environment that another
/// thread held, the start fails with [`SpawnError::Timeout`](crate::SpawnError::Timeout).
///
/// # Safety
///
/// A copy breaks assumptions on which safe code may rely. The caller vouches for all code that runs in
/// processes that are started by `fork` from now on:
///
/// - Locks that other threads of the original held at the time of the start stay locked in the copy, and data
///   that these threads were modifying stays inconsistent. Code in the copy must use neither. (The allocator
///   of glibc is consistent in a copy, as are allocators that register with `pthread_atfork(3)`. A program
///   without other threads always meets this condition.)
/// - Values that unsafe code assumes to be unique exist twice: exclusive mappings of memory that is shared by
///   means other than this library, devices, sessions, GPUs. Code in the copy must use neither such
///   values nor files that two processes must not use at once.
/// - Data that was borrowed from shared memory in the original (slices of tensors, guards of locks) must not
///   be used: the memory is not mapped, and an access ends the process with SIGSEGV.
/// - Files of the original must not be used if a start names another file with the same number
///   ([`SpawnOptions::inherit_fds`](crate::SpawnOptions::inherit_fds)): the number refers to the named file.
#[doc(alias = "fork")]
pub unsafe fn allow_fork() {
    SETTINGS.lock().fork = true;
}

/// Returns the start settings of this process.
pub(crate) fn current_settings() -> StartSettings {
    *SETTINGS.lock()
}

/// Replaces the settings for later starts.
pub(crate) fn set_settings(current_settings: StartSettings) {
    *SETTINGS.lock() = current_settings;
}
