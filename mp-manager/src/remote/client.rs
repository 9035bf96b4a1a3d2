//! The server of a manager in another program.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::Message;
use mp_core::message::level::afresh;
use mp_core::mutex::Mutex;
use mp_queue::{Address, ConnectError, Connection, GetError, PutError, SocketOptions};
use mp_spawn::Raise;

use crate::answer::Body;
use crate::error::{CallError, CallName, ManagerError};
use crate::object::write_args;
use crate::proxy::read_value;
use crate::remote::wire::{Ask, Framed, Names, Reply, VERSION};

/// How long the other side may take to say that it is a server.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The server of a manager in another program of the same user: makes and finds objects there by their names.
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
/// [`Connection`] can [invite](mp_queue::Connection::invite) another program.
///
/// It can be cloned, and threads may use it at once. What it has made or found there is freed when its last handle is gone, here and
/// there: also when this process dies. A forked copy of this process can't use it.
///
/// # When a process dies
/// When the server ends, each call that waits and each one after that is [`CallError::ServerGone`]. When this process is killed, a call
/// that it had sent runs, or does not.
#[derive(Clone)]
pub struct RemoteManager(Arc<Session>);

/// What a program has of the server of another one.
struct Session {
    options: SocketOptions,
    address: Address,
    number: u64,
    server: u32,
    /// The process that has connected.
    process: u32,
    /// Keeps the session in the server, and tells it of handles that are gone.
    keeper: Mutex<Keeper>,
    /// Connections that have nothing to do.
    idle: Mutex<Vec<Connection>>,
}

struct Keeper {
    connection: Connection,
    /// Handles that are gone, and of which the server does not know.
    gone: Vec<u64>,
}

/// An object in the server of [another program](RemoteManager), whose methods are called by their names.
///
/// It can be cloned. The object lives as long as there is a handle, here or there.
///
/// # Blocking
/// A call waits until the object has done the calls that were sent before it, and this one; how long at most, says
/// [`with_timeout`](Self::with_timeout).
#[derive(Clone)]
pub struct RemoteProxy {
    held: Arc<Held>,
    timeout: Option<Duration>,
}

/// A handle that the server counts.
struct Held {
    session: Arc<Session>,
    object: u64,
    type_name: String,
}

impl RemoteManager {
    /// Connects to the server that [listens](crate::ManagerHandle::serve) at an address. Each side proves that it knows the key; an empty
    /// one is none. Waits until the server accepts, ten seconds at most.
    ///
    /// # Errors
    /// [`ManagerError::Connect`]: no server listens there, or one of another user or with another key;
    /// [`ManagerError::Incompatible`] when it is another kind of program that listens there.
    pub fn connect(address: impl Into<Address>, authkey: impl AsRef<[u8]>) -> Result<Self, ManagerError> {
        let (address, options) = (address.into(), SocketOptions::new().authkey(authkey));
        let absolute = address.absolute();
        let address =
            absolute.map_err(|source| mp_core::Error::Os { what: "the current directory", source })?;
        let until = Instant::now() + TIME_LIMIT;
        let connection = options.connect(&address)?;
        let strange = |why: String| ManagerError::Incompatible(why);
        let open = Framed::bare(Ask::Open { version: VERSION });
        connection.send_deadline(open, until).map_err(|error| strange(error.to_string()))?;
        match connection.recv_deadline::<Framed<Reply>>(until).map(|framed| framed.head) {
            Ok(Reply::Opened { session, server }) => Ok(RemoteManager(Arc::new(Session {
                options,
                address,
                number: session,
                server,
                process: std::process::id(),
                keeper: Mutex::new(Keeper { connection, gone: Vec::new() }),
                idle: Mutex::default(),
            }))),
            Ok(Reply::Refused(why)) => Err(strange(why)),
            Ok(_) => Err(strange("it replies to something else".into())),
            Err(GetError::Interrupted) => Err(mp_core::Error::Interrupted.into()),
            Err(GetError::Empty) => Err(ConnectError::TimedOut(TIME_LIMIT).into()),
            Err(GetError::Disconnected) => Err(ConnectError::Gone.into()),
            Err(error) => Err(strange(error.to_string())),
        }
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
        let ask = Ask::Create { type_name: type_name.to_string() };
        let framed = Framed { head: ask, body: written(args)? };
        self.0.ask(framed, None, &call).and_then(|reply| self.handle(reply))
    }

