//! Builder of a single process, with its supervision.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp_core::fork::PerProcess;
use mp_core::message::{IntoOutcome, Message};
use mp_core::mutex::Mutex;
use mp_core::user_code::UserValue;

use crate::api::closure::Closure;
use crate::api::process::Process;
use crate::bounds::{Argument, CapturesNothing};
use crate::error::{Result, SpawnError, launch_error};
use crate::io::setup::{Stdio, setup_options};
use crate::parent::options::SpawnOptions;
use crate::parent::restart::Restart;
use crate::parent::restart::event::{EventListener, ProcessEvent};
use crate::parent::restart::supervision::RestartTerms;
use crate::parent::start::{self, ProcessNames, StartPlan};
use crate::protocol::function::{FunctionRef, PlainFunction};
use crate::protocol::inherited_files::InheritedFile;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::payload::ChildPayload;
use crate::protocol::report::is_unit;
use crate::protocol::resource_limits::Limits;
use crate::start_method::StartMethod;

/// Configuration of a process.
///
/// ```
/// use mp_spawn::{Stdio, Process};
///
/// let greet = |name: String| println!("{}, {name}", std::env::var("GREETING").unwrap());
/// let child = Process::builder()
///     .name("greeter")
///     .env("GREETING", "hello")
///     .stdout(Stdio::Capture)
///     .spawn(greet, "world".to_string())?;
/// while child.is_alive() {
///     child.wait_timeout(std::time::Duration::from_secs(1));
/// }
/// assert_eq!(child.stdout().text(), "hello, world\n");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// `S` is [`Supervised`] after a call of [`restart`](Self::restart), and [`Unsupervised`] otherwise.
#[derive(Clone, Debug)]
#[must_use]
pub struct ProcessBuilder<S = Unsupervised> {
    name: Option<String>,
    number: Option<usize>,
    options: SpawnOptions,
    replaces: bool,
    supervision: S,
}

/// Marker of a [`ProcessBuilder`] whose process is started once.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Unsupervised;

impl Process {
    /// Starts a process that runs `function(args)`.
    ///
    /// The function gets no rank. The arguments move to the process, so they may contain exclusive tensors.
    /// All other conditions are those of [`start_processes`](crate::start_processes).
    ///
    /// # Errors
    ///
    /// See [`start_processes`](crate::start_processes).
    pub fn spawn<F, A, R>(function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        Process::builder().spawn(function, args)
    }

    /// Returns a builder that configures and starts a process.
    pub fn builder() -> ProcessBuilder {
        ProcessBuilder {
            name: None,
            number: None,
            replaces: false,
            options: SpawnOptions::nprocs(1),
            supervision: Unsupervised,
        }
    }
}

impl<S> ProcessBuilder<S> {
    /// Sets the name of the process and of its main thread. The default is `process-` and the
    /// [number](Self::number).
    pub fn name(mut self, name: impl Into<String>) -> ProcessBuilder<S> {
        self.name = Some(name.into());
        self
    }

