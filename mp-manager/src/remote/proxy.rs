//! An object in the server of another program.
//!
//! In a message it is a session of its own: a socket to the server, which travels as any descriptor, and is closed by the kernel with
//! the last process and message that has it.
//!
//! | a share of an object | is | left by it when |
//! |---|---|---|
//! | of a program | a handle of the program's session | the last clone is dropped, or the program ends |
//! | that is being written | a handle of a new session, beside that | it is in the message; or writing fails, or the sender dies: the socket is closed |
//! | in a message | the same, as a descriptor of the message | a receiver has it; or the message is dropped, with its queue or a dead receiver: the socket is closed |
//! | that has arrived | the same, as a descriptor of the process | the process calls for the first time: a session of the process has a handle, then the socket is closed; or its last clone is dropped, or the process ends |
//!
//! None of it is shared memory, and none is changed by two processes. A message that several processes read (`broadcast`, `watch`)
//! gives each of them a descriptor of the one session, which none of them changes.

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
use crate::remote::connected::{Held, Limit, Session, TIME_LIMIT, not_a_copy, unexpected, written};
use crate::remote::key::AuthKey;
use crate::remote::wire::{Ask, Framed, Reply};

/// An object in the server of [another program](crate::RemoteManager), whose methods are called by their names.
///
/// It can be cloned. The object lives as long as there is a handle, here or there.
///
/// # Blocking
/// A call waits until the object has done the calls that were sent before it, and this one; how long at most, says
/// [`with_timeout`](Self::with_timeout).
///
/// # Sent to other processes
/// It is a serde type: it travels in arguments, results and messages to the processes of this program, with a share of the object, which
/// lives on while the message is on its way, whatever becomes of the sender. What no process received is given up with its message.
///
/// ```
/// use mp_manager::{CallError, Manager, Methods, RemoteManager, RemoteProxy};
/// use mp_spawn::{Process, closure, current_process};
///
/// # let manager = Manager::start()?;
/// # manager.register(Methods::<u64>::of("Total").constructor(closure!([] || 0)).method("add", closure!([] |n: &mut u64, by: u64| { *n += by; *n })))?;
/// # manager.serve("@example-of-sent-on", b"a secret")?;
/// // The key of this process and of those that it starts.
/// current_process().set_authkey(b"a secret");
/// let total = RemoteManager::connect("@example-of-sent-on", b"a secret")?.create("Total", ())?;
/// let add = |total: RemoteProxy| total.call::<u64>("add", 2_u64);
/// assert_eq!(Process::spawn(add, total.clone())?.join()?, 2);
/// assert_eq!(total.call::<u64>("add", 1_u64)?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A key is never sent. The limits of [`SocketOptions`](mp_queue::SocketOptions) are. The receiver connects at its first call, with the key of its process (`current_process().authkey()`), or with one
/// that it [gives](Self::with_authkey); a wrong one is [`CallError::Connect`]. Each proxy on its way is a socket, and a
/// thread of the server.
///
/// Writing a proxy into a message (`put`, `spawn`, the call of a pool) blocks: it asks the server for the share, and fails when there is no
/// answer for as long as the proxy waits, ten seconds at most. So does the thread of a pool, which writes the tasks of a map. After such a
/// failure, other proxies that this process has of the server by the same connection ([`RemoteManager`](crate::RemoteManager)) fail at once,
/// for as long a time as that one waited, or until the server answers something.
///
/// It can't be sent over a socket, to another program or as an argument of a [`RemoteProxy`]: that program connects by itself, and finds
/// what is [published](crate::ManagerHandle::publish).
#[derive(Clone)]
pub struct RemoteProxy {
    share: Arc<Share>,
    timeout: Option<Duration>,
    /// How this process connects, if that is not by its own key.
    options: Option<SocketOptions>,
}

/// What all clones in one process have.
struct Share {
    server: u32,
    object: u64,
    type_name: String,
    address: Address,
    /// Limit of messages and time for a handshake, of the program that has found or made the object.
    limits: (usize, Duration),
    /// The process that has it.
    process: u32,
    place: Mutex<Place>,
}

