//! What one process is started with, and whether it is started again.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::message::{IntoOutcome, Message};
use mp_core::mutex::Mutex;
use mp_core::user_code::Apart;

use crate::api::closure::Closure;
use crate::api::process::Process;
use crate::bounds::{Argument, CapturesNothing};
use crate::error::{Result, SpawnError};
use crate::io::setup::{ProcessOptions, Stdio};
use crate::parent::active;
use crate::parent::options::SpawnOptions;
use crate::parent::restart::Restart;
use crate::parent::restart::event::{Listener, ProcessEvent};
use crate::parent::restart::supervised::Terms;
use crate::parent::start::{self, Names, Plan};
use crate::protocol::function::Plain;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::limits::Limits;
use crate::protocol::outcome::is_unit;
use crate::protocol::payload::ToChild;
use crate::start_method::StartMethod;

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
///
/// `S` says whether it is [supervised](Self::restart): started again when it has ended.
#[derive(Clone, Debug)]
#[must_use]
pub struct ProcessBuilder<S = Unsupervised> {
    name: Option<String>,
    number: Option<usize>,
    daemon: bool,
    options: SpawnOptions,
    replaces: bool,
    setup: ProcessOptions,
    supervision: S,
}

/// Of a [`ProcessBuilder`]: its process is started once.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Unsupervised;

impl ProcessBuilder {
    pub(crate) fn new() -> ProcessBuilder {
        ProcessBuilder {
            name: None,
            number: None,
            daemon: false,
            replaces: false,
            options: SpawnOptions::nprocs(1),
            setup: ProcessOptions::default(),
            supervision: Unsupervised,
        }
    }
}

impl<S> ProcessBuilder<S> {
    /// Its name, `process-` and its [number](Self::number) without this. Its main thread has this name as well.
    pub fn name(mut self, name: impl Into<String>) -> ProcessBuilder<S> {
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
    pub fn number(mut self, number: usize) -> ProcessBuilder<S> {
        self.number = Some(number);
        self
    }

    /// Whether it is ended when this process exits, instead of being waited for: false without this, as with
    /// [`SpawnOptions::daemon`].
    pub fn daemon(mut self, daemon: bool) -> ProcessBuilder<S> {
        self.daemon = daemon;
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> ProcessBuilder<S> {
        self.setup = self.setup.env(name, value);
        self
    }

    /// Removes a variable from its environment.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> ProcessBuilder<S> {
        self.setup = self.setup.env_remove(name);
        self
    }

    /// The directory that it works in.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> ProcessBuilder<S> {
        self.setup = self.setup.current_dir(directory);
        self
    }

    /// The processors that it may run on.
    pub fn processors(mut self, numbers: impl IntoIterator<Item = usize>) -> ProcessBuilder<S> {
        self.setup = self.setup.processors(numbers);
        self
    }

    /// Sets the effect of SIGINT (Ctrl-C) and SIGTERM on the process. Without this they end the process.
    pub fn interrupt(mut self, interrupt: Interrupt) -> ProcessBuilder<S> {
        self.setup = self.setup.interrupt(interrupt);
        self
    }

    /// Restricts [`interrupt`](Self::interrupt) to one of the two signals.
    pub fn interrupt_signals(mut self, signals: InterruptSignals) -> ProcessBuilder<S> {
        self.setup = self.setup.interrupt_signals(signals);
        self
    }

    /// Limits the process: resources, user, process group, control group.
    pub fn limits(mut self, limits: Limits) -> ProcessBuilder<S> {
        self.setup = self.setup.limits(limits);
        self
    }

    /// Where its standard output goes.
    pub fn stdout(mut self, output: Stdio) -> ProcessBuilder<S> {
        self.setup = self.setup.stdout(output);
        self
    }

    /// Where its standard error goes.
    pub fn stderr(mut self, output: Stdio) -> ProcessBuilder<S> {
        self.setup = self.setup.stderr(output);
        self
    }