    /// Sets the number of the process, which replaces `{rank}` in the names of [files](Stdio::File) for its
    /// output. By default, the processes that this process starts are counted from 1.
    ///
    /// ```
    /// use mp_spawn::{Stdio, Process};
    ///
    /// let logs = std::env::temp_dir().join(format!("numbers-{}", std::process::id()));
    /// std::fs::create_dir_all(&logs)?;
    /// let loaders = [0, 1].map(|device| {
    ///     let output = Stdio::file(logs.join("loader-{rank}.txt"));
    ///     let builder = Process::builder().number(device).stdout(output);
    ///     builder.spawn(|device: usize| println!("reads for {device}"), device)
    /// });
    /// for loader in loaders {
    ///     loader?.join()?;
    /// }
    /// assert_eq!(std::fs::read_to_string(logs.join("loader-1.txt"))?, "reads for 1\n");
    /// # std::fs::remove_dir_all(&logs)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn number(mut self, number: usize) -> ProcessBuilder<S> {
        self.number = Some(number);
        self
    }

    /// If `true`, an exit of this process ends the child. If `false`, the default, the exit waits for the
    /// child's end. See [`SpawnOptions::daemon`].
    pub fn daemon(mut self, daemon: bool) -> ProcessBuilder<S> {
        self.options.daemon = daemon;
        self
    }

    setup_options! {
        self => self.options.setup;
        /// Adds file descriptors of this process that the child inherits under the same numbers: see
        /// [`SpawnOptions::inherit_fds`].
    }

    /// Marks the process as the replacement of an earlier process: its output is appended to the files of the
    /// earlier process, as with [`Stdio::Append`]. The start does not empty these files.
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
    pub fn replaces(mut self) -> ProcessBuilder<S> {
        self.replaces = true;
        self
    }

    /// Sets the program to execute instead of the current program, see [`SpawnOptions::executable`].
    pub fn executable(mut self, program: impl Into<PathBuf>) -> ProcessBuilder<S> {
        self.options = self.options.executable(program);
        self
    }

    /// Sets the secret of the process and of its children. The default is this process's secret. See
    /// [`CurrentProcess::authkey`](crate::CurrentProcess::authkey).
    #[cfg(feature = "authkey")]
    pub fn authkey(mut self, key: impl AsRef<[u8]>) -> ProcessBuilder<S> {
        self.options = self.options.authkey(key);
        self
    }

    /// Sets a command, a program and its arguments, to execute instead of the current program, see
    /// [`SpawnOptions::command`].
    pub fn command<W: Into<OsString>>(mut self, command: impl IntoIterator<Item = W>) -> ProcessBuilder<S> {
        self.options = self.options.command(command);
        self
    }

    /// Sets the start method, see [`SpawnOptions::start_method`].
    pub fn start_method(mut self, method: StartMethod) -> ProcessBuilder<S> {
        self.options = self.options.start_method(method);
        self
    }

    /// Sets the time within which the process must load and report as a worker, see
    /// [`SpawnOptions::handshake_timeout`].
    pub fn handshake_timeout(mut self, time: Duration) -> ProcessBuilder<S> {
        self.options = self.options.handshake_timeout(time);
        self
    }

    /// Returns the plan, the options and the supervision of a process that runs this function.
    fn plan(self, function: FunctionRef, returns: bool) -> Result<(StartPlan, SpawnOptions, S)> {
        let number = self.number.unwrap_or_else(next_number);
        let name = self.name.unwrap_or_else(|| format!("process-{number}"));
        let mut options = self.options;
        options.setup.number = Some(number);
        if self.replaces {
            options.setup = options.setup.appending();
        }
        let plan = StartPlan {
            function,
            returns,
            daemon: options.daemon,
            ranked: false,
            names: ProcessNames::One(name),
        };
        Ok((plan, options, self.supervision))
    }
}

impl ProcessBuilder {
    /// Supervises the process: restarts it when it has ended, as [`Restart`] describes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_spawn::{Process, Restart, current_process};
    ///
    /// let flaky = |(): ()| {
    ///     let attempt = current_process().attempt;
    ///     if attempt < 3 { std::process::abort() }
    ///     Ok::<_, String>(attempt)
    /// };
    /// let restart = Restart::OnFailure { max: 5, backoff: Duration::from_millis(10).into() };
    /// let child = Process::builder().restart(restart).spawn(flaky, ())?;
    /// assert_eq!((child.join()?, child.restarts()), (3, 2));
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// Each start uses the same function, name and options, and the arguments as encoded for the first start.
    /// So it must be possible to send the arguments to several processes ([`Argument`]). Queues, locks,
    /// frozen and shared tensors are the same objects in each start, and stay in use between two starts: a
    /// queue is not deserted, and a channel is not disconnected. The compiler refuses exclusive tensors,
    /// which would move:
    ///
    /// ```compile_fail,E0277
    /// use mp_spawn::{Process, Restart};
    /// use mp_tensor::Tensor;
    ///
    /// let tensor = Tensor::<f32>::zeros([4]).unwrap();
    /// let child = Process::builder().restart(Restart::on_failure(3)).spawn(|_: Tensor<f32>| {}, tensor);
    /// ```
    ///
    /// Settings without an option (environment, directory) are those of this process at the time of each
    /// start. Only the first start empties the output files.
    ///
    /// The [`Process`] represents all starts:
    ///
    /// | | for a supervised process |
    /// |---|---|
    /// | [`join`](Process::join), [`wait`](Process::wait), [`wait_timeout`](Process::wait_timeout), [`exit`](Process::exit), [`on_exit`](Process::on_exit), [`sentinel`](Process::sentinel) | refer to the final end, after which no restart follows, and report the last process |
    /// | [`is_alive`](Process::is_alive) | `true`, also while the process waits for its next start |
    /// | [`status`](Process::status) | [`Restarting`](crate::ProcessStatus::Restarting) while the process waits, or is being started |
    /// | [`pid`](Process::pid), [`stdout`](Process::stdout), [`stderr`](Process::stderr) | refer to the last process; an error contains the last lines of the process that failed |
    /// | [`kill`](Process::kill), [`terminate`](Process::terminate) | also end the supervision, at once if the process waits for its next start |
    /// | dropping the handle | has no effect on the process and its supervision |
    /// | exit of this process | ends the supervision: the running child is waited for, or ended if it is [daemonic](Self::daemon) |
    /// | SIGINT or SIGTERM, if this process is notified of the signal ([`Interrupt::Graceful`]) | ends the supervision |
    ///
    /// If the process fails too often, `join` returns [`SpawnError::GaveUp`](crate::SpawnError::GaveUp) with
    /// the last failure and earlier ones. Other processes treat each death like any other: the crashed
    /// process's locks and leases are released before the restart.
    pub fn restart(self, restart: Restart) -> ProcessBuilder<Supervised> {
        let ProcessBuilder { name, number, options, replaces, supervision: Unsupervised } = self;
        let supervision = Supervised { restart, healthy_after: HEALTHY, listener: None };
        ProcessBuilder { name, number, options, replaces, supervision }
    }

