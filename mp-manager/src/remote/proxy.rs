//! Handles of objects in the server of another program.
//!
//! In a message, a handle is a session of its own: a socket to the server, which is sent like any descriptor.
//! The kernel closes it with the last process and message that has it.
//!
//! | share of an object | representation | released when |
//! |---|---|---|
//! | held by the program that created or found the object | a handle in the program's session | the last clone is dropped, or the program ends |
//! | being written into a message | a handle in a new session, which a socket keeps alive | not released if the message gets the socket; if writing fails or the sender dies, the socket is closed |
//! | in a message | the same session, whose socket is a descriptor of the message | not released if a receiver gets the socket; if the message is dropped, also with its queue or a dead receiver, the socket is closed |
//! | received | the same session, whose socket is a descriptor of the process | at its first call, the process gets a handle in a session of its own, and closes the socket; the socket is also closed if the last clone is dropped or the process ends |
//!
//! Sending a handle uses no shared memory, and no share is changed by two processes. If several processes
//! read one message (`broadcast`, `watch`), each gets a descriptor of the same session, which no process
//! changes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::{Message, PlainOutcome};
use mp_core::mutex::Mutex;
use mp_queue::{Address, SocketOptions};
use mp_reduce::Fd;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{CallError, CallName};
use crate::proxy::read_value;
use crate::remote::client_session::{
    ClientSession, RemoteHandle, RequestLimit, TIME_LIMIT, encode_args, not_a_copy, reply_error,
};
use crate::remote::key_argument::IntoAuthKey;
use crate::remote::wire::{Ask, Framed, Reply};

/// Handle of an object in the server of [another program](crate::RemoteManager), whose methods are called by
/// name.
///
/// A handle can be cloned. The object lives as long as a handle exists in any of the programs.
///
/// # Blocking
/// A call blocks until the object has finished the calls that were sent before, and this call.
/// [`with_timeout`](Self::with_timeout) limits the wait.
///
/// # Sent to other processes
/// A proxy implements serde's traits: it can be sent in arguments, results and messages to the processes of
/// this program. A message contains a share of the object, which stays alive until the message is received,
/// even if the sender dies. A share that no process receives is released with its message.
///
/// ```
/// use mp_manager::{CallError, Manager, Methods, RemoteManager, RemoteProxy};
/// use mp_spawn::{Process, closure, current_process};
///
/// # let manager = Manager::start()?;
/// # let add = closure!([] |n: &mut u64, by: u64| { *n += by; *n });
/// # manager.register(Methods::<u64>::of("Total").constructor(closure!([] || 0)).method("add", add))?;
/// # manager.serve("@example-of-sent-on", b"a secret")?;
/// // Key of this process and of the processes that it starts.
/// current_process().set_authkey(b"a secret");
/// let total = RemoteManager::connect("@example-of-sent-on", b"a secret")?.create("Total", ())?;
/// let add = |total: RemoteProxy| total.call::<u64>("add", 2_u64);
/// assert_eq!(Process::spawn(add, total.clone())?.join()?, 2);
/// assert_eq!(total.call::<u64>("add", 1_u64)?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A key is never sent, but the limits of [`SocketOptions`](mp_queue::SocketOptions) are. The receiver
/// connects at its first call, with the key of its process (`current_process().authkey()`), or with a key set
/// by [`with_authkey`](Self::with_authkey). A wrong key is [`CallError::Connect`]. Each proxy in a message
/// takes a socket, and a thread of the server.
///
/// Writing a proxy into a message (`put`, `spawn`, the call of a pool) blocks, because it requests the share
/// from the server. The write fails if there is no answer within the proxy's time-out, at most ten seconds.
/// This also blocks the thread of a pool that writes the tasks of a map. After such a failure, writes of
/// other proxies of the same connection ([`RemoteManager`](crate::RemoteManager)) fail at once in this
/// process, for as long as the failed write had waited, or until the server answers a request.
///
/// A proxy can't be sent over a socket, to another program or as an argument of a [`RemoteProxy`]: the other
/// program must connect itself, and find [published](crate::ManagerHandle::publish) objects.
#[derive(Clone)]
pub struct RemoteProxy {
    object_ref: Arc<RemoteObject>,
    timeout: Option<Duration>,
    /// Key and limits for the connection, set by [`with_authkey`](RemoteProxy::with_authkey). `None` for the
    /// key of this process.
    options: Option<SocketOptions>,
}