/// Where the object's handle is that this process has.
enum Place {
    /// In a session of this process.
    Own(Arc<Held>),
    /// In the session that has come with a message.
    Arrived(Arc<Arrived>),
}

struct Arrived {
    /// Keeps that session.
    socket: Fd<OwnedFd>,
    session: u64,
}

/// The number of the one handle of a session that is in a message.
const ONLY: u64 = 0;

/// A proxy, as it travels.
#[derive(Serialize, Deserialize)]
struct Sent<S> {
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
    pub(super) fn new(held: Held, timeout: Option<Duration>) -> RemoteProxy {
        let Held { object, .. } = held;
        let share = Share {
            server: held.session.server,
            object,
            type_name: held.type_name.clone(),
            address: held.session.address.clone(),
            limits: held.session.options.limits(),
            process: std::process::id(),
            place: Mutex::new(Place::Own(Arc::new(held))),
        };
        RemoteProxy { share: Arc::new(share), timeout, options: None }
    }

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
        let call = CallName::here(method.to_string(), self.share.type_name.clone());
        let body = written(args)?;
        let held = self.held(&call)?;
        let ask = Ask::Call { handle: held.number, method: method.to_string(), object: None };
        let reply = held.session.ask(Framed { head: ask, body }, self.timeout, &call)?;
        match reply.head {
            Reply::Done => read_value(reply.body),
            other => Err(unexpected(other, &call)),
        }
    }

    /// Calls a method that [returns an object](crate::Methods::method_to_object), which stays there: a handle to it. That waits as long
    /// as this one does. If there is no answer in time, the new object is freed at once.
    ///
    /// # Errors
    /// [`CallError::NoSuchMethod`], with those that there are; [`CallError::NoSuchType`] when the type of the object is not registered;
    /// [`CallError::Value`] when the method returns a value, and was not called; else see the table at [`CallError`].
    #[doc(alias = "method_to_typeid")]
    #[track_caller]
    pub fn call_to_object(&self, method: &str, args: impl Message) -> Result<RemoteProxy, CallError> {
        let call = CallName::here(method.to_string(), self.share.type_name.clone());
        let body = written(args)?;
        let held = self.held(&call)?;
        let ask = |object| {
            let head = Ask::Call { handle: held.number, method: method.to_string(), object: Some(object) };
            Framed { head, body }
        };
        let object = held.session.ask_for_object(ask, self.timeout, &call)?;
        Ok(RemoteProxy { options: self.options.clone(), ..RemoteProxy::new(object, self.timeout) })
    }

    /// Frees the object now, whatever handles there are: see [`Proxy::free`](crate::Proxy::free).
    ///
    /// # Errors
    /// See the table at [`CallError`]; none if it was freed before.
    #[track_caller]
    pub fn free(&self) -> Result<(), CallError> {
        let call = CallName::here("RemoteProxy::free", self.share.type_name.clone());
        let held = self.held(&call)?;
        let ask = Framed::bare(Ask::Free { handle: held.number });
        match held.session.ask(ask, self.timeout, &call)?.head {
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

    /// How long calls by this handle wait at most; `None` is for ever.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The same object; if this handle has come from another process, its first call and those of its clones connect with this key, and
    /// not with that of this process. Limits and time-outs are those of the [`SocketOptions`] that are given, or the defaults.
    #[must_use]
    pub fn with_authkey(self, authkey: impl AuthKey) -> Self {
        RemoteProxy { options: Some(authkey.into_options()), ..self }
    }

    /// The name that its type is registered by.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.share.type_name
    }

    /// Whether both are handles to one object.
    #[must_use]
    pub fn is_same_object(&self, other: &RemoteProxy) -> bool {
        let id = |proxy: &RemoteProxy| (proxy.share.server, proxy.share.object);
        id(self) == id(other)
    }

    /// A handle of this process. One that has arrived is shared first, with a session of this process.
    fn held(&self, call: &CallName) -> Result<Arc<Held>, CallError> {
        not_a_copy(self.share.process)?;
        let arrived = match &*self.share.place.lock() {
            Place::Own(held) => return Ok(Arc::clone(held)),
            Place::Arrived(arrived) => Arc::clone(arrived),
        };
        let Share { server, address, limits: (bytes, time), .. } = &*self.share;
        let limit = Limit::new(call, self.timeout, *server, address);
        let options = match &self.options {
            Some(options) => options.clone(),
            None => SocketOptions::new().max_message(*bytes).handshake_timeout(*time).authkey_of_family()?,
        };
        let session = Session::open(options, address.clone(), limit.until);
        let session = Arc::new(session.map_err(|error| limit.not_open(error))?);
        // Another server listens there by now.
        if session.server != *server {
            return Err(limit.gone());
        }
        let (of, from) = (ONLY, arrived.session);
        let ask = |handle| Framed::bare(Ask::Share { session: from, of, handle });
        // What is left of the time.
        let left = limit.until.map(|until| until.saturating_duration_since(Instant::now()));
        let held = session.ask_for_object(ask, left, call).map_err(|error| match error {
            CallError::TimedOut { .. } => limit.late().unsent(),
            error => error,
        })?;
        let held = Arc::new(held);
        let mut place = self.share.place.lock();
        match &*place {
            // Another thread has been quicker; its calls and this one's have one session.
            Place::Own(first) => Ok(Arc::clone(first)),
            Place::Arrived(_) => {
                *place = Place::Own(Arc::clone(&held));
                Ok(held)
            }
        }
    }

    /// A session that has a share of the object, and is kept by a socket.
    fn to_send(&self) -> Result<Arc<Arrived>, CallError> {
        not_a_copy(self.share.process)?;
        let held = match &*self.share.place.lock() {
            // As it came: one socket, which several have.
            Place::Arrived(arrived) => return Ok(Arc::clone(arrived)),
            Place::Own(held) => Arc::clone(held),
        };
        let call = CallName::here("a share of it", self.share.type_name.clone());
        let timeout = self.timeout.map_or(TIME_LIMIT, |timeout| timeout.min(TIME_LIMIT));
        let limit = Limit::new(&call, Some(timeout), self.share.server, &self.share.address);
        let (socket, session) = held.session.shared(held.number, ONLY, &limit)?;
        Ok(Arc::new(Arrived { socket: Fd(socket), session }))
    }
}

