//! Handles of objects that other members of a cluster have published.

use std::fmt;
use std::time::Duration;

use mp_core::message::{Message, PlainOutcome};
use mp_net::service::RemoteService;
use mp_net::{Cluster, NetError};
use serde::{Deserialize, Serialize};

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
/// locks are refused: `Cluster::publish` publishes these. A method that
/// [returns an object](crate::Methods::method_to_object) can't be called: the error is [`CallError::Value`].
///
/// A handle can be cloned, used by several threads at the same time, and sent in messages: a worker process
/// connects to the object's home by itself, with the rank of its parent. It does not keep the object alive:
/// the name does, until it is withdrawn.
///
/// # Blocking
/// A call blocks until the object has finished the calls that were sent before it, and this one.
/// [`with_timeout`](Self::with_timeout) limits the wait.
///
/// # When a process dies
/// If the home was lost, the process that published the object, calls return [`CallError::PeerLost`] within
/// the [lease](mp_net::ClusterConfig::lease) and the [grace](mp_net::ClusterConfig::grace). If the manager's
/// server has ended, they return [`CallError::ServerGone`]. Over connections that break and return within the
/// grace, each call has its effect once. When this process is killed, a call that it had sent may or may not
/// run.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClusterProxy {
    service: RemoteService<Framed<ClusterAsk>, Framed<ClusterReply>>,
    type_name: String,
    server: u32,
    timeout: Option<Duration>,
}

impl ClusterProxy {
    /// Opens the object that a member has [published](crate::ManagerHandle::publish_in) under a name. Blocks
    /// until there is one, for up to the [time limit](mp_net::ClusterConfig::timeout) of the cluster.
    ///
    /// # Errors
    /// [`NetError::NotPublished`] if the name is not published in time, [`NetError::WrongType`] if the name
    /// is of a queue or another kind of object, [`NetError::PeerLost`] if rank 0 or the home was lost.
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        let service: RemoteService<_, Framed<ClusterReply>> = RemoteService::connect(cluster, name)?;
        match service.call_within(Framed::bare(ClusterAsk::Describe), None)?.map(|framed| framed.head) {
            Some(ClusterReply::Described { type_name, server }) => {
                let type_name = mp_core::printable(&type_name);
                Ok(ClusterProxy { service, type_name, server, timeout: None })
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
        let object = format!("{} of {}", self.type_name, self.service.place());
        let call = CallName::at_caller(method.to_string(), object);
        let body = encode_args(args)?;
        let ask = Framed { head: ClusterAsk::Call { method: method.to_string() }, body };
        match (self.service.call_within(ask, self.timeout)?, self.timeout) {
            (Some(Framed { head: ClusterReply::Done, body }), _) => read_value(body),
            (Some(Framed { head: ClusterReply::Failed(error), .. }), _) => Err(error.of_call(&call)),
            (None, Some(timeout)) => {
                Err(CallError::TimedOut { call, timeout, server: self.server, address: None, sent: true })
            }
            _ => Err(mp_core::Error::Malformed("a reply to another request".into()).into()),
        }
    }

    /// Sets a time-out for calls by this handle, its clones and copies that are sent. It also limits the wait
    /// for a home that does not answer. A call that times out is withdrawn only if it has not reached its
    /// home. Otherwise it runs when its turn comes, or continues to run.
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

impl PlainOutcome for ClusterProxy {}

impl fmt::Debug for ClusterProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterProxy({} of {})", self.type_name, self.service.place())
    }
}
