//! Errors of calls and of the manager itself.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Undecodable;
use mp_core::{INTERRUPTED, serde_with};
#[cfg(feature = "net")]
use mp_net::NetError;
use mp_queue::{Address, ConnectError};
use mp_spawn::{ProcessRaised, SpawnError};
use serde::{Deserialize, Serialize};

/// Name of a call in errors: the compiler's name of the closure, or the name of a method, and the location of
/// the call in the program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallName {
    /// Name of the closure or method.
    pub closure: Cow<'static, str>,
    /// Type of the object.
    pub object: Cow<'static, str>,
    /// File, line and column of the call.
    pub location: CallLocation,
}

impl CallName {
    /// Creates the name of a call, with the location of the caller by `#[track_caller]`.
    #[track_caller]
    pub(crate) fn at_caller(
        closure: impl Into<Cow<'static, str>>,
        object: impl Into<Cow<'static, str>>,
    ) -> Self {
        CallName { closure: closure.into(), object: object.into(), location: Location::caller().into() }
    }
}

/// Location of a call in the source code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallLocation {
    /// Source file.
    pub file: Cow<'static, str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl From<&'static Location<'static>> for CallLocation {
    fn from(at: &'static Location<'static>) -> Self {
        CallLocation { file: at.file().into(), line: at.line(), column: at.column() }
    }
}

impl fmt::Display for CallLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallName { closure, object, location } = self;
        write!(f, "the call of `{closure}` with `{object}` at {location}")
    }
}

