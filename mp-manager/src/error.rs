//! What can go wrong with a call, and with the manager itself.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use mp_core::INTERRUPTED;
use mp_core::message::Undecodable;
use mp_core::sent;
use mp_queue::{Address, ConnectError};
use mp_spawn::{ProcessRaised, SpawnError};
use serde::{Deserialize, Serialize};

/// A call, as errors name it: the closure's name as the compiler gives it, or the name of a method, and where the program calls it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallName {
    /// The closure, or the method.
    pub closure: Cow<'static, str>,
    /// The type of the object.
    pub object: Cow<'static, str>,
    /// File, line and column of the call.
    pub location: CallLocation,
}

impl CallName {
    /// A call of the function that called this one, by its `#[track_caller]`.
    #[track_caller]
    pub(crate) fn here(closure: impl Into<Cow<'static, str>>, object: impl Into<Cow<'static, str>>) -> Self {
        CallName { closure: closure.into(), object: object.into(), location: Location::caller().into() }
    }
}

/// Where a call is in its program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallLocation {
    /// The file.
    pub file: Cow<'static, str>,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
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

/// Why a call has no result.
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
/// # What a failure looks like
///
/// | what happens | this call | the object | other calls |
/// |---|---|---|---|
/// | the closure returns `Err`, or panics | [`Raised`](Self::Raised): message, sources, place of the panic | lives on, as the closure left it | go on |
/// | what makes an object returns `Err`, or panics | [`Raised`](Self::Raised), of [`create`](crate::ManagerHandle::create) | there is none | go on |
/// | it takes longer than the proxy [waits](crate::Proxy::with_timeout) | [`TimedOut`](Self::TimedOut), with the call's name; it runs on, and what it returns is dropped | goes on | wait for it if they are of the same object |
/// | the object was [freed](crate::Proxy::free) | [`Freed`](Self::Freed) | is gone | the same |
/// | the server is killed, crashes, calls `exit`, is [shut down](crate::Manager::shutdown) | [`ServerGone`](Self::ServerGone): at once if the parent of the server is alive, at most some 100 ms later otherwise | is gone | the same |
/// | the server is stopped (SIGSTOP, a debugger) | waits, for as long as it takes or the proxy waits | waits | wait |
/// | the caller is killed | runs, if it was sent | lives on, if another process has a proxy | go on |
/// | a call of an object calls that object | [`OwnObject`](Self::OwnObject), at once | lives on | go on |
/// | objects of one server call each other in a ring | [`Ring`](Self::Ring), at once, of the call that closes it | live on | go on |
/// | [another program](crate::RemoteManager) names a type, method or object that there is not | [`NoSuchType`](Self::NoSuchType), [`NoSuchMethod`](Self::NoSuchMethod), [`NoSuchObject`](Self::NoSuchObject), with those that there are | lives on | go on |
/// | arguments, a result or what a closure captures can't be encoded, or not be decoded | [`Arguments`](Self::Arguments), [`Value`](Self::Value) | lives on | go on |
/// | SIGINT or SIGTERM, of which this process [is informed](mp_spawn::Interrupt::Graceful) | [`Interrupted`](Self::Interrupted); it runs on | goes on | go on |
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum CallError {
    /// The closure returned an error or panicked, in the server.
    Raised(Box<ProcessRaised>),
    /// There was no answer in the time that the proxy waits. The call may wait for its turn still, or run: it is not taken back.
    TimedOut {
        /// Which call.
        call: CallName,
        /// How long this process waited.
        timeout: Duration,
        /// The process id of the server.
        server: u32,
        /// Where it listens, if it is the server of [another program](crate::RemoteManager).
        address: Option<Box<Address>>,
        /// Whether it was sent. If not, it does not run: the server of another program has not accepted a connection for it, as it is
        /// stopped, or lacks descriptors or threads.
        sent: bool,
    },
    /// The object was freed by [`Proxy::free`](crate::Proxy::free).
    Freed {
        /// Which call.
        call: CallName,
    },
    /// The server has ended: its owner shut it down, or it died.
    ServerGone {
        /// The process id that it had.
        server: u32,
    },
    /// The call was made within a call of the same object, which it would wait for.
    OwnObject {
        /// Which call.
        call: CallName,
    },
    /// The call was made within a call of an object for which the called one waits, itself or by others: each would wait for the next.
    Ring {
        /// Which call.
        call: CallName,
        /// The calls that wait, beginning with that of the called object; the last one is of the object in which this call is.
        waiting: Vec<CallName>,
    },
    /// No type was [registered](crate::ManagerHandle::register) by this name.
    NoSuchType {
        /// The name.
        name: String,
        /// Those that were.
        known: Vec<String>,
    },
    /// The type of the object was registered without a method of this name, or, for [`create`](crate::RemoteManager::create), without a
    /// constructor.
    NoSuchMethod {
        /// Which call.
        call: CallName,
        /// Its methods.
        known: Vec<String>,
    },
    /// No object was [published](crate::ManagerHandle::publish) by this name.
    NoSuchObject {
        /// The name.
        name: String,
        /// Those that were.
        known: Vec<String>,
    },
    /// The object is of another type than the proxy.
    WrongType {
        /// Which call.
        call: CallName,
        /// The type of the object.
        found: String,
    },
    /// What was to be sent could not be encoded here, or not be decoded in the server.
    Arguments {
        /// Why.
        why: String,
        /// In the server: which type it was read as, the place that could not be read, and its bytes.
        #[serde(with = "sent::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
    },
    /// What the closure returned could not be encoded in the server, or not be decoded here.
    Value {
        /// Why.
        why: String,
        /// Here: which type it was read as, the place that could not be read, and its bytes.
        #[serde(with = "sent::shared::option")]
        undecodable: Option<Arc<Undecodable>>,
    },
    /// There is no connection to the server of [another program](crate::RemoteProxy#sent-to-other-processes): why.
    Connect(Box<ConnectError>),
    /// The server has no thread for another object.
    NoThread {
        /// Why.
        why: String,
    },
    /// This process was interrupted (SIGINT, SIGTERM) while it waited ([`interrupted`](mp_core::interrupted)).
    Interrupted,
    /// Shared memory: none left, this process was forked, and so on.
    Failed(mp_reduce::Error),
}

