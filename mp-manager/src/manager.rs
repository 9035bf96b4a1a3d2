//! The manager, as its owner has it, and what makes objects in it.

use std::any::type_name;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use mp_core::message::PlainOutcome;
use mp_queue::{GetError, PutError, Sender, bounded_channel, channel};
use mp_spawn::{CapturesNothing, Closure, Interrupt, Process, ProcessBuilder};
use serde::{Deserialize, Serialize};

use crate::error::{CallError, CallName, ManagerError};
use crate::object::{Failure, MakeObject, Object};
use crate::proxy::{Link, Proxy};
use crate::request::{Control, Request};
use crate::server::{Orders, serve};

/// How long calls that run are given when a manager is dropped.
const GRACE: Duration = Duration::from_secs(1);
/// Additional time for the server's process to drop its objects and end.
const MARGIN: Duration = Duration::from_secs(5);
/// How often a start looks whether the process lives.
const LOOK: Duration = Duration::from_millis(50);

/// A server process that holds objects, as the process has it that started it.
///
/// ```
/// use std::time::Duration;
/// use mp_manager::{CallError, Manager};
/// use mp_spawn::closure;
///
/// let manager = Manager::start()?;
/// let state = manager.create(|| (0_u32, String::from("idle")))?;
/// state.call(closure!([] |state: &mut (u32, String)| state.0 += 1))?;
///
/// manager.shutdown(Duration::from_secs(1))?; // or drop it
/// let error = state.call(closure!([] |state: &mut (u32, String)| state.0)).unwrap_err();
/// assert!(error.is_server_gone());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What makes objects is in [`ManagerHandle`], to which it dereferences: a [`handle`](Self::handle) can be sent to other processes. The
/// server lives as long as this: dropped, it is as [shut down](Self::shutdown) with a second for the calls that run. It ends as well
/// when this process does, however, and then the objects' `Drop`s don't run. SIGINT has no effect on it, and neither has a SIGTERM
/// of another process than its parent: its owner decides when it ends.
///
/// Each object has a thread in the server, which looks around ten times a second while there is nothing to do: good for hundreds of
/// objects. Thousands of small values are better in one object, as a map.
#[doc(alias = "SyncManager")]
#[doc(alias = "BaseManager")]
pub struct Manager {
    handle: ManagerHandle,
    process: Process,
    /// The process that started it.
    owner: u32,
}

/// What makes objects in a [`Manager`]'s server, from any process: a serde type.
///
/// ```
/// use mp_manager::{Manager, ManagerHandle, Proxy};
/// use mp_spawn::{Process, closure};
///
/// // A worker makes an object, and sends it to its parent.
/// fn worker(manager: ManagerHandle) -> Result<Proxy<Vec<u8>>, mp_manager::CallError> {
///     manager.create(|| vec![1, 2, 3])
/// }
///
/// let manager = Manager::start()?;
/// let bytes = Process::spawn(worker, manager.handle())?.join()?;
/// assert_eq!(bytes.call(closure!([] |bytes: &mut Vec<u8>| bytes.len()))?, 3); // the worker has ended
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It does not keep the server alive. Where that has ended, what it is asked for is [`CallError::ServerGone`].
#[derive(Clone, Serialize, Deserialize)]
pub struct ManagerHandle {
    control: Sender<Control>,
    server: u32,
}

impl Manager {
    /// Starts a server, and waits until it is there: some milliseconds.
    ///
    /// # Errors
    /// When the process can't be started, or there is no shared memory.
    pub fn start() -> Result<Manager, ManagerError> {
        Manager::start_as(Process::builder().name("manager"))
    }

    /// Starts a server with a name, environment, output or start method of its own.
    ///
    /// ```
    /// use mp_manager::Manager;
    /// use mp_spawn::{Process, Stdio};
    ///
    /// let manager = Manager::start_as(Process::builder().name("scores").stderr(Stdio::Null))?;
    /// assert_eq!(manager.create(|| 7)?.call(mp_spawn::closure!([] |n: &mut i32| *n))?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Whatever the builder says, the server is ended when this process exits, and SIGINT and SIGTERM have no effect on it.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_as(builder: ProcessBuilder) -> Result<Manager, ManagerError> {
        let (control, orders) = channel()?;
        let (ready, started) = bounded_channel(1)?;
        let process = builder
            .daemon(true)
            .interrupt(Interrupt::Ignore)
            .spawn(serve, Orders { control: orders, ready })?;
        loop {
            match started.recv_timeout(LOOK) {
                Ok(server) => {
                    let handle = ManagerHandle { control, server };
                    return Ok(Manager { handle, process, owner: std::process::id() });
                }
                Err(GetError::Empty) if process.is_alive() => {}
                Err(GetError::Failed(error)) => return Err(error.into()),
                Err(GetError::Interrupted) => return Err(mp_core::Error::Interrupted.into()),
                Err(_) => {
                    process.join().map_err(ManagerError::Start)?;
                    let why = "the manager's server ended before it was ready";
                    return Err(mp_core::Error::Malformed(why.into()).into());
                }
            }
        }
    }

    /// What makes objects in this server, to be sent to other processes.
    #[must_use]
    pub fn handle(&self) -> ManagerHandle {
        self.handle.clone()
    }

    /// Whether the server runs. Does not block.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Ends the server, and waits for that. Calls that run are given this long; what waits for its turn, and each call after that, is
    /// [`CallError::ServerGone`]. Each object is dropped when its call is over. If calls take longer, they end with the process, and
    /// their objects are not dropped.
    ///
    /// The server has five seconds more to drop its objects. A server that is stopped (SIGSTOP) can't drop them: it is killed after `grace`.
    ///
    /// # Errors
    /// [`ManagerError::Server`] when the server had died before; [`ManagerError::Killed`] when it did not end by itself: it was
    /// stopped, or a `Drop` does not return.
    pub fn shutdown(self, grace: Duration) -> Result<(), ManagerError> {
        self.end(grace)
    }

    fn end(&self, grace: Duration) -> Result<(), ManagerError> {
        let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        match self.handle.control.send(Control::Stop { grace: millis }) {
            // It has ended already.
            Ok(()) | Err(PutError::Disconnected(_)) => {}
            Err(error) => return Err(mp_core::Error::from(error).into()),
        }
        let mut given = grace;
        let mut has_ended = self.process.wait_timeout(given);
        if !has_ended && !mp_core::waits::is_stopped(self.handle.server) {
            given = given.saturating_add(MARGIN);
            has_ended = self.process.wait_timeout(MARGIN);
        }
        if has_ended {
            return self.process.join().map_err(ManagerError::Server);
        }
        _ = self.process.kill();
        _ = self.process.wait();
        Err(ManagerError::Killed { server: self.handle.server, grace: given })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // In a copy of the owner it is another process's.
        if self.owner == std::process::id() && self.process.is_alive() {
            _ = self.end(GRACE);
        }
    }
}

