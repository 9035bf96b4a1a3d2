//! Handles of objects that other members of a cluster have published.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::{Message, PlainOutcome};
use mp_core::mutex::Mutex;
use mp_net::service::{RemoteService, ServiceHold};
use mp_net::{Cluster, NetError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{CallError, CallName};
use crate::proxy::read_value;
use crate::remote::client_session::encode_args;
use crate::remote::cluster::messages::{ClusterAsk, ClusterReply};
use crate::remote::wire::Framed;

/// Handle of an object in the manager of another member of a cluster, whose methods are called by name.
///
/// ```
/// use mp_manager::{CallError, ClusterProxy, Manager, Methods};
/// use mp_net::{Cluster, ClusterConfig};
/// use mp_spawn::closure;
///
/// // One host:
/// let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:29747").key(b"secret"))?;
/// let manager = Manager::start()?;
/// let withdraw = closure!([] |balance: &mut u64, amount: u64| {
///     *balance = balance.checked_sub(amount).ok_or("there is less in it")?;
///     Ok::<u64, &str>(*balance)
/// });
/// manager.register(Methods::<u64>::of("Account").method("withdraw", withdraw))?;
/// let account = manager.create(|| 10_u64)?;
/// manager.publish_in(&first, "account", &account)?;
///
/// // Another host, whose program may be another build:
/// let second = Cluster::join(&ClusterConfig::new(1, 2, "127.0.0.1:29747").key(b"secret"))?;
/// let account = ClusterProxy::connect(&second, "account")?;
/// assert_eq!(account.call::<u64>("withdraw", 3_u64)?, 7);
/// match account.call::<u64>("withdraw", 100_u64) {
///     Err(CallError::Raised(raised)) => assert_eq!(raised.message, "there is less in it"),
///     other => panic!("unexpected: {other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Arguments and results are sent as bytes, as by a [`RemoteProxy`](crate::RemoteProxy). Tensors, queues and
/// locks are refused: `Cluster::publish` publishes these.
///
/// A handle can be cloned, used by several threads at the same time, and sent in messages: a worker process
/// connects to the object's home by itself, with the rank of its parent.
///
/// # Lifetime of the object
/// A published object lives until its name is withdrawn: a handle from [`connect`](Self::connect) does not
/// keep it alive. An object that a method [returned](Self::call_to_object) lives in the same server until all
/// processes have dropped their handles to it, or the name of the published object is withdrawn. When a
/// process is killed, its handles are released.
///
/// A handle of a returned object in a message does not keep the object alive. Keep the sender's handle until
/// the receiving process has made its first call.
///
/// # Blocking
/// A call blocks until the object has finished the calls that were sent before, and this call.
/// [`with_timeout`](Self::with_timeout) limits the wait.
///
/// # When a process dies
/// The home is the process that published the object. If the home was lost, calls return
/// [`CallError::PeerLost`] within the [lease](mp_net::ClusterConfig::lease) and the
/// [grace](mp_net::ClusterConfig::grace). If the manager's server has ended, calls return
/// [`CallError::ServerGone`]. Over connections that break and return within the grace, each call has its
/// effect once. When this process is killed, a call that it had sent may or may not run. If this process was
/// without a connection for longer than lease and grace, its handles of returned objects were released: calls
/// by them return [`CallError::Freed`], even if other processes still have the object.
#[derive(Clone)]
pub struct ClusterProxy {
    service: ClusterService,
    type_name: String,
    server: u32,
    /// Number of the object in the server.
    object: u64,
    /// Handle of a returned object, or `None` for the published object.
    handle: Option<Arc<Mutex<ReturnedHandle>>>,
    timeout: Option<Duration>,
}

type ClusterService = RemoteService<Framed<ClusterAsk>, Framed<ClusterReply>>;

/// Handle of an object that a method has returned.
struct ReturnedHandle {
    number: u64,
    /// Registration of the handle at the home. `None` if the handle arrived in a message, because the
    /// registration belongs to the sender.
    hold: Option<ServiceHold>,
}

/// Serialized form of a proxy.
#[derive(Serialize, Deserialize)]
struct ClusterProxyParts {
    service: ClusterService,
    type_name: String,
    server: u32,
    object: u64,
    handle: Option<u64>,
    timeout: Option<Duration>,
}

impl ClusterProxy {
    /// Opens the object that a member has [published](crate::ManagerHandle::publish_in) under a name. Blocks
    /// until the name is published, for up to the [time limit](mp_net::ClusterConfig::timeout) of the
    /// cluster.
    ///
    /// # Errors
    /// [`NetError::NotPublished`] if the name is not published in time, [`NetError::WrongType`] if the name
    /// belongs to a queue or another kind of object, [`NetError::PeerLost`] if rank 0 or the home was lost.
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        let service: RemoteService<_, Framed<ClusterReply>> = RemoteService::connect(cluster, name)?;
        match service.call_within(Framed::bare(ClusterAsk::Describe), None)?.map(|framed| framed.head) {
            Some(ClusterReply::Described { type_name, server, object }) => {
                let type_name = mp_core::printable(&type_name);
                Ok(ClusterProxy { service, type_name, server, object, handle: None, timeout: None })
            }
            _ => Err(mp_core::Error::Malformed("a reply to another request".into()).into()),
        }
    }

    /// Calls a method by its registered name, and returns its result, like
    /// [`RemoteProxy::call`](crate::RemoteProxy::call).
    ///
    /// # Errors
    /// [`CallError::NoSuchMethod`], with the known methods. [`CallError::PeerLost`] if the home was lost.
    /// [`CallError::Cluster`] if the name was withdrawn, or the result is
    /// [too large](mp_net::ClusterConfig::largest_message) for this process. For other errors see the table
    /// at [`CallError`].
    #[track_caller]
    pub fn call<R: Message>(&self, method: &str, args: impl Message) -> Result<R, CallError> {
        let (call, body) = (self.call_name(method.to_string()), encode_args(args)?);
        let (ask, until) = self.method(method, false, &call)?;
        match self.request(Framed { head: ask, body }, &call, until)? {
            (Framed { head: ClusterReply::Done, body }, _) => read_value(body),
            _ => Err(other_reply()),
        }
    }

    /// Calls a method that [returns an object](crate::Methods::method_to_object), which stays in the server.
    /// Returns a handle to the object, with the same time-out as this handle. If the call times out, the
    /// method may still run, and the object that it returns is freed. If this process is killed, the object
    /// is freed when the home ends the session of this process.
    ///
    /// ```
    /// # use mp_manager::{ClusterProxy, Manager, Methods};
    /// # use mp_net::{Cluster, ClusterConfig};
    /// # use mp_spawn::closure;
    /// struct Reader(std::ops::Range<u64>);
    ///
    /// # let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// # let manager = Manager::start()?;
    /// let read = closure!([] |folder: &mut Vec<u64>| Reader(0..folder.len() as u64));
    /// manager.register(Methods::<Vec<u64>>::of("Folder").method_to_object("read", "Reader", read))?;
    /// let next = closure!([] |reader: &mut Reader| reader.0.next());
    /// manager.register(Methods::<Reader>::of("Reader").method("next", next))?;
    /// manager.publish_in(&cluster, "folder", &manager.create(|| vec![7_u64])?)?;
    ///
    /// // On any host:
    /// let reader = ClusterProxy::connect(&cluster, "folder")?.call_to_object("read", ())?;
    /// assert_eq!(reader.call::<Option<u64>>("next", ())?, Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::NoSuchMethod`], with the known methods, [`CallError::NoSuchType`] if the type of the
    /// object is not registered, [`CallError::Value`] if the method returns a value (it was not called then).
    /// For other errors see [`call`](Self::call).
    #[doc(alias = "method_to_typeid")]
    #[track_caller]
    pub fn call_to_object(&self, method: &str, args: impl Message) -> Result<ClusterProxy, CallError> {
        let (call, body) = (self.call_name(method.to_string()), encode_args(args)?);
        let (ask, until) = self.method(method, true, &call)?;
        match self.request(Framed { head: ask, body }, &call, until)? {
            (Framed { head: ClusterReply::Object { handle, type_name, object }, .. }, hold @ Some(_)) => {
                let handle = Some(Arc::new(Mutex::new(ReturnedHandle { number: handle, hold })));
                let type_name = mp_core::printable(&type_name);
                Ok(ClusterProxy { type_name, object, handle, ..self.clone() })
            }
            _ => Err(other_reply()),
        }
    }

    /// Frees the object now, regardless of other handles, and blocks until its `Drop` has run: see
    /// [`Proxy::free`](crate::Proxy::free).
    ///
    /// # Errors
    /// Returns the errors of [`call`](Self::call). Freeing an object twice is not an error.
    #[track_caller]
    pub fn free(&self) -> Result<(), CallError> {
        let call = self.call_name("ClusterProxy::free");
        let until = self.deadline();
        let ask = ClusterAsk::Free { handle: self.handle_number(&call, until)? };
        match self.request(Framed::bare(ask), &call, until)?.0.head {
            ClusterReply::Freed => Ok(()),
            _ => Err(other_reply()),
        }
    }

    /// Returns `true` if both are handles of the same object.
    #[must_use]
    pub fn is_same_object(&self, other: &ClusterProxy) -> bool {
        let id = |proxy: &ClusterProxy| (proxy.service.rank(), proxy.server, proxy.object);
        id(self) == id(other)
    }

    #[track_caller]
    fn call_name(&self, closure: impl Into<Cow<'static, str>>) -> CallName {
        CallName::at_caller(closure, format!("{} of {}", self.type_name, self.service.place()))
    }

    /// Returns the deadline of a call that begins now.
    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }

    /// Returns the request for a call that begins now, and the deadline of the call.
    fn method(
        &self,
        name: &str,
        returns_object: bool,
        call: &CallName,
    ) -> Result<(ClusterAsk, Option<Instant>), CallError> {
        let until = self.deadline();
        let handle = self.handle_number(call, until)?;
        Ok((ClusterAsk::Call { handle, method: name.to_string(), returns_object }, until))
    }

    /// Sends a request, and waits for its reply. Also returns the hold of the object in the reply, if any.
    fn request(
        &self,
        ask: Framed<ClusterAsk>,
        call: &CallName,
        until: Option<Instant>,
    ) -> Result<(Framed<ClusterReply>, Option<ServiceHold>), CallError> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let sent = left != Some(Duration::ZERO);
        let reply = if sent { self.service.call_held(ask, left)? } else { None };
        match (reply, self.timeout) {
            (Some((Framed { head: ClusterReply::Failed(error), .. }, _)), _) => Err(error.of_call(call)),
            (Some(reply), _) => Ok(reply),
            (None, Some(timeout)) => Err(CallError::TimedOut {
                call: call.clone(),
                timeout,
                server: self.server,
                address: None,
                sent,
            }),
            (None, None) => Err(other_reply()),
        }
    }

    /// Returns the number of this process's handle of a returned object. If the handle arrived in a message,
    /// first requests a handle for this process.
    fn handle_number(&self, call: &CallName, until: Option<Instant>) -> Result<Option<u64>, CallError> {
        let Some(handle) = &self.handle else { return Ok(None) };
        let number = match &*handle.lock() {
            ReturnedHandle { number, hold: Some(_) } => return Ok(Some(*number)),
            ReturnedHandle { number, hold: None } => *number,
        };
        let shared = self.request(Framed::bare(ClusterAsk::Share { handle: number }), call, until);
        match shared.map_err(CallError::unsent)? {
            (Framed { head: ClusterReply::Object { handle: number, .. }, .. }, hold @ Some(_)) => {
                let mut handle = handle.lock();
                // Another thread may have stored a handle meanwhile.
                if handle.hold.is_none() {
                    *handle = ReturnedHandle { number, hold };
                }
                Ok(Some(handle.number))
            }
            _ => Err(other_reply()),
        }
    }

    /// Sets a time-out for calls by this handle, its clones and copies that are sent. The time-out also
    /// limits the wait for a home that does not answer. The first call by a received handle of a returned
    /// object requests a handle of this process within the same time. A call that times out is withdrawn only
    /// if it has not reached its home. Otherwise it runs when its turn comes, or continues to run.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        ClusterProxy { timeout: Some(timeout), ..self }
    }

    /// Returns the time-out of calls by this handle; `None` means no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the registered name of the object's type.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns the rank of the object's home.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.service.rank()
    }
}

