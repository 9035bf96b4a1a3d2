//! Broadcast channels of other members.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_queue::PutError;
use mp_queue::broadcast::{self, RecvError};
use mp_reduce::{Bundle, encode_for_relay};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::Cluster;
use crate::connected::ConnectedObject;
use crate::error::{NetError, RemoteRecvError};
use crate::object_type::ObjectType;
use crate::relay::{self, RelayEndReceiver, RelayTarget, RelayedChannel};
use crate::sync::{AtomicU64, Ordering};

/// Receiver of a broadcast channel of another member of the cluster, with the methods of
/// [`broadcast::Receiver`](mp_queue::broadcast::Receiver).
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
/// A handle can be sent to processes of the same program. It starts with the next message of the original. A
/// message to another host can't contain it: connect there by the name.
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
/// | the home | [`RemoteRecvError::PeerLost`] within lease and grace, after the messages that had arrived |
/// | the process that connected, without its workers | an error in the workers, after the messages that had arrived |
pub struct RemoteBroadcast<T> {
    messages: broadcast::Receiver<T>,
    end: RelayEndReceiver,
    name: Arc<str>,
    state: Mutex<BroadcastState<T>>,
    /// Relay of this process. Missing in a process that has received the handle.
    relay: Option<Arc<BroadcastRelay<T>>>,
}

/// Message in the channel of a relay: its number in the subscription, and the message. A missing number is a
/// message that did not arrive.
type Numbered<T> = Bundle<(u64, T)>;

/// State of a receiver.
struct BroadcastState<T> {
    /// Number of the next message.
    next: u64,
    /// Message that is returned after the number of missed messages.
    unread: Option<T>,
}

/// Receiving side of a relay, which handles of this process share.
struct BroadcastRelay<T> {
    messages: broadcast::Receiver<T>,
    end: RelayEndReceiver,
    /// Number of the last message that was sent.
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
    fn prepare(&mut self, message: &mut Outgoing) -> Result<(), mp_reduce::Error> {
        let mut number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let number = encode_for_relay(&mut number)?;
        // The parts of a bundle are encoded one after the other.
        message.bytes().splice(0..0, number.written().iter().copied());
        Ok(())
    }

    fn send(&self, message: &mut Outgoing) -> Result<(), PutError<()>> {
        self.sender.send_encoded::<Numbered<T>>(message)
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
    /// Blocks until there is one, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// [`RemoteRecvError::PeerLost`] if rank 0 or the home was lost. [`RemoteRecvError::Failed`] with the
    /// errors of [`RemoteQueue::connect`](crate::RemoteQueue::connect).
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
        // Read later, so a message in between counts as received, and not as missed.
        let next = relay.last.load(Ordering::Relaxed) + 1;
        let state = Mutex::new(BroadcastState { next, unread: None });
        Ok(Self { messages, end: relay.end.clone(), name, state, relay: Some(relay) })
    }

    fn lock(&self) -> MutexGuard<'_, BroadcastState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Receives the next message. Blocks while there is none.
    ///
    /// # Errors
    /// [`RemoteRecvError::Lagged`] if messages were replaced before this receiver read them.
    /// [`RemoteRecvError::Closed`] if there are no messages and no senders. [`RemoteRecvError::PeerLost`] if
    /// the home was lost. [`RemoteRecvError::Failed`] if the message can't be decoded, which skips it, or if
    /// it could not leave its host, which ends the channel.
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
            if let Some(message) = self.lock().unread.take() {
                return Ok(message);
            }
            if let Some(end) = self.arrived(self.messages.recv_as(wait)) {
                return end;
            }
        }
    }

    /// Receives the next message asynchronously. A future that is dropped before it is ready has received
    /// nothing.
    ///
    /// # Errors
    /// The same as for [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, RemoteRecvError> {
        loop {
            if let Some(message) = self.lock().unread.take() {
                return Ok(message);
            }
            if let Some(end) = self.arrived(self.messages.recv_as_async().await) {
                return end;
            }
        }
    }

    /// Returns the result of a receiver, or `None` if it has to receive again.
    fn arrived(&self, result: Result<Numbered<T>, RecvError>) -> Option<Result<T, RemoteRecvError>> {
        Some(match result {
            Ok(Bundle((number, message))) => {
                let mut state = self.lock();
                let missed = number.saturating_sub(state.next);
                state.next = state.next.max(number.saturating_add(1));
                if missed == 0 {
                    return Some(Ok(message));
                }
                let former = state.unread.replace(message);
                drop(state);
                drop(former);
                Err(RemoteRecvError::Lagged(missed))
            }
            // The number of the next message shows how many were missed, also before the relay.
            Err(RecvError::Lagged(_)) => return None,
            Err(RecvError::Closed) => Err(relay::end_of(&self.end)),
            Err(RecvError::Empty) => Err(RemoteRecvError::Empty),
            Err(RecvError::Interrupted) => Err(RemoteRecvError::Failed(NetError::Interrupted)),
            Err(RecvError::Failed(error)) => {
                self.lock().next += 1;
                Err(error.into())
            }
            Err(error) => Err(mp_reduce::Error::from(mp_core::Error::NotPut(error.to_string())).into()),
        })
    }
}

impl<T> fmt::Debug for RemoteBroadcast<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteBroadcast({:?})", self.name)
    }
}

impl<T: 'static> Serialize for RemoteBroadcast<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let next = self.lock().next;
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
