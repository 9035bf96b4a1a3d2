//! How processes come to be, and which way is taken where nothing is said.

use std::fmt;
use std::str::FromStr;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::{self, ProcessContext};
use crate::error::Result;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::process::{Process, ProcessBuilder};

/// How processes come to be.
///
/// ```
/// use mp_spawn::{Options, StartMethod, start_processes};
///
/// let square = |rank: usize, (): ()| Ok::<_, String>(rank * rank);
/// let options = Options::nprocs(4).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(square, (), options)?.join()?, [0, 1, 4, 9]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// | | [`Spawn`](Self::Spawn) | [`ForkServer`](Self::ForkServer) |
/// |---|---|---|
/// | a process is | this program, executed anew | a copy of a process that was executed once and has waited since |
/// | costs | a start of the program | a copy of its few pages; and a process that waits |
/// | static data | as at the start of a program | what the preloaded function left: see [`set_forkserver_preload`] |
/// | environment, directory, open streams | this process's, now | this process's when the server was started; the options of a start hold |
/// | parent, signals, exit code, errors | this process's child | the same: the copies are this process's children, not the server's |
///
/// The server begins with the first start that needs it, in about the time of a process. It has no threads and no shared
/// memory, and has not run `main`; so nothing that makes `fork` dangerous elsewhere is there to be copied. Functions that
/// were registered with `pthread_atfork(3)` are not called. It ends with this process.
///
/// [`set_forkserver_preload`]: crate::set_forkserver_preload
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartMethod {
    /// Each is the running program, executed anew.
    #[default]
    Spawn,
    /// Each is a copy of a server, which is the running program, executed anew once.
    ForkServer,
}

impl StartMethod {
    /// As Python names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StartMethod::Spawn => "spawn",
            StartMethod::ForkServer => "forkserver",
        }
    }
}

impl fmt::Display for StartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// That there is no such start method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStartMethod(String);

impl fmt::Display for UnknownStartMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = get_all_start_methods().iter().map(|method| method.name()).collect();
        write!(f, "there is no start method {:?}; there are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownStartMethod {}

impl FromStr for StartMethod {
    type Err = UnknownStartMethod;

    fn from_str(name: &str) -> Result<StartMethod, UnknownStartMethod> {
        let mut all = get_all_start_methods().iter().copied();
        all.find(|method| method.name() == name).ok_or_else(|| UnknownStartMethod(name.to_string()))
    }
}

static METHOD: Mutex<StartMethod> = Mutex::new(StartMethod::Spawn);

/// The start methods that there are; the first one is the default.
///
/// ```
/// use mp_spawn::{StartMethod, get_all_start_methods};
///
/// for method in get_all_start_methods() {
///     assert_eq!(method.to_string().parse(), Ok(*method));
/// }
/// assert!("fork".parse::<StartMethod>().unwrap_err().to_string().contains("there are spawn, forkserver"));
/// ```
#[must_use]
pub fn get_all_start_methods() -> &'static [StartMethod] {
    &[StartMethod::Spawn, StartMethod::ForkServer]
}

/// How processes are started where nothing else is said.
///
/// ```
/// use mp_spawn::{Process, StartMethod, get_start_method, set_start_method};
///
/// assert_eq!(get_start_method(), StartMethod::Spawn);
/// set_start_method(StartMethod::ForkServer);
/// // Processes begin with what their parent has set.
/// let child = Process::spawn(|(): ()| Ok::<_, String>(get_start_method().to_string()), ())?;
/// assert_eq!(child.join()?, "forkserver");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[must_use]
pub fn get_start_method() -> StartMethod {
    *METHOD.lock()
}

/// Sets how processes are started from now on where nothing else is said, by this process and by those that it starts.
/// It may be called more than once.
pub fn set_start_method(method: StartMethod) {
    *METHOD.lock() = method;
}

/// In a process that was just started: begins with what the parent has set.
pub(crate) fn inherit(fork_server: bool) {
    set_start_method(if fork_server { StartMethod::ForkServer } else { StartMethod::Spawn });
}

/// The functions that start processes, with one start method.
///
/// ```
/// use mp_spawn::{StartMethod, get_context};
///
/// let context = get_context(StartMethod::ForkServer);
/// assert_eq!(context.spawn(|rank: usize, (): ()| Ok::<_, String>(rank + 1), (), 2)?, [1, 2]);
/// let child = context.process().name("one").spawn(|n: u32| Ok::<_, String>(n * n), 7)?;
/// assert_eq!(child.join()?, 49);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    method: StartMethod,
}

/// The functions that start processes, with this start method, whatever [`set_start_method`] says.
#[must_use]
pub fn get_context(method: StartMethod) -> Context {
    Context { method }
}

impl Context {
    /// The start method.
    #[must_use]
    pub fn method(self) -> StartMethod {
        self.method
    }

    /// As [`spawn`](crate::spawn).
    ///
    /// # Errors
    ///
    /// Those of [`spawn`](crate::spawn).
    pub fn spawn<F, A, R>(self, function: F, args: A, nprocs: usize) -> Result<Vec<R::Value>>
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome + 'static,
    {
        self.start_processes(function, args, Options::nprocs(nprocs))?.join()
    }

    /// As [`start_processes`](crate::start_processes).
    ///
    /// # Errors
    ///
    /// Those of [`start_processes`](crate::start_processes).
    pub fn start_processes<F, A, R>(
        self,
        function: F,
        args: A,
        options: Options,
    ) -> Result<ProcessContext<R::Value>>
    where
        F: Fn(usize, A) -> R + Copy + Send + 'static,
        A: Serialize + DeserializeOwned + 'static,
        R: Outcome + 'static,
    {
        context::start_processes(function, args, options.start_method(self.method))
    }

    /// As [`Process::builder`].
    pub fn process(self) -> ProcessBuilder {
        Process::builder().start_method(self.method)
    }
}
