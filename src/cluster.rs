//! Programs on several hosts that call each other's queues and other objects, over gRPC (feature `net`).
//!
//! ```
//! use mp::Queue;
//! use mp::cluster::{Cluster, ClusterConfig, RemoteQueue};
//!
//! // Rank 0 of a cluster of one rank. A launcher's environment gives rank and address: see `env`.
//! let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:29740"))?;
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! cluster.publish("jobs", &jobs)?;
//!
//! // On any host.
//! let remote = RemoteQueue::<(u32, String)>::connect(&cluster, "jobs")?;
//! remote.put((1, "first".into()))?; // `Ok`: the message is in the queue
//! assert_eq!(jobs.get()?, Some((1, "first".into())));
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Cluster`] is the membership of this process. [`ClusterConfig`] has its rank, the
//! address of rank 0 and the key or certificates. [`RemoteQueue`] is a queue of another member. Its
//! documentation has a table of the messages that faults can lose or duplicate.
//!
//! | task | items |
//! |---|---|
//! | rank, number of ranks and address from torchrun, Slurm, Open MPI, PMI or Kubernetes | [`env()`], [`ClusterConfig::from_env`], [`launcher`] |
//! | members that join, leave and are lost | [`Cluster::members`], [`Cluster::events`], [`ClusterEvent`] |
//! | encryption, and certificates instead of a key | [`ClusterConfig::tls`], [`ClusterTls`] |
//! | messages with acknowledgement | [`RemoteLease`] |
//! | objects that can be published | [`Publish`] |
//! | events, semaphores and barriers of other hosts | [`RemoteEvent`], [`RemoteSemaphore`] and [`RemotePermit`], [`RemoteBarrier`] and [`RemoteBarrierMember`] |
//! | objects of other hosts, of any type | `ManagerHandle::publish_in` and `ClusterProxy`, in `mp::manager` |
//! | values and messages for all hosts, which cross each link once | [`RemoteWatch`], [`RemoteBroadcast`] |
//! | errors | [`NetError`], [`PeerLost`], [`RemotePutError`], [`RemotePutManyError`], [`RemoteGetError`], [`RemoteAcquireError`], [`RemoteBarrierError`], [`RemoteRecvError`], [`Refusal`] |

pub use mp_net::launcher::{self, env};
pub use mp_net::{
    Cluster, ClusterConfig, ClusterEvent, ClusterMember, ClusterTls, NetError, PeerLost, Publish, Refusal,
    RemoteAcquireError, RemoteBarrier, RemoteBarrierError, RemoteBarrierMember, RemoteBroadcast, RemoteEvent,
    RemoteGetError, RemoteLease, RemotePermit, RemotePutError, RemotePutManyError, RemoteQueue,
    RemoteRecvError, RemoteSemaphore, RemoteWatch,
};
