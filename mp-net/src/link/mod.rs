//! Calls of objects of another member.
//!
//! A link belongs to one process and one home. `driver` connects when there is a call, and reconnects within
//! the lease and the grace of the [configuration](crate::ClusterConfig). `completion` has the outcomes.
//!
//! | state of a call | after a reconnect in time | after the peer is lost |
//! |---|---|---|
//! | waits for credits | sent | fails, not in doubt |
//! | sent, no reply | sent again; the home knows its number, and does nothing twice | fails, in doubt |
//! | reply has arrived, not yet received by its caller | received | received; the home gives back the message, too |
//! | received | the home forgets the call | as above, if the home did not know that it was received |

pub(crate) mod completion;
mod driver;
pub(crate) mod stream;

use crate::sync::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::config::ClusterConfig;
use crate::error::NetError;
use crate::link::completion::{CallFuture, CallResult, Completion};
use crate::reactor;
use crate::wire::held::HeldMessage;
use crate::wire::messages::{CallerMessage, CallerMessageKind, Node, Operation, RemoteCall};
use crate::wire::value::size_of;

/// This process, as others see it, and its limits.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    pub(crate) config: ClusterConfig,
    pub(crate) node: Node,
}

/// The other end of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct HomePeer {
    pub(crate) address: String,
    pub(crate) rank: usize,
    /// Host and process id, empty before the first connection.
    pub(crate) host: String,
    /// Session of its home, or 0 if any is expected.
    pub(crate) home: u64,
}

/// A call without its reply.
pub(crate) struct PendingCall {
    id: u64,
    operation: Operation,
    /// The encoded call, and the message whose memory follows it.
    bytes: Bytes,
    memory: Option<Arc<HeldMessage>>,
    /// Number of bytes that it takes of the credits.
    size: u64,
    completion: Arc<Completion>,
    /// `true` if it was sent in this session.
    sent: bool,
}

impl PendingCall {
    fn new(call: RemoteCall, memory: Option<Arc<HeldMessage>>) -> Self {
        let (id, operation, size) = (call.id, call.operation(), call.value.as_ref().map_or(0, size_of));
        let bytes = CallerMessage { kind: Some(CallerMessageKind::Call(call)) }.encode_to_vec().into();
        Self { id, operation, bytes, memory, size, completion: Arc::default(), sent: false }
    }
}

/// A call on its way to the driver.
pub(crate) enum Command {
    Call(PendingCall),
    /// The caller has the value of the reply.
    Received(u64),
    /// The caller does not wait, or did not take the reply.
    Cancel(u64),
}

/// A call whose outcome is not yet awaited.
pub(crate) struct PendingReply {
    id: u64,
    completion: Arc<Completion>,
}

/// Connection to one home, made when it is needed.
#[derive(Debug)]
pub(crate) struct HomeLink {
    to: UnboundedSender<Command>,
    ids: AtomicU64,
    peer: Arc<Mutex<HomePeer>>,
    me: Arc<NodeIdentity>,
}

impl HomeLink {
    /// Creates a link. It connects at the first call.
    ///
    /// # Errors
    /// If the thread for the network can't be started.
    pub(crate) fn new(peer: HomePeer, me: Arc<NodeIdentity>) -> Result<Arc<Self>, NetError> {
        let (to, from) = unbounded_channel();
        let peer = Arc::new(Mutex::new(peer));
        reactor::handle()?.spawn(driver::run(me.clone(), peer.clone(), from));
        Ok(Arc::new(Self { to, ids: AtomicU64::new(1), peer, me }))
    }

    /// Returns this process, as its home sees it.
    pub(crate) fn me(&self) -> &NodeIdentity {
        &self.me
    }

    /// Returns the other end, as it is known.
    pub(crate) fn peer(&self) -> HomePeer {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, mut call: RemoteCall, memory: Option<Arc<HeldMessage>>) -> (u64, Arc<Completion>) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        call.id = id;
        let pending = PendingCall::new(call, memory);
        let completion = pending.completion.clone();
        if self.to.send(Command::Call(pending)).is_err() {
            _ = completion
                .complete(Err(NetError::Configuration("the thread for the network has ended".into())));
        }
        (id, completion)
    }

    /// Sends a call, and blocks until its outcome is known: at the latest when the wait of the call and the
    /// lease are over. An interrupt of the process cancels the call.
    pub(crate) fn call(&self, call: RemoteCall, memory: Option<Arc<HeldMessage>>) -> CallResult {
        self.wait(self.begin(call, memory))
    }

    /// Sends a call.
    pub(crate) fn begin(&self, call: RemoteCall, memory: Option<Arc<HeldMessage>>) -> PendingReply {
        let (id, completion) = self.send(call, memory);
        PendingReply { id, completion }
    }

    /// Blocks until the outcome of a call is known, like [`call`](Self::call).
    pub(crate) fn wait(&self, pending: PendingReply) -> CallResult {
        let PendingReply { id, completion } = pending;
        let result = completion.wait(|| _ = self.to.send(Command::Cancel(id)));
        self.received(id, &result);
        result
    }

    /// Lets the home forget a reply with a value, which the caller has.
    fn received(&self, id: u64, result: &CallResult) {
        if matches!(result, Ok((_, Some(_)))) {
            _ = self.to.send(Command::Received(id));
        }
    }

    /// Sends a call. Dropping the future cancels it, and gives back a message that it was to return.
    pub(crate) async fn call_async(&self, call: RemoteCall, memory: Option<Arc<HeldMessage>>) -> CallResult {
        let (id, completion) = self.send(call, memory);
        let abandon = || _ = self.to.send(Command::Cancel(id));
        let result = CallFuture { completion, abandon, is_taken: false }.await;
        self.received(id, &result);
        result
    }

    /// Sends a call whose outcome is not awaited.
    pub(crate) fn post(&self, call: RemoteCall) {
        let (_, completion) = self.send(call, None);
        drop(completion);
    }
}

/// Returns the longest wait of a call for the home: `None` if it has no limit.
pub(crate) fn microseconds(wait: mp_core::Wait) -> Option<u64> {
    match wait {
        mp_core::Wait::Never => Some(0),
        mp_core::Wait::Forever => None,
        mp_core::Wait::Until(deadline) => {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            Some(u64::try_from(left.as_micros()).unwrap_or(u64::MAX))
        }
    }
}

/// Interval of probes of a silent connection, and time for an answer to one: together the lease.
pub(crate) fn probes(lease: Duration) -> (Duration, Duration) {
    (lease / 4, lease - lease / 4)
}

/// Returns the name of this host.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "an unnamed host".into() } else { name.to_owned() }
}
