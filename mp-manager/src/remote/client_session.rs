//! Client side of a connection to another program's server: the session, connections for its calls, and
//! handles.

use std::io::ErrorKind;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mp_core::message::Message;
use mp_core::message::nesting_depth::with_nested_message;
use mp_core::mutex::Mutex;
use mp_queue::{Address, ConnectError, Connection, GetError, PutError, SocketOptions};
use mp_spawn::CallFailure;

use crate::answer::MessageBody;
use crate::error::{CallError, CallName, ManagerError};
use crate::object::write_args;
use crate::remote::wire::{Ask, Framed, Reply, VERSION};
use crate::server::RetryPause;

/// Maximum time for the peer to answer that it is a server.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Session with the server of another program.
pub(super) struct ClientSession {
    pub(super) options: SocketOptions,
    pub(super) address: Address,
    number: u64,
    pub(super) server: u32,
    /// Process that opened the session.
    process: u32,
    /// Connection that keeps the session alive in the server, and on which dropped handles are reported.
    keep_alive: Mutex<KeepAlive>,
    /// Idle connections for calls.
    idle: Mutex<Vec<ServerConnection>>,
    /// Time until which requests for a share of an object fail at once. Set after such a request had no
    /// answer in time, and cleared by the next answer of the server.
    silent: Mutex<Option<Instant>>,
}

/// Connection to the server. When this process drops the value, the connection is shut down, even if a fork
/// of this process still has a descriptor of the socket.
struct ServerConnection {
    connection: Connection,
    /// Process that shuts the connection down when it drops the value. `None` if the socket was passed to
    /// other processes.
    process: Option<u32>,
}

impl ServerConnection {
    fn new(connection: Connection) -> ServerConnection {
        ServerConnection { connection, process: Some(std::process::id()) }
    }

    /// Returns a descriptor of the connection for other processes. The connection ends with the last
    /// descriptor.
    fn into_descriptor(mut self, limit: &RequestLimit<'_>) -> Result<OwnedFd, CallError> {
        let socket = self.as_fd().map_err(|error| limit.lost(error))?.try_clone_to_owned();
        let what = "a descriptor of a connection";
        let socket = socket.map_err(|source| mp_core::Error::Os { what, source })?;
        self.process = None;
        Ok(socket)
    }
}

impl Deref for ServerConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        if self.process == Some(std::process::id()) {
            self.connection.shut_down();
        }
    }
}

struct KeepAlive {
    connection: ServerConnection,
    /// Number of the next handle.
    next: u64,
    /// Dropped handles that were not reported to the server.
    gone: Vec<u64>,
}

/// Maximum number of dropped handles in one message. Limited because each drop of a handle encodes a message
/// again while the socket has no room.
const MAX_REPORTED: usize = 256;

impl KeepAlive {
    /// Takes dropped handles that are to be reported, at most [`MAX_REPORTED`].
    fn take_gone(&mut self) -> Option<Vec<u64>> {
        let rest = self.gone.len().saturating_sub(MAX_REPORTED);
        Some(self.gone.split_off(rest)).filter(|some| !some.is_empty())
    }
}

/// Handle to an object, which the server keeps in this program's session.
pub(super) struct RemoteHandle {
    pub(super) session: Arc<ClientSession>,
    pub(super) number: u64,
    pub(super) object: u64,
    pub(super) type_name: String,
}

/// Time limit of a call, with the details for its errors.
pub(super) struct RequestLimit<'a> {
    call: &'a CallName,
    timeout: Option<Duration>,
    pub(super) until: Option<Instant>,
    server: u32,
    address: &'a Address,
}

impl<'a> RequestLimit<'a> {
    pub(super) fn new(
        call: &'a CallName,
        timeout: Option<Duration>,
        server: u32,
        address: &'a Address,
    ) -> Self {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        RequestLimit { call, timeout, until, server, address }
    }

    pub(super) fn timed_out(&self) -> CallError {
        CallError::TimedOut {
            call: self.call.clone(),
            timeout: self.timeout.unwrap_or_default(),
            server: self.server,
            address: Some(Box::new(self.address.clone())),
            sent: true,
        }
    }