/// Error with which a call ends.
///
/// ```
/// use mp_manager::{CallError, Manager};
/// use mp_spawn::closure;
///
/// let manager = Manager::start()?;
/// let stack = manager.create(Vec::<u32>::new)?;
/// let pop = || stack.call(closure!([] |stack: &mut Vec<u32>| stack.pop().ok_or("it is empty")));
/// match pop() {
///     Err(CallError::Raised(raised)) => assert_eq!(raised.message, "it is empty"),
///     other => panic!("unexpected: {other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Effects of failures
///
/// | event | this call | the object | other calls |
/// |---|---|---|---|
/// | the closure returns `Err`, or panics | [`Raised`](Self::Raised): message, sources, location of the panic | remains, as the closure left it | continue |
/// | the constructor of an object returns `Err`, or panics | [`Raised`](Self::Raised), of [`create`](crate::ManagerHandle::create) | is not created | continue |
/// | the call takes longer than the proxy [waits](crate::Proxy::with_timeout) | [`TimedOut`](Self::TimedOut), with the call's name; the closure continues, and its result is dropped | continues | wait, if they are calls of the same object |
/// | the object was [freed](crate::Proxy::free) | [`Freed`](Self::Freed) | no longer exists | same |
/// | the server is killed, crashes, calls `exit`, is [shut down](crate::Manager::shutdown) | [`ServerGone`](Self::ServerGone): at once if the parent of the server is alive, otherwise within about 100 ms | no longer exists | same |
/// | the server is stopped (SIGSTOP, a debugger) | waits until the server resumes, or until the proxy's time-out | waits | wait |
/// | the caller is killed | runs, if it was sent | remains, if another process has a proxy | continue |
/// | a call of an object calls the same object | [`OwnObject`](Self::OwnObject), at once | remains | continue |
/// | objects of one server call each other in a cycle | [`Cycle`](Self::Cycle), at once, for the call that closes the cycle | remain | continue |
/// | [another program](crate::RemoteManager) names an unknown type, method or object | [`NoSuchType`](Self::NoSuchType), [`NoSuchMethod`](Self::NoSuchMethod), [`NoSuchObject`](Self::NoSuchObject), with the known names | remains | continue |
/// | arguments, a result or captures can't be encoded or decoded | [`Arguments`](Self::Arguments), [`Value`](Self::Value) | remains | continue |
/// | a connection between [members of a cluster](crate::ManagerHandle::publish_in) breaks, and returns within its grace | runs once | remains | continue |
/// | the member that published the object is lost | `PeerLost`, with rank, host, and whether the call is in doubt | no longer exists, like its manager | same |
/// | SIGINT or SIGTERM, if this process [is notified](mp_spawn::Interrupt::Graceful) | [`Interrupted`](Self::Interrupted); the closure continues | continues | continue |
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum CallError {
    /// The closure returned an error or panicked in the server.
    Raised(Box<ProcessRaised>),
    /// No answer arrived within the proxy's time-out. The call is not withdrawn: it may still wait for its
    /// turn, or run.
    TimedOut {
        /// Name of the call.
        call: CallName,
        /// Time-out of the call in this process.
        timeout: Duration,
        /// Process id of the server.
        server: u32,
        /// Address of the server, if it belongs to [another program](crate::RemoteManager).
        address: Option<Box<Address>>,
        /// `true` if the call was sent. If `false`, the call will not run. Either the time-out had expired
        /// before the call was sent, or the server of another program did not accept a connection, because
        /// that server is stopped, or lacks descriptors or threads.
        sent: bool,
    },
    /// The object was freed by [`Proxy::free`](crate::Proxy::free).
    Freed {
        /// Name of the call.
        call: CallName,
    },
    /// The server has ended: its owner shut it down, or it died.
    ServerGone {
        /// Process id of the server.
        server: u32,
    },
    /// The call was made within a call of the same object, and would wait for itself.
    OwnObject {
        /// Name of the call.
        call: CallName,
    },
    /// The call would close a cycle of objects that wait for each other. The called object already waits,
    /// directly or through other objects, for the object from which this call was made.
    #[serde(rename = "Ring")]
    Cycle {
        /// Name of the call.
        call: CallName,
        /// Waiting calls, beginning with a call by the called object. The last one is a call of the object
        /// from which this call was made.
        waiting: Vec<CallName>,
    },
    /// No type is [registered](crate::ManagerHandle::register) under this name.
    NoSuchType {
        /// Requested name.
        name: String,
        /// Registered names.
        known: Vec<String>,
    },
    /// The type of the object is registered without a method of this name, or, for
    /// [`create`](crate::RemoteManager::create), without a constructor.
    NoSuchMethod {
        /// Name of the call.
        call: CallName,
        /// Registered methods.
        known: Vec<String>,
    },
    /// No object is [published](crate::ManagerHandle::publish) under this name.
    NoSuchObject {
        /// Requested name.
        name: String,
        /// Published names.
        known: Vec<String>,
    },
    /// The object has a type other than the proxy's.
    WrongType {
        /// Name of the call.
        call: CallName,
        /// Type of the object.
        found: String,
    },
    /// The arguments or captures could not be encoded in this process or decoded in the server.
    Arguments {
        /// Description of the cause.
        why: String,
        /// Details of an error in the server: the type, the path of the part that could not be decoded, and
        /// the bytes.
        #[serde(with = "serde_with::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
    },
    /// The result could not be encoded in the server or decoded in this process.
    Value {
        /// Description of the cause.
        why: String,
        /// Details of an error in this process: the type, the path of the part that could not be decoded, and
        /// the bytes.
        #[serde(with = "serde_with::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
    },
    /// The connection to the server of [another program](crate::RemoteProxy#sent-to-other-processes) failed.
    Connect(Box<ConnectError>),
    /// The server could not start a thread for another object.
    NoThread {
        /// Description of the cause.
        why: String,
    },
    /// This process was interrupted (SIGINT, SIGTERM) while it waited
    /// ([`interrupted`](mp_core::interrupted)).
    Interrupted,
    /// Operation on shared memory failed: the memory is full or unavailable, or belongs to another process.
    Failed(mp_reduce::Error),
    /// The member of the cluster that published the object was lost: its process has ended, or can't be
    /// reached. If the loss is [in doubt](mp_net::PeerLost::in_doubt), the call may have had its effect.
    #[cfg(feature = "net")]
    #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
    PeerLost(Box<mp_net::PeerLost>),
    /// The object's name was withdrawn from the cluster or is taken, or another error of the cluster.
    #[cfg(feature = "net")]
    #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
    Cluster {
        /// Description of the cause.
        why: String,
    },
}