    /// File descriptors of this process that it inherits, under the same numbers: see [`SpawnOptions::inherit_fds`].
    pub fn inherit_fds<F: AsFd>(mut self, fds: impl IntoIterator<Item = F>) -> ProcessBuilder<S> {
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
    pub fn replaces(mut self) -> ProcessBuilder<S> {
        self.replaces = true;
        self
    }

    /// Another program instead of the running one: see [`SpawnOptions::executable`].
    pub fn executable(mut self, program: impl Into<PathBuf>) -> ProcessBuilder<S> {
        self.options = self.options.executable(program);
        self
    }

    /// Its secret, and that of the processes that it starts; this process's without this. See
    /// [`CurrentProcess::authkey`](crate::CurrentProcess::authkey).
    #[cfg(feature = "authkey")]
    pub fn authkey(mut self, key: impl AsRef<[u8]>) -> ProcessBuilder<S> {
        self.options = self.options.authkey(key);
        self
    }

    /// A program and its arguments instead of the running program: see [`SpawnOptions::command`].
    pub fn command<W: Into<OsString>>(mut self, command: impl IntoIterator<Item = W>) -> ProcessBuilder<S> {
        self.options = self.options.command(command);
        self
    }

    /// How it is started: see [`SpawnOptions::start_method`].
    pub fn start_method(mut self, method: StartMethod) -> ProcessBuilder<S> {
        self.options = self.options.start_method(method);
        self
    }

    /// How long it may take until it has loaded and reported as a worker: see [`SpawnOptions::handshake_timeout`].
    pub fn handshake_timeout(mut self, time: Duration) -> ProcessBuilder<S> {
        self.options = self.options.handshake_timeout(time);
        self
    }

    /// The function, and how it is started, of a process whose arguments are `A`; and how it is supervised.
    fn plan<F, A, R>(self) -> Result<(Plan, SpawnOptions, S)>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let number = self.number.unwrap_or_else(next_number);
        let name = self.name.unwrap_or_else(|| format!("process-{number}"));
        let setup = ProcessOptions { number: Some(number), ..self.setup };
        let setup = if self.replaces { setup.appending() } else { setup };
        let plan = Plan {
            function: start::reference(Plain::<F, A, R>::DESC)?,
            returns: !is_unit::<R::Value>(),
            daemon: self.daemon,
            ranked: false,
            names: Names::One(name),
        };
        Ok((plan, self.options.per_rank(move |_, _| setup.clone()), self.supervision))
    }
}

impl ProcessBuilder {
    /// Has it started again when it has ended: supervises it. See [`Restart`] for when that is.
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
    /// Each start is as the first one was: it has the same function, name and options, and the arguments as they were encoded
    /// then. So arguments are what several processes can have ([`Argument`]): queues, locks, frozen and shared tensors are the
    /// same ones each time, and stay in use between two starts (a queue is not deserted, a channel not disconnected). An exclusive
    /// tensor moves, and is refused by the compiler:
    ///
    /// ```compile_fail,E0277
    /// use mp_spawn::{Process, Restart};
    /// use mp_tensor::Tensor;
    ///
    /// let tensor = Tensor::<f32>::zeros([4]).unwrap();
    /// let child = Process::builder().restart(Restart::on_failure(3)).spawn(|_: Tensor<f32>| {}, tensor);
    /// ```
    ///
    /// What the options don't say (the environment, the directory) is this process's at the time of each start. Files of its
    /// output are emptied by the first start alone.
    ///
    /// The [`Process`] stands for all of them:
    ///
    /// | | while it is supervised |
    /// |---|---|
    /// | [`join`](Process::join), [`wait`](Process::wait), [`wait_timeout`](Process::wait_timeout), [`exit`](Process::exit), [`on_exit`](Process::on_exit), [`sentinel`](Process::sentinel) | mean the end after which it is not started again, and tell of its last process |
    /// | [`is_alive`](Process::is_alive) | true, also while it waits for its next start |
    /// | [`status`](Process::status) | [`Restarting`](crate::ProcessStatus::Restarting) while it waits, or is being started |
    /// | [`pid`](Process::pid), [`stdout`](Process::stdout), [`stderr`](Process::stderr) | of the last process; an error has the last lines of the process that it is about |
    /// | [`kill`](Process::kill), [`terminate`](Process::terminate) | end the supervision, too; if it waits for its next start, it is over at once |
    /// | the drop of the handle | changes nothing: the process continues, and so does the supervision |
    /// | this process exits | it is not started again from then on: its process is waited for, or ended if it is [daemonic](Self::daemon) |
    /// | SIGINT or SIGTERM, if this process is informed of it ([`Interrupt::Graceful`]) | it is not started again |
    ///
    /// If it fails once too often, `join` returns [`SpawnError::GaveUp`](crate::SpawnError::GaveUp), with the last failure and those before it.
    /// Other processes see each death as they see any: locks and leases of the one that crashed come back before it is started again.
    pub fn restart(self, restart: Restart) -> ProcessBuilder<Supervised> {
        let ProcessBuilder { name, number, daemon, options, replaces, setup, supervision: Unsupervised } =
            self;
        let supervision = Supervised::new(restart);
        ProcessBuilder { name, number, daemon, options, replaces, setup, supervision }
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
        let (plan, options, Unsupervised) = self.plan::<F, A, R>()?;
        let daemon = plan.daemon;
        let mut args = Some(args);
        let gone = || SpawnError::Arguments {
            who: None,
            message: "they were sent already".to_string(),
            unread: None,
        };
        let group = start::start(plan, &options, |_| ToChild::pack_moved(args.take().ok_or_else(gone)?))?;
        active::adopt(&group, daemon);
        Ok(Process::of(group, daemon))
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
        self.spawn(call::<A, R>, (closure, args))
    }
}

