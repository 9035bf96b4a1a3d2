//! Objects that can be published.

use std::sync::Arc;

use mp_core::Message;
use mp_queue::{Queue, broadcast, watch};
use mp_sync::{Barrier, BoundedSemaphore, Event, Semaphore};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::home::channels::{SharedBroadcast, SharedWatch};
use crate::home::object::SharedQueue;
use crate::home::primitives::{SharedBarrier, SharedEvent, SharedSemaphore};
use sealed::{IntoPublished, PublishedObject};

pub(crate) mod sealed {
    use std::fmt;
    use std::sync::Arc;

    use crate::home::object::SharedObject;

    /// Published object without its type. Its methods are called by the process that has published it.
    pub struct PublishedObject(pub(crate) Arc<dyn SharedObject>);

    impl fmt::Debug for PublishedObject {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "PublishedObject({})", self.0.object_type().name)
        }
    }

    /// Conversion of a handle into a [`PublishedObject`]. Other crates can't implement it.
    pub trait IntoPublished {
        fn published(&self) -> PublishedObject;
    }
}

/// Object that [`Cluster::publish`](crate::Cluster::publish) accepts.
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteEvent, RemoteQueue};
/// use mp_queue::{Queue, broadcast, watch};
/// use mp_sync::Event;
///
/// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
/// let (jobs, stop) = (Queue::<String>::bounded(8)?, Event::new()?);
/// cluster.publish("jobs", &jobs)?;
/// cluster.publish("stop", &stop)?;
/// RemoteQueue::<String>::connect(&cluster, "jobs")?.put("resize".into())?;
/// RemoteEvent::connect(&cluster, "stop")?.set()?;
/// assert!(stop.is_set());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// | published | opened as |
/// |---|---|
/// | `Queue<T>` | [`RemoteQueue<T>`](crate::RemoteQueue) |
/// | `Event` | [`RemoteEvent`](crate::RemoteEvent) |
/// | `Semaphore`, `BoundedSemaphore` | [`RemoteSemaphore`](crate::RemoteSemaphore) |
/// | `Barrier` | [`RemoteBarrier`](crate::RemoteBarrier) |
/// | `watch::Receiver<T>` | [`RemoteWatch<T>`](crate::RemoteWatch) |
/// | `broadcast::Receiver<T>` | [`RemoteBroadcast<T>`](crate::RemoteBroadcast) |
///
/// Publish a channel by one of its receivers. The cluster keeps this receiver until the name is withdrawn,
/// so that a sender always has a receiver. When the last sender is dropped, receivers on all hosts get the
/// end of the channel.
/// Objects of a manager are published by `ManagerHandle::publish_in`. The effects of a lost process are in a
/// [table](crate#when-a-process-or-its-host-is-lost).
pub trait Publish: IntoPublished {}

impl<T: IntoPublished> Publish for T {}

impl<T: Message> IntoPublished for Queue<T> {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedQueue::new(self)))
    }
}

impl IntoPublished for Event {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedEvent(self.clone())))
    }
}

impl IntoPublished for Semaphore {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedSemaphore::Growing(self.clone())))
    }
}

impl IntoPublished for BoundedSemaphore {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedSemaphore::Bounded(self.clone())))
    }
}

impl IntoPublished for Barrier {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedBarrier::new(self.clone())))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> IntoPublished for watch::Receiver<T> {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedWatch(self.without_value())))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> IntoPublished for broadcast::Receiver<T> {
    fn published(&self) -> PublishedObject {
        PublishedObject(Arc::new(SharedBroadcast(self.clone())))
    }
}
