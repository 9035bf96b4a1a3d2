//! Objects that other members of a cluster call by the names of methods.
//!
//! The member that publishes an object has a service, which calls the object like any process of the program.
//! The network's thread forwards a call to the object as soon as the call arrives, and awaits the answer
//! without blocking. So calls of one member reach the object in the order in which they were sent.
//!
//! | event | effect |
//! |---|---|
//! | the caller is killed, or stops waiting | the call runs, if it was sent to the object; its answer is dropped |
//! | a connection breaks, and returns in time | none: the call runs once, and its answer arrives |
//! | the member that published the object is lost | calls end with [`CallError::PeerLost`]; those sent to the object run, if the server lives |
//! | the server is killed, or ends | calls end with [`CallError::ServerGone`] |
//! | the name is withdrawn | running calls are answered. Later calls end with [`CallError::Cluster`]. Objects that the methods of the published object have returned are freed, and later calls of them end with the same error |
//!
//! A method may return an object, which stays in the server. Its handle is a value that the caller holds at
//! the service, like a permit of a semaphore.
//!
//! | event | handle to a returned object |
//! |---|---|
//! | the caller drops its last clone | released without waiting |
//! | the caller is killed, or without a connection for longer than lease and grace | released with its session |
//! | the caller stops waiting before it has the reply | released when the reply arrives |
//! | a handle is sent in a message | not shared; the receiving process requests a handle of its own with its first call |

mod messages;
mod named;
pub(crate) mod proxy;
mod service;

use std::any::type_name;
use std::sync::Arc;

use mp_core::message::PlainOutcome;
use mp_net::Cluster;
use mp_spawn::{Closure, closure};
use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::object::ServedObject;
use crate::proxy::Proxy;
use crate::remote::cluster::named::TypeSignature;
use crate::remote::cluster::service::ObjectService;
use crate::remote::registry::NameRegistry;

/// Registered type of a published object, and the random offset that the server adds to the numbers of
/// objects.
#[derive(Clone, Serialize, Deserialize)]
struct ObjectDescription {
    signature: TypeSignature,
    offset: u64,
}

impl PlainOutcome for ObjectDescription {}

/// Methods that publish objects for other hosts.
impl ManagerHandle {
    /// Publishes an object under a name in a cluster. Other members call the object's methods through a
    /// [`ClusterProxy`](crate::ClusterProxy). The type of the object must be [registered](Self::register).
    ///
    /// ```
    /// use mp_manager::{ClusterProxy, Manager, Methods};
    /// use mp_net::{Cluster, ClusterConfig};
    /// use mp_spawn::closure;
    ///
    /// let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// let manager = Manager::start()?;
    /// let push = closure!([] |all: &mut Vec<u32>, n: u32| { all.push(n); all.len() });
    /// manager.register(Methods::<Vec<u32>>::of("Scores").method("push", push))?;
    /// let scores = manager.create(Vec::<u32>::new)?;
    /// manager.publish_in(&cluster, "scores", &scores)?;
    ///
    /// // On any host:
    /// let remote = ClusterProxy::connect(&cluster, "scores")?;
    /// assert_eq!(remote.call::<usize>("push", 7_u32)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// This process is the home of the name: it forwards calls of other members to the server. The object
    /// lives until the name is [withdrawn](Cluster::withdraw), this process ends its membership, or the
    /// manager ends. After the end of the manager, calls return [`CallError::ServerGone`], until the name is
    /// withdrawn.
    ///
    /// # Blocking
    /// Blocks until the server and rank 0 have replied.
    ///
    /// # Errors
    /// [`CallError::Raised`] if the type is not registered. [`CallError::Cluster`] if the name is in use.
    /// [`CallError::PeerLost`] if rank 0 was lost. For other errors see the table at [`CallError`].
    #[track_caller]
    pub fn publish_in<T: 'static>(
        &self,
        cluster: &Cluster,
        name: &str,
        object: &Proxy<T>,
    ) -> Result<(), CallError> {
        let captures = (object.clone(), ());
        let maker = Closure::from_parts(captures, |(object, ()): &(Proxy<T>, ()), (): ()| {
            let registry = NameRegistry::of_server()?;
            let registered = registry.type_of(object.link(), type_name::<T>())?;
            let (signature, offset) = (TypeSignature::of(&registered), registry.offset());
            Ok(ServedObject::new(ObjectDescription { signature, offset }))
        });
        let published = self
            .make::<ObjectDescription>("ManagerHandle::publish_in", maker)?
            .call(closure!([] |published: &mut ObjectDescription| published.clone()))?;
        let service = ObjectService::new(object.link(), published.signature, published.offset);
        Ok(cluster.publish_service(name, Arc::new(service))?)
    }
}
