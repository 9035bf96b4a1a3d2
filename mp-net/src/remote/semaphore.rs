//! Semaphores of other members.

use std::fmt;

use mp_core::Wait;

use crate::cluster::Cluster;
use crate::error::{NetError, RemoteAcquireError};
use crate::remote::connected::{ConnectedObject, HeldCall, remote_handle};
use crate::type_and_build::ObjectType;
use crate::wire::messages::{CallReply, ObjectMethod};

/// A semaphore of another member of the cluster: a [`Semaphore`](mp_sync::Semaphore) or a
/// [`BoundedSemaphore`](mp_sync::BoundedSemaphore).
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteAcquireError, RemoteSemaphore};
/// use mp_sync::BoundedSemaphore;
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let licenses = BoundedSemaphore::new(1)?;
/// cluster.publish("licenses", &licenses)?;
///
/// // On any host of the cluster.
/// let remote = RemoteSemaphore::connect(&cluster, "licenses")?;
/// let permit = remote.acquire()?;
/// assert!(matches!(remote.try_acquire(), Err(RemoteAcquireError::Held)));
/// drop(permit); // releases it
/// let _permit = licenses.acquire()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Blocking
/// [`acquire`](Self::acquire) blocks until the semaphore has a permit. If the connection is interrupted, a
/// call ends with [`PeerLost`](crate::PeerLost) after the [lease](crate::ClusterConfig::lease) and the
/// [grace](crate::ClusterConfig::grace) at the latest. Waiters are served in no particular order.
///
/// # When a process or its host is lost
/// | lost | effect |
/// |---|---|
/// | a member with permits | they return to the semaphore, soon after lease and grace |
/// | a member that waits | none: it gets no permit |
/// | the home (the member that has the semaphore) | all calls end with `PeerLost`; permits that were taken protect nothing from then on |
///
/// If a member and the home can't reach each other for longer than lease and grace, the member loses its
/// permits, too. Calls succeed again after it has connected again. [`RemotePermit::is_held`] returns `false`
/// after the member has noticed the loss. Before that, a second holder is possible: don't use a permit to
/// protect data that two holders would damage.
///
/// For the home, all permits of members are permits of its own process:
/// [`holders`](mp_sync::Semaphore::holders) names that process.
#[derive(Clone)]
pub struct RemoteSemaphore(ConnectedObject);

remote_handle!(RemoteSemaphore, ObjectType::semaphore());

/// A permit of a [`RemoteSemaphore`]. Dropping it releases the permit, without waiting for a reply.
#[must_use = "dropping it gives it back"]
pub struct RemotePermit(HeldCall);

impl fmt::Debug for RemotePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.0.link.peer();
        write!(f, "RemotePermit({} of rank {}, {})", self.0.id, peer.rank, peer.host)
    }
}

impl RemotePermit {
    /// Returns `true` if this process holds the permit, as far as this process knows. The permit ends if the
    /// connection to the semaphore's member is interrupted for longer than lease and grace.
    pub fn is_held(&self) -> bool {
        self.0.link.lasts(self.0.id)
    }

    /// Removes the permit: the semaphore has one permit less. Blocks until the member that has the semaphore
    /// has confirmed this.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the semaphore was lost, and [`NetError::Home`] if the
    /// permit has returned to the semaphore, because the connection was interrupted for longer than lease and
    /// grace.
    pub fn forget(self) -> Result<(), NetError> {
        self.0.acknowledge("the permit has returned to the semaphore")
    }
}

impl RemoteSemaphore {
    /// Opens the semaphore that a member has [published](Cluster::publish) under a name. Blocks until the
    /// name is published, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// The same as for [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        ConnectedObject::connect(cluster, name, ObjectType::semaphore()).map(Self)
    }

    /// Takes a permit. Blocks until one is available.
    ///
    /// # Errors
    /// [`RemoteAcquireError`].
    pub fn acquire(&self) -> Result<RemotePermit, RemoteAcquireError> {
        self.acquire_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Takes a permit": acquire() -> Result<RemotePermit, RemoteAcquireError>,
        or "[`RemoteAcquireError::Held`]";
        |semaphore, wait| semaphore.acquire_wait(wait);
        never try_acquire;
        at_most acquire_timeout;
        until acquire_deadline;
    }

    fn acquire_wait(&self, wait: Wait) -> Result<RemotePermit, RemoteAcquireError> {
        let reply = self.0.wait(ObjectMethod::Acquire, wait)?.ok_or(RemoteAcquireError::Held)?;
        Ok(self.permit(&reply))
    }

    /// Takes a permit asynchronously. If the future is dropped before it is ready, no permit is taken.
    ///
    /// # Errors
    /// [`RemoteAcquireError`].
    pub async fn acquire_async(&self) -> Result<RemotePermit, RemoteAcquireError> {
        Ok(self.permit(&self.0.wait_async(ObjectMethod::Acquire).await?))
    }

    fn permit(&self, reply: &CallReply) -> RemotePermit {
        RemotePermit(HeldCall { link: self.0.link.clone(), id: reply.id, is_over: false })
    }

    /// Returns the number of available permits: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the semaphore was lost.
    pub fn available(&self) -> Result<usize, NetError> {
        Ok(self.0.call(ObjectMethod::Available, 0)? as usize)
    }

    /// Adds permits. Blocks until all of them were added. If the process is interrupted, fewer may have been
    /// added.
    ///
    /// # Errors
    /// [`NetError::Home`] at the limit, when fewer or no permits were added, and for a `BoundedSemaphore`.
    /// [`NetError::PeerLost`] if the member that has the semaphore was lost.
    pub fn add_permits(&self, permits: u32) -> Result<(), NetError> {
        self.0.call(ObjectMethod::AddPermits, permits.into()).map(drop)
    }
}