    /// Starts the process, see [`Process::spawn`].
    ///
    /// # Errors
    ///
    /// See [`Process::spawn`].
    #[doc(alias = "start")]
    pub fn spawn<F, A, R>(self, function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        // Only the type of `function` is needed: it identifies the function.
        let _ = function;
        self.start(PlainFunction::<F, A, R>::DESC.start_reference()?, !is_unit::<R::Value>(), args)
    }

    /// Starts the process with a function, and with arguments that move to it.
    fn start<A: Message, T>(self, function: FunctionRef, returns: bool, args: A) -> Result<Process<T>> {
        let (plan, options, Unsupervised) = self.plan(function, returns)?;
        let daemon = plan.daemon;
        let mut args = Some(args);
        let gone = || SpawnError::Arguments {
            who: None,
            message: "they were sent already".to_string(),
            unread: None,
        };
        let group =
            start::start(plan, &options, |_| ChildPayload::pack_moved(args.take().ok_or_else(gone)?))?;
        Ok(Process::adopt(group, daemon))
    }

    /// Starts a guest: another program, in any language, that shares this program's memory.
    ///
    /// The command is a program and its arguments. The program gets `args` by calling
    /// [`guest`](crate::guest()) (in Python `multiproc.child()`), once, before it uses shared memory. The
    /// executed process must make the call, not a child of that process. After the call the guest is a member
    /// of the arena like any child: queues, locks and tensors in messages are shared with the guest. A guest
    /// has no function and no result, and ends with this process. Its exit code, its signal and the last
    /// lines of its stderr are reported as those of any process.
    ///
    /// ```no_run
    /// use mp_spawn::Process;
    ///
    /// let guest = Process::builder().name("job").guest(["python3", "-m", "job"], "hello".to_string())?;
    /// guest.join()?; // its exit code was 0
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// The type of `args` is compared by name. Programs in other languages need a named message
    /// (`#[message(name = "…")]` in `#[derive(Message)]`). The guest may have another build of this library,
    /// if the arena's layout and the format of messages are the same. A guest can't read a
    /// [`Closure`](crate::Closure) in a message, because a closure names code of this program.
    ///
    /// # Errors
    ///
    /// The command is empty or can't be executed, or `args` can't be encoded. [`Process::join`] returns an
    /// error if the program ends without having called `guest`.
    #[doc(alias("Command", "subprocess"))]
    pub fn guest<W: Into<OsString>, A: Message>(
        self,
        command: impl IntoIterator<Item = W>,
        args: A,
    ) -> Result<Process> {
        let builder = self.command(command).start_method(StartMethod::Spawn);
        if builder.options.command.is_none() {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the command is empty");
            return Err(launch_error("the start of a guest", None, error));
        }
        builder.start(FunctionRef::guest(mp_reduce::name_of::<A>().into_owned()), false, args)
    }

