//! Broadcast channels of other members.

use std::fmt;
use std::sync::Arc;

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use mp_queue::PutError;
use mp_queue::broadcast::{self, RecvError};
use mp_reduce::decode_relayed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::Cluster;
use crate::error::{NetError, RemoteRecvError};
use crate::remote::connected::ConnectedObject;
use crate::remote::relay::{self, RelayEndReceiver, RelayTarget, RelayedChannel};
use crate::sync::{AtomicU64, Ordering};
use crate::type_and_build::ObjectType;

/// Receiver of a broadcast channel of another member of the cluster. It receives and resubscribes as a
/// [`broadcast::Receiver`](mp_queue::broadcast::Receiver) does.
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteBroadcast};
/// use mp_queue::broadcast;
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let (sender, receiver) = broadcast::channel::<String>(16)?;
/// cluster.publish("news", &receiver)?;
///
/// // On any host of the cluster.
/// let one = RemoteBroadcast::<String>::connect(&cluster, "news")?;
/// let other = one.resubscribe()?;
/// sender.send("epoch 1".into())?;
/// assert_eq!((one.recv()?, other.recv()?), ("epoch 1".to_string(), "epoch 1".to_string()));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A receiver gets all messages that are sent after [`connect`](Self::connect) or
/// [`resubscribe`](Self::resubscribe) has returned, and may get some that were sent shortly before.
///
/// # Each message crosses the link once
/// The member relays the messages into a broadcast channel of its own shared memory, with the same capacity.
/// All receivers of the member read this copy in place, and so do worker processes that receive a handle.
///
/// A handle can be sent to processes of the same program. Their handles start at the next message of the sent
/// handle. If the last call of the sent handle returned `Lagged`, the first message after the gap counts as
/// missed in the receiving process. A message to another host can't contain a handle: connect there by the
/// name.
///
/// # Slow receivers and links
/// A sender waits for no receiver. A receiver that falls behind, or whose link is too slow, gets
/// [`RemoteRecvError::Lagged`] with the exact number of messages that it has missed.
///
/// # When a process or its host is lost
/// | lost | effect |
/// |---|---|
/// | a member that receives | none |
/// | a process with a sender | none, unless it was the last: [`RemoteRecvError::Closed`], after all messages |
/// | the home (the member that has the channel) | [`RemoteRecvError::PeerLost`] within lease and grace, after the messages that had arrived |
/// | the process that connected, while its workers live | an error in the workers, after the messages that had arrived |
pub struct RemoteBroadcast<T> {
    messages: broadcast::Receiver<T>,
    end: RelayEndReceiver,
    name: Arc<str>,
    state: Mutex<BroadcastState>,
    /// Relay of this process. `None` in a process that has received the handle in a message.
    relay: Option<Arc<BroadcastRelay<T>>>,
}

/// Length in bytes of the number of a message in its subscription. The number precedes the message in the
/// channel of a relay. A gap in the numbers means that messages did not arrive.
const NUMBER: usize = size_of::<u64>();

/// State of a receiver. The state is locked while a message is taken, so that numbers are compared in their
/// order. The lock is not held while user code decodes the message.
struct BroadcastState {
    /// Number of the message that this receiver expects next.
    next: u64,
    /// Next message and its number. It was read already, and is returned by the call after the call that
    /// returned `Lagged`.
    unread: Option<(u64, Outgoing)>,
}

/// Receiving side of a relay, which handles of this process share.
struct BroadcastRelay<T> {
    messages: broadcast::Receiver<T>,
    end: RelayEndReceiver,
    /// Number of the last message that was sent into the relay's channel.
    last: Arc<AtomicU64>,
}

impl<T: Send + Sync + 'static> RelayedChannel for BroadcastRelay<T> {
    fn is_over(&self) -> bool {
        self.messages.is_closed()
    }
}

/// Sending side of a relay.
struct BroadcastTarget<T> {
    sender: broadcast::Sender<T>,
    last: Arc<AtomicU64>,
}

