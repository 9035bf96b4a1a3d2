//! Owner's handle of a manager, and creation of objects in it.

use std::any::type_name;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use mp_core::message::PlainOutcome;
use mp_queue::{GetError, PutError, Sender, bounded_channel, channel};
use mp_spawn::{CapturesNothing, Closure, Interrupt, Process, ProcessBuilder};
use serde::{Deserialize, Serialize};

use crate::error::{CallError, CallName, ManagerError};
use crate::object::{BoxedError, ObjectResult, ServedObject};
use crate::proxy::{ObjectLink, Proxy};
use crate::request::{Control, ObjectRequest};
use crate::server::{ServerArgs, serve};

/// Grace period of running calls when a manager is dropped.
const GRACE: Duration = Duration::from_secs(1);
/// Additional time for the server's process to drop its objects and end.
const MARGIN: Duration = Duration::from_secs(5);
/// Interval at which a start checks that the process is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Server process that holds objects, owned by the process that started it.
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
/// Objects are created with [`ManagerHandle`], to which a manager dereferences. A [`handle`](Self::handle)
/// can be sent to other processes.
///
/// The server lives as long as this value. Dropping it [shuts the server down](Self::shutdown), with a second
/// for running calls. The server also ends when this process ends for any reason. The objects' `Drop`s don't
/// run in this case. The server ignores SIGINT, and SIGTERM from any process but its parent: its owner
/// decides when it ends.
///
/// Each object has a thread in the server, which wakes up ten times a second while it is idle. This is
/// suitable for hundreds of objects. Store thousands of small values in one object, such as a map.
#[doc(alias = "SyncManager")]
#[doc(alias = "BaseManager")]
pub struct Manager {
    handle: ManagerHandle,
    process: Process,
    /// Process that started the server.
    owner: u32,
}

/// Handle that creates objects in a [`Manager`]'s server, from any process. Implements serde's traits.
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
/// A handle does not keep the server alive. After the server has ended, its methods return
/// [`CallError::ServerGone`].
#[derive(Clone, Serialize, Deserialize)]
pub struct ManagerHandle {
    control: Sender<Control>,
    server: u32,
}

impl Manager {
    /// Starts a server, and blocks until it is ready, which takes some milliseconds.
    ///
    /// # Errors
    /// `ManagerError` if the process can't be started, or shared memory is unavailable.
    pub fn start() -> Result<Manager, ManagerError> {
        Manager::start_as(Process::builder().name("manager"))
    }

    /// Starts a server with its own name, environment, output or start method.
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
    /// Regardless of the builder's settings, the server ends when this process exits, and ignores SIGINT and
    /// SIGTERM.
    ///
    /// # Errors
    /// Same as [`start`](Self::start).
    pub fn start_as(builder: ProcessBuilder) -> Result<Manager, ManagerError> {
        let (control, orders) = channel()?;
        let (ready, started) = bounded_channel(1)?;
        let process = builder
            .daemon(true)
            .interrupt(Interrupt::Ignore)
            .spawn(serve, ServerArgs { control: orders, ready })?;
        loop {
            match started.recv_timeout(CHECK_INTERVAL) {
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

    /// Returns a handle that creates objects in this server, and can be sent to other processes.
    #[must_use]
    pub fn handle(&self) -> ManagerHandle {
        self.handle.clone()
    }

    /// Returns `true` if the server is running. Does not block.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Shuts the server down, and blocks until it has ended. Running calls have `grace` to finish. Waiting
    /// calls and all later calls return [`CallError::ServerGone`]. Each object is dropped when its call has
    /// ended. Calls that take longer than `grace` end with the process, and their objects are not dropped.
    ///
    /// The server has five more seconds to drop its objects. A stopped server (SIGSTOP) can't drop them: it
    /// is killed after `grace`.
    ///
    /// # Errors
    /// [`ManagerError::Server`] if the server had died before. [`ManagerError::Killed`] if the server had to
    /// be killed, because it was stopped or a `Drop` did not return.
    pub fn shutdown(self, grace: Duration) -> Result<(), ManagerError> {
        self.end(grace)
    }

    fn end(&self, grace: Duration) -> Result<(), ManagerError> {
        let millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        match self.handle.control.send(Control::Stop { grace: millis }) {
            // The server has already ended.
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
        // In a fork of the owner, the server belongs to another process.
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
    /// Creates an object in the server. The server calls `make`, whose return value is the object. `make` is
    /// a function, or a closure without captures.
    ///
    /// The object need not be `Send` or serializable: it is created in a thread of the server, and stays in
    /// that thread.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the function panics. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn create<T: 'static>(&self, make: impl Fn() -> T + CapturesNothing) -> Result<Proxy<T>, CallError> {
        self.make(
            type_name_of(&make),
            Closure::from_parts((), move |(): &(), (): ()| Ok(ServedObject::new(make()))),
        )
    }

    /// Creates an object in the server with a closure, whose captures are sent to the server.
    ///
    /// ```
    /// # let manager = mp_manager::Manager::start()?;
    /// use std::collections::HashSet;
    /// use mp_spawn::closure;
    ///
    /// let words = vec!["a".to_string(), "b".to_string()];
    /// let seen = closure!([words] || words.iter().cloned().collect::<HashSet<_>>());
    /// let seen = manager.create_closure(seen)?;
    /// assert_eq!(seen.call(closure!([] |seen: &mut HashSet<String>| seen.len()))?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`create`](Self::create), and [`CallError::Arguments`] if the captures can't be sent.
    #[track_caller]
    pub fn create_closure<T: 'static>(&self, make: Closure<(), T>) -> Result<Proxy<T>, CallError> {
        let name = make.name();
        self.make(
            name,
            Closure::from_parts((make, ()), |(make, ()): &(Closure<(), T>, ()), (): ()| {
                Ok(ServedObject::new(make.call(())))
            }),
        )
    }

    /// Creates an object in the server with a closure that may return an error.
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
    /// Same as [`create_closure`](Self::create_closure), and [`CallError::Raised`] with the closure's error.
    #[track_caller]
    pub fn try_create<T, E>(&self, make: Closure<(), Result<T, E>>) -> Result<Proxy<T>, CallError>
    where
        T: 'static,
        E: Into<BoxedError> + 'static,
    {
        let name = make.name();
        self.make(
            name,
            Closure::from_parts((make, ()), |(make, ()): &(Closure<(), Result<T, E>>, ()), (): ()| {
                make.call(()).map(ServedObject::new).map_err(Into::into)
            }),
        )
    }

    /// Returns the process id of the server.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.server
    }

    /// Creates an object from a closure whose type is erased.
    #[track_caller]
    pub(crate) fn make<T: 'static>(
        &self,
        closure: &'static str,
        maker: Closure<(), ObjectResult>,
    ) -> Result<Proxy<T>, CallError> {
        let call = CallName::at_caller(closure, type_name::<T>());
        let (requests, object) = channel::<ObjectRequest>()?;
        match self.control.send(Control::Serve { requests: object }) {
            Ok(()) => {
                let gone = || self.control.is_disconnected();
                ObjectLink::make(requests, self.server, maker, call, gone).map(Proxy::new)
            }
            Err(PutError::Disconnected(_)) => Err(CallError::ServerGone { server: self.server }),
            Err(error) => Err(mp_core::Error::from(error).into()),
        }
    }
}

fn type_name_of<F>(_: &F) -> &'static str {
    type_name::<F>()
}