    /// Finds an object that is [published](crate::ManagerHandle::publish) there by a name.
    ///
    /// # Errors
    /// [`CallError::NoSuchObject`]; else see the table at [`CallError`].
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<RemoteProxy, CallError> {
        let call = CallName::here("RemoteManager::get", name.to_string());
        let ask = Framed::bare(Ask::Find { name: name.to_string() });
        self.0.ask(ask, None, &call).and_then(|reply| self.handle(reply))
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
        self.0.server
    }

    #[track_caller]
    fn names(&self) -> Result<Names, CallError> {
        let call = CallName::here("RemoteManager", "names");
        match self.0.ask(Framed::bare(Ask::Names), None, &call)?.head {
            Reply::Names(names) => Ok(names),
            other => Err(unexpected(other, &call)),
        }
    }

    fn handle(&self, reply: Framed<Reply>) -> Result<RemoteProxy, CallError> {
        match reply.head {
            Reply::Object { object, type_name } => {
                let held = Held { session: Arc::clone(&self.0), object, type_name };
                Ok(RemoteProxy { held: Arc::new(held), timeout: None })
            }
            other => Err(unexpected(other, &CallName::here("RemoteManager", "an object"))),
        }
    }
}

impl RemoteProxy {
    /// Calls a method by its registered name, and returns its result. Several arguments are a tuple, none are `()`. The type of the
    /// result is that which this program names: of a method that returns `Result<R, E>` it is `R`.
    ///
    /// ```
    /// # use mp_manager::{Manager, Methods, RemoteManager};
    /// # use mp_spawn::closure;
    /// # let manager = Manager::start()?;
    /// # let add = closure!([] |sum: &mut i64, a: i64, b: i64| { *sum += a + b; *sum });
    /// # manager.register(Methods::<i64>::of("Sum").constructor(closure!([] || 0_i64)).method("add", add))?;
    /// # manager.serve("@example-of-remote-call", b"a secret")?;
    /// # let remote = RemoteManager::connect("@example-of-remote-call", b"a secret")?;
    /// let sum = remote.create("Sum", ())?;
    /// let total: i64 = sum.call("add", (2, 3))?;
    /// assert_eq!(total, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::NoSuchMethod`], with those that there are; else see the table at [`CallError`].
    #[track_caller]
    pub fn call<R: Message>(&self, method: &str, args: impl Message) -> Result<R, CallError> {
        let call = CallName::here(method.to_string(), self.held.type_name.clone());
        let ask = Ask::Call { object: self.held.object, method: method.to_string() };
        let framed = Framed { head: ask, body: written(args)? };
        let reply = self.held.session.ask(framed, self.timeout, &call)?;
        match reply.head {
            Reply::Done => read_value(reply.body.into_incoming()),
            other => Err(unexpected(other, &call)),
        }
    }

    /// Frees the object now, whatever handles there are: see [`Proxy::free`](crate::Proxy::free).
    ///
    /// # Errors
    /// See the table at [`CallError`]; none if it was freed before.
    #[track_caller]
    pub fn free(&self) -> Result<(), CallError> {
        let call = CallName::here("RemoteProxy::free", self.held.type_name.clone());
        let ask = Framed::bare(Ask::Free { object: self.held.object });
        match self.held.session.ask(ask, self.timeout, &call)?.head {
            Reply::Freed => Ok(()),
            other => Err(unexpected(other, &call)),
        }
    }

    /// The same object; calls by this handle and its clones wait at most this long. The call is not taken back: it runs when its turn
    /// comes, or runs on.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        RemoteProxy { timeout: Some(timeout), ..self }
    }

    /// The name that its type is registered by.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.held.type_name
    }

    /// Whether both are handles to one object.
    #[must_use]
    pub fn is_same_object(&self, other: &RemoteProxy) -> bool {
        let id = |proxy: &RemoteProxy| (proxy.held.session.server, proxy.held.object);
        id(self) == id(other)
    }
}

/// Encodes arguments: code of the user.
fn written(args: impl Message) -> Result<Body, CallError> {
    let mut args = args;
    let unsendable = |why| CallError::Arguments { why, undecodable: None };
    match Raise::catch(|| afresh(|| write_args(&mut args))) {
        Ok(Ok(body)) => Ok(Body::Out(body)),
        Ok(Err(mp_core::Error::Unsendable(why))) => Err(unsendable(why)),
        Ok(Err(error)) => Err(error.into()),
        Err(raise) => Err(unsendable(format!("its `Serialize` panicked: {}", raise.message()))),
    }
}

/// The error that a reply is.
#[cold]
fn unexpected(reply: Reply, call: &CallName) -> CallError {
    match reply {
        Reply::Failed(error) => error.of_call(call),
        Reply::Refused(why) => mp_core::Error::Malformed(why).into(),
        _ => mp_core::Error::Malformed("a reply to another request".into()).into(),
    }
}