impl<T: Serialize + DeserializeOwned + 'static> RelayTarget for BroadcastTarget<T> {
    const AHEAD: usize = relay::AHEAD;

    fn prepare(&mut self, message: &mut Outgoing) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        message.bytes().splice(0..0, number.to_le_bytes());
    }

    fn send(&self, message: &mut Outgoing) -> Result<(), PutError<()>> {
        self.sender.send_encoded(message)
    }

    fn skip(&mut self, missed: u64) {
        self.last.fetch_add(missed, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> RemoteBroadcast<T> {
    /// Opens the broadcast channel whose receiver a member has [published](Cluster::publish) under a name.
    /// Blocks until the name is published, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// [`RemoteRecvError::PeerLost`] if rank 0 or the member that has the channel was lost.
    /// [`RemoteRecvError::Failed`] with the errors of [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, RemoteRecvError> {
        let channel = ConnectedObject::connect(cluster, name, ObjectType::broadcast::<T>())?;
        let relay = relay::shared(&channel, |subscription| {
            let (sender, messages) = broadcast::channel(subscription.capacity)?;
            let last = Arc::new(AtomicU64::new(0));
            let end = subscription.relay(BroadcastTarget { sender, last: last.clone() })?;
            Ok(BroadcastRelay { messages, end, last })
        })?;
        Self::of(relay, name.into())
    }
}

impl<T> RemoteBroadcast<T> {
    fn of(relay: Arc<BroadcastRelay<T>>, name: Arc<str>) -> Result<Self, RemoteRecvError> {
        let messages = relay.messages.resubscribe()?;
        // Read after the receiver was created, so a message in between counts as received, and not as missed.
        let next = relay.last.load(Ordering::Relaxed) + 1;
        let state = Mutex::new(BroadcastState { next, unread: None });
        Ok(Self { messages, end: relay.end.clone(), name, state, relay: Some(relay) })
    }

    /// Creates a receiver for messages that are sent after this call.
    ///
    /// # Errors
    /// [`RemoteRecvError::Failed`] in a forked copy of the process, and in a process that has received the
    /// handle from another one.
    pub fn resubscribe(&self) -> Result<Self, RemoteRecvError> {
        match &self.relay {
            Some(relay) => Self::of(relay.clone(), self.name.clone()),
            None => {
                let text = "only the process that has connected can subscribe again: send another handle";
                Err(NetError::Configuration(text.into()).into())
            }
        }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> RemoteBroadcast<T> {
    /// Receives the next message. Blocks until it arrives.
    ///
    /// # Errors
    /// [`RemoteRecvError::Lagged`] if messages were replaced before this receiver read them.
    /// [`RemoteRecvError::Closed`] if there are no messages and no senders. [`RemoteRecvError::PeerLost`] if
    /// the member that has the channel was lost. [`RemoteRecvError::Failed`] if the message can't be decoded
    /// (the message is skipped), or could not leave its host (the channel ends).
    #[track_caller]
    pub fn recv(&self) -> Result<T, RemoteRecvError> {
        self.recv_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Receives the next message": recv() -> Result<T, RemoteRecvError>, or "[`RemoteRecvError::Empty`]";
        |receiver, wait| receiver.recv_wait(wait);
        never try_recv;
        at_most recv_timeout;
        until recv_deadline;
    }

    #[track_caller]
    fn recv_wait(&self, wait: Wait) -> Result<T, RemoteRecvError> {
        loop {
            if let Some(taken) = self.take() {
                return Ok(decode_relayed(taken?)?);
            }
            self.messages.wait_message(wait).map_err(|error| self.error(error))?;
        }
    }

    /// Receives the next message asynchronously. A future that is dropped before it is ready has received
    /// nothing.
    ///
    /// # Errors
    /// The same as for [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, RemoteRecvError> {
        loop {
            if let Some(taken) = self.take() {
                return Ok(decode_relayed(taken?)?);
            }
            self.messages.wait_message_async().await.map_err(|error| self.error(error))?;
        }
    }

    /// Takes the next message, without decoding it. Returns `None` if no message has arrived.
    fn take(&self) -> Option<Result<Outgoing, RemoteRecvError>> {
        let mut state = self.state.lock();
        if let Some((_, message)) = state.unread.take() {
            return Some(Ok(message));
        }
        let mut message = loop {
            match self.messages.try_recv_encoded() {
                Ok(message) => break message,
                Err(RecvError::Empty) => return None,
                // The gap in the numbers, at the next message, counts also the messages that the relay
                // missed.
                Err(RecvError::Lagged(_)) => {}
                Err(error) => return Some(Err(self.error(error))),
            }
        };
        let bytes = message.bytes();
        let Some(number) = bytes.first_chunk::<NUMBER>().copied().map(u64::from_le_bytes) else {
            let error = mp_core::Error::Malformed("the message of a relay has no number".into());
            return Some(Err(mp_reduce::Error::from(error).into()));
        };
        bytes.drain(..NUMBER);
        let missed = number.saturating_sub(state.next);
        state.next = state.next.max(number.saturating_add(1));
        if missed == 0 {
            return Some(Ok(message));
        }
        state.unread = Some((number, message));
        Some(Err(RemoteRecvError::Lagged(missed)))
    }

    /// Converts an error of the relay's channel into an error of this receiver.
    fn error(&self, error: RecvError) -> RemoteRecvError {
        match error {
            RecvError::Closed => relay::end_of(&self.end),
            RecvError::Empty => RemoteRecvError::Empty,
            RecvError::Interrupted => RemoteRecvError::Failed(NetError::Interrupted),
            RecvError::Failed(error) => error.into(),
            error => mp_reduce::Error::from(mp_core::Error::NotPut(error.to_string())).into(),
        }
    }
}

impl<T> fmt::Debug for RemoteBroadcast<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteBroadcast({:?})", self.name)
    }
}

impl<T: 'static> Serialize for RemoteBroadcast<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let state = self.state.lock();
        // The channel's receiver is already after the unread message, so the sent handle counts it as missed.
        let next = state.unread.as_ref().map_or(state.next, |(number, _)| *number);
        (&self.messages, &self.end, &*self.name, next).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for RemoteBroadcast<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        type Parts<T> = (broadcast::Receiver<T>, RelayEndReceiver, String, u64);
        let (messages, end, name, next) = Parts::<T>::deserialize(d)?;
        let state = Mutex::new(BroadcastState { next, unread: None });
        Ok(Self { messages, end, name: name.into(), state, relay: None })
    }
}
