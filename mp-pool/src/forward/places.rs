//! Served pools of other members, and the number of forwarders for each.
//!
//! The slots of a pool are not bound to a place. When a process is started in a slot, it becomes a worker or
//! the forwarder of that served pool for which the most processes are missing.

use std::collections::HashMap;
use std::fmt;

use mp_core::mutex::{Mutex, MutexGuard};
use mp_net::service::FollowedNames;

use crate::forward::messages::{ForwardRequest, ForwarderId, ServedPoolService};

/// Returns the name under which a member publishes a pool.
pub(crate) fn service_name(pool: Option<&str>, rank: usize) -> String {
    format!("{}{rank}", prefix(pool))
}

/// Returns the first part of the names under which pools of a name are published; the rank follows.
pub(crate) fn prefix(pool: Option<&str>) -> String {
    pool.map_or_else(|| "mp pool @".into(), |name| format!("mp pool {name:?}@"))
}

/// A served pool.
#[derive(Clone, Debug)]
struct ServedPlace {
    /// Number of the place, unique in its pool.
    id: u64,
    /// Number of the pool's publication. A pool that is published again has another number.
    publication: u64,
    workers: usize,
    service: ServedPoolService,
}

#[derive(Default)]
struct PlaceTable {
    /// Random number that identifies this pool at served pools.
    pool: u64,
    /// Wanted number of workers of this host.
    local: usize,
    /// Maximum number of workers of all hosts.
    most: usize,
    remote: Vec<ServedPlace>,
    /// Last number that was given to a place or a forwarder.
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
        all.min(self.most.saturating_sub(self.local))
    }
}

/// Served pools that run tasks of this pool. The lock of the table is acquired after the lock of the pool's
/// state.
#[derive(Default)]
pub(crate) struct Places {
    table: Mutex<PlaceTable>,
    /// Held while a thread computes and sets the number of workers. Acquired before the lock of the pool's
    /// state.
    resizing: Mutex<()>,
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.table.lock().remote).finish()
    }
}

/// A forwarder and its served pool.
#[derive(Clone)]
pub(crate) struct ForwarderPlace {
    /// Number of the place.
    pub(crate) id: u64,
    pub(crate) from: ForwarderId,
    pub(crate) service: ServedPoolService,
}

/// Chunk that a forwarder has.
pub(crate) struct ForwardedChunk {
    pub(crate) forwarder: ForwarderPlace,
    pub(crate) chunk: u64,
}

/// Asks the served pools to cancel the tasks of these chunks that have not begun. Does not block. Served
/// pools that were withdrawn are asked, too, because they still run the chunks.
pub(crate) fn cancel(chunks: Vec<ForwardedChunk>) {
    let mut by_place: HashMap<u64, (ForwarderPlace, Vec<(u64, u64)>)> = HashMap::new();
    for ForwardedChunk { forwarder, chunk } in chunks {
        let number = forwarder.from.forwarder;
        by_place.entry(forwarder.id).or_insert_with(|| (forwarder, Vec::new())).1.push((number, chunk));
    }
    for (ForwarderPlace { from, service, .. }, chunks) in by_place.into_values() {
        // If the served pool is lost, so are its tasks.
        _ = service.post(ForwardRequest::Cancel { pool: from.pool, chunks });
    }
}

impl Places {
    /// Sets the number of workers of this host. Returns the number of all workers, and the former number of
    /// workers of this host.
    pub(crate) fn set_local(&self, workers: usize) -> (usize, usize) {
        let mut table = self.table.lock();
        let before = std::mem::replace(&mut table.local, workers);
        (workers + table.remote_workers(), before)
    }

    /// Chooses the place of a new process: returns the served pool that lacks the most processes, or `None`
    /// for this host. `used` are the places of the existing processes. This host is preferred if starts have
    /// failed in the slot, or if there are fewer slots than workers.
    pub(crate) fn choose(&self, used: &[Option<u64>], has_failed: bool) -> Option<ForwarderPlace> {
        let table = &mut *self.table.lock();
        let missing = |place: Option<u64>| {
            let there = used.iter().filter(|used| **used == place).count();
            table.target(place).saturating_sub(there)
        };
        let best = table.remote.iter().max_by_key(|place| missing(Some(place.id)))?.clone();
        let remote: usize = table.remote.iter().map(|place| place.workers).sum();
        let is_first = has_failed || remote > table.remote_workers();
        if missing(Some(best.id)) <= missing(None) || is_first && missing(None) > 0 {
            return None;
        }
        table.last += 1;
        let from = ForwarderId { pool: table.pool, forwarder: table.last };
        Some(ForwarderPlace { id: best.id, from, service: best.service })
    }

    /// Sets the random number of this pool, its maximum number of workers, and the followed names of served
    /// pools.
    pub(crate) fn begin(&self, pool: u64, most: usize, names: FollowedNames) {
        let mut table = self.table.lock();
        (table.pool, table.most, table.names) = (pool, most, Some(names));
    }

    /// Returns the number of all workers.
    pub(crate) fn all_workers(&self) -> usize {
        let table = self.table.lock();
        table.local + table.remote_workers()
    }

    /// Returns the services of the places, with the numbers of their publications.
    pub(crate) fn services(&self) -> Vec<(u64, ServedPoolService)> {
        self.table.lock().remote.iter().map(|place| (place.publication, place.service.clone())).collect()
    }

    /// Sets the numbers of workers of these publications. Returns `true` if a number has changed.
    pub(crate) fn set_sizes(&self, sizes: &[(u64, usize)]) -> bool {
        let (mut table, mut has_changed) = (self.table.lock(), false);
        for place in &mut table.remote {
            let size = sizes.iter().find(|(publication, _)| *publication == place.publication);
            let workers = size.map_or(place.workers, |(_, workers)| *workers);
            has_changed |= std::mem::replace(&mut place.workers, workers) != workers;
        }
        has_changed
    }

    /// Removes the places whose publications ended, and adds new places. Returns the number of all workers.
    pub(crate) fn update(
        &self,
        publications: &[(String, u64)],
        added: Vec<(u64, usize, ServedPoolService)>,
    ) -> usize {
        let table = &mut *self.table.lock();
        table.remote.retain(|place| publications.iter().any(|(_, number)| place.publication == *number));
        for (publication, workers, service) in added {
            table.last += 1;
            table.remote.push(ServedPlace { id: table.last, publication, workers, service });
        }
        table.local + table.remote_workers()
    }

    /// Returns the lock that a thread holds while it computes and sets the number of workers.
    pub(crate) fn resizing(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock()
    }

    /// Returns the wanted number of processes for a place.
    pub(crate) fn target(&self, place: Option<u64>) -> usize {
        self.table.lock().target(place)
    }

    /// Removes all served pools, and ends the search for others.
    pub(crate) fn release(&self) {
        let mut table = self.table.lock();
        let released = (table.names.take(), std::mem::take(&mut table.remote));
        drop(table);
        drop(released);
    }
}
