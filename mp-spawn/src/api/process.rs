//! One process, with a handle of its own.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::message::{IntoOutcome, Message};
use mp_core::mutex::Mutex;
use mp_core::{Descriptor, WaitPoint, Waitable};

use crate::api::closure::Closure;
use crate::api::spawn;
use crate::bounds::{Argument, CapturesNothing};
use crate::error::exit_status::{ExitStatus, Signal};
use crate::error::{Result, SpawnError};
use crate::io::captured::CapturedOutput;
use crate::io::setup::{ProcessOptions, Stdio};
use crate::parent::active;
use crate::parent::group::Group;
use crate::parent::options::SpawnOptions;
use crate::parent::rank::ProcessStatus;
use crate::parent::start::{self, Names, Plan};
use crate::protocol::function::Plain;
use crate::protocol::interrupt::Interrupt;
use crate::protocol::outcome::is_unit;
use crate::protocol::payload::ToChild;
use crate::start_method::StartMethod;
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
#[must_use = "`join` tells how it did; `let _ =` lets it run on"]
pub struct Process<T = ()> {
    group: Arc<Group>,
    name: String,
    pid: u32,
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
        ProcessBuilder {
            name: None,
            number: None,
            daemon: false,
            replaces: false,
            options: SpawnOptions::nprocs(1),
            setup: ProcessOptions::default(),
        }
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
    /// How the process failed: see [`ProcessContext`](crate::ProcessContext). [`SpawnError::Value`] when the value can't be
    /// decoded here, or an earlier call has taken it; [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn join(&self) -> Result<T> {
        self.group.check_owner()?;
        self.group.wait(None, false);
        self.group.tell_all();
        spawn::result(&self.group, 0)
    }
}

impl<T> Process<T> {
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
    /// [`SpawnError::OtherProcess`] in a process forked from this one.
    pub fn wait(&self) -> Result<ExitStatus> {
        self.group.check_owner()?;
        self.group.wait(None, false);
        self.group.tell_all();
        Ok(self.group.exit(0).unwrap_or(ExitStatus::Unknown))
    }

    /// Waits for the end of the process, at most for this long: true if it has ended, well or not, and its lines are passed on
    /// ([`Stdio::Tee`]). In a process that was forked from the one that started it, false at once: no thread there watches
    /// the process.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.group.check_owner().is_ok() && self.group.wait(deadline(timeout), false)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id. When it has ended, the number may belong to another process.
    #[must_use]
    #[doc(alias = "ident")]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is ended when this process exits, instead of being waited for.
    #[must_use]
    pub fn daemon(&self) -> bool {
        self.daemon
    }

    /// Whether it runs. Does not block.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.group.any_runs()
    }

    /// How it is doing. Does not block.
    #[must_use]
    pub fn status(&self) -> ProcessStatus {
        let status = self.group.status(0).unwrap_or(ProcessStatus::Running);
        if matches!(status, ProcessStatus::Failed(_)) {
            self.group.tell(0);
        }
        status
    }

    /// How it ended; `None` while it runs: once its [`sentinel`](Self::sentinel) is readable, no more. Does not block.
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
    /// it was asked for before the process had ended; otherwise it is closed at that end, and this returns an eventfd then.
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
    /// panic in it ends there. It may exit: then processes that are not daemons are not waited for, and end with this one.
    pub fn on_exit(&self, call: impl FnOnce() + Send + 'static) {
        self.group.at_end(call);
    }

    /// Sends it a SIGTERM; nothing happens if it has ended.
    ///
    /// # Errors
    ///
    /// [`SpawnError::NotSignalled`] if the system refuses; [`SpawnError::OtherProcess`] in a process forked from this one.
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

    /// What it has written to its standard output so far, where that is captured: see [`Stdio`].
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

