//! Watch channels of other members.

use std::fmt;
use std::sync::Arc;

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_queue::{PutError, watch};
use mp_reduce::decode_relayed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::Cluster;
use crate::error::RemoteRecvError;
use crate::remote::connected::ConnectedObject;
use crate::remote::relay::{self, RelayEndReceiver, RelayTarget, RelayedChannel};
use crate::type_and_build::ObjectType;

/// Receiver of a watch channel of another member of the cluster. It borrows, and waits for changes, as a
/// [`watch::Receiver`](mp_queue::watch::Receiver) does.
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteWatch};
/// use mp_queue::watch;
/// use mp_tensor::{FrozenTensor, Tensor};
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let (weights, receiver) = watch::channel(Tensor::<f32>::zeros(&[1000])?.freeze())?;
/// cluster.publish("weights", &receiver)?;
///
/// // On any host of the cluster.
/// let remote = RemoteWatch::<FrozenTensor<f32>>::connect(&cluster, "weights")?;
/// assert_eq!(remote.borrow()?[[7]], 0.0);
/// weights.send(Tensor::full(&[1000], 0.5)?.freeze())?;
/// remote.wait_changed()?;
/// assert_eq!(remote.borrow()?[[7]], 0.5);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Each value crosses the link once
/// The member relays the newest value into a watch channel of its own shared memory. All handles of the
/// member read this copy in place, and so do worker processes that receive a handle. A value that is replaced
/// before it is sent does not cross the link.
///
/// A handle can be sent to processes of the same program. A message to another host can't contain a handle:
/// connect there by the name.
///
/// # Blocking
/// [`connect`](Self::connect) blocks until the first value has arrived. [`borrow`](Self::borrow) reads the
/// newest value that has arrived, and never waits for the other host.
///
/// # When a process or its host is lost
/// | lost | effect |
/// |---|---|
/// | a member that receives | none |
/// | a process with a sender | none, unless it was the last: [`RemoteRecvError::Closed`] |
/// | the home (the member that has the channel) | waits end with [`RemoteRecvError::PeerLost`] within lease and grace; the last value stays readable |
/// | the process that connected, while its workers live | waits of the workers end with an error; the last value stays readable |
pub struct RemoteWatch<T> {
    values: watch::Receiver<T>,
    end: RelayEndReceiver,
    name: Arc<str>,
    /// Relay of this process. `None` in a process that has received the handle in a message.
    _relay: Option<Arc<WatchRelay<T>>>,
}

/// Receiving side of a relay, which handles of this process share.
struct WatchRelay<T> {
    values: watch::Receiver<T>,
    end: RelayEndReceiver,
}

impl<T: Send + Sync + 'static> RelayedChannel for WatchRelay<T> {
    fn is_over(&self) -> bool {
        self.values.is_closed()
    }
}