/// State shared by all clones in one process.
struct RemoteObject {
    server: u32,
    object: u64,
    type_name: String,
    address: Address,
    /// Maximum size of a message in bytes, and handshake time-out, in the program that created or found the
    /// object.
    limits: (usize, Duration),
    /// Process that created or received this value. Forks of the process can't use it.
    process: u32,
    place: Mutex<ShareState>,
}

/// Session that contains this process's handle of the object.
enum ShareState {
    /// A session of this process contains the handle.
    Local(Arc<RemoteHandle>),
    /// The handle is in the session that arrived with a message, because this process has made no call yet.
    Received(Arc<ReceivedShare>),
}

struct ReceivedShare {
    /// Socket that keeps the session alive.
    socket: Fd<OwnedFd>,
    session: u64,
}

/// Number of the only handle of a session in a message.
const ONLY: u64 = 0;

/// Serialized form of a proxy.
#[derive(Serialize, Deserialize)]
struct RemoteProxyParts<S> {
    server: u32,
    object: u64,
    type_name: String,
    address: Address,
    limits: (usize, Duration),
    timeout: Option<Duration>,
    session: u64,
    socket: S,
}

impl RemoteProxy {
    pub(super) fn new(held: RemoteHandle, timeout: Option<Duration>) -> RemoteProxy {
        let RemoteHandle { object, .. } = held;
        let object_ref = RemoteObject {
            server: held.session.server,
            object,
            type_name: held.type_name.clone(),
            address: held.session.address.clone(),
            limits: held.session.options.limits(),
            process: std::process::id(),
            place: Mutex::new(ShareState::Local(Arc::new(held))),
        };
        RemoteProxy { object_ref: Arc::new(object_ref), timeout, options: None }
    }

