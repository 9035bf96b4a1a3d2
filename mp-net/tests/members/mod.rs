//! Configuration of members in separate processes, which tests kill or stop.

use std::time::Duration;

use mp_net::ClusterConfig;

pub(crate) const LEASE: Duration = Duration::from_millis(400);

pub(crate) fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).lease(LEASE).timeout(Duration::from_secs(20))
}