impl<T: Serialize + DeserializeOwned + 'static> RelayTarget for watch::Sender<T> {
    /// Number of requests in advance: one, so that the home sends the newest value.
    const AHEAD: usize = 1;

    fn prepare(&mut self, _: &mut Outgoing) {}

    fn send(&self, message: &mut Outgoing) -> Result<(), PutError<()>> {
        self.send_encoded(message)
    }

    fn skip(&mut self, _: u64) {}

    fn is_closed(&self) -> bool {
        watch::Sender::is_closed(self)
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> RemoteWatch<T> {
    /// Opens the watch channel whose receiver a member has [published](Cluster::publish) under a name. Blocks
    /// until the name is published, for up to the [time limit](crate::ClusterConfig::timeout), and until its
    /// value has arrived, which counts as seen.
    ///
    /// # Errors
    /// [`RemoteRecvError::PeerLost`] if rank 0 or the member that has the channel was lost.
    /// [`RemoteRecvError::Failed`] with the errors of [`RemoteQueue::connect`](crate::RemoteQueue::connect),
    /// or if the value can't leave its host.
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, RemoteRecvError> {
        let channel = ConnectedObject::connect(cluster, name, ObjectType::watch::<T>())?;
        let relay = relay::shared(&channel, |subscription| {
            let first = decode_relayed::<T>(subscription.first()?)?;
            let made = watch::channel(first);
            let (sender, values) =
                made.map_err(|e| mp_reduce::Error::from(mp_core::Error::NotPut(e.forget().to_string())))?;
            Ok(WatchRelay { values, end: subscription.relay(sender)? })
        })?;
        let values = relay.values.clone();
        values.mark_unchanged();
        Ok(Self { values, end: relay.end.clone(), name: name.into(), _relay: Some(relay) })
    }
}

impl<T: Serialize + DeserializeOwned + 'static> RemoteWatch<T> {
    /// Returns the newest value that has arrived. It does not count as seen. See
    /// [`watch::Receiver::borrow`](mp_queue::watch::Receiver::borrow).
    ///
    /// # Errors
    /// [`RemoteRecvError::Failed`] if the value can't be decoded or this process was forked.
    pub fn borrow(&self) -> Result<Arc<T>, RemoteRecvError> {
        self.values.borrow().map_err(|error| relay::get_error(error, &self.end))
    }

    /// Returns the newest value that has arrived, and marks it as seen.
    ///
    /// # Errors
    /// The same as for [`borrow`](Self::borrow).
    pub fn borrow_and_update(&self) -> Result<Arc<T>, RemoteRecvError> {
        self.values.borrow_and_update().map_err(|error| relay::get_error(error, &self.end))
    }

    /// Blocks until a value that has arrived satisfies `wanted`, which may be the current one. Marks that
    /// value as seen and returns it.
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig, RemoteWatch};
    /// use mp_queue::watch;
    ///
    /// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// let (sender, receiver) = watch::channel(0_u32)?;
    /// cluster.publish("epoch", &receiver)?;
    ///
    /// // On any host of the cluster.
    /// let epoch = RemoteWatch::<u32>::connect(&cluster, "epoch")?;
    /// std::thread::spawn(move || (1..=5).try_for_each(|n| sender.send(n)));
    /// assert_eq!(*epoch.wait_for(|n| *n >= 5)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// Returns the errors of [`borrow`](Self::borrow). Returns the errors of
    /// [`wait_changed`](Self::wait_changed) if the channel ends before a value satisfies `wanted`.
    #[track_caller]
    pub fn wait_for(&self, wanted: impl FnMut(&T) -> bool) -> Result<Arc<T>, RemoteRecvError> {
        self.wait_value(wanted, Wait::Forever)
    }

    mp_core::forms! {
        "Waits until a value that has arrived satisfies `wanted`":
            wait_for[P: FnMut(&T) -> bool](; wanted: P) -> Result<Arc<T>, RemoteRecvError>,
        or "[`RemoteRecvError::Empty`]";
        |watch, wait| watch.wait_value(wanted, wait);
        at_most wait_for_timeout;
        until wait_for_deadline;
    }

    #[track_caller]
    fn wait_value(&self, wanted: impl FnMut(&T) -> bool, wait: Wait) -> Result<Arc<T>, RemoteRecvError> {
        let value = match wait {
            Wait::Until(deadline) => self.values.wait_for_deadline(deadline, wanted),
            _ => self.values.wait_for(wanted),
        };
        value.map_err(|error| relay::get_error(error, &self.end))
    }
}

impl<T> RemoteWatch<T> {
    /// Returns `true` if a value has arrived that was not seen.
    ///
    /// # Errors
    /// The same as for [`wait_changed`](Self::wait_changed).
    pub fn has_changed(&self) -> Result<bool, RemoteRecvError> {
        self.values.has_changed().map_err(|error| relay::get_error(error, &self.end))
    }

    /// Blocks until a value has arrived that was not seen, and marks it as seen.
    ///
    /// # Errors
    /// Returns an error if the newest value was seen: [`RemoteRecvError::PeerLost`] if the member that has
    /// the channel was lost, and [`RemoteRecvError::Closed`] if there are no senders.
    /// [`RemoteRecvError::Failed`] if a value could not leave its host, or the channel was withdrawn.
    #[track_caller]
    pub fn wait_changed(&self) -> Result<(), RemoteRecvError> {
        self.wait(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until a value has arrived that was not seen": wait_changed() -> Result<(), RemoteRecvError>,
        or "[`RemoteRecvError::Empty`]";
        |watch, wait| watch.wait(wait);
        at_most wait_changed_timeout;
        until wait_changed_deadline;
    }

    #[track_caller]
    fn wait(&self, wait: Wait) -> Result<(), RemoteRecvError> {
        let changed = match wait {
            Wait::Until(deadline) => self.values.wait_changed_deadline(deadline),
            _ => self.values.wait_changed(),
        };
        changed.map_err(|error| relay::get_error(error, &self.end))
    }

    /// Waits asynchronously until a value has arrived that was not seen, and marks it as seen.
    ///
    /// # Errors
    /// The same as for [`wait_changed`](Self::wait_changed).
    pub async fn changed(&self) -> Result<(), RemoteRecvError> {
        self.values.changed().await.map_err(|error| relay::get_error(error, &self.end))
    }
}

/// A clone counts the same value as seen.
impl<T> Clone for RemoteWatch<T> {
    fn clone(&self) -> Self {
        let Self { values, end, name, _relay } = self;
        Self { values: values.clone(), end: end.clone(), name: name.clone(), _relay: _relay.clone() }
    }
}

impl<T> fmt::Debug for RemoteWatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteWatch({:?})", self.name)
    }
}

impl<T: 'static> Serialize for RemoteWatch<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.values, &self.end, &*self.name).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for RemoteWatch<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (values, end, name) = <(watch::Receiver<T>, RelayEndReceiver, String)>::deserialize(d)?;
        Ok(Self { values, end, name: name.into(), _relay: None })
    }
}
