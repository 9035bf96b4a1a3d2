//! Calls of objects of another member.
//!
//! A link connects one process with one home: the process that has the objects and runs their calls. `driver`
//! connects when there is a call, and reconnects within the lease and the grace of the
//! [configuration](crate::ClusterConfig). `completion` has the outcomes.
//!
//! | state of a call | after a reconnect in time | after the peer is lost |
//! |---|---|---|
//! | waits for credits | sent | fails, not in doubt |
//! | sent, no reply | [sent again](resend); the home does nothing twice | fails, in doubt |
//! | reply has arrived, not yet received by its caller | received | received; the home also returns the message to its queue |
//! | received | the home forgets the call | received; the home also returns the message to its queue if it has not read the receipt |

pub(crate) mod batch;
pub(crate) mod completion;
mod driver;
mod ended;
mod resend;
mod socket;
pub(crate) mod stream;

use crate::sync::{AtomicU64, Ordering};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mp_core::Wait;
use mp_core::mutex::Mutex;
use prost::Message;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::config::ClusterConfig;
use crate::error::NetError;
use crate::link::batch::PutBatch;
use crate::link::completion::{CallFuture, CallResult, Completion};
use crate::link::ended::EndedSessions;
use crate::reactor;
use crate::wire::held::HeldMessage;
use crate::wire::messages::{CallOutcome, CallerMessage, CallerMessageKind, Node, Operation, RemoteCall};
use crate::wire::send::StreamPacket;
use crate::wire::value::size_of;

/// Identity and limits of this process, as other members see them.
#[derive(Debug)]
pub(crate) struct NodeIdentity {
    pub(crate) config: ClusterConfig,
    pub(crate) node: Node,
}

/// Home at the other end of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct HomePeer {
    pub(crate) address: String,
    pub(crate) rank: usize,
    /// Host and process id, empty before the first connection.
    pub(crate) host: String,
    /// Session number of the home, or 0 if any session is accepted.
    pub(crate) home: u64,
}

/// Call whose reply has not arrived.
pub(crate) struct PendingCall {
    id: u64,
    operation: Operation,
    object: u64,
    /// Call before its encoding. A call with a deadline or a batch is encoded when it is sent.
    unencoded: Option<RemoteCall>,
    bytes: Bytes,
    /// Message whose attachments are sent after the call.
    memory: Option<Arc<HeldMessage>>,
    /// Batch with the values of the call. `None` after the call was sent.
    batch: Option<Arc<PutBatch>>,
    /// Number of bytes that the call counts against the credits. For a batch, set when it is sent.
    size: u64,
    deadline: Option<Instant>,
    /// `true` if the call fails instead of waiting for credits.
    never_waits: bool,
    completion: Arc<Completion>,
    /// `true` if the call was sent in this session.
    sent: bool,
    /// Number of the [group](resend) in which the home has read the resent call, or 0 if the home has not
    /// read it.
    group: u64,
    /// Number of [receipts](ended) that were sent before this call.
    receipts: u64,
    /// `true` if the caller has cancelled the call.
    cancelled: bool,
    /// Number of the call whose messages this call gives back, and number of messages that the caller keeps.
    gives_back: Option<(u64, u64)>,
}

impl PendingCall {
    fn new(call: RemoteCall, values: CallValues, deadline: Option<Instant>) -> Self {
        let never_waits = call.wait == Some(0);
        let size = call.values.first().map_or(0, |value| size_of(value).max(1));
        let (memory, batch, size) = match values {
            CallValues::None => (None, None, size),
            CallValues::Held(memory) => (Some(memory), None, size),
            CallValues::Batch(batch) => (None, Some(batch), 1),
        };
        let mut pending = Self {
            id: call.id,
            operation: call.operation(),
            object: call.object,
            unencoded: Some(call),
            bytes: Bytes::new(),
            memory,
            batch,
            size,
            deadline,
            never_waits,
            completion: Arc::default(),
            sent: false,
            group: 0,
            receipts: 0,
            cancelled: false,
            gives_back: None,
        };
        if deadline.is_none() && pending.batch.is_none() {
            pending.encode();
        }
        pending
    }