impl CallError {
    /// What could not be read, arguments in the server or the result here: type, place, reason. `None` when that is not what went
    /// wrong.
    pub fn undecodable(&self) -> Option<&Undecodable> {
        match self {
            CallError::Arguments { undecodable, .. } | CallError::Value { undecodable, .. } => {
                undecodable.as_deref()
            }
            _ => None,
        }
    }

    /// Whether the server is gone, with all objects.
    pub fn is_server_gone(&self) -> bool {
        matches!(self, CallError::ServerGone { .. })
    }

    /// The same error, of a call that was not sent.
    #[cfg(feature = "authkey")]
    pub(crate) fn unsent(mut self) -> Self {
        if let CallError::TimedOut { sent, .. } = &mut self {
            *sent = false;
        }
        self
    }

    /// The same error, of the call that this process made.
    #[cfg(feature = "authkey")]
    pub(crate) fn of_call(mut self, own: &CallName) -> Self {
        match &mut self {
            CallError::TimedOut { call, .. }
            | CallError::Freed { call }
            | CallError::OwnObject { call }
            | CallError::Ring { call, .. }
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
                    "), or that is stopped; it is not taken back"
                } else {
                    "), which is stopped, or has as many files open or threads as it may (`ulimit -n`, `ulimit -u`): it does not run"
                })
            }
            CallError::Freed { call } => write!(f, "{call} came after the object was freed (Proxy::free)"),
            CallError::ServerGone { server } => write!(
                f,
                "the manager's server (pid {server}) is gone, and all its objects with it: it died, or its owner has shut it down or \
                 dropped the Manager"
            ),
            CallError::OwnObject { call } => write!(
                f,
                "{call} was made within a call of the same object, and would wait for itself: do it in that call, by its `&mut`"
            ),
            CallError::Ring { call, waiting } => {
                write!(f, "{call} would wait for itself: the object is in a call that waits for this one")?;
                waiting.iter().try_for_each(|next| write!(f, "; {next} waits"))?;
                f.write_str(
                    "; make one of them without waiting for its result, or outside of the other's call",
                )
            }
            CallError::NoSuchType { name, known } => {
                write!(f, "no type is registered as `{name}` (ManagerHandle::register){}", Known(known))
            }
            CallError::NoSuchMethod { call, known } => {
                write!(f, "{call}: `{}` is registered without it{}", call.object, Known(known))
            }
            CallError::NoSuchObject { name, known } => {
                write!(f, "no object is published as `{name}` (ManagerHandle::publish){}", Known(known))
            }
            CallError::WrongType { call, found } => {
                write!(f, "{call} met an object of another type, `{found}`")
            }
            CallError::Arguments { why, undecodable: None } => {
                write!(f, "what the call takes can't be sent: {why}")
            }
            CallError::Arguments { why, undecodable: Some(_) } => {
                write!(f, "what the call takes can't be received by the manager's server: {why}")
            }
            CallError::Value { why, undecodable: None } => {
                write!(f, "what the call returned can't be sent: {why}")
            }
            CallError::Value { why, undecodable: Some(_) } => {
                write!(f, "what the call returned can't be received: {why}")
            }
            CallError::Connect(error) => write!(f, "no connection to the manager's server: {error}"),
            CallError::NoThread { why } => {
                write!(
                    f,
                    "the manager's server has no thread for another object: {why}; free some, or put several values into one object"
                )
            }
            CallError::Interrupted => f.write_str(INTERRUPTED),
            CallError::Failed(error) => error.fmt(f),
        }
    }
}