    /// Starts a process that runs a [`Closure`](crate::Closure) instead of a function.
    ///
    /// ```
    /// use mp_spawn::{Process, closure};
    ///
    /// let greeting = "hello".to_string();
    /// let greet = closure!([greeting] |name: String| Ok::<_, String>(format!("{greeting}, {name}")));
    /// let child = Process::builder().spawn_closure(greet, "you".to_string())?;
    /// assert_eq!(child.join()?, "hello, you");
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Process::spawn`].
    pub fn spawn_closure<A, R>(self, closure: Closure<A, R>, args: A) -> Result<Process<R::Value>>
    where
        A: Argument,
        R: IntoOutcome,
    {
        self.spawn(call::<A, R>, (closure, args))
    }
}

/// Settings and start of a supervised process.
impl ProcessBuilder<Supervised> {
    /// Sets the run time after which a process counts as healthy: a later failure resets the count of
    /// restarts and the back-off. The default is one minute. With `Duration::MAX` no process is ever healthy,
    /// so that [`OnFailure`](Restart::OnFailure) allows `max` restarts in total. The time counts from the
    /// start of a process that has reported as a worker.
    pub fn healthy_after(mut self, time: Duration) -> ProcessBuilder<Supervised> {
        self.supervision.healthy_after = time;
        self
    }

    /// Calls `call` at each start, each end, before each back-off, and when the supervision gives up.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use mp_spawn::{Process, ProcessEvent, Restart};
    ///
    /// let (sender, events) = mpsc::channel();
    /// let child = Process::builder()
    ///     .restart(Restart::OnFailure { max: 1, backoff: Duration::ZERO.into() })
    ///     .on_event(move |event| _ = sender.send(event))
    ///     .spawn(|(): ()| std::process::exit(3), ())?;
    /// let mut starts = 0;
    /// // The loop ends with the supervision, which drops `call`.
    /// for event in events {
    ///     println!("{event}"); // process-1 was started (pid 4711, attempt 1), …
    ///     starts += u32::from(matches!(event, ProcessEvent::Started { .. }));
    /// }
    /// assert_eq!(starts, 2);
    /// assert!(child.join().is_err());
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// Without a listener, failures are reported on stderr: the first at once, later ones at growing
    /// intervals, from 10 s to 10 minutes.
    ///
    /// `call` runs in the order of the events, shortly after each event, in the thread that restarts
    /// processes. A slow call delays the restarts of all processes, and nothing else. `call` may start
    /// processes, but must not wait for the end of a supervised process. Events are not stored. A panic in
    /// `call` is caught.
    pub fn on_event(
        mut self,
        call: impl Fn(ProcessEvent) + Send + Sync + 'static,
    ) -> ProcessBuilder<Supervised> {
        self.supervision.listener = Some(Arc::new(UserValue::new(Box::new(call))));
        self
    }

    /// Starts the process and supervises it, see [`restart`](ProcessBuilder::restart).
    ///
    /// # Errors
    ///
    /// See [`start_processes`](crate::start_processes). A failed first start is returned as an error, and not
    /// retried.
    #[doc(alias = "start")]
    pub fn spawn<F, A, R>(self, function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Argument,
        R: IntoOutcome,
    {
        // Only the type of `function` is needed: it identifies the function.
        let _ = function;
        let function = PlainFunction::<F, A, R>::DESC.start_reference()?;
        let (plan, options, supervision) = self.plan(function, !is_unit::<R::Value>())?;
        let daemon = plan.daemon;
        let Supervised { restart, healthy_after, listener } = supervision;
        let args = ChildPayload::encode(&args)?;
        let terms = RestartTerms { restart, healthy_after, listener };
        let group = start::start_supervised(plan, &options, terms, move || ChildPayload::pack(&args))?;
        Ok(Process::adopt(group, daemon))
    }

    /// Starts a process that runs a [`Closure`] instead of a function, with the same captures in each start.
    ///
    /// # Errors
    ///
    /// See [`spawn`](Self::spawn).
    pub fn spawn_closure<A, R>(self, closure: Closure<A, R>, args: A) -> Result<Process<R::Value>>
    where
        A: Argument,
        R: IntoOutcome,
    {
        self.spawn(call::<A, R>, (closure, args))
    }
}

/// Marker of a [`ProcessBuilder`] whose process is restarted when it has ended.
#[derive(Clone, Debug)]
pub struct Supervised {
    restart: Restart,
    healthy_after: Duration,
    listener: Option<Arc<EventListener>>,
}

/// Default run time of a healthy process.
const HEALTHY: Duration = Duration::from_secs(60);

/// Entry function of a process that runs a closure.
fn call<A: 'static, R: 'static>((closure, args): (Closure<A, R>, A)) -> R {
    closure.call(args)
}

/// Returns the next default number of a process.
fn next_number() -> usize {
    static COUNT: PerProcess<Mutex<usize>> = mp_core::per_process!(Mutex::new(0));
    let mut count = COUNT.lock();
    *count += 1;
    *count
}
