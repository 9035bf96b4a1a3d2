//! A member of a cluster, in events and errors.

use std::fmt;

use crate::wire::messages::Node;

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterMember {
    /// Rank, from 0.
    pub rank: usize,
    /// Name of the member's host.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Address at which the member listens.
    pub address: String,
}

impl fmt::Display for ClusterMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, pid, .. } = self;
        write!(f, "rank {rank} ({host}, process {pid})")
    }
}

impl From<&Node> for ClusterMember {
    fn from(node: &Node) -> Self {
        let Node { rank, host, pid, address, .. } = node.clone();
        Self { rank: rank as usize, host, pid, address }
    }
}