/// What there is, behind a message about what there is not.
struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
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

/// Why there is no manager, or why it ended badly.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum ManagerError {
    /// The server could not be started.
    Start(SpawnError),
    /// The server ended otherwise than by [`shutdown`](crate::Manager::shutdown): how.
    Server(SpawnError),
    /// The server did not end in time, and was killed: it was stopped, or a `Drop` of an object did not return.
    Killed {
        /// The process id that it had.
        server: u32,
        /// Time that it was given: the grace period, and for a server that was not stopped five seconds more.
        grace: Duration,
    },
    /// There is no connection to the server of [another program](crate::RemoteManager): why.
    Connect(ConnectError),
    /// The other side is no server of a manager, or of another version: why.
    Incompatible(String),
    /// Shared memory: none left, forked, and so on.
    Failed(mp_reduce::Error),
}

impl fmt::Display for ManagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ManagerError::Start(error) => write!(f, "the manager's server could not be started: {error}"),
            ManagerError::Server(error) => write!(f, "the manager's server ended: {error}"),
            ManagerError::Killed { server, grace } => {
                write!(f, "the manager's server (pid {server}) did not end within {grace:?} and was killed")
            }
            ManagerError::Connect(error) => write!(f, "no connection to the manager's server: {error}"),
            ManagerError::Incompatible(why) => {
                write!(f, "the other side is no manager's server of this version of the library: {why}")
            }
            ManagerError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ManagerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ManagerError::Start(error) | ManagerError::Server(error) => Some(error),
            ManagerError::Connect(error) => Some(error),
            ManagerError::Failed(error) => Some(error),
            ManagerError::Killed { .. } | ManagerError::Incompatible(_) => None,
        }
    }
}

mp_core::readable_debug!(CallError, ManagerError);

impl From<SpawnError> for ManagerError {
    fn from(error: SpawnError) -> Self {
        ManagerError::Start(error)
    }
}

impl From<ConnectError> for ManagerError {
    fn from(error: ConnectError) -> Self {
        ManagerError::Connect(error)
    }
}

impl From<mp_reduce::Error> for ManagerError {
    fn from(error: mp_reduce::Error) -> Self {
        ManagerError::Failed(error)
    }
}

impl From<mp_core::Error> for ManagerError {
    fn from(error: mp_core::Error) -> Self {
        ManagerError::Failed(error.into())
    }
}