/// What a process is to be started with.
///
/// ```
/// use mp_spawn::{Stdio, Process};
///
/// let child = Process::builder()
///     .name("greeter")
///     .env("GREETING", "hello")
///     .stdout(Stdio::Capture)
///     .spawn(|name: String| println!("{}, {name}", std::env::var("GREETING").unwrap()), "world".to_string())?;
/// while child.is_alive() {
///     child.wait_timeout(std::time::Duration::from_secs(1));
/// }
/// assert_eq!(child.stdout().text(), "hello, world\n");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ProcessBuilder {
    name: Option<String>,
    number: Option<usize>,
    daemon: bool,
    options: SpawnOptions,
    replaces: bool,
    setup: ProcessOptions,
}

impl ProcessBuilder {
    /// Its name, `process-` and its [number](Self::number) without this. Its main thread has this name as well.
    pub fn name(mut self, name: impl Into<String>) -> ProcessBuilder {
        self.name = Some(name.into());
        self
    }

    /// Its number: what `{rank}` stands for in the names of [files](Stdio::File) for its output. Without this, those that
    /// this process starts are counted from 1.
    ///
    /// ```
    /// use mp_spawn::{Stdio, Process};
    ///
    /// let logs = std::env::temp_dir().join(format!("numbers-{}", std::process::id()));
    /// std::fs::create_dir_all(&logs)?;
    /// let loaders = [0, 1].map(|device| {
    ///     let builder = Process::builder().number(device).stdout(Stdio::file(logs.join("loader-{rank}.txt")));
    ///     builder.spawn(|device: usize| println!("reads for {device}"), device)
    /// });
    /// for loader in loaders {
    ///     loader?.join()?;
    /// }
    /// assert_eq!(std::fs::read_to_string(logs.join("loader-1.txt"))?, "reads for 1\n");
    /// # std::fs::remove_dir_all(&logs)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn number(mut self, number: usize) -> ProcessBuilder {
        self.number = Some(number);
        self
    }

    /// Whether it is ended when this process exits, instead of being waited for: false without this, as with
    /// [`SpawnOptions::daemon`].
    pub fn daemon(mut self, daemon: bool) -> ProcessBuilder {
        self.daemon = daemon;
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> ProcessBuilder {
        self.setup = self.setup.env(name, value);
        self
    }

    /// Removes a variable from its environment.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> ProcessBuilder {
        self.setup = self.setup.env_remove(name);
        self
    }

    /// The directory that it works in.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> ProcessBuilder {
        self.setup = self.setup.current_dir(directory);
        self
    }

    /// The processors that it may run on.
    pub fn processors(mut self, numbers: impl IntoIterator<Item = usize>) -> ProcessBuilder {
        self.setup = self.setup.processors(numbers);
        self
    }

    /// What Ctrl-C does to it: ends it, without this.
    pub fn interrupt(mut self, interrupt: Interrupt) -> ProcessBuilder {
        self.setup = self.setup.interrupt(interrupt);
        self
    }

    /// Where its standard output goes.
    pub fn stdout(mut self, output: Stdio) -> ProcessBuilder {
        self.setup = self.setup.stdout(output);
        self
    }

    /// Where its standard error goes.
    pub fn stderr(mut self, output: Stdio) -> ProcessBuilder {
        self.setup = self.setup.stderr(output);
        self
    }

    /// File descriptors of this process that it inherits, under the same numbers: see [`SpawnOptions::inherit_fds`].
    pub fn inherit_fds<F: AsFd>(mut self, fds: impl IntoIterator<Item = F>) -> ProcessBuilder {
        self.setup = self.setup.inherit_fds(fds);
        self
    }

    /// Marks it as the replacement of another one: files of its output are not emptied, as with [`Stdio::Append`], so that
    /// the output of the other one stays.
    ///
    /// ```
    /// use mp_spawn::{Stdio, Process};
    ///
    /// let path = std::env::temp_dir().join(format!("replaces-{}", std::process::id()));
    /// let writer = || Process::builder().stdout(Stdio::file(&path));
    /// let say = |word: String| println!("{word}");
    /// writer().spawn(say, "first".to_string())?.join()?;
    /// writer().replaces().spawn(say, "second".to_string())?.join()?;
    /// assert_eq!(std::fs::read_to_string(&path)?, "first\nsecond\n");
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replaces(mut self) -> ProcessBuilder {
        self.replaces = true;
        self
    }

    /// Another program instead of the running one: see [`SpawnOptions::executable`].
    pub fn executable(mut self, program: impl Into<PathBuf>) -> ProcessBuilder {
        self.options = self.options.executable(program);
        self
    }

    /// Its secret, and that of the processes that it starts; this process's without this. See
    /// [`CurrentProcess::authkey`](crate::CurrentProcess::authkey).
    #[cfg(feature = "authkey")]
    pub fn authkey(mut self, key: impl AsRef<[u8]>) -> ProcessBuilder {
        self.options = self.options.authkey(key);
        self
    }

    /// A program and its arguments instead of the running program: see [`SpawnOptions::command`].
    pub fn command<S: Into<OsString>>(mut self, command: impl IntoIterator<Item = S>) -> ProcessBuilder {
        self.options = self.options.command(command);
        self
    }

    /// How it is started: see [`SpawnOptions::start_method`].
    pub fn start_method(mut self, method: StartMethod) -> ProcessBuilder {
        self.options = self.options.start_method(method);
        self
    }

    /// How long it may take until it has loaded and reported as a worker: see [`SpawnOptions::handshake_timeout`].
    pub fn handshake_timeout(mut self, time: Duration) -> ProcessBuilder {
        self.options = self.options.handshake_timeout(time);
        self
    }

    /// Starts it: see [`Process::spawn`].
    ///
    /// # Errors
    ///
    /// Those of [`Process::spawn`].
    #[doc(alias = "start")]
    pub fn spawn<F, A, R>(self, function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        // Only its type is needed, which says which function it is.
        let _ = function;
        let number = self.number.unwrap_or_else(next_number);
        let name = self.name.unwrap_or_else(|| format!("process-{number}"));
        let daemon = self.daemon;
        let setup = ProcessOptions { number: Some(number), ..self.setup };
        let setup = if self.replaces { setup.appending() } else { setup };
        let options = self.options.per_rank(move |_, _| setup.clone());
        let plan = Plan {
            function: start::reference(Plain::<F, A, R>::DESC)?,
            returns: !is_unit::<R::Value>(),
            daemon,
            ranked: false,
            names: Names::One(name.clone()),
        };
        let mut args = Some(args);
        let gone = || SpawnError::Arguments { who: None, message: "they were sent already".to_string() };
        let group = start::start(plan, &options, |_| ToChild::pack_moved(args.take().ok_or_else(gone)?))?;
        active::adopt(&group, daemon);
        let pid = group.pids().first().copied().unwrap_or(0);
        Ok(Process { group, name, pid, daemon, value: PhantomData })
    }
}

/// Closures with captures.
impl ProcessBuilder {
    /// Starts it with a [`Closure`](crate::Closure) instead of a function.
    ///
    /// ```
    /// use mp_spawn::{Process, closure};
    ///
    /// let greeting = "hello".to_string();
    /// let child = Process::builder()
    ///     .spawn_closure(closure!([greeting] |name: String| Ok::<_, String>(format!("{greeting}, {name}"))), "you".to_string())?;
    /// assert_eq!(child.join()?, "hello, you");
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Process::spawn`].
    pub fn spawn_closure<A, R>(self, closure: Closure<A, R>, args: A) -> Result<Process<R::Value>>
    where
        A: Argument,
        R: IntoOutcome,
    {
        fn call<A: 'static, R: 'static>((closure, args): (Closure<A, R>, A)) -> R {
            closure.call(args)
        }
        self.spawn(call::<A, R>, (closure, args))
    }
}

/// The number of a process that was given none.
fn next_number() -> usize {
    static COUNT: PerProcess<Mutex<usize>> = PerProcess::new([const { Mutex::new(0) }; GENERATIONS]);
    let mut count = COUNT.lock();
    *count += 1;
    *count
}
