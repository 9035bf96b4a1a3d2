//! Queues across hosts, over gRPC.

mod auth;
mod cluster;
mod config;
mod error;
mod home;
pub mod launcher;
mod link;
mod reactor;
mod remote_queue;
mod wire;

pub use cluster::{Cluster, ClusterEvent, ClusterMember};
pub use config::ClusterConfig;
pub use error::{NetError, PeerLost, Refusal, RemoteGetError, RemotePutError};
pub use remote_queue::{RemoteLease, RemoteQueue};
