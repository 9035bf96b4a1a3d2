//! Forwarders of other members, in a served pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mp_core::mutex::Mutex;
use mp_core::sync::Ordering;
use mp_core::sync::shared::{AtomicU64, AtomicUsize};

use crate::forward::messages::ForwarderId;
use crate::slots::slot::QUEUE_CAPACITY;
use crate::tasks::call_state::CallState;
use crate::tasks::outcome_run::OutcomeRun;

/// Maximum number of cancellations stored for chunks of a forwarder that have not arrived. Its queue has room
/// for this number of chunks.
const MOST_CANCELLED: usize = QUEUE_CAPACITY;

/// Forwarder of a chunk, and the chunk's number.
pub(super) type ChunkKey = (ForwarderId, u64);

struct ForwarderState {
    /// Preferred worker: the last one that ran tasks of the forwarder.
    worker: Arc<AtomicUsize>,
    /// Calls for chunks.
    running: HashMap<u64, Arc<CallState>>,
    /// Cancelled chunks that have not arrived, the oldest first.
    cancelled: VecDeque<u64>,
    /// Outcomes that did not fit into a reply.
    unsent: VecDeque<OutcomeRun>,
    /// Number of the [`HeldForwarder`].
    number: u64,
}

/// Registered forwarders of other members, until their processes end or their sessions are lost.
#[derive(Default)]
pub(super) struct ForwarderTable(Mutex<HashMap<ForwarderId, ForwarderState>>, AtomicU64);

impl ForwarderTable {
    /// Registers a forwarder, or registers it again after a lost session. A forwarder prefers the worker that
    /// the fewest forwarders of its pool prefer. Returns the number of the registration.
    fn add(&self, from: ForwarderId, workers: usize) -> u64 {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let mut forwarders = self.0.lock();
        let mut counts = vec![0; workers];
        let others = forwarders.iter().filter(|(other, _)| other.pool == from.pool && **other != from);
        for (_, other) in others {
            if let Some(count) = counts.get_mut(other.worker.load(Ordering::Relaxed)) {
                *count += 1;
            }
        }
        let fewest = counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let worker = Arc::new(AtomicUsize::new(fewest.map_or(0, |(worker, _)| worker)));
        let (running, unsent) = Default::default();
        // It does not send them again.
        let cancelled = forwarders.get_mut(&from).map(|former| std::mem::take(&mut former.cancelled));
        let cancelled = cancelled.unwrap_or_default();
        let replaced = forwarders.insert(from, ForwarderState { worker, running, cancelled, unsent, number });
        drop(forwarders);
        drop(replaced);
        number
    }

    /// Returns the worker that a forwarder prefers.
    pub(super) fn worker(&self, from: ForwarderId) -> Arc<AtomicUsize> {
        self.0.lock().get(&from).map(|state| state.worker.clone()).unwrap_or_default()
    }

    /// Removes a forwarder whose process has ended, unless it was registered again.
    fn remove(&self, from: ForwarderId, number: u64) {
        let mut forwarders = self.0.lock();
        if forwarders.get(&from).is_some_and(|state| state.number == number) {
            let removed = forwarders.remove(&from);
            drop(forwarders);
            drop(removed);
        }
    }

    /// Adds the call for a chunk. Returns `false` if the chunk was cancelled.
    pub(super) fn begin(&self, (from, chunk): ChunkKey, job: &Arc<CallState>) -> bool {
        let mut forwarders = self.0.lock();
        // A forwarder that was lost meanwhile can't cancel it.
        let Some(state) = forwarders.get_mut(&from) else { return true };
        if let Some(at) = state.cancelled.iter().position(|cancelled| *cancelled == chunk) {
            state.cancelled.remove(at);
            return false;
        }
        state.running.insert(chunk, job.clone());
        true
    }

    /// Removes the call for a chunk.
    pub(super) fn end(&self, (from, chunk): ChunkKey) {
        let ended = self.0.lock().get_mut(&from).and_then(|state| state.running.remove(&chunk));
        drop(ended);
    }

    /// Returns the call for a chunk. Stores the cancellation of a chunk that has not arrived.
    pub(super) fn cancel(&self, (from, chunk): ChunkKey) -> Option<Arc<CallState>> {
        let mut forwarders = self.0.lock();
        let state = forwarders.get_mut(&from)?;
        let job = state.running.get(&chunk).cloned();
        if job.is_none() {
            state.cancelled.push_back(chunk);
            if state.cancelled.len() > MOST_CANCELLED {
                state.cancelled.pop_front();
            }
        }
        job
    }

    /// Stores outcomes until the forwarder requests them.
    pub(super) fn store_unsent(&self, from: ForwarderId, outcomes: VecDeque<OutcomeRun>) {
        if let Some(state) = self.0.lock().get_mut(&from) {
            state.unsent = outcomes;
        }
    }

    pub(super) fn take_unsent(&self, from: ForwarderId) -> VecDeque<OutcomeRun> {
        self.0.lock().get_mut(&from).map(|state| std::mem::take(&mut state.unsent)).unwrap_or_default()
    }
}

/// Value that a forwarder holds. The forwarder is removed when its process ends or is lost.
pub(super) struct HeldForwarder {
    table: Arc<ForwarderTable>,
    from: ForwarderId,
    number: u64,
}

impl HeldForwarder {
    /// Adds a forwarder.
    pub(super) fn new(table: &Arc<ForwarderTable>, from: ForwarderId, workers: usize) -> Self {
        let number = table.add(from, workers);
        Self { table: table.clone(), from, number }
    }
}

impl Drop for HeldForwarder {
    fn drop(&mut self) {
        self.table.remove(self.from, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;

    const FROM: ForwarderId = ForwarderId { pool: 1, forwarder: 2 };

    #[test]
    fn chunk_cancelled_before_its_arrival_is_not_begun() {
        let (table, job) = (Arc::new(ForwarderTable::default()), job(1, CallOptions::default()));
        let held = HeldForwarder::new(&table, FROM, 2);
        let last = MOST_CANCELLED as u64;
        assert!((0..=last).all(|chunk| table.cancel((FROM, chunk)).is_none()));
        assert!(!table.begin((FROM, last), &job));
        assert!(table.begin((FROM, last), &job) && table.begin((FROM, 0), &job), "0 is the oldest");
        assert!(table.cancel((FROM, 0)).is_some());
        table.end((FROM, 0));
        drop(held);
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn reregistered_forwarder_outlives_its_old_hold() {
        let table = Arc::new(ForwarderTable::default());
        let former = HeldForwarder::new(&table, FROM, 1);
        assert!(table.cancel((FROM, 1)).is_none());
        let held = HeldForwarder::new(&table, FROM, 1);
        drop(former);
        assert!(!table.begin((FROM, 1), &job(1, CallOptions::default())), "its cancellations stay");
        drop(held);
        assert!(table.0.lock().is_empty());
    }

    /// A cancellation and the end of a forwarder use different connections.
    #[test]
    fn cancellation_of_a_lost_forwarder_is_not_stored() {
        let (table, job) = (ForwarderTable::default(), job(1, CallOptions::default()));
        assert!(table.cancel((FROM, 1)).is_none() && table.begin((FROM, 1), &job));
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn forwarders_prefer_different_workers() {
        let table = ForwarderTable::default();
        let workers = [1, 2, 3].map(|forwarder| {
            let from = ForwarderId { pool: 1, forwarder };
            table.add(from, 2);
            table.worker(from).load(Ordering::Relaxed)
        });
        assert_eq!(workers, [0, 1, 0]);
    }
}