fn other_reply() -> CallError {
    mp_core::Error::Malformed("a reply to another request".into()).into()
}

impl PlainOutcome for ClusterProxy {}

impl Serialize for ClusterProxy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ClusterProxy { service, type_name, server, object, handle, timeout } = self.clone();
        let handle = handle.map(|handle| handle.lock().number);
        ClusterProxyParts { service, type_name, server, object, handle, timeout }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClusterProxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ClusterProxyParts { service, type_name, server, object, handle, timeout } =
            ClusterProxyParts::deserialize(deserializer)?;
        let handle = handle.map(|number| Arc::new(Mutex::new(ReturnedHandle { number, hold: None })));
        Ok(ClusterProxy { service, type_name, server, object, handle, timeout })
    }
}

impl fmt::Debug for ClusterProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterProxy({} of {})", self.type_name, self.service.place())
    }
}

#[cfg(test)]
mod tests {
    use mp_net::ClusterConfig;
    use mp_net::service::{HeldReplying, HeldValue, NetService, Replying, output_within};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Service that returns a share of its object late, and answers no call.
    struct SlowService;

    impl NetService for SlowService {
        type Request = Framed<ClusterAsk>;
        type Reply = Framed<ClusterReply>;

        fn serve(self: Arc<Self>, _: Framed<ClusterAsk>) -> Replying<Framed<ClusterReply>> {
            Box::pin(std::future::pending())
        }

