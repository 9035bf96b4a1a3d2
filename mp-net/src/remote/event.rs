//! Events of other members.

use std::time::{Duration, Instant};

use mp_core::Wait;

use crate::cluster::Cluster;
use crate::error::NetError;
use crate::remote::connected::{ConnectedObject, remote_handle};
use crate::type_and_build::ObjectType;
use crate::wire::messages::ObjectMethod;

/// An event of another member of the cluster. Has the methods of [`Event`](mp_sync::Event), except `observe`
/// and `wait_since`, which read the event's state in the memory of its host.
///
/// ```
/// use std::time::Duration;
/// use mp_net::{Cluster, ClusterConfig, RemoteEvent};
/// use mp_sync::Event;
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let stop = Event::new()?;
/// cluster.publish("stop", &stop)?;
///
/// // On any host of the cluster.
/// let remote = RemoteEvent::connect(&cluster, "stop")?;
/// assert!(!remote.wait_timeout(Duration::from_millis(1))?);
/// stop.set()?;
/// remote.wait()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Blocking
/// Each method blocks until the member that has the event (its home) has answered. [`wait`](Self::wait) also
/// returns if the event was set after the home had received the call, even if the event was cleared again at
/// once. If the connection is interrupted, a call ends with [`PeerLost`](crate::PeerLost) after the
/// [lease](crate::ClusterConfig::lease) and the [grace](crate::ClusterConfig::grace) at the latest.
///
/// # When a process or its host is lost
/// | lost | effect |
/// |---|---|
/// | a member that waits, or has set the event | none: an event has no owner |
/// | the home (the member that has the event) | all calls end with [`NetError::PeerLost`]; a `set` or `clear` that was sent is [in doubt](crate::PeerLost::in_doubt) |
#[derive(Clone)]
pub struct RemoteEvent(ConnectedObject);

remote_handle!(RemoteEvent, ObjectType::event());

impl RemoteEvent {
    /// Opens the event that a member has [published](Cluster::publish) under a name. Blocks until the name
    /// is published, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// The same as for [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        ConnectedObject::connect(cluster, name, ObjectType::event()).map(Self)
    }

    /// Returns `true` if the event is set: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn is_set(&self) -> Result<bool, NetError> {
        Ok(self.0.call(ObjectMethod::IsSet, 0)? != 0)
    }

    /// Sets the event, and wakes all waiters. Returns `true` if it was not set before.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn set(&self) -> Result<bool, NetError> {
        Ok(self.0.call(ObjectMethod::Set, 0)? != 0)
    }

    /// Clears the event. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn clear(&self) -> Result<bool, NetError> {
        Ok(self.0.call(ObjectMethod::Clear, 0)? != 0)
    }

    /// Blocks until the event is set.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn wait(&self) -> Result<(), NetError> {
        self.0.wait(ObjectMethod::WaitSet, Wait::Forever).map(drop)
    }

    /// Blocks until the event is set, at most `timeout`. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, NetError> {
        Ok(self.0.wait(ObjectMethod::WaitSet, Wait::at_most(timeout))?.is_some())
    }

    /// Blocks until the event is set, or until `deadline`. Returns `true` if it was set.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub fn wait_deadline(&self, deadline: Instant) -> Result<bool, NetError> {
        Ok(self.0.wait(ObjectMethod::WaitSet, Wait::Until(deadline))?.is_some())
    }

    /// Waits asynchronously until the event is set.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the event was lost.
    pub async fn wait_async(&self) -> Result<(), NetError> {
        self.0.wait_async(ObjectMethod::WaitSet).await.map(drop)
    }
}
