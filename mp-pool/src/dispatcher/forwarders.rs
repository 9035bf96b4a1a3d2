//! Registered forwarders in a served pool. A forwarder is a process of another member that sends tasks to
//! this pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mp_core::mutex::Mutex;
use mp_core::sync::Ordering;
use mp_core::sync::shared::{AtomicU64, AtomicUsize};
use mp_net::service::{run_later, spawn_blocking};

use crate::forward::messages::ForwarderId;
use crate::slots::slot::QUEUE_CAPACITY;
use crate::tasks::call_state::CallState;
use crate::tasks::outcome_run::OutcomeRun;

/// Maximum number of cancellations stored for chunks of a forwarder that have not arrived. The forwarder's
/// queue has room for this number of chunks.
const MOST_CANCELLED: usize = QUEUE_CAPACITY;
/// Time for which outcomes are stored after the session of their forwarder was lost.
const LONGEST_LOST: Duration = Duration::from_secs(60);

/// Forwarder of a chunk, and the chunk's number.
pub(super) type ChunkKey = (ForwarderId, u64);

/// Chunk of a forwarder. Its outcomes are stored until the forwarder requests the following outcomes, or
/// sends another chunk.
pub(super) struct ArrivedChunk {
    pub(super) number: u64,
    /// Number of tasks of the chunk.
    pub(super) count: usize,
    /// `true` if the chunk has only one task, whose arguments have attachments.
    pub(super) has_attachments: bool,
    pub(super) outcomes: Mutex<StoredOutcomes>,
    /// Number of requests that wait for the outcomes.
    pub(super) waiting: AtomicUsize,
}

/// Call of a chunk until the first reply, and after that the outcomes of the call.
pub(super) struct StoredOutcomes {
    /// Call of the chunk, or `None` after the first reply. The call's function has captures, whose `Drop` is
    /// user code.
    pub(super) job: Option<Arc<CallState>>,
    /// Outcomes that the forwarder may not have received. Empty until the first reply.
    pub(super) runs: VecDeque<OutcomeRun>,
}

impl ArrivedChunk {
    pub(super) fn new(
        number: u64,
        (count, has_attachments): (usize, bool),
        job: Arc<CallState>,
    ) -> Arc<Self> {
        let outcomes = Mutex::new(StoredOutcomes { job: Some(job), runs: VecDeque::new() });
        Arc::new(Self { number, count, has_attachments, outcomes, waiting: AtomicUsize::default() })
    }

    /// Returns the call, or `None` if its outcomes are stored. The network thread must not drop the call,
    /// because its captures may block.
    pub(super) fn job(&self) -> Option<Arc<CallState>> {
        self.outcomes.lock().job.clone()
    }

    /// Drops the call on another thread, because the drop of captures may block.
    pub(super) fn drop_job(&self) {
        if let Some(job) = self.outcomes.lock().job.take() {
            spawn_blocking(move || drop(job));
        }
    }

    /// Returns `true` if the forwarder has received all outcomes.
    fn is_received(&self) -> bool {
        let outcomes = self.outcomes.lock();
        outcomes.job.is_none() && outcomes.runs.is_empty()
    }
}

impl Drop for ArrivedChunk {
    fn drop(&mut self) {
        self.drop_job();
    }
}

struct ForwarderState {
    /// Number of the preferred worker: the worker that last ran tasks of the forwarder, or that was chosen at
    /// the registration.
    worker: Arc<AtomicUsize>,
    /// Last chunk. The forwarder sends the next chunk after it has received the outcomes.
    chunk: Option<Arc<ArrivedChunk>>,
    /// Cancelled chunks that have not arrived, the oldest first.
    cancelled: VecDeque<u64>,
    /// Number of the current registration. The forwarder's [`HeldForwarder`] contains the same number.
    number: u64,
    /// `true` if the forwarder's process has ended or its session was lost.
    is_lost: bool,
}