    /// Encodes the call, with the time that remains until its deadline.
    fn encode(&mut self) {
        let Some(mut call) = self.unencoded.take() else { return };
        if let Some((values, size, memory)) = self.batch.take().and_then(|batch| batch.send()) {
            (call.values, self.size, self.memory) = (values, size, Some(memory));
        }
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            call.wait = Some(u64::try_from(left.as_micros()).unwrap_or(u64::MAX));
        }
        let message = CallerMessage { kind: Some(CallerMessageKind::Call(call)) };
        self.bytes = message.encode_to_vec().into();
    }

    /// Completes the call of an interrupted process with [`NetError::Interrupted`], if the operation can wait
    /// for long and nothing is lost with its outcome. A message that arrives later is given back. The callers
    /// of other operations wait for the outcome.
    fn interrupt(&self) {
        use Operation::{Find, Get, Lease, Wait, Watch};
        if matches!(self.operation, Get | Lease | Wait | Watch | Find) {
            self.completion.complete(Err(NetError::Interrupted));
        }
    }

    /// Sends the call for the first time. `receipts` is the number of [receipts](ended) that were sent
    /// before.
    fn send(&mut self, receipts: u64, to: &UnboundedSender<StreamPacket>) {
        (self.sent, self.receipts) = (true, receipts);
        self.encode();
        self.send_again(to);
    }

    /// Sends the call again, and after it the cancellation if the caller has cancelled the call.
    fn send_again(&self, to: &UnboundedSender<StreamPacket>) {
        _ = to.send(StreamPacket { message: self.bytes.clone(), memory: self.memory.clone() });
        if self.cancelled {
            _ = to.send(up(CallerMessageKind::Cancel(self.id)));
        }
    }
}

fn up(kind: CallerMessageKind) -> StreamPacket {
    StreamPacket::of(&CallerMessage { kind: Some(kind) })
}

/// Values that are sent with a call.
pub(crate) enum CallValues {
    None,
    /// Memory of the call's only value.
    Held(Arc<HeldMessage>),
    /// Batch, whose values are added when the call is sent.
    Batch(Arc<PutBatch>),
}

/// Completes a call that its driver drops without an outcome, so that the caller does not wait forever.
impl Drop for PendingCall {
    fn drop(&mut self) {
        self.completion.complete(Err(NetError::Configuration("the thread for the network has ended".into())));
    }
}

/// A message of a caller to the driver.
pub(crate) enum Command {
    Call(Box<PendingCall>),
    /// Number of a call whose caller has received the value of the reply.
    Received(u64),
    /// Number of a call, and number of messages of its reply that the caller keeps. The caller gives back the
    /// other messages.
    GiveBack(u64, u64),
    /// Number of a call whose caller was interrupted. The caller continues to wait for the outcome.
    Interrupt(u64),
    /// Number of a call whose caller has stopped waiting, and has not taken the reply.
    Abandon(u64),
}

/// Handle to a call that was begun, with which the caller waits for the outcome.
pub(crate) struct PendingReply {
    id: u64,
    completion: Arc<Completion>,
}

impl PendingReply {
    /// Returns `true` if the outcome is known.
    pub(crate) fn is_over(&self) -> bool {
        self.completion.is_over()
    }
}

/// Messages of a reply that the caller reads one after the other. Dropping this value gives back the messages
/// that were not read.
pub(crate) struct UnreadMessages<'l> {
    link: &'l HomeLink,
    id: u64,
    count: u64,
    /// Number of messages that the caller has read, or failed to read.
    pub(crate) read: u64,
}

impl Drop for UnreadMessages<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            _ = self.link.to.send(match self.read < self.count {
                true => Command::GiveBack(self.id, self.read),
                false => Command::Received(self.id),
            });
        }
    }
}