impl Deref for Manager {
    type Target = ManagerHandle;

    fn deref(&self) -> &ManagerHandle {
        &self.handle
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Manager(server {})", self.handle.server)
    }
}

impl PlainOutcome for ManagerHandle {}

impl fmt::Debug for ManagerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManagerHandle(server {})", self.server)
    }
}

impl ManagerHandle {
    /// Makes an object in the server: what a function, or a closure that captures nothing, returns there.
    ///
    /// The object needs neither to be sent nor to be `Send`: it is made in a thread of the server, and stays there.
    ///
    /// # Errors
    /// [`CallError::Raised`] when it panics; else see the table at [`CallError`].
    #[track_caller]
    pub fn create<T: 'static>(&self, make: impl Fn() -> T + CapturesNothing) -> Result<Proxy<T>, CallError> {
        self.make(
            type_name_of(&make),
            Closure::from_parts((), move |(): &(), (): ()| Ok(Object::new(make()))),
        )
    }

    /// Makes an object in the server with what a closure captures, which travels there.
    ///
    /// ```
    /// # let manager = mp_manager::Manager::start()?;
    /// use std::collections::HashSet;
    /// use mp_spawn::closure;
    ///
    /// let words = vec!["a".to_string(), "b".to_string()];
    /// let seen = manager.create_closure(closure!([words] || words.iter().cloned().collect::<HashSet<_>>()))?;
    /// assert_eq!(seen.call(closure!([] |seen: &mut HashSet<String>| seen.len()))?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`create`](Self::create), and [`CallError::Arguments`] when what it captures can't be sent.
    #[track_caller]
    pub fn create_closure<T: 'static>(&self, make: Closure<(), T>) -> Result<Proxy<T>, CallError> {
        let name = make.name();
        self.make(
            name,
            Closure::from_parts((make, ()), |(make, ()): &(Closure<(), T>, ()), (): ()| {
                Ok(Object::new(make.call(())))
            }),
        )
    }

    /// Makes an object in the server with a closure that may fail.
    ///
    /// ```
    /// # let manager = mp_manager::Manager::start()?;
    /// use std::fs::File;
    /// use mp_manager::CallError;
    /// use mp_spawn::closure;
    ///
    /// let path = "/no/such/file".to_string();
    /// let error = manager.try_create(closure!([path] || File::open(path))).unwrap_err();
    /// assert!(matches!(error, CallError::Raised(raised) if raised.message.contains("No such file")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`create_closure`](Self::create_closure), and [`CallError::Raised`] with the closure's error.
    #[track_caller]
    pub fn try_create<T, E>(&self, make: Closure<(), Result<T, E>>) -> Result<Proxy<T>, CallError>
    where
        T: 'static,
        E: Into<Failure> + 'static,
    {
        let name = make.name();
        self.make(
            name,
            Closure::from_parts((make, ()), |(make, ()): &(Closure<(), Result<T, E>>, ()), (): ()| {
                make.call(()).map(Object::new).map_err(Into::into)
            }),
        )
    }

    /// The process id of the server.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.server
    }

    /// An object of a type of which this says nothing: what the server does for it is in its maker.
    #[track_caller]
    pub(crate) fn make<T: 'static>(
        &self,
        closure: &'static str,
        maker: Closure<(), MakeObject>,
    ) -> Result<Proxy<T>, CallError> {
        let call = CallName::here(closure, type_name::<T>());
        let (requests, object) = channel::<Request>()?;
        match self.control.send(Control::Serve { requests: object }) {
            Ok(()) => {
                let gone = || self.control.is_disconnected();
                Link::make(requests, self.server, maker, call, gone).map(Proxy::new)
            }
            Err(PutError::Disconnected(_)) => Err(CallError::ServerGone { server: self.server }),
            Err(error) => Err(mp_core::Error::from(error).into()),
        }
    }
}

fn type_name_of<F>(_: &F) -> &'static str {
    type_name::<F>()
}