impl CallError {
    /// Returns the type, path and reason if arguments (in the server) or the result (in this process) could
    /// not be decoded. Returns `None` for other errors.
    pub fn undecodable(&self) -> Option<&Undecodable> {
        match self {
            CallError::Arguments { undecodable, .. } | CallError::Value { undecodable, .. } => {
                undecodable.as_deref()
            }
            _ => None,
        }
    }

    /// Converts an error of encoding arguments into an error of a call.
    pub(crate) fn of_arguments(error: mp_core::Error) -> CallError {
        match error {
            mp_core::Error::Unsendable(why) => CallError::Arguments { why, undecodable: None },
            error => error.into(),
        }
    }

    /// Returns `true` if the server has ended, with all its objects.
    pub fn is_server_gone(&self) -> bool {
        matches!(self, CallError::ServerGone { .. })
    }

    /// Marks the call in the error as not sent.
    #[cfg(any(feature = "authkey", feature = "net"))]
    pub(crate) fn unsent(mut self) -> Self {
        match &mut self {
            CallError::TimedOut { sent, .. } => *sent = false,
            #[cfg(feature = "net")]
            CallError::PeerLost(lost) => lost.in_doubt = false,
            _ => {}
        }
        self
    }

    /// Replaces the call's name from another program by the name that this process gave the call.
    #[cfg(feature = "authkey")]
    pub(crate) fn of_call(mut self, own: &CallName) -> Self {
        match &mut self {
            CallError::TimedOut { call, .. }
            | CallError::Freed { call }
            | CallError::OwnObject { call }
            | CallError::Cycle { call, .. }
            | CallError::NoSuchMethod { call, .. }
            | CallError::WrongType { call, .. } => own.clone_into(call),
            _ => {}
        }
        self
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Raised(raised) => raised.fmt(f),
            CallError::TimedOut { call, timeout, server, address, sent } => {
                let (had, begun) = if *sent {
                    ("had no answer", "it, or one before it, still runs in the manager's server")
                } else {
                    ("was not sent", "it had no connection to the manager's server")
                };
                write!(f, "{call} {had} within {timeout:?}: {begun} (pid {server}")?;
                if let Some(address) = address {
                    write!(f, " at {address}")?;
                }
                f.write_str(if *sent {
                    "), or that is stopped; it is not withdrawn"
                } else {
                    "), which is stopped, or has as many files open or threads as it may (`ulimit -n`, \
                     `ulimit -u`): it does not run"
                })
            }
            CallError::Freed { call } => write!(
                f,
                "{call} was made after the object was freed \
                (Proxy::free)"
            ),
            CallError::ServerGone { server } => write!(
                f,
                "the manager's server (pid {server}) has \
                 ended, and its objects are lost: it died, or its owner has shut it down or dropped the \
                     Manager"
            ),
            CallError::OwnObject { call } => write!(
                f,
                "{call} was made within a call of the same object, and would wait for itself: do it in that \
                 call, by its `&mut`"
            ),
            CallError::Cycle { call, waiting } => {
                write!(f, "{call} would wait for itself: the object is in a call that waits for this one")?;
                waiting.iter().try_for_each(|next| write!(f, "; {next} waits"))?;
                f.write_str(
                    "; make one of them without waiting for its result, or outside of the other's call",
                )
            }
            CallError::NoSuchType { name, known } => {
                write!(f, "no type is registered as `{name}` (ManagerHandle::register){}", KnownNames(known))
            }
            CallError::NoSuchMethod { call, known } => {
                write!(f, "{call}: `{}` is registered without it{}", call.object, KnownNames(known))
            }
            CallError::NoSuchObject { name, known } => {
                write!(f, "no object is published as `{name}` (ManagerHandle::publish){}", KnownNames(known))
            }
            CallError::WrongType { call, found } => {
                write!(f, "{call} met an object of another type, `{found}`")
            }
            CallError::Arguments { why, undecodable: None } => {
                write!(f, "the arguments of the call can't be sent: {why}")
            }
            CallError::Arguments { why, undecodable: Some(_) } => {
                write!(f, "the arguments of the call can't be received by the manager's server: {why}")
            }
            CallError::Value { why, undecodable: None } => {
                write!(f, "the result of the call can't be sent: {why}")
            }
            CallError::Value { why, undecodable: Some(_) } => {
                write!(f, "the result of the call can't be received: {why}")
            }
            CallError::Connect(error) => write!(f, "no connection to the manager's server: {error}"),
            CallError::NoThread { why } => {
                write!(
                    f,
                    "the manager's server has no thread for another object: {why}; free some, or put \
                     several values into one object"
                )
            }
            CallError::Interrupted => f.write_str(INTERRUPTED),
            CallError::Failed(error) => error.fmt(f),
            #[cfg(feature = "net")]
            CallError::PeerLost(lost) => write!(f, "the object is lost with its home: {lost}"),
            #[cfg(feature = "net")]
            CallError::Cluster { why } => f.write_str(why),
        }
    }
}

