//! The server of a manager in another program.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::Message;
use mp_queue::{Address, ConnectError};

use crate::error::{CallError, CallName, ManagerError};
use crate::remote::connected::{Session, unexpected, written};
use crate::remote::key::AuthKey;
use crate::remote::proxy::RemoteProxy;
use crate::remote::wire::{Ask, Framed, Names, Reply};

/// The server of a manager in another program, of the same user or, over TCP, on any machine: makes and finds
/// objects there by their names.
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
/// // Another one, of another build, or of the same:
/// let remote = RemoteManager::connect("@example-of-remote", b"a secret")?;
/// let log = remote.create("Log", ())?;
/// assert_eq!(log.call::<usize>("add", "started".to_string())?, 1);
/// let error = log.call::<()>("clear", ()).unwrap_err();
/// assert!(error.to_string().contains("there is `add`"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Arguments and results travel as bytes, over a socket: numbers, strings, collections, structs with serde. Both programs name a
/// method's types on their own; if what one has sent can't be read as what the other one names, that is [`CallError::Arguments`] or
/// [`CallError::Value`]. A tensor, queue or lock is in the memory of one program, and is refused: for these, a
/// [`Connection`](mp_queue::Connection) can [invite](mp_queue::Connection::invite) another program.
///
/// It can be cloned, and threads may use it at once. What it has made or found there is freed when its last
/// handle is gone, here and there: also when this process dies. A forked copy of this process can't use it,
/// and keeps nothing of it alive, but what this process had [received](RemoteProxy#sent-to-other-processes)
/// in messages and not called yet. (The server notices that this process was killed although a copy lives by
/// a pidfd: on Linux 5.3 or later, in one pid namespace, and not over TCP.)
///
/// # Blocking
/// Each request waits for its reply, and a constructor runs as long as it takes; how long at most, says [`with_timeout`](Self::with_timeout).
///
/// # When a process dies
/// When the server ends, each call that waits and each one after that is [`CallError::ServerGone`]. When this process is killed, a call
/// that it had sent runs, or does not.
#[derive(Clone)]
pub struct RemoteManager {
    session: Arc<Session>,
    timeout: Option<Duration>,
}

impl RemoteManager {
    /// Connects to the server that [listens](crate::ManagerHandle::serve) at an address. Each side proves that it knows the key, unless
    /// both have [none](crate::no_key). Waits until the server accepts, ten seconds at most, or as long as
    /// [`SocketOptions::handshake_timeout`](mp_queue::SocketOptions::handshake_timeout) says if the key is in [`SocketOptions`](mp_queue::SocketOptions).
    ///
    /// # Errors
    /// [`ManagerError::Connect`]: no server listens there, or one of another user or with another key, or the key is empty;
    /// [`ManagerError::Incompatible`] when it is another kind of program that listens there.
    pub fn connect(address: impl Into<Address>, authkey: impl AuthKey) -> Result<Self, ManagerError> {
        let (address, options) = (address.into(), authkey.into_options());
        let absolute = address.absolute();
        let address =
            absolute.map_err(|source| mp_core::Error::Os { what: "the current directory", source })?;
        let time = options.time_for_handshake();
        match Session::open(options, address, Instant::now().checked_add(time)) {
            Ok(session) => Ok(RemoteManager { session: Arc::new(session), timeout: None }),
            Err(ManagerError::Connect(ConnectError::TimedOut(_))) => Err(ConnectError::TimedOut(time).into()),
            Err(error) => Err(error),
        }
    }

    /// The same server; by this handle and its clones, what makes and finds objects waits at most this long, and so do calls by the
    /// proxies that it returns, until these are given [their own](RemoteProxy::with_timeout) time-out. An object that is made later than
    /// that is freed at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_manager::{CallError, Manager, Methods, RemoteManager};
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// manager.register(Methods::<u8>::of("Slow").constructor(closure!([] || -> u8 { std::thread::park(); 1 })))?;
    /// manager.serve("@example-of-create-timeout", b"a secret")?;
    ///
    /// let remote = RemoteManager::connect("@example-of-create-timeout", b"a secret")?;
    /// let remote = remote.with_timeout(Duration::from_millis(20));
    /// let error = remote.create("Slow", ()).unwrap_err();
    /// assert!(matches!(error, CallError::TimedOut { .. }));
    /// assert!(error.to_string().contains("`constructor`") && error.to_string().contains("@example-of-create-timeout"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        RemoteManager { timeout: Some(timeout), ..self }
    }

    /// How long requests by this handle wait at most; `None` is for ever.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Makes an object there, of a type by its registered name, with what its constructor takes: nothing is `()`, several arguments are
    /// a tuple.
    ///
    /// # Errors
    /// [`CallError::NoSuchType`]; [`CallError::NoSuchMethod`] when the type has no constructor; [`CallError::Raised`] when that fails;
    /// else see the table at [`CallError`].
    #[track_caller]
    pub fn create<A: Message>(&self, type_name: &str, args: A) -> Result<RemoteProxy, CallError> {
        let call = CallName::here("constructor", type_name.to_string());
        let body = written(args)?;
        let ask = |handle| Framed { head: Ask::Create { type_name: type_name.to_string(), handle }, body };
        let held = self.session.ask_for_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy::new(held, self.timeout))
    }

    /// Finds an object that is [published](crate::ManagerHandle::publish) there by a name.
    ///
    /// # Errors
    /// [`CallError::NoSuchObject`]; else see the table at [`CallError`].
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<RemoteProxy, CallError> {
        let call = CallName::here("RemoteManager::get", name.to_string());
        let ask = |handle| Framed::bare(Ask::Find { name: name.to_string(), handle });
        let held = self.session.ask_for_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy::new(held, self.timeout))
    }

    /// The types that are registered there, each with its methods.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn types(&self) -> Result<BTreeMap<String, Vec<String>>, CallError> {
        Ok(self.names()?.types)
    }

    /// The objects that are published there, each with the name of its type.
    ///
    /// # Errors
    /// See the table at [`CallError`].
    #[track_caller]
    pub fn objects(&self) -> Result<BTreeMap<String, String>, CallError> {
        Ok(self.names()?.objects)
    }

    /// The process id of the server.
    #[must_use]
    pub fn server_pid(&self) -> u32 {
        self.session.server
    }

    #[track_caller]
    fn names(&self) -> Result<Names, CallError> {
        let call = CallName::here("names", "RemoteManager");
        match self.session.ask(Framed::bare(Ask::Names), self.timeout, &call)?.head {
            Reply::Names(names) => Ok(names),
            other => Err(unexpected(other, &call)),
        }
    }
}

impl fmt::Debug for RemoteManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteManager(server {} at {})", self.session.server, self.session.address)
    }
}