        fn serve_held(self: Arc<Self>, request: Framed<ClusterAsk>) -> HeldReplying<Framed<ClusterReply>> {
            Box::pin(async move {
                let type_name = String::from("Words");
                match request.head {
                    ClusterAsk::Describe => {
                        let described = ClusterReply::Described { type_name, server: 1, object: 1 };
                        (Framed::bare(described), None)
                    }
                    ClusterAsk::Share { .. } => {
                        output_within(TIMEOUT * 3 / 4, std::future::pending::<()>()).await;
                        let shared = ClusterReply::Object { handle: 2, type_name, object: 1 };
                        let held: HeldValue = Box::new(());
                        (Framed::bare(shared), Some(held))
                    }
                    _ => std::future::pending().await,
                }
            })
        }
    }

    #[test]
    fn first_call_of_a_received_handle_times_out_once() {
        let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0")).unwrap();
        cluster.publish_service("slow", Arc::new(SlowService)).unwrap();
        let proxy = ClusterProxy::connect(&cluster, "slow").unwrap().with_timeout(TIMEOUT);
        let received = Arc::new(Mutex::new(ReturnedHandle { number: 1, hold: None }));
        let proxy = ClusterProxy { handle: Some(received), ..proxy };
        let since = Instant::now();
        let error = proxy.call::<u64>("len", ()).unwrap_err();
        let waited = since.elapsed();
        assert!(matches!(error, CallError::TimedOut { timeout: TIMEOUT, .. }), "{error}");
        assert!((TIMEOUT..TIMEOUT * 3 / 2).contains(&waited), "{waited:?}");
    }
}