/// Handle to a link. The link connects to its home at the first call.
#[derive(Debug)]
pub(crate) struct HomeLink {
    to: UnboundedSender<Command>,
    ids: AtomicU64,
    ended: Arc<EndedSessions>,
    peer: Arc<Mutex<HomePeer>>,
    me: Arc<NodeIdentity>,
    /// Relays of the home's channels, by the number of the channel. A relay exists while this process has a
    /// handle to the channel.
    pub(crate) relays: Mutex<HashMap<u64, Weak<dyn Any + Send + Sync>>>,
}

impl HomeLink {
    /// Creates a link, which connects at the first call.
    ///
    /// # Errors
    /// Returns an error if the thread for the network can't be started.
    pub(crate) fn new(peer: HomePeer, me: Arc<NodeIdentity>) -> Result<Arc<Self>, NetError> {
        let (to, from) = unbounded_channel();
        let peer = Arc::new(Mutex::new(peer));
        let ended = Arc::<EndedSessions>::default();
        reactor::handle()?.spawn(driver::run(me.clone(), peer.clone(), ended.clone(), from));
        Ok(Arc::new(Self { to, ids: AtomicU64::new(1), ended, peer, me, relays: Mutex::default() }))
    }

    /// Forgets the session number of the home, so that the next connection accepts any home at the address.
    pub(crate) fn forget_home(&self) {
        self.peer.lock().home = 0;
    }

    /// Sends a call that has no effect. The reply confirms that the home has recorded which messages this
    /// process received before in the same session.
    pub(crate) fn begin_flush(&self) -> PendingReply {
        self.begin(RemoteCall::default(), CallValues::None, Wait::Never)
    }

    /// Blocks until the home has recorded which messages this process has received.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if, since the last flush, a home was lost before it had recorded all received
    /// messages. If several threads flush, only one of them gets this error. [`NetError::Interrupted`] if the
    /// process is interrupted while there is no connection.
    pub(crate) fn flush(&self) -> Result<(), NetError> {
        let flushed = self.wait(self.begin_flush());
        // The loss of an earlier session is reported here, because no call may have waited then.
        if let Some(lost) = self.ended.take_unflushed() {
            return Err(lost.into());
        }
        // `Empty` is the outcome of an interrupted call that was not sent.
        if flushed?.0.outcome() == CallOutcome::Empty { Err(NetError::Interrupted) } else { Ok(()) }
    }

    /// Returns `true` if the session of a call has not ended, as far as this process knows.
    pub(crate) fn lasts(&self, id: u64) -> bool {
        !self.ended.contains(id)
    }

    /// Returns the identity of this process, which the link sends to the home.
    pub(crate) fn me(&self) -> &NodeIdentity {
        &self.me
    }

    /// Returns the address, rank and host of the home, as far as they are known.
    pub(crate) fn peer(&self) -> HomePeer {
        self.peer.lock().clone()
    }

    fn send(&self, mut call: RemoteCall, values: CallValues, wait: Wait) -> (u64, Arc<Completion>) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        call.id = id;
        let deadline = match wait {
            Wait::Never => {
                call.wait = Some(0);
                None
            }
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let pending = PendingCall::new(call, values, deadline);
        let completion = pending.completion.clone();
        // A forked child has no driver.
        match mp_core::Arena::current().and_then(|arena| arena.me()) {
            // If the driver has ended, the call is dropped, which completes it with an error.
            Ok(_) => _ = self.to.send(Command::Call(Box::new(pending))),
            Err(error) => _ = completion.complete(Err(error.into())),
        }
        (id, completion)
    }

    /// Sends a call, and blocks until its outcome is known: at most for its time limit plus the lease and the
    /// grace. An interrupt of the process cancels the call.
    pub(crate) fn call(&self, call: RemoteCall, wait: Wait) -> CallResult {
        self.wait(self.begin(call, CallValues::None, wait))
    }

    /// Sends a call.
    pub(crate) fn begin(&self, call: RemoteCall, values: CallValues, wait: Wait) -> PendingReply {
        let (id, completion) = self.send(call, values, wait);
        PendingReply { id, completion }
    }