impl PlainOutcome for RemoteProxy {}

impl Serialize for RemoteProxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let arrived = self.to_send().map_err(S::Error::custom)?;
        let Share { server, object, ref type_name, ref address, limits, .. } = *self.share;
        Sent {
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
        let sent = Sent::<Fd<OwnedFd>>::deserialize(deserializer)?;
        let Sent { server, object, type_name, address, limits, timeout, session, socket } = sent;
        let place = Mutex::new(Place::Arrived(Arc::new(Arrived { socket, session })));
        let process = std::process::id();
        let share = Share { server, object, type_name, address, limits, process, place };
        Ok(RemoteProxy { share: Arc::new(share), timeout, options: None })
    }
}

impl fmt::Debug for RemoteProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share { server, object, type_name, .. } = &*self.share;
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

    /// A server that has this process's number, as one in another pid namespace may have, and knows of no session.
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
    fn another_server_of_the_same_number_is_not_the_one_that_is_gone() {
        let address = format!("@mp-manager-proxy-{}", std::process::id());
        let listener = SocketOptions::new().authkey(KEY).listen(&*address).unwrap();
        let (socket, _) = std::io::pipe().unwrap();
        let place = Place::Arrived(Arc::new(Arrived { socket: Fd(socket.into()), session: 9 }));
        let process = std::process::id();
        let share = Share {
            server: process,
            object: 0,
            type_name: "Noisy".into(),
            address: address.as_str().into(),
            limits: SocketOptions::new().limits(),
            process,
            place: Mutex::new(place),
        };
        let options = Some(SocketOptions::new().authkey(KEY));
        let proxy = RemoteProxy { share: Arc::new(share), timeout: Some(TIME_LIMIT), options };
        let server = thread::spawn(move || serve_strangers(&listener));
        let error = proxy.call::<u64>("value", ()).unwrap_err();
        assert!(error.is_server_gone(), "{error}");
        server.join().unwrap();
    }
}