/// Supervised processes.
impl ProcessBuilder<Supervised> {
    /// How long a process has to run until it counts as well: if it fails after that, the row of restarts begins anew, and with
    /// it the back-off. A minute without this; with `Duration::MAX` no process is ever well, so that
    /// [`OnFailure`](Restart::OnFailure) has `max` restarts in all. The time counts from the start, for a process that has reported
    /// as a worker.
    pub fn healthy_after(mut self, time: Duration) -> ProcessBuilder<Supervised> {
        self.supervision.healthy_after = time;
        self
    }

    /// Calls `call` at each start, each end, before each back-off, and when the process is given up.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use mp_spawn::{Process, ProcessEvent, Restart};
    ///
    /// let (tell, events) = mpsc::channel();
    /// let child = Process::builder()
    ///     .restart(Restart::OnFailure { max: 1, backoff: Duration::ZERO.into() })
    ///     .on_event(move |event| _ = tell.send(event))
    ///     .spawn(|(): ()| std::process::exit(3), ())?;
    /// let mut starts = 0;
    /// // Ends with the supervision, since `call` is dropped then.
    /// for event in events {
    ///     println!("{event}"); // process-1 was started (pid 4711, attempt 1), …
    ///     starts += u32::from(matches!(event, ProcessEvent::Started { .. }));
    /// }
    /// assert_eq!(starts, 2);
    /// assert!(child.join().is_err());
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// Without it, failures are reported on stderr: the first at once, later ones at growing intervals, from 10 s to 10 minutes.
    ///
    /// It is called in the order of the events, a moment after each, in the thread that restarts processes: what takes long there
    /// delays the restarts of all of them, and nothing else. It may start processes; it must not wait for the end of a supervised one. Nothing
    /// is kept for a caller that does not listen: a channel has what bound the program gives it. A panic in it ends there.
    pub fn on_event(
        mut self,
        call: impl Fn(ProcessEvent) + Send + Sync + 'static,
    ) -> ProcessBuilder<Supervised> {
        self.supervision.listener = Some(Arc::new(Apart::new(Box::new(call))));
        self
    }

    /// Starts it, and supervises it from then on: see [`restart`](ProcessBuilder::restart).
    ///
    /// # Errors
    ///
    /// Those of [`start_processes`](crate::start_processes). A first start that fails is an error here, and is not tried again.
    #[doc(alias = "start")]
    pub fn spawn<F, A, R>(self, function: F, args: A) -> Result<Process<R::Value>>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Argument,
        R: IntoOutcome,
    {
        // Only its type is needed, which says which function it is.
        let _ = function;
        let (plan, options, supervision) = self.plan::<F, A, R>()?;
        let daemon = plan.daemon;
        let Supervised { restart, healthy_after, listener } = supervision;
        let args = ToChild::encode(&args)?;
        let terms = Terms { restart, healthy_after, listener };
        let group = start::start_supervised(plan, &options, terms, move || ToChild::pack(&args))?;
        active::adopt(&group, daemon);
        Ok(Process::of(group, daemon))
    }

    /// Starts it with a [`Closure`] instead of a function, with the same captures each time.
    ///
    /// # Errors
    ///
    /// Those of [`spawn`](Self::spawn).
    pub fn spawn_closure<A, R>(self, closure: Closure<A, R>, args: A) -> Result<Process<R::Value>>
    where
        A: Argument,
        R: IntoOutcome,
    {
        self.spawn(call::<A, R>, (closure, args))
    }
}

/// Of a [`ProcessBuilder`]: its process is started again when it has ended.
#[derive(Clone, Debug)]
pub struct Supervised {
    restart: Restart,
    healthy_after: Duration,
    listener: Option<Arc<Listener>>,
}

/// How long a process runs that is well.
const HEALTHY: Duration = Duration::from_secs(60);

impl Supervised {
    fn new(restart: Restart) -> Supervised {
        Supervised { restart, healthy_after: HEALTHY, listener: None }
    }
}

/// What the process of a closure runs.
fn call<A: 'static, R: 'static>((closure, args): (Closure<A, R>, A)) -> R {
    closure.call(args)
}

/// The number of a process that was given none.
fn next_number() -> usize {
    static COUNT: PerProcess<Mutex<usize>> = PerProcess::new([const { Mutex::new(0) }; GENERATIONS]);
    let mut count = COUNT.lock();
    *count += 1;
    *count
}
