//! Members of a cluster that serve their pools. Each is a process with an arena of its own, like a program on
//! another host.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use mp_harness::members::{Member, argument, part, wait_for_end};
use mp_harness::{eventually, members};
use mp_net::{Cluster, ClusterConfig};
use mp_pool::{Pool, PoolBuilder, ServedPool};
use serde::{Deserialize, Serialize};

/// Number of workers of a member.
pub const WORKERS: usize = 2;

pub fn config(rank: usize, first: &str) -> ClusterConfig {
    let config = ClusterConfig::new(rank, 3, first).key(b"secret").lease(Duration::from_secs(2));
    config.timeout(Duration::from_secs(20))
}

/// Starts a member that serves its pool.
pub fn start(rank: usize, cluster: &Cluster) -> Member {
    Member::start(&rank.to_string(), cluster.address()).0
}

pub fn served(cluster: &Cluster) -> (Pool, ServedPool) {
    let pool = Pool::builder().processes(WORKERS).build().unwrap();
    let served = pool.serve(cluster).unwrap();
    (pool, served)
}

pub fn first() -> Cluster {
    Cluster::join(&config(0, "127.0.0.1:0")).unwrap()
}

/// Returns the rank of the member whose worker runs this function, or 0 in the test's own program.
pub fn rank(_: u64) -> usize {
    part().map_or(0, |rank| rank.parse().unwrap())
}

/// Returns [`rank`] after 20 ms, which is longer than the transfer of the task.
pub fn slow_rank(x: u64) -> usize {
    // sleep: the duration of the task, for which all workers are needed.
    std::thread::sleep(Duration::from_millis(20));
    rank(x)
}

/// File to which tasks append bytes.
#[derive(Clone, Serialize, Deserialize)]
pub struct Log(PathBuf);

impl Log {
    pub fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("mp-pool-{name}-{}", std::process::id())))
    }

    pub fn write(&self) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(b"x").unwrap();
    }

    /// Returns the number of bytes in the file.
    pub fn len(&self) -> usize {
        std::fs::metadata(&self.0).map_or(0, |file| file.len() as usize)
    }

    pub fn remove(self) {
        std::fs::remove_file(self.0).unwrap();
    }
}

pub fn counted(ranks: &[usize]) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    ranks.iter().for_each(|rank| *counts.entry(*rank).or_default() += 1);
    counts
}

/// Waits until the pool has this number of ready workers.
pub fn ready(pool: &Pool, workers: usize) {
    let is_ready = || pool.metrics().workers.iter().filter(|worker| worker.pid != 0).count() == workers;
    eventually("the workers are ready", || {
        pool.processes() == workers && is_ready() && !pool.pids().contains(&0)
    });
}

/// Returns two members of a cluster, both in this process, and a pool of the second member.
pub fn two_members(builder: PoolBuilder) -> (Cluster, Cluster, Pool) {
    let cluster = first();
    let second = Cluster::join(&config(1, cluster.address())).unwrap();
    (cluster, second, builder.build().unwrap())
}

/// Main function of a started member.
pub fn serve_until_told() {
    let cluster = Cluster::join(&config(rank(0), &argument())).unwrap();
    let (pool, served) = served(&cluster);
    members::ready("it serves");
    wait_for_end();
    drop(served);
    pool.join().unwrap();
    cluster.leave().unwrap();
}