    pub(super) fn gone(&self) -> CallError {
        CallError::ServerGone { server: self.server }
    }

    /// Converts the error of a failed connection into the error of the call.
    fn unconnected(&self, error: ConnectError) -> CallError {
        match error {
            ConnectError::TimedOut(_) => self.timed_out().unsent(),
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

    /// Converts the error of a session that was not opened into the error of the call.
    pub(super) fn not_open(&self, error: ManagerError) -> CallError {
        match error {
            ManagerError::Connect(error) => self.unconnected(error),
            ManagerError::Failed(error) => error.into(),
            error => mp_core::Error::Malformed(error.to_string()).into(),
        }
    }

    fn round_trip(&self, connection: &Connection, request: Framed<Ask>) -> Result<Framed<Reply>, CallError> {
        match send_until(connection, request, self.until) {
            Ok(()) => {}
            Err(PutError::Full(_)) => return Err(self.timed_out().unsent()),
            Err(PutError::Interrupted(_)) => return Err(CallError::Interrupted),
            Err(PutError::Failed { error, .. }) => {
                return Err(CallError::Arguments { why: error.to_string(), undecodable: None });
            }
            Err(_) => return Err(self.gone()),
        }
        recv_until(connection, self.until).map_err(|error| self.lost(error))
    }

    /// Returns the error of a call whose reply was not received.
    fn lost(&self, error: GetError) -> CallError {
        match error {
            GetError::Empty => self.timed_out(),
            GetError::Interrupted => CallError::Interrupted,
            GetError::Failed(error) => error.into(),
            _ => self.gone(),
        }
    }
}

/// Returns an error in a fork of the process. Called before any lock is taken: in the fork, a lock may be
/// held by a thread that the fork does not have.
pub(super) fn not_a_copy(process: u32) -> Result<(), CallError> {
    if process == std::process::id() {
        return Ok(());
    }
    let why = "a forked copy has its original's connections to a manager's server: connect here";
    Err(mp_core::Error::Unsupported(why.into()).into())
}

/// Encodes arguments, which calls user code.
pub(super) fn encode_args(args: impl Message) -> Result<MessageBody, CallError> {
    let mut args = args;
    let body = CallFailure::catch_encode(|| with_nested_message(|| write_args(&mut args)));
    body.map(MessageBody::Out).map_err(CallError::of_arguments)
}

/// Converts a reply into an error.
#[cold]
pub(super) fn reply_error(reply: Reply, call: &CallName) -> CallError {
    match reply {
        Reply::Failed(error) => error.of_call(call),
        Reply::Refused(why) => mp_core::Error::Malformed(why).into(),
        _ => mp_core::Error::Malformed("a reply to another request".into()).into(),
    }
}

#[allow(
    clippy::result_large_err,
    reason = "it is the error of `Connection::send`, which returns the request"
)]
fn send_until(
    connection: &Connection,
    request: Framed<Ask>,
    until: Option<Instant>,
) -> Result<(), PutError<Framed<Ask>>> {
    match until {
        Some(until) => connection.send_deadline(request, until),
        None => connection.send(request),
    }
}

fn recv_until(connection: &Connection, until: Option<Instant>) -> Result<Framed<Reply>, GetError> {
    until.map_or_else(|| connection.recv(), |until| connection.recv_deadline(until))
}

/// Connects to the server. While the server is stopped, or lacks descriptors, retries until the time limit.
fn connect(
    options: &SocketOptions,
    address: &Address,
    until: Option<Instant>,
) -> Result<ServerConnection, ConnectError> {
    let each = options.time_for_handshake();
    let mut backoff = RetryPause::default();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let time = left.map_or(each, |left| left.min(each));
        match options.clone().handshake_timeout(time).connect(address) {
            Err(ConnectError::TimedOut(_)) if left.is_none_or(|left| left > each) => {
                // sleep: an attempt that fails almost immediately must not busy-wait.
                thread::sleep(backoff.next_pause());
            }
            ended => return ended.map(ServerConnection::new),
        }
    }
}