    /// Cancels a call whose outcome is still awaited.
    pub(crate) fn cancel(&self, pending: &PendingReply) {
        _ = self.to.send(Command::Interrupt(pending.id));
    }

    /// Blocks until the outcome of a call is known, like [`call`](Self::call).
    pub(crate) fn wait(&self, pending: PendingReply) -> CallResult {
        self.wait_until(pending, None).unwrap_or(Err(NetError::Interrupted))
    }

    /// Blocks until the outcome of a call is known, like [`wait`](Self::wait). The caller reads the messages
    /// of the reply one after the other.
    pub(crate) fn wait_unread(&self, pending: PendingReply) -> (CallResult, UnreadMessages<'_>) {
        let PendingReply { id, completion } = pending;
        let result = completion.wait(None, || _ = self.to.send(Command::Interrupt(id)));
        let result = result.unwrap_or(Err(NetError::Interrupted));
        let count = result.as_ref().map_or(0, |(_, values)| values.len() as u64);
        (result, UnreadMessages { link: self, id, count, read: 0 })
    }

    /// Blocks until the outcome of a call is known, like [`wait`](Self::wait). At `until`, the call is
    /// abandoned, as by dropping the future of [`call_async`](Self::call_async).
    pub(crate) fn wait_until(&self, pending: PendingReply, until: Option<Instant>) -> Option<CallResult> {
        let PendingReply { id, completion } = pending;
        let result = completion.wait(until, || _ = self.to.send(Command::Interrupt(id)));
        match &result {
            Some(result) => self.received(id, result),
            None => _ = self.to.send(Command::Abandon(id)),
        }
        result
    }

    /// Acknowledges a reply that has a value or a permit, so that the home forgets the reply.
    fn received(&self, id: u64, result: &CallResult) {
        if result.as_ref().is_ok_and(|(reply, values)| !values.is_empty() || reply.holds) {
            _ = self.to.send(Command::Received(id));
        }
    }

    /// Sends a call. Dropping the future cancels the call, and gives back a message that the call has taken.
    pub(crate) async fn call_async(&self, call: RemoteCall, values: CallValues) -> CallResult {
        let (id, completion) = self.send(call, values, Wait::Forever);
        let abandon = || _ = self.to.send(Command::Abandon(id));
        let result = CallFuture { completion, abandon, is_taken: false }.await;
        self.received(id, &result);
        result
    }

    /// Sends a call whose outcome is not awaited.
    pub(crate) fn post(&self, call: RemoteCall) {
        drop(self.send(call, CallValues::None, Wait::Forever));
    }
}

/// Interval of probes of a silent connection, and time limit for the answer to a probe. Their sum is the
/// lease.
pub(crate) fn probes(lease: Duration) -> (Duration, Duration) {
    (lease / 4, lease - lease / 4)
}

/// Returns the name of this host.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "an unnamed host".into() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};

    use super::*;
    use crate::error::Refusal;

    #[test]
    fn all_calls_waiting_for_a_refused_link_get_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let me = NodeIdentity { config: ClusterConfig::new(1, 2, &address), node: Node::default() };
        let peer = HomePeer { address, ..HomePeer::default() };
        let link = HomeLink::new(peer, Arc::new(me)).unwrap();
        let begin = || link.begin(RemoteCall::default(), CallValues::None, Wait::Forever);
        let calls = [begin(), begin(), begin()];
        // A call that the driver reads after the first refusal connects again.
        let answering = std::thread::spawn(move || {
            for mut caller in listener.incoming().map_while(Result::ok) {
                let mut first = [0];
                if caller.read(&mut first).is_ok_and(|read| read == 0) {
                    return;
                }
                _ = caller.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                _ = caller.shutdown(Shutdown::Write);
                _ = caller.read_to_end(&mut Vec::new());
            }
        });
        for call in calls {
            let error = link.wait(call).unwrap_err();
            assert!(matches!(&error, NetError::Refused { why: Refusal::Other(_), .. }), "{error}");
        }
        drop(std::net::TcpStream::connect(link.peer().address).unwrap());
        answering.join().unwrap();
    }
}