/// Registered forwarders of other members, until their processes end or their sessions are lost. A forwarder
/// that has not received all outcomes of its chunk is removed [later](LONGEST_LOST).
#[derive(Default)]
pub(super) struct ForwarderTable(Mutex<HashMap<ForwarderId, ForwarderState>>, AtomicU64);

impl ForwarderTable {
    /// Registers a forwarder, or registers it again after a lost session. A forwarder prefers the worker that
    /// the fewest forwarders of its pool prefer. Returns the number of the registration.
    fn add(&self, from: ForwarderId, workers: usize) -> u64 {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        let mut forwarders = self.0.lock();
        if let Some(former) = forwarders.get_mut(&from) {
            (former.number, former.is_lost) = (number, false);
            return number;
        }
        let mut counts = vec![0; workers];
        let is_counted =
            |other: &ForwarderId, state: &ForwarderState| other.pool == from.pool && !state.is_lost;
        for (_, other) in forwarders.iter().filter(|(other, state)| is_counted(other, state)) {
            if let Some(count) = counts.get_mut(other.worker.load(Ordering::Relaxed)) {
                *count += 1;
            }
        }
        let fewest = counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let worker = Arc::new(AtomicUsize::new(fewest.map_or(0, |(worker, _)| worker)));
        let (chunk, cancelled, is_lost) = Default::default();
        forwarders.insert(from, ForwarderState { worker, chunk, cancelled, number, is_lost });
        number
    }

    /// Returns the worker that a forwarder prefers.
    pub(super) fn worker(&self, from: ForwarderId) -> Arc<AtomicUsize> {
        self.0.lock().get(&from).map(|state| state.worker.clone()).unwrap_or_default()
    }

    /// Removes a forwarder, unless it was registered again.
    fn remove(&self, from: ForwarderId, number: u64) {
        let mut forwarders = self.0.lock();
        if forwarders.get(&from).is_some_and(|state| state.number == number) {
            let removed = forwarders.remove(&from);
            drop(forwarders);
            drop(removed);
        }
    }

    /// Removes a forwarder whose process has ended or whose session was lost. If the session was lost, the
    /// forwarder will request the outcomes of its chunk, which are stored for a time.
    fn lose(self: &Arc<Self>, from: ForwarderId, number: u64) {
        let has_outcomes = |state: &mut ForwarderState| {
            state.is_lost |= state.number == number;
            state.chunk.as_ref().is_some_and(|chunk| !chunk.is_received())
        };
        if !self.0.lock().get_mut(&from).is_some_and(has_outcomes) {
            return self.remove(from, number);
        }
        let table = Arc::downgrade(self);
        run_later(LONGEST_LOST, move || _ = table.upgrade().map(|table| table.remove(from, number)));
    }

    /// Stores a chunk instead of the forwarder's previous chunk. Returns `false` if the chunk was cancelled.
    pub(super) fn begin(&self, from: ForwarderId, chunk: &Arc<ArrivedChunk>) -> bool {
        let mut forwarders = self.0.lock();
        // A forwarder that was lost meanwhile can't cancel the chunk.
        let Some(state) = forwarders.get_mut(&from) else { return true };
        let at = state.cancelled.iter().position(|cancelled| *cancelled == chunk.number);
        _ = at.and_then(|at| state.cancelled.remove(at));
        let former = std::mem::replace(&mut state.chunk, at.is_none().then(|| chunk.clone()));
        drop(forwarders);
        drop(former);
        at.is_none()
    }

    /// Returns the chunk if it has arrived. Otherwise cancels it, so that it is not begun when it arrives.
    pub(super) fn find_or_cancel(&self, (from, chunk): ChunkKey) -> Option<Arc<ArrivedChunk>> {
        let mut forwarders = self.0.lock();
        let state = forwarders.get_mut(&from)?;
        let found = state.chunk.clone().filter(|found| found.number == chunk);
        if found.is_none() {
            state.cancelled.push_back(chunk);
            if state.cancelled.len() > MOST_CANCELLED {
                state.cancelled.pop_front();
            }
        }
        found
    }
}

/// Value that a forwarder holds, until its process ends or its session is lost.
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
        self.table.lose(self.from, self.number);
    }
}

