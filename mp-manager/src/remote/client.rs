//! Connections to the manager's server of another program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::Message;
use mp_queue::{Address, ConnectError};

use crate::error::{CallError, CallName, ManagerError};
use crate::remote::client_session::{ClientSession, encode_args, reply_error};
use crate::remote::key_argument::IntoAuthKey;
use crate::remote::proxy::RemoteProxy;
use crate::remote::wire::{Ask, Framed, OfferedNames, Reply};

/// Handle of the manager's server in another program, of the same user or, over TCP, on any machine. Creates
/// and finds objects there by name.
///
/// ```
/// use mp_manager::{Manager, Methods, RemoteManager};
/// use mp_spawn::closure;
///
/// // One program:
/// let manager = Manager::start()?;
/// manager.register(
///     Methods::<Vec<String>>::of("Log")
///         .constructor(closure!([] || Vec::new()))
///         .method("add", closure!([] |log: &mut Vec<String>, line: String| { log.push(line); log.len() })),
/// )?;
/// manager.serve("@example-of-remote", b"a secret")?;
///
/// // Another program, of another build or of the same:
/// let remote = RemoteManager::connect("@example-of-remote", b"a secret")?;
/// let log = remote.create("Log", ())?;
/// assert_eq!(log.call::<usize>("add", "started".to_string())?, 1);
/// let error = log.call::<()>("clear", ()).unwrap_err();
/// assert!(error.to_string().contains("there is `add`"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Arguments and results are sent as bytes, over a socket: numbers, strings, collections, structs with serde.
/// Each program declares the types of a method itself. If data can't be decoded as the type that the receiver
/// declares, the error is [`CallError::Arguments`] or [`CallError::Value`]. Tensors, queues and locks are in
/// the memory of one program, and are refused: for these, a [`Connection`](mp_queue::Connection) can
/// [invite](mp_queue::Connection::invite) another program.
///
/// A handle can be cloned, and used by several threads at the same time. Objects that were created or found
/// with it are freed when their last handle is dropped, in this and the other program, including when this
/// process dies. A fork of this process can't use the handle, and keeps no objects alive, except objects that
/// this process had [received](RemoteProxy#sent-to-other-processes) in messages and not called yet. (If this
/// process is killed while a fork lives, the server detects the death through a pidfd. This needs Linux 5.3
/// or later and one pid namespace, and does not work over TCP.)
///
/// # Blocking
/// Each request blocks until its reply arrives. A constructor may take any time.
/// [`with_timeout`](Self::with_timeout) limits the wait.
///
/// # When a process dies
/// When the server ends, all pending and later calls return [`CallError::ServerGone`]. When this process is
/// killed, a call that it had sent may or may not run.
#[derive(Clone)]
pub struct RemoteManager {
    session: Arc<ClientSession>,
    timeout: Option<Duration>,
}

impl RemoteManager {
    /// Connects to the server that [listens](crate::ManagerHandle::serve) at an address. Each side proves
    /// that it knows the key, unless both have [none](crate::no_key). Blocks until the server accepts, for at
    /// most ten seconds, or for the time set by
    /// [`SocketOptions::handshake_timeout`](mp_queue::SocketOptions::handshake_timeout) if the key is in
    /// [`SocketOptions`](mp_queue::SocketOptions).
    ///
    /// # Errors
    /// [`ManagerError::Connect`] if no server listens there, if the server has another user or another key,
    /// or if the key is empty. [`ManagerError::Incompatible`] if another kind of program listens there.
    pub fn connect(address: impl Into<Address>, authkey: impl IntoAuthKey) -> Result<Self, ManagerError> {
        let (address, options) = (address.into(), authkey.into_options());
        let absolute = address.absolute();
        let address =
            absolute.map_err(|source| mp_core::Error::Os { what: "the current directory", source })?;
        let time = options.time_for_handshake();
        match ClientSession::open(options, address, Instant::now().checked_add(time)) {
            Ok(session) => Ok(RemoteManager { session: Arc::new(session), timeout: None }),
            Err(ManagerError::Connect(ConnectError::TimedOut(_))) => Err(ConnectError::TimedOut(time).into()),
            Err(error) => Err(error),
        }
    }

    /// Sets a time-out for creating and finding objects by this handle and its clones. The time-out also
    /// applies to calls by the proxies that this handle returns, unless a proxy has [its
    /// own](RemoteProxy::with_timeout) time-out. An object that is created too late is freed at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_manager::{CallError, Manager, Methods, RemoteManager};
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// let slow = closure!([] || -> u8 { std::thread::park(); 1 });
    /// manager.register(Methods::<u8>::of("Slow").constructor(slow))?;
    /// manager.serve("@example-of-create-timeout", b"a secret")?;
    ///
    /// let remote = RemoteManager::connect("@example-of-create-timeout", b"a secret")?;
    /// let remote = remote.with_timeout(Duration::from_millis(20));
    /// let error = remote.create("Slow", ()).unwrap_err();
    /// assert!(matches!(error, CallError::TimedOut { .. }));
    /// let error = error.to_string();
    /// assert!(error.contains("`constructor`") && error.contains("@example-of-create-timeout"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        RemoteManager { timeout: Some(timeout), ..self }
    }

    /// Returns the time-out of requests by this handle; `None` means no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Creates an object in the server, of the type with this registered name, from the arguments of its
    /// constructor. Pass `()` for no arguments, and a tuple for several.
    ///
    /// # Errors
    /// [`CallError::NoSuchType`], [`CallError::NoSuchMethod`] if the type has no constructor,
    /// [`CallError::Raised`] if the constructor fails. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn create<A: Message>(&self, type_name: &str, args: A) -> Result<RemoteProxy, CallError> {
        let call = CallName::at_caller("constructor", type_name.to_string());
        let body = encode_args(args)?;
        let ask = |handle| Framed { head: Ask::Create { type_name: type_name.to_string(), handle }, body };
        let held = self.session.request_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy::new(held, self.timeout))
    }

    /// Finds an object that is [published](crate::ManagerHandle::publish) in the server under a name.
    ///
    /// # Errors
    /// [`CallError::NoSuchObject`]. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<RemoteProxy, CallError> {
        let call = CallName::at_caller("RemoteManager::get", name.to_string());
        let ask = |handle| Framed::bare(Ask::Find { name: name.to_string(), handle });
        let held = self.session.request_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy::new(held, self.timeout))
    }

    /// Returns the types that are registered in the server, each with its methods.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn types(&self) -> Result<BTreeMap<String, Vec<String>>, CallError> {
        Ok(self.names()?.types)
    }

    /// Returns the objects that are published in the server, each with the name of its type.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn objects(&self) -> Result<BTreeMap<String, String>, CallError> {
        Ok(self.names()?.objects)
    }

    /// Returns the process id of the server.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.session.server
    }

    #[track_caller]
    fn names(&self) -> Result<OfferedNames, CallError> {
        let call = CallName::at_caller("names", "RemoteManager");
        match self.session.request(Framed::bare(Ask::Names), self.timeout, &call)?.head {
            Reply::Names(names) => Ok(names),
            other => Err(reply_error(other, &call)),
        }
    }
}

impl fmt::Debug for RemoteManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteManager(server {} at {})", self.session.server, self.session.address)
    }
}
