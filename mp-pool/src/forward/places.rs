//! Served pools of other members, and the number of forwarders for each.
//!
//! The slots of a pool are not bound to a place. When a process is started in a slot, it becomes a worker or
//! the forwarder of that served pool for which the most processes are missing.

use std::fmt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

use mp_core::mutex::Mutex;
use mp_net::Cluster;
use mp_net::service::FollowedNames;

use crate::api::pool::MOST_PROCESSES;
use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ForwarderId, ServedPoolService};

/// Returns the name under which a member publishes a pool.
pub(crate) fn service_name(pool: Option<&str>, rank: usize) -> String {
    format!("{}{rank}", prefix(pool))
}

/// Returns the first part of the names of pools.
fn prefix(pool: Option<&str>) -> String {
    format!("mp pool {}@", pool.unwrap_or("pool"))
}

/// A served pool.
#[derive(Clone, Debug)]
struct Place {
    /// Number of the place, unique in its pool.
    id: u64,
    name: String,
    workers: usize,
    service: ServedPoolService,
}

#[derive(Default)]
struct PlaceTable {
    /// Random number of the pool.
    pool: u64,
    /// Wanted number of workers of this host.
    local: usize,
    remote: Vec<Place>,
    /// Number of places and forwarders so far.
    last: u64,
    names: Option<FollowedNames>,
}

impl PlaceTable {
    /// Returns the wanted number of processes for a place: a served pool, or else this host.
    fn target(&self, place: Option<u64>) -> usize {
        match place {
            None => self.local,
            Some(id) => self.remote.iter().find(|place| place.id == id).map_or(0, |place| place.workers),
        }
    }

    fn remote_workers(&self) -> usize {
        let all: usize = self.remote.iter().map(|place| place.workers).sum();
        all.min(MOST_PROCESSES - self.local.min(MOST_PROCESSES))
    }
}

/// Served pools of a pool. Locked after the state of the pool.
#[derive(Default)]
pub(crate) struct Places(Mutex<PlaceTable>);

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0.lock().remote).finish()
    }
}

/// Served pool for a new forwarder.
pub(crate) struct ChosenPlace {
    pub(crate) id: u64,
    pub(crate) from: ForwarderId,
    pub(crate) service: ServedPoolService,
}

impl Places {
    /// Sets the number of workers of this host. Returns the number of all workers.
    pub(crate) fn set_local(&self, workers: usize) -> usize {
        let mut table = self.0.lock();
        table.local = workers;
        workers + table.remote_workers()
    }

    /// Returns the served pool for which the most processes are missing, or `None` if more are missing on
    /// this host. `used` are the places of the processes.
    pub(crate) fn choose(&self, used: &[Option<u64>]) -> Option<ChosenPlace> {
        let table = &mut *self.0.lock();
        let missing = |place: Option<u64>| {
            let there = used.iter().filter(|used| **used == place).count();
            table.target(place).saturating_sub(there)
        };
        let best = table.remote.iter().max_by_key(|place| missing(Some(place.id)))?.clone();
        if missing(Some(best.id)) <= missing(None) {
            return None;
        }
        table.last += 1;
        let from = ForwarderId { pool: table.pool, forwarder: table.last };
        Some(ChosenPlace { id: best.id, from, service: best.service })
    }

    /// Stops following the served pools.
    pub(crate) fn release(&self) {
        let mut table = self.0.lock();
        let released = (table.names.take(), std::mem::take(&mut table.remote));
        drop(table);
        drop(released);
    }
}