    /// Calls a method by its registered name, and returns its result. Pass `()` for no arguments, and a tuple
    /// for several. This program declares the type of the result: `R` for a method that returns
    /// `Result<R, E>`.
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
    /// [`CallError::NoSuchMethod`], with the known methods. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn call<R: Message>(&self, method: &str, args: impl Message) -> Result<R, CallError> {
        let call = CallName::at_caller(method.to_string(), self.object_ref.type_name.clone());
        let body = encode_args(args)?;
        let held = self.held(&call)?;
        let ask = Ask::Call { handle: held.number, method: method.to_string(), object: None };
        let reply = held.session.request(Framed { head: ask, body }, self.timeout, &call)?;
        match reply.head {
            Reply::Done => read_value(reply.body),
            other => Err(reply_error(other, &call)),
        }
    }

    /// Calls a method that [returns an object](crate::Methods::method_to_object), which stays in the server.
    /// Returns a handle to the object, with the same time-out as this handle. If there is no answer in time,
    /// the new object is freed at once.
    ///
    /// # Errors
    /// [`CallError::NoSuchMethod`], with the known methods, [`CallError::NoSuchType`] if the type of the
    /// object is not registered, [`CallError::Value`] if the method returns a value (it was not called then).
    /// For other errors see the table at [`CallError`].
    #[doc(alias = "method_to_typeid")]
    #[track_caller]
    pub fn call_to_object(&self, method: &str, args: impl Message) -> Result<RemoteProxy, CallError> {
        let call = CallName::at_caller(method.to_string(), self.object_ref.type_name.clone());
        let body = encode_args(args)?;
        let held = self.held(&call)?;
        let ask = |object| {
            let head = Ask::Call { handle: held.number, method: method.to_string(), object: Some(object) };
            Framed { head, body }
        };
        let object = held.session.request_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy { options: self.options.clone(), ..RemoteProxy::new(object, self.timeout) })
    }

    /// Frees the object now, regardless of other handles: see [`Proxy::free`](crate::Proxy::free).
    ///
    /// # Errors
    /// See the table at [`CallError`]. Freeing an object twice is not an error.
    #[track_caller]
    pub fn free(&self) -> Result<(), CallError> {
        let call = CallName::at_caller("RemoteProxy::free", self.object_ref.type_name.clone());
        let held = self.held(&call)?;
        let ask = Framed::bare(Ask::Free { handle: held.number });
        match held.session.request(ask, self.timeout, &call)?.head {
            Reply::Freed => Ok(()),
            other => Err(reply_error(other, &call)),
        }
    }

    /// Sets a time-out for calls by this handle and its clones. A call that times out is not withdrawn: it
    /// runs when its turn comes, or continues to run.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        RemoteProxy { timeout: Some(timeout), ..self }
    }

    /// Returns the time-out of calls by this handle; `None` means no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Sets the key with which this handle and its clones connect at their first call, if the handle came
    /// from another process. The default is the key of this process. If the argument is [`SocketOptions`],
    /// its limits and time-outs apply, too, otherwise the default limits and time-outs.
    #[must_use]
    pub fn with_authkey(self, authkey: impl IntoAuthKey) -> Self {
        RemoteProxy { options: Some(authkey.into_options()), ..self }
    }

    /// Returns the registered name of the object's type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.object_ref.type_name
    }

    /// Returns `true` if both are handles of the same object.
    #[must_use]
    pub fn is_same_object(&self, other: &RemoteProxy) -> bool {
        let id = |proxy: &RemoteProxy| (proxy.object_ref.server, proxy.object_ref.object);
        id(self) == id(other)
    }

    /// Returns a handle of this process. If the handle was received in a message, first requests a share for
    /// a session of this process.
    fn held(&self, call: &CallName) -> Result<Arc<RemoteHandle>, CallError> {
        not_a_copy(self.object_ref.process)?;
        let arrived = match &*self.object_ref.place.lock() {
            ShareState::Local(held) => return Ok(Arc::clone(held)),
            ShareState::Received(arrived) => Arc::clone(arrived),
        };
        let RemoteObject { server, address, limits: (bytes, time), .. } = &*self.object_ref;
        let limit = RequestLimit::new(call, self.timeout, *server, address);
        let options = match &self.options {
            Some(options) => options.clone(),
            None => SocketOptions::new().max_message(*bytes).handshake_timeout(*time).authkey_of_family()?,
        };
        let session = ClientSession::open(options, address.clone(), limit.until);
        let session = Arc::new(session.map_err(|error| limit.not_open(error))?);
        // The address now belongs to another server.
        if session.server != *server {
            return Err(limit.gone());
        }
        let (of, from) = (ONLY, arrived.session);
        let ask = |handle| Framed::bare(Ask::Share { session: from, of, handle });
        // Time that is left for the request.
        let left = limit.until.map(|until| until.saturating_duration_since(Instant::now()));
        let held = session.request_object(ask, left, call).map_err(|error| match error {
            CallError::TimedOut { .. } => limit.timed_out().unsent(),
            error => error,
        })?;
        let held = Arc::new(held);
        let mut place = self.object_ref.place.lock();
        match &*place {
            // Another thread has stored a handle first. Its calls and this call use the same session.
            ShareState::Local(first) => Ok(Arc::clone(first)),
            ShareState::Received(_) => {
                *place = ShareState::Local(Arc::clone(&held));
                Ok(held)
            }
        }
    }

    /// Returns a share for a message: a session with one handle to the object, and the socket that keeps the
    /// session alive.
    fn to_send(&self) -> Result<Arc<ReceivedShare>, CallError> {
        not_a_copy(self.object_ref.process)?;
        let held = match &*self.object_ref.place.lock() {
            // The received socket is sent again: several messages then have descriptors of one socket.
            ShareState::Received(arrived) => return Ok(Arc::clone(arrived)),
            ShareState::Local(held) => Arc::clone(held),
        };
        let call = CallName::at_caller("a share of it", self.object_ref.type_name.clone());
        let timeout = self.timeout.map_or(TIME_LIMIT, |timeout| timeout.min(TIME_LIMIT));
        let limit = RequestLimit::new(&call, Some(timeout), self.object_ref.server, &self.object_ref.address);
        let (socket, session) = held.session.shared(held.number, ONLY, &limit)?;
        Ok(Arc::new(ReceivedShare { socket: Fd(socket), session }))
    }
}

