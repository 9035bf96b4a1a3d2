//! Queues, channels and synchronization across hosts, over gRPC.
//!
//! ```
//! use mp_net::{Cluster, ClusterConfig, RemoteQueue};
//! use mp_queue::Queue;
//!
//! // Rank 0 of a cluster of one rank.
//! let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:29743"))?;
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! cluster.publish("jobs", &jobs)?;
//!
//! // On any host.
//! let remote = RemoteQueue::<(u32, String)>::connect(&cluster, "jobs")?;
//! remote.put((1, "first".into()))?; // `Ok`: it is in the queue
//! assert_eq!(jobs.get()?, Some((1, "first".into())));
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with [`Cluster`], the membership of this process, [`ClusterConfig`] and [`RemoteQueue`]. The *home*
//! of an object is the member that has published it: its process runs all calls of the object. [`Publish`]
//! lists all objects that other members can use. The reasons for the transport and the protocol are in
//! decision record 0046 of the repository.
//!
//! # When a process or its host is lost
//! | object | a member that uses it is lost | its home is lost |
//! |---|---|---|
//! | [`RemoteQueue`] | messages that it has leased, or not received, return | [`PeerLost`] |
//! | [`RemoteEvent`] | no effect | [`PeerLost`] |
//! | [`RemoteSemaphore`] | its permits return | [`PeerLost`] |
//! | [`RemoteBarrier`] | the barrier breaks, if the member waited, was enrolled or ran the action | [`PeerLost`] |
//! | [`RemoteWatch`] | no effect | [`PeerLost`]; the last value stays readable |
//! | [`RemoteBroadcast`] | no effect | [`PeerLost`], after the messages that had arrived |
//!
//! A call ends with [`PeerLost`] within the [lease](ClusterConfig::lease) and the
//! [grace](ClusterConfig::grace). Soon after both, the home gives back all messages and permits that a lost
//! member held.
//!
//! # Limits
//! Linux only. Bytes on the network are encrypted only if the members have certificates
//! ([`ClusterConfig::tls`]).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod auth;
mod cluster;
mod config;
mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod home;
pub mod launcher;
mod link;
mod member;
mod publish;
mod reactor;
mod remote;
#[doc(hidden)]
pub mod service;
mod socket;
mod sync;
mod tls;
mod type_and_build;
mod wire;

pub use cluster::{Cluster, ClusterEvent};
pub use config::ClusterConfig;
pub use error::{
    NetError, PeerLost, Refusal, RemoteAcquireError, RemoteBarrierError, RemoteGetError, RemotePutError,
    RemoteRecvError,
};
pub use member::ClusterMember;
pub use publish::Publish;
pub use remote::barrier::{RemoteBarrier, RemoteBarrierMember};
pub use remote::broadcast::RemoteBroadcast;
pub use remote::event::RemoteEvent;
pub use remote::put_many::RemotePutManyError;
pub use remote::queue::{RemoteLease, RemoteQueue};
pub use remote::semaphore::{RemotePermit, RemoteSemaphore};
pub use remote::watch::RemoteWatch;
pub use tls::ClusterTls;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Returns the number of bytes of attachments that this process has sent from the arena, and the number that
/// it has copied into the arena.
#[doc(hidden)]
pub fn copied_bytes() -> (u64, u64) {
    let count = |counter: &sync::AtomicU64| counter.load(sync::Ordering::Relaxed);
    (count(&wire::send::SENT), count(&wire::value::RECEIVED))
}