#[cfg(test)]
mod tests {
    use mp_harness::eventually;

    use super::*;
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::{RecordingOwner, job, job_of};

    const FROM: ForwarderId = ForwarderId { pool: 1, forwarder: 2 };

    fn chunk(number: u64) -> Arc<ArrivedChunk> {
        ArrivedChunk::new(number, (1, false), job(1, CallOptions::default()))
    }

    #[test]
    fn chunk_cancelled_before_its_arrival_is_not_begun() {
        let table = Arc::new(ForwarderTable::default());
        let held = HeldForwarder::new(&table, FROM, 2);
        let last = MOST_CANCELLED as u64;
        assert!((0..=last).all(|chunk| table.find_or_cancel((FROM, chunk)).is_none()));
        assert!(!table.begin(FROM, &chunk(last)));
        assert!(table.begin(FROM, &chunk(last)) && table.begin(FROM, &chunk(0)), "the oldest was dropped");
        assert!(table.find_or_cancel((FROM, 0)).is_some());
        table.find_or_cancel((FROM, 0)).unwrap().drop_job();
        drop(held);
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn reregistered_forwarder_outlives_first_registration() {
        let table = Arc::new(ForwarderTable::default());
        let former = HeldForwarder::new(&table, FROM, 1);
        assert!(table.find_or_cancel((FROM, 1)).is_none());
        let held = HeldForwarder::new(&table, FROM, 1);
        drop(former);
        assert!(!table.begin(FROM, &chunk(1)), "the cancellation stays");
        drop(held);
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn chunk_outlives_a_lost_session() {
        let table = Arc::new(ForwarderTable::default());
        let held = HeldForwarder::new(&table, FROM, 1);
        assert!(table.begin(FROM, &chunk(1)));
        let number = held.number;
        drop(held);
        assert!(table.find_or_cancel((FROM, 1)).is_some());
        let held = HeldForwarder::new(&table, FROM, 1);
        table.remove(FROM, number);
        assert!(table.find_or_cancel((FROM, 1)).is_some(), "it was registered again");
        assert!(table.begin(FROM, &chunk(2)) && table.find_or_cancel((FROM, 1)).is_none());
        table.remove(FROM, held.number);
        assert!(table.0.lock().is_empty());
    }

    /// A cancellation can arrive after the end of its forwarder, because the two use different connections.
    #[test]
    fn cancellation_of_a_lost_forwarder_is_not_stored() {
        let table = ForwarderTable::default();
        assert!(table.find_or_cancel((FROM, 1)).is_none() && table.begin(FROM, &chunk(1)));
        assert!(table.0.lock().is_empty());
    }

    #[test]
    fn forwarders_of_a_pool_prefer_different_workers() {
        let table = ForwarderTable::default();
        let workers = [1, 2, 3].map(|forwarder| {
            let from = ForwarderId { pool: 1, forwarder };
            table.add(from, 2);
            table.worker(from).load(Ordering::Relaxed)
        });
        assert_eq!(workers, [0, 1, 0]);
    }

    #[test]
    fn lost_forwarder_prefers_no_worker() {
        let table = Arc::new(ForwarderTable::default());
        let held = HeldForwarder::new(&table, FROM, 2);
        assert!(table.begin(FROM, &chunk(1)));
        drop(held);
        let other = ForwarderId { forwarder: 3, ..FROM };
        table.add(other, 2);
        assert_eq!(table.worker(other).load(Ordering::Relaxed), 0);
    }

    /// The `Drop` of captures is user code, which may block.
    #[test]
    fn chunk_function_is_dropped_on_another_thread() {
        let owner = Arc::new(RecordingOwner::default());
        let job = job_of(Arc::downgrade(&owner) as _, 1, CallOptions::default());
        drop(ArrivedChunk::new(1, (1, false), job));
        eventually("the function is dropped", || owner.dropped_by.get().is_some());
        assert_ne!(owner.dropped_by.get(), Some(&std::thread::current().id()));
    }
}
