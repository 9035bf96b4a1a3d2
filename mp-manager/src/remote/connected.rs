//! What a program has of the server of another one: a session, connections for its calls, and handles.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
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
use crate::remote::wire::{Ask, Framed, Reply, VERSION};

/// How long the other side may take to say that it is a server.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What a program has of the server of another one.
pub(super) struct Session {
    options: SocketOptions,
    pub(super) address: Address,
    number: u64,
    pub(super) server: u32,
    /// The process that has connected.
    process: u32,
    /// Keeps the session in the server, and tells it of handles that are gone.
    keeper: Mutex<Keeper>,
    /// Connections that have nothing to do.
    idle: Mutex<Vec<Connection>>,
}

struct Keeper {
    connection: Connection,
    /// The number of the next handle.
    next: u64,
    /// Handles that are gone, and of which the server does not know.
    gone: Vec<u64>,
}

/// A handle that the server has in this program's session.
pub(super) struct Held {
    pub(super) session: Arc<Session>,
    pub(super) number: u64,
    pub(super) object: u64,
    pub(super) type_name: String,
}

/// How long a call waits, and what its errors say.
pub(super) struct Limit<'a> {
    call: &'a CallName,
    timeout: Option<Duration>,
    pub(super) until: Option<Instant>,
    server: u32,
    address: &'a Address,
}

impl<'a> Limit<'a> {
    pub(super) fn new(
        call: &'a CallName,
        timeout: Option<Duration>,
        server: u32,
        address: &'a Address,
    ) -> Self {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Limit { call, timeout, until, server, address }
    }

    pub(super) fn late(&self) -> CallError {
        CallError::TimedOut {
            call: self.call.clone(),
            timeout: self.timeout.unwrap_or_default(),
            server: self.server,
            address: Some(Box::new(self.address.clone())),
        }
    }

    pub(super) fn gone(&self) -> CallError {
        CallError::ServerGone { server: self.server }
    }

    /// The error of a call for which there was no connection.
    fn unconnected(&self, error: ConnectError) -> CallError {
        match error {
            ConnectError::TimedOut(_) => self.late(),
            ConnectError::Gone => self.gone(),
            ConnectError::Io { source, .. }
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                self.gone()
            }
            ConnectError::Io { what, source, .. } => mp_core::Error::Os { what, source }.into(),
            error => CallError::Connect(Box::new(error)),
        }
    }

    /// The error of a call for which there was no session.
    pub(super) fn not_open(&self, error: ManagerError) -> CallError {
        match error {
            ManagerError::Connect(error) => self.unconnected(error),
            ManagerError::Failed(error) => error.into(),
            error => mp_core::Error::Malformed(error.to_string()).into(),
        }
    }

    fn round_trip(&self, connection: &Connection, ask: Framed<Ask>) -> Result<Framed<Reply>, CallError> {
        let sent = match self.until {
            Some(until) => connection.send_deadline(ask, until),
            None => connection.send(ask),
        };
        match sent {
            Ok(()) => {}
            Err(PutError::Full(_)) => return Err(self.late()),
            Err(PutError::Interrupted(_)) => return Err(CallError::Interrupted),
            Err(PutError::Failed { error, .. }) => {
                return Err(CallError::Arguments { why: error.to_string(), undecodable: None });
            }
            Err(_) => return Err(self.gone()),
        }
        let reply = match self.until {
            Some(until) => connection.recv_deadline(until),
            None => connection.recv(),
        };
        reply.map_err(|error| self.lost(error))
    }

    /// The error of a call whose reply was not received.
    fn lost(&self, error: GetError) -> CallError {
        match error {
            GetError::Empty => self.late(),
            GetError::Interrupted => CallError::Interrupted,
            GetError::Failed(error) => error.into(),
            _ => self.gone(),
        }
    }
}

