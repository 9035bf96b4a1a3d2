//! Pools that run tasks of other members.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mp_core::mutex::Mutex;
use mp_net::{Cluster, ClusterEvent};

use crate::api::pool::Pool;
use crate::dispatcher::served::PoolService;
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::places::service_name;
use crate::tasks::owner_process::OwnerProcess;

/// A pool that runs tasks of the pools of other members, until this value is dropped.
#[derive(Debug)]
#[must_use = "the pool is served until this is dropped"]
pub struct ServedPool {
    cluster: Cluster,
    name: String,
    events: Mutex<Receiver<ClusterEvent>>,
    shared: Weak<PoolShared>,
    owner: OwnerProcess,
}

impl Drop for ServedPool {
    fn drop(&mut self) {
        // A fork of the process is not a member of the cluster.
        if self.owner.is_this() {
            // Fails only if rank 0 is lost.
            _ = self.cluster.withdraw(&self.name);
        }
    }
}

/// Time between two checks for an interrupt.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl ServedPool {
    /// Blocks until rank 0 has left the cluster or was lost, the pool has ended, or this process is
    /// interrupted. Returns `false` if rank 0 was lost: it has ended, or the connection to it was interrupted
    /// for longer than lease and grace.
    ///
    /// If the connection was interrupted, rank 0 has lost this process as well. To make the pool available
    /// again, the process joins the cluster again:
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig};
    /// use mp_pool::Pool;
    ///
    /// fn serve(config: &ClusterConfig) -> Result<(), Box<dyn std::error::Error>> {
    ///     let pool = Pool::builder().processes(2).build()?;
    ///     // Ends with an error if rank 0 doesn't answer within the time limit.
    ///     while !pool.serve(&Cluster::join(config)?)?.wait() {}
    ///     Ok(())
    /// }
    /// ```
    pub fn wait(&self) -> bool {
        let events = self.events.lock();
        let is_open = || self.shared.upgrade().is_some_and(|shared| shared.state.lock().is_open());
        while is_open() && !mp_core::interrupted() {
            match events.recv_timeout(CHECK_INTERVAL) {
                Ok(ClusterEvent::Left(member)) if member.rank == 0 => return true,
                Ok(ClusterEvent::Lost(member)) if member.rank == 0 => return false,
                Ok(ClusterEvent::FirstRankLost) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        true
    }
}

impl Pool {
    /// Offers the workers of this pool to pools of other members, until the returned value is dropped or the
    /// pool ends. A pool uses them if it has the same [name](crate::PoolBuilder::name) and was built with
    /// [`cluster`](crate::PoolBuilder::cluster) for the same cluster. This pool continues to run its own
    /// tasks. Blocks until rank 0 has replied.
    ///
    /// All members must run the same build of the program, because functions and closures are identified by
    /// the build.
    ///
    /// ```
    /// use mp_net::{Cluster, ClusterConfig};
    /// use mp_pool::Pool;
    ///
    /// // All ranks run the same program. These are the lines of ranks 1 and up.
    /// fn serve(cluster: &Cluster) -> Result<(), Box<dyn std::error::Error>> {
    ///     let pool = Pool::builder().processes(2).build()?;
    ///     pool.serve(cluster)?.wait(); // until rank 0 has left
    ///     Ok(())
    /// }
    /// ```
    ///
    /// A task gets the state, the initializer, the limits and the output of the pool in which it runs. A task
    /// whose caller was lost is dropped if it has not begun. Another pool uses as many workers as this pool
    /// has. The other pool requests this number twice a second, so it follows a [`resize`](Self::resize)
    /// within about a second, or later if other hosts do not answer.
    ///
    /// # Errors
    /// [`PoolError::Settings`] if this pool has a [cluster](crate::PoolBuilder::cluster) itself.
    /// [`PoolError::Cluster`] if this member already serves a pool of that name, or rank 0 is lost.
    /// [`PoolError::OtherProcess`] in a forked process.
    #[cfg_attr(docsrs, doc(cfg(feature = "net")))]
    pub fn serve(&self, cluster: &Cluster) -> Result<ServedPool, PoolError> {
        self.shared.check_owner()?;
        if self.shared.settings.cluster.is_some() {
            let why = "a pool that uses a cluster can't be served: its tasks would go in circles".into();
            return Err(PoolError::Settings(why));
        }
        let pool = self.shared.settings.name.as_deref();
        let name = service_name(pool, cluster.rank());
        let place = format!("{} of rank {}", pool.unwrap_or("pool"), cluster.rank());
        let service = PoolService::new(self.shared.clone(), place.into());
        let events = Mutex::new(cluster.events());
        cluster.publish_service(&name, Arc::new(service))?;
        let (shared, owner) = (Arc::downgrade(&self.shared), OwnerProcess::this());
        Ok(ServedPool { cluster: cluster.clone(), name, events, shared, owner })
    }
}