/// Opens a session and the connection that keeps it alive. Returns the connection, the number of the session,
/// and the process id of the server.
fn open_session(
    options: &SocketOptions,
    address: &Address,
    until: Option<Instant>,
    travels: bool,
) -> Result<(ServerConnection, u64, u32), ManagerError> {
    let connection = connect(options, address, until)?;
    let strange = |why: String| ManagerError::Incompatible(why);
    let open = Framed::bare(Ask::Open { version: VERSION, travels });
    match send_until(&connection, open, until) {
        // A reply that the server sent before it disconnected contains the reason.
        Ok(()) | Err(PutError::Disconnected(_)) => {}
        Err(PutError::Full(_)) => return Err(ConnectError::TimedOut(TIME_LIMIT).into()),
        Err(error) => return Err(strange(error.to_string())),
    }
    match recv_until(&connection, until).map(|framed| framed.head) {
        Ok(Reply::Opened { session, server }) => Ok((connection, session, server)),
        Ok(Reply::Refused(why)) => Err(strange(why)),
        Ok(_) => Err(strange("it replies to something else".into())),
        Err(GetError::Interrupted) => Err(mp_core::Error::Interrupted.into()),
        Err(GetError::Empty) => Err(ConnectError::TimedOut(TIME_LIMIT).into()),
        Err(GetError::Disconnected) => Err(ConnectError::Gone.into()),
        Err(error) => Err(strange(error.to_string())),
    }
}

impl ClientSession {
    pub(super) fn open(
        options: SocketOptions,
        address: Address,
        until: Option<Instant>,
    ) -> Result<ClientSession, ManagerError> {
        let (connection, number, server) = open_session(&options, &address, until, false)?;
        let keep_alive = Mutex::new(KeepAlive { connection, next: 0, gone: Vec::new() });
        let process = std::process::id();
        let (idle, silent) = (Mutex::default(), Mutex::default());
        Ok(ClientSession { options, address, number, server, process, keep_alive, idle, silent })
    }

    /// Sends a request over a connection without other requests, and waits for its reply.
    pub(super) fn request(
        &self,
        request: Framed<Ask>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<Framed<Reply>, CallError> {
        self.not_a_copy()?;
        self.report_dropped(None);
        let limit = RequestLimit::new(call, timeout, self.server, &self.address);
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.join(&limit).map_err(CallError::unsent)?,
        };
        // Without a reply, the connection is closed, so that a late reply is not mistaken for the reply to
        // another request.
        let reply = limit.round_trip(&connection, request)?;
        *self.silent.lock() = None;
        if !matches!(reply.head, Reply::Refused(_)) {
            self.idle.lock().push(connection);
        }
        Ok(reply)
    }

    /// Sends a request for a handle. This process chooses the number of the handle.
    pub(super) fn request_object(
        self: &Arc<Self>,
        request: impl FnOnce(u64) -> Framed<Ask>,
        timeout: Option<Duration>,
        call: &CallName,
    ) -> Result<RemoteHandle, CallError> {
        self.not_a_copy()?;
        let number = {
            let mut keep_alive = self.keep_alive.lock();
            keep_alive.next += 1;
            keep_alive.next - 1
        };
        let ask = request(number);
        let of_another = matches!(ask.head, Ask::Share { .. });
        match self.request(ask, timeout, call) {
            Ok(Framed { head: Reply::Object { object, type_name }, .. }) => {
                Ok(RemoteHandle { session: Arc::clone(self), number, object, type_name })
            }
            // The address now belongs to another server with the same process id, for example in another pid
            // namespace.
            Ok(Framed { head: Reply::Refused(_), .. }) if of_another => {
                Err(CallError::ServerGone { server: self.server })
            }
            Ok(other) => Err(reply_error(other.head, call)),
            Err(error) => {
                // The connection is closed by now, so no reply can arrive any more.
                if self.process == std::process::id() {
                    self.report_dropped(Some(number));
                }
                Err(error)
            }
        }
    }