impl Session {
    /// Sends a request by a connection of its own, and waits for the reply to it.
    fn ask(
        &self,
        ask: Framed<Ask>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Framed<Reply>, CallError> {
        if self.process != std::process::id() {
            let why = "a forked copy has its original's connections to a manager's server: connect here";
            return Err(mp_core::Error::Unsupported(why.into()).into());
        }
        self.tell(None);
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.join(until, timeout, call)?,
        };
        // Without a reply it is closed: none that comes later is taken for that to another request.
        let reply = self.round_trip(&connection, ask, until, timeout, call)?;
        if !matches!(reply.head, Reply::Refused(_))
            || mp_core::mutant!("manager.remote.refused-connection-kept")
        {
            self.idle.lock().push(connection);
        }
        Ok(reply)
    }

    /// A connection for calls.
    fn join(
        &self,
        until: Option<Instant>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Connection, CallError> {
        let connection = loop {
            let left = until.map_or(TIME_LIMIT, |until| until.saturating_duration_since(Instant::now()));
            let options = self.options.clone().handshake_timeout(left.min(TIME_LIMIT));
            match options.connect(&self.address) {
                Ok(connection) => break connection,
                // It is stopped, or lacks descriptors: as long as the call may wait.
                Err(ConnectError::TimedOut(_)) if left >= TIME_LIMIT => {}
                Err(ConnectError::TimedOut(_)) => {
                    let (call, timeout) = (call.clone(), timeout.unwrap_or_default());
                    return Err(CallError::TimedOut { call, timeout, server: self.server });
                }
                Err(ConnectError::Io { what, source, .. })
                    if !matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
                {
                    return Err(mp_core::Error::Os { what, source }.into());
                }
                Err(_) => return Err(CallError::ServerGone { server: self.server }),
            }
        };
        let join = Framed::bare(Ask::Join { session: self.number });
        match self.round_trip(&connection, join, until, timeout, call)?.head {
            Reply::Joined => Ok(connection),
            // Another server listens there by now.
            Reply::Refused(_) => Err(CallError::ServerGone { server: self.server }),
            other => Err(unexpected(other, call)),
        }
    }

    fn round_trip(
        &self,
        connection: &Connection,
        ask: Framed<Ask>,
        until: Option<Instant>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Framed<Reply>, CallError> {
        let late = || CallError::TimedOut {
            call: call.clone(),
            timeout: timeout.unwrap_or_default(),
            server: self.server,
        };
        let sent = match until {
            Some(until) => connection.send_deadline(ask, until),
            None => connection.send(ask),
        };
        match sent {
            Ok(()) => {}
            Err(PutError::Full(_)) => return Err(late()),
            Err(PutError::Interrupted(_)) => return Err(CallError::Interrupted),
            Err(PutError::Failed { error, .. }) => {
                return Err(CallError::Arguments { why: error.to_string(), undecodable: None });
            }
            Err(_) => return Err(CallError::ServerGone { server: self.server }),
        }
        let reply = match until {
            Some(until) => connection.recv_deadline(until),
            None => connection.recv(),
        };
        reply.map_err(|error| match error {
            GetError::Empty => late(),
            GetError::Interrupted => CallError::Interrupted,
            GetError::Failed(error) => error.into(),
            _ => CallError::ServerGone { server: self.server },
        })
    }

    /// Tells the server that a handle is gone, and what it could not be told before.
    fn tell(&self, gone: Option<u64>) {
        let mut keeper = self.keeper.lock();
        keeper.gone.extend(gone);
        if keeper.gone.is_empty() {
            return;
        }
        let objects = std::mem::take(&mut keeper.gone);
        let told = keeper.connection.try_send(Framed::bare(Ask::Forget { objects }));
        // There is no room as long as the server is stopped.
        if let Err(PutError::Full(framed)) = told
            && let Ask::Forget { objects } = framed.head
        {
            keeper.gone = objects;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a copy of the process the sockets are the original's.
        if self.session.process == std::process::id()
            && !mp_core::mutant!("manager.remote.handle-not-forgotten")
        {
            self.session.tell(Some(self.object));
        }
    }
}

impl fmt::Debug for RemoteManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteManager(server {} at {})", self.0.server, self.0.address)
    }
}

impl fmt::Debug for RemoteProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { session, object, type_name } = &*self.held;
        write!(f, "RemoteProxy<{type_name}>(object {object} of server {})", session.server)
    }
}