impl PlainOutcome for RemoteProxy {}

impl Serialize for RemoteProxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arrived = self.to_send().map_err(S::Error::custom)?;
        let RemoteObject { server, object, ref type_name, ref address, limits, .. } = *self.object_ref;
        RemoteProxyParts {
            server,
            object,
            type_name: type_name.clone(),
            address: address.clone(),
            limits,
            timeout: self.timeout,
            session: arrived.session,
            socket: &arrived.socket,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RemoteProxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sent = RemoteProxyParts::<Fd<OwnedFd>>::deserialize(deserializer)?;
        let RemoteProxyParts { server, object, type_name, address, limits, timeout, session, socket } = sent;
        let place = Mutex::new(ShareState::Received(Arc::new(ReceivedShare { socket, session })));
        let process = std::process::id();
        let object_ref = RemoteObject { server, object, type_name, address, limits, process, place };
        Ok(RemoteProxy { object_ref: Arc::new(object_ref), timeout, options: None })
    }
}

impl fmt::Debug for RemoteProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemoteObject { server, object, type_name, .. } = &*self.object_ref;
        write!(f, "RemoteProxy<{type_name}>(object {object} of server {server})")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mp_queue::Listener;

    use super::*;
    use crate::remote::wire::VERSION;

    const KEY: &[u8] = b"a secret";

    /// Runs a server that has the process id of this process, but not the session of the test. Servers in two
    /// pid namespaces can have equal process ids.
    fn serve_strangers(listener: &Listener) {
        let accept = || listener.accept_timeout(TIME_LIMIT).unwrap().unwrap();
        let said = |connection: &mp_queue::Connection, reply| {
            connection.send_timeout(Framed::bare(reply), TIME_LIMIT).unwrap();
        };
        let heard = |connection: &mp_queue::Connection| {
            connection.recv_timeout::<Framed<Ask>>(TIME_LIMIT).unwrap().head
        };
        let keeper = accept();
        assert!(matches!(heard(&keeper), Ask::Open { version: VERSION, travels: false }));
        said(&keeper, Reply::Opened { session: 5, server: std::process::id() });
        let calls = accept();
        assert!(matches!(heard(&calls), Ask::Join { session: 5 }));
        said(&calls, Reply::Joined);
        assert!(matches!(heard(&calls), Ask::Share { session: 9, of: ONLY, .. }));
        said(&calls, Reply::Refused("there is no handle 0 in a session 9".into()));
    }

    #[test]
    fn another_server_with_the_same_pid_is_detected() {
        let address = format!("@mp-manager-proxy-{}", std::process::id());
        let listener = SocketOptions::new().authkey(KEY).listen(&*address).unwrap();
        let (socket, _) = std::io::pipe().unwrap();
        let place = ShareState::Received(Arc::new(ReceivedShare { socket: Fd(socket.into()), session: 9 }));
        let process = std::process::id();
        let object_ref = RemoteObject {
            server: process,
            object: 0,
            type_name: "Noisy".into(),
            address: address.as_str().into(),
            limits: SocketOptions::new().limits(),
            process,
            place: Mutex::new(place),
        };
        let options = Some(SocketOptions::new().authkey(KEY));
        let proxy = RemoteProxy { object_ref: Arc::new(object_ref), timeout: Some(TIME_LIMIT), options };
        let server = thread::spawn(move || serve_strangers(&listener));
        let error = proxy.call::<u64>("value", ()).unwrap_err();
        assert!(error.is_server_gone(), "{error}");
        server.join().unwrap();
    }
}