/// Part of an error text that lists the known names after an unknown one.
struct KnownNames<'a>(&'a [String]);

impl fmt::Display for KnownNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, others @ ..] = self.0 else { return f.write_str("; there is none") };
        write!(f, "; there is `{first}`")?;
        others.iter().try_for_each(|other| write!(f, ", `{other}`"))
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallError::Arguments { undecodable, .. } | CallError::Value { undecodable, .. } => {
                undecodable.as_ref().map(|undecodable| &**undecodable as _)
            }
            CallError::Failed(error) => std::error::Error::source(error),
            CallError::Connect(error) => Some(&**error),
            #[cfg(feature = "net")]
            CallError::PeerLost(lost) => Some(&**lost),
            _ => None,
        }
    }
}

impl From<mp_core::Error> for CallError {
    fn from(error: mp_core::Error) -> Self {
        CallError::Failed(error.into())
    }
}

impl From<mp_reduce::Error> for CallError {
    fn from(error: mp_reduce::Error) -> Self {
        CallError::Failed(error)
    }
}

#[cfg(feature = "net")]
impl From<NetError> for CallError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::PeerLost(lost) => CallError::PeerLost(Box::new(lost)),
            NetError::Interrupted => CallError::Interrupted,
            NetError::TooLarge { .. } => CallError::Arguments { why: error.to_string(), undecodable: None },
            NetError::Value(error) => CallError::Failed(error),
            error => CallError::Cluster { why: error.to_string() },
        }
    }
}

/// Error returned when a manager can't be started or connected, or ended with a failure.
#[derive(Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The server could not be started.
    #[error("the manager's server could not be started: {0}")]
    Start(#[from] SpawnError),
    /// The server ended for a reason other than [`shutdown`](crate::Manager::shutdown).
    #[error("the manager's server ended: {0}")]
    Server(#[source] SpawnError),
    /// The server did not end in time and was killed: it was stopped (SIGSTOP), or a `Drop` of an object did
    /// not return.
    #[error("the manager's server (pid {server}) did not end within {grace:?} and was killed")]
    Killed {
        /// Process id of the server.
        server: u32,
        /// Time limit: the grace period, plus five seconds if the server was not stopped.
        grace: Duration,
    },
    /// The connection to the server of [another program](crate::RemoteManager) failed.
    #[error("no connection to the manager's server: {0}")]
    Connect(#[from] ConnectError),
    /// The peer is not a manager's server, or has an incompatible version.
    #[error("the other side is not a manager's server of this version of the library: {0}")]
    Incompatible(String),
    /// Operation on shared memory failed: the memory is full or unavailable, or belongs to another process.
    #[error("{0}")]
    Failed(#[from] mp_reduce::Error),
}

mp_core::readable_debug!(CallError, ManagerError);

impl From<mp_core::Error> for ManagerError {
    fn from(error: mp_core::Error) -> Self {
        ManagerError::Failed(error.into())
    }
}