/// Follows the served pools of a cluster, for the life of the pool.
///
/// # Errors
/// If a thread can't be started, or the system has no random bytes.
pub(crate) fn follow(shared: &Arc<PoolShared>, cluster: &Cluster) -> Result<(), PoolError> {
    let prefix = prefix(shared.settings.name.as_deref());
    let (to, from) = channel();
    let own = format!("{prefix}{}", cluster.rank());
    let names = cluster.follow_names(&prefix, move |mut names| {
        names.retain(|name| *name != own);
        // Fails only at the end of the pool.
        _ = to.send(names);
    })?;
    {
        let mut table = shared.places.0.lock();
        table.pool = mp_net::service::random_id()?;
        table.names = Some(names);
    }
    let (weak, cluster) = (Arc::downgrade(shared), cluster.clone());
    let follower = move || update_all(&weak, &cluster, &from);
    let thread = std::thread::Builder::new().name("mp-pool-hosts".into()).spawn(follower);
    thread.map_err(|error| mp_spawn::launch_error("the thread for other hosts", None, error))?;
    Ok(())
}

/// Handles changes of the names until the pool ends.
fn update_all(shared: &Weak<PoolShared>, cluster: &Cluster, changes: &Receiver<Vec<String>>) {
    while let Ok(mut names) = changes.recv() {
        // Only the last change counts.
        names = changes.try_iter().last().unwrap_or(names);
        let Some(shared) = shared.upgrade() else { return };
        if let Err(error) = update(&shared, cluster, &names) {
            shared.log_hosts(&error.to_string());
        }
    }
}

/// Adds new places, removes those that are gone, and starts or ends forwarders.
fn update(shared: &Arc<PoolShared>, cluster: &Cluster, names: &[String]) -> Result<(), PoolError> {
    let known: Vec<String> = shared.places.0.lock().remote.iter().map(|place| place.name.clone()).collect();
    let mut added = Vec::new();
    for name in names.iter().filter(|name| !known.contains(name)) {
        let kind = &shared.settings.kind;
        let request = ForwardRequest::Size { kind: kind.clone() };
        let found = ServedPoolService::connect(cluster, name)
            .and_then(|service| Ok((service.call(request).map_err(|e| e.error)?, service)));
        match found {
            Ok((ForwardReply::Size(workers), service)) => added.push((name.clone(), workers, service)),
            Ok((ForwardReply::OtherKind(theirs), service)) => {
                let (pool, place) = (shared.settings.pool_name(), service.place());
                let text = |kind: &str| if kind.is_empty() { "no state".into() } else { kind.to_owned() };
                mp_core::waits::publish_report(&format!(
                    "mp: {pool}: the pool of {place} is not used: its workers have {}, and here they have \
                     {}\n",
                    text(&theirs),
                    text(kind)
                ));
            }
            Ok(_) => shared.log_hosts(&format!("{name:?} gave a wrong answer")),
            // It may have gone again.
            Err(error) => shared.log_hosts(&error.to_string()),
        }
    }
    let total = {
        let table = &mut *shared.places.0.lock();
        table.remote.retain(|place| names.contains(&place.name));
        for (name, workers, service) in added {
            table.last += 1;
            table.remote.push(Place { id: table.last, name, workers, service });
        }
        table.local + table.remote_workers()
    };
    shared.set_workers(total)?;
    shared.move_workers();
    Ok(())
}

impl PoolShared {
    /// Asks processes of places that have too many to end. Others are started in their slots.
    pub(crate) fn move_workers(&self) {
        let mut state = self.state.lock();
        let wanted = state.wanted;
        let table = self.places.0.lock();
        let mut counts: Vec<(Option<u64>, usize)> = Vec::new();
        for worker in state.workers.iter_mut().take(wanted).filter(|worker| worker.process.is_some()) {
            let place = worker.place;
            let at = counts.iter().position(|(other, _)| *other == place).unwrap_or(counts.len());
            if at == counts.len() {
                counts.push((place, 0));
            }
            counts[at].1 += 1;
            if counts[at].1 > table.target(place)
                && worker.ready
                && let Ok(packed) = self.packed(WorkerRequest::Forget { code: LEAVE })
            {
                worker.ask_to_leave(packed);
            }
        }
    }

    fn log_hosts(&self, why: &str) {
        #[cfg(feature = "log")]
        mp_core::user_code::catch_panic(
            || log::warn!(target: "mp::pool", "{}: {why}", self.settings.pool_name()),
        );
        #[cfg(not(feature = "log"))]
        let _ = why;
    }
}