    /// Requests a share of an object like [`share`](Self::share). After a request for a share had no answer
    /// in time, further requests for shares fail at once, for as long as the first request had waited or
    /// until the server answers. So a message with many proxies waits only once, and a thread that writes
    /// many messages waits for at most half of its time.
    pub(super) fn shared(
        &self,
        of: u64,
        handle: u64,
        limit: &RequestLimit<'_>,
    ) -> Result<(OwnedFd, u64), CallError> {
        self.not_a_copy()?;
        let began = Instant::now();
        if self.silent.lock().is_some_and(|until| began < until) {
            return Err(limit.timed_out().unsent());
        }
        let shared = self.share(of, handle, limit).map_err(CallError::unsent);
        *self.silent.lock() = match shared {
            Err(CallError::TimedOut { .. }) => Instant::now().checked_add(began.elapsed()),
            _ => None,
        };
        shared
    }

    /// Opens a new session with one handle, number `handle`, to the same object as the handle `of`. Returns
    /// the only socket that keeps the new session alive, and the number of the session.
    fn share(&self, of: u64, handle: u64, limit: &RequestLimit<'_>) -> Result<(OwnedFd, u64), CallError> {
        let opened = open_session(&self.options, &self.address, limit.until, true);
        let (connection, session, server) = opened.map_err(|error| limit.not_open(error))?;
        if server != self.server {
            return Err(limit.gone());
        }
        let ask = Framed::bare(Ask::Share { session: self.number, of, handle });
        match limit.round_trip(&connection, ask)?.head {
            Reply::Object { .. } => {}
            // The address now belongs to another server with the same process id, for example in another pid
            // namespace.
            Reply::Refused(_) => return Err(limit.gone()),
            other => return Err(reply_error(other, limit.call)),
        }
        Ok((connection.into_descriptor(limit)?, session))
    }

    fn not_a_copy(&self) -> Result<(), CallError> {
        not_a_copy(self.process)
    }

    /// Opens a connection for calls.
    fn join(&self, limit: &RequestLimit<'_>) -> Result<ServerConnection, CallError> {
        let connection = connect(&self.options, &self.address, limit.until);
        let connection = connection.map_err(|error| limit.unconnected(error))?;
        let join = Framed::bare(Ask::Join { session: self.number });
        match limit.round_trip(&connection, join)?.head {
            Reply::Joined => Ok(connection),
            // The address now belongs to another server.
            Reply::Refused(_) => Err(limit.gone()),
            other => Err(reply_error(other, limit.call)),
        }
    }

    /// Reports a dropped handle to the server, together with earlier handles that were not reported.
    fn report_dropped(&self, gone: Option<u64>) {
        let mut keep_alive = self.keep_alive.lock();
        keep_alive.gone.extend(gone);
        while let Some(handles) = keep_alive.take_gone() {
            let reported = keep_alive.connection.try_send(Framed::bare(Ask::Forget { handles }));
            // The socket has no room while the server is stopped: the handles are reported later.
            if let Err(PutError::Full(framed)) = reported
                && let Ask::Forget { handles } = framed.head
            {
                keep_alive.gone.extend(handles);
                return;
            }
        }
    }
}

impl Drop for RemoteHandle {
    fn drop(&mut self) {
        // In a fork of the process, the sockets belong to the parent.
        if self.session.process == std::process::id() {
            self.session.report_dropped(Some(self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While the socket has no room, each dropped handle encodes all handles that `take_gone` returns.
    #[test]
    fn dropped_object_handles_are_reported_in_parts() {
        let (connection, _other) = mp_queue::pipe().unwrap();
        let mut keep_alive =
            KeepAlive { connection: ServerConnection::new(connection), next: 0, gone: (0..1000).collect() };
        let mut reported = Vec::new();
        while let Some(some) = keep_alive.take_gone() {
            assert!((1..=MAX_REPORTED).contains(&some.len()));
            reported.extend(some);
        }
        reported.sort_unstable();
        assert_eq!(reported, (0..1000).collect::<Vec<_>>());
    }
}
