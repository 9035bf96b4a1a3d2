//! How processes are started, and the default method.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it declares [`allow_fork`], whose caller vouches for the whole program. It does nothing
//! unsafe itself; [`fork`](crate::parent::launch::fork) relies on that it was called.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How processes are started.
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
/// | a process is | this program, executed anew | a copy of a process that was executed once and has waited since | a copy of this process, now |
/// | costs | a start of the program | a copy of its few pages, made ahead; and two processes that wait, the server and the next one | a copy of this process's page tables: more, the more memory it has |
/// | static data | as at the start of a program | what the preloaded function left: see [`set_forkserver_preload`] | this process's, as it is now |
/// | environment, directory | this process's, now | this process's when the server was started; the options of a start hold | this process's, now |
/// | open files | the standard streams, and what [`SpawnOptions::inherit_fds`] names | the same, and what the preloaded function left open | this process's, now, and what [`SpawnOptions::inherit_fds`] names |
/// | `atexit(3)` | as in any program | what is registered in the copy itself (with glibc) | the same |
/// | available | unless the program would get privileges (see [`SpawnOptions::executable`](crate::SpawnOptions::executable)), or the process has another effective user or group than the real one | the same | after [`allow_fork`], which is `unsafe` |
/// | parent, signals, exit code, errors | this process's child | the same: the copies are this process's children, not the server's | the same |
///
/// The first start that needs the server starts it, in about the time of a process. While a process works, the server makes
/// the one for the next start (`mp-next-worker` in `ps`), which waits for its start message. Like the server, it counts where
/// processes are counted (RLIMIT_NPROC, `pids.max`), and has the user and groups that this process had when the server was
/// started. The server has no other threads and no shared memory, and has not run `main`; so nothing that makes `fork`
/// dangerous elsewhere is copied. Functions that were registered with `pthread_atfork(3)` are not called. It ends with this
/// process.
///
/// A copy of this process is a worker like any other: it is a member of the arena of its own, and gets its arguments in the
/// same way, tensors and queues without a copy of their data. [`allow_fork`] says what it must not do.
///
/// [`set_forkserver_preload`]: crate::set_forkserver_preload
/// [`SpawnOptions::inherit_fds`]: crate::SpawnOptions::inherit_fds
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartMethod {
    /// Each is the running program, executed anew.
    #[default]
    Spawn,
    /// Each is a copy of a server, which is the running program, executed anew once.
    ForkServer,
    /// Each is a copy of this process: see [`allow_fork`].
    Fork,
}

impl StartMethod {
    /// Its name in Python.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StartMethod::Spawn => "spawn",
            StartMethod::ForkServer => "forkserver",
            StartMethod::Fork => "fork",
        }
    }
}

/// By its [name](StartMethod::name).
impl Serialize for StartMethod {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for StartMethod {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for StartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for an unknown start method.
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

/// How this process starts others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) method: StartMethod,
    /// Whether a caller has called [`allow_fork`].
    pub(crate) fork: bool,
}

static CHOSEN: PerProcess<Mutex<Chosen>> =
    PerProcess::new([const { Mutex::new(Chosen { method: StartMethod::Spawn, fork: false }) }; GENERATIONS]);

/// All start methods; the first one is the default.
///
/// ```
/// use mp_spawn::{StartMethod, get_all_start_methods};
///
/// for method in get_all_start_methods() {
///     assert_eq!(method.to_string().parse(), Ok(*method));
/// }
/// assert!("thread".parse::<StartMethod>().unwrap_err().to_string().contains("there are spawn, forkserver, fork"));
/// ```
#[must_use]
pub fn get_all_start_methods() -> &'static [StartMethod] {
    &[StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork]
}

/// The start method of processes that no option starts otherwise.
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
    CHOSEN.lock().method
}

/// Sets the start method of processes that no option starts otherwise, from now on, in this process and in those that it
/// starts. It may be called more than once.
pub fn set_start_method(method: StartMethod) {
    CHOSEN.lock().method = method;
}

/// Allows [`StartMethod::Fork`], in this process and in those that it starts.
///
/// ```
/// use mp_spawn::{SpawnOptions, StartMethod, allow_fork, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// _ = TABLE.set((0..1000).map(|n| n * n).collect());
/// // SAFETY: this program has one thread, and nothing in it depends on being there once.
/// unsafe { allow_fork() };
/// // Each process has the table that was computed here. Only the pages that it writes to are copied.
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = SpawnOptions::nprocs(3).start_method(StartMethod::Fork);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// It is a function of its own, and not an option of each start, because its caller vouches for the whole program: its
/// threads and its libraries, not the function that is started. Until it was called, a start by `fork` returns
/// [`SpawnError::ForkRefused`](crate::SpawnError::ForkRefused); so a method that comes from a command line is safe.
///
/// # What a copy is
///
/// A copy of this process with one thread, which runs the function. That thread is a copy of the main thread, if the main
/// thread starts the process, and else of a thread of this crate, so that the function finds fresh thread-local variables.
///
/// - Handles of shared memory that come as arguments work. Those that were copied along, in static variables for example,
///   return `Error::Forked`, as they do in any forked process: they are the original's, and only the original can release
///   what it holds.
/// - Static data, files, the working directory and the environment are the original's, as they are now. Buffered output that
///   is not written yet is written by the original only, if the main thread starts the process.
/// - Buffered input is copied: bytes that `std::io::stdin` has read and not returned yet are read by the original and again by
///   each copy. The descriptor is the original's, so that each byte read later reaches one process. (CPython gives a worker an
///   empty standard input.) A worker that must not read it leaves `stdin` alone.
/// - Processes that the original has started are not the copy's. The copy neither waits for them at its exit nor ends them.
/// - Signals have no handlers, and are not blocked: a handler could tell the original of a signal that the copy got.
///   `SIGHUP`, `SIGINT` and `SIGQUIT` stay ignored if they are (`nohup(1)`), as with the other methods.
/// - Functions that were registered with `atexit(3)` before are not called when it exits (with glibc); those that it
///   registers itself are. `pthread_atfork(3)` handlers run.
///
/// If it is blocked before it runs the function, by a lock of the environment that another thread held for example, the start
/// fails with [`SpawnError::Timeout`](crate::SpawnError::Timeout).
///
/// # Safety
///
/// Safe code may rely on what a copy takes away. The caller vouches that in all processes that are started by `fork` from
/// now on, for all that runs there:
///
/// - Locks that other threads of the original held at that moment, and what these threads had half done, stay so in the
///   copy. Code that runs there needs none of that. (The allocator of glibc is consistent there; so are others that register
///   with `pthread_atfork(3)`. In a program without other threads this always holds.)
/// - Values that unsafe code takes for the only ones exist twice: exclusive mappings of memory that is shared by other
///   means than this library's, devices, sessions, GPUs. Code that runs there uses neither these nor files that two
///   processes must not use at once.
/// - What was borrowed from shared memory in the original (slices of tensors, guards of locks) is not used: the memory is
///   not there, and an access ends the process with SIGSEGV.
/// - Files of the original whose numbers are those of other files that a start names
///   ([`SpawnOptions::inherit_fds`](crate::SpawnOptions::inherit_fds)) are not used: the numbers mean the files that were named.
#[doc(alias = "fork")]
pub unsafe fn allow_fork() {
    CHOSEN.lock().fork = true;
}

/// How this process starts others.
pub(crate) fn chosen() -> Chosen {
    *CHOSEN.lock()
}

/// Takes over these settings for starts from now on.
pub(crate) fn choose(chosen: Chosen) {
    *CHOSEN.lock() = chosen;
}