/// Encodes arguments: code of the user.
pub(super) fn written(args: impl Message) -> Result<Body, CallError> {
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
pub(super) fn unexpected(reply: Reply, call: &CallName) -> CallError {
    match reply {
        Reply::Failed(error) => error.of_call(call),
        Reply::Refused(why) => mp_core::Error::Malformed(why).into(),
        _ => mp_core::Error::Malformed("a reply to another request".into()).into(),
    }
}

/// A connection, as soon as the server accepts it: when it is stopped, or lacks descriptors, as long as there is time.
fn connected(
    options: &SocketOptions,
    address: &Address,
    until: Option<Instant>,
) -> Result<Connection, ConnectError> {
    loop {
        let left = until.map_or(TIME_LIMIT, |until| until.saturating_duration_since(Instant::now()));
        let options = options.clone().handshake_timeout(left.min(TIME_LIMIT));
        match options.connect(address) {
            Err(ConnectError::TimedOut(_)) if left >= TIME_LIMIT => {}
            ended => return ended,
        }
    }
}

/// A new session, by a connection that keeps it: its number, and the process id of the server.
fn opened(
    options: &SocketOptions,
    address: &Address,
    until: Option<Instant>,
) -> Result<(Connection, u64, u32), ManagerError> {
    let connection = connected(options, address, until)?;
    let strange = |why: String| ManagerError::Incompatible(why);
    let open = Framed::bare(Ask::Open { version: VERSION });
    let sent = match until {
        Some(until) => connection.send_deadline(open, until),
        None => connection.send(open),
    };
    match sent {
        // What it has said before it went says what it was.
        Ok(()) | Err(PutError::Disconnected(_)) => {}
        Err(PutError::Full(_)) => return Err(ConnectError::TimedOut(TIME_LIMIT).into()),
        Err(error) => return Err(strange(error.to_string())),
    }
    let reply = match until {
        Some(until) => connection.recv_deadline::<Framed<Reply>>(until),
        None => connection.recv(),
    };
    match reply.map(|framed| framed.head) {
        Ok(Reply::Opened { session, server }) => Ok((connection, session, server)),
        Ok(Reply::Refused(why)) => Err(strange(why)),
        Ok(_) => Err(strange("it replies to something else".into())),
        Err(GetError::Interrupted) => Err(mp_core::Error::Interrupted.into()),
        Err(GetError::Empty) => Err(ConnectError::TimedOut(TIME_LIMIT).into()),
        Err(GetError::Disconnected) => Err(ConnectError::Gone.into()),
        Err(error) => Err(strange(error.to_string())),
    }
}

impl Session {
    pub(super) fn open(
        options: SocketOptions,
        address: Address,
        until: Option<Instant>,
    ) -> Result<Session, ManagerError> {
        let (connection, number, server) = opened(&options, &address, until)?;
        let keeper = Mutex::new(Keeper { connection, next: 0, gone: Vec::new() });
        let process = std::process::id();
        Ok(Session { options, address, number, server, process, keeper, idle: Mutex::default() })
    }

    /// Sends a request by a connection of its own, and waits for the reply to it.
    pub(super) fn ask(
        &self,
        ask: Framed<Ask>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Framed<Reply>, CallError> {
        self.not_a_copy()?;
        self.tell(None);
        let timeout = timeout.filter(|_| !mp_core::mutant!("manager.remote.time-out-ignored"));
        let limit = Limit::new(call, timeout, self.server, &self.address);
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.join(&limit)?,
        };
        // Without a reply it is closed: none that comes later is taken for that to another request.
        let reply = limit.round_trip(&connection, ask)?;
        if !matches!(reply.head, Reply::Refused(_))
            || mp_core::mutant!("manager.remote.refused-connection-kept")
        {
            self.idle.lock().push(connection);
        }
        Ok(reply)
    }

    /// Sends a request for a handle, by the number that it has from here.
    pub(super) fn ask_for_object(
        self: &Arc<Self>,
        ask: impl FnOnce(u64) -> Framed<Ask>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Held, CallError> {
        let number = {
            let mut keeper = self.keeper.lock();
            keeper.next += 1;
            keeper.next - 1
        };
        match self.ask(ask(number), timeout, call) {
            Ok(Framed { head: Reply::Object { object, type_name }, .. }) => {
                Ok(Held { session: Arc::clone(self), number, object, type_name })
            }
            Ok(other) => Err(unexpected(other.head, call)),
            Err(error) => {
                // The connection is closed by now: the reply has come before, or never comes.
                if self.process == std::process::id()
                    && !mp_core::mutant!("manager.remote.late-handle-not-forgotten")
                {
                    self.tell(Some(number));
                }
                Err(error)
            }
        }
    }

    /// A session of its own that has a handle to the same object, by this number, and the one socket that keeps it.
    pub(super) fn shared(
        &self,
        of: u64,
        handle: u64,
        limit: &Limit<'_>,
    ) -> Result<(OwnedFd, u64), CallError> {
        self.not_a_copy()?;
        let opened = opened(&self.options, &self.address, limit.until);
        let (connection, session, server) = opened.map_err(|error| limit.not_open(error))?;
        if server != self.server {
            return Err(limit.gone());
        }
        let ask = Framed::bare(Ask::Share { session: self.number, of, handle });
        match limit.round_trip(&connection, ask)?.head {
            Reply::Object { .. } => {}
            other => return Err(unexpected(other, limit.call)),
        }
        let socket = connection.as_fd().map_err(|error| limit.lost(error))?.try_clone_to_owned();
        let what = "a descriptor of a connection";
        Ok((socket.map_err(|source| mp_core::Error::Os { what, source })?, session))
    }

    fn not_a_copy(&self) -> Result<(), CallError> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let why = "a forked copy has its original's connections to a manager's server: connect here";
        Err(mp_core::Error::Unsupported(why.into()).into())
    }

    /// A connection for calls.
    fn join(&self, limit: &Limit<'_>) -> Result<Connection, CallError> {
        let connection = connected(&self.options, &self.address, limit.until);
        let connection = connection.map_err(|error| limit.unconnected(error))?;
        let join = Framed::bare(Ask::Join { session: self.number });
        match limit.round_trip(&connection, join)?.head {
            Reply::Joined => Ok(connection),
            // Another server listens there by now.
            Reply::Refused(_) => Err(limit.gone()),
            other => Err(unexpected(other, limit.call)),
        }
    }

    /// Tells the server that a handle is gone, and what it could not be told before.
    fn tell(&self, gone: Option<u64>) {
        let mut keeper = self.keeper.lock();
        keeper.gone.extend(gone);
        if keeper.gone.is_empty() {
            return;
        }
        let handles = std::mem::take(&mut keeper.gone);
        let told = keeper.connection.try_send(Framed::bare(Ask::Forget { handles }));
        // There is no room as long as the server is stopped.
        if let Err(PutError::Full(framed)) = told
            && let Ask::Forget { handles } = framed.head
        {
            keeper.gone = handles;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a copy of the process the sockets are the original's.
        if self.session.process == std::process::id()
            && !mp_core::mutant!("manager.remote.handle-not-forgotten")
        {
            self.session.tell(Some(self.number));
        }
    }
}
