//! State shared by the pool's handle, its calls and its thread.
//!
//! A task is counted before any other thread can see it, and settled once, so the count reaches zero when no
//! tasks are left.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Instant;

use mp_core::mutex::{Condvar, Mutex};
use mp_core::sync::Ordering;
use mp_core::sync::shared::{AtomicU64, AtomicUsize};
use mp_core::user_code::drop_caught;
use mp_core::waits::{BlockingCall, Subject, WaitObject, wait_at};
use mp_queue::Queue;

use crate::child::message::{PoolReply, WorkerRequest};
use crate::dispatcher::room_queue::RoomQueue;
use crate::dispatcher::settings::{PoolSettings, WorkerStartup};
use crate::error::PoolError;
use crate::metrics::meter::Meter;
use crate::slots::state::PoolState;
use crate::tasks::call_state::{CallState, FunctionOwner, TaskFunction};
use crate::tasks::owner_process::OwnerProcess;

/// Event: the process of a worker has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerExit {
    pub(crate) worker: usize,
    pub(crate) pid: u32,
}

pub(crate) struct PoolShared {
    pub(crate) settings: PoolSettings,
    /// User code for the start of workers. Dropped at the end of the pool, because captured queues would
    /// otherwise seem to be in use while a handle of the pool exists.
    startup: Mutex<WorkerStartup>,
    /// Process that created the pool. A fork of this process locks nothing here: other threads may have held
    /// the locks at the fork.
    owner: OwnerProcess,
    /// Wanted number of workers, copied from the state for readers without the lock.
    pub(crate) wanted: AtomicUsize,
    pub(crate) replies: Queue<PoolReply>,
    /// Queue that packs the messages for all workers. A packed message can be put into any worker's queue.
    pub(crate) packer: Queue<WorkerRequest>,
    pub(crate) state: Mutex<PoolState>,
    /// Notified when tasks have been settled, or the pool has ended.
    pub(crate) changed: Condvar,
    /// Statistics of the pool. A thread acquires this lock before the lock of the state or of a call.
    pub(crate) meter: Mutex<Meter>,
    /// Futures that wait for room.
    pub(crate) room: RoomQueue,
    pub(crate) events: Mutex<Vec<WorkerExit>>,
    /// Notified of events, for a thread that can't wait for replies because no worker exists.
    pub(crate) event_added: Condvar,
    pub(super) functions: Mutex<HashMap<TypeId, Arc<TaskFunction>>>,
    /// Numbers of functions without users.
    pub(super) unused: Mutex<Vec<u64>>,
    ids: AtomicU64,
    /// Served pools of other members.
    #[cfg(feature = "net")]
    pub(crate) places: crate::forward::places::Places,
    /// Id of the pool's thread, once it runs.
    pub(crate) thread: OnceLock<ThreadId>,
}

impl PoolShared {
    pub(crate) fn new(
        mut settings: PoolSettings,
        replies: Queue<PoolReply>,
        packer: Queue<WorkerRequest>,
        state: PoolState,
    ) -> Self {
        let startup = Mutex::new(std::mem::take(&mut settings.startup));
        PoolShared {
            settings,
            startup,
            owner: OwnerProcess::this(),
            wanted: AtomicUsize::new(state.wanted),
            replies,
            packer,
            state: Mutex::new(state),
            changed: Condvar::new(),
            meter: Mutex::default(),
            room: RoomQueue::default(),
            events: Mutex::new(Vec::new()),
            event_added: Condvar::new(),
            functions: Mutex::new(HashMap::new()),
            unused: Mutex::new(Vec::new()),
            ids: AtomicU64::new(1),
            #[cfg(feature = "net")]
            places: crate::forward::places::Places::default(),
            thread: OnceLock::new(),
        }
    }

    pub(crate) fn startup(&self) -> WorkerStartup {
        self.startup.lock().clone()
    }

    /// Drops the functions with which workers are started. No worker is started afterwards.
    pub(crate) fn release_startup(&self) {
        let startup = std::mem::take(&mut *self.startup.lock());
        drop_caught(startup);
    }

    pub(crate) fn check_owner(&self) -> Result<(), PoolError> {
        if self.owner.is_this() { Ok(()) } else { Err(PoolError::OtherProcess { owner: self.owner.pid() }) }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Wakes the pool's thread to check events and deadlines.
    pub(crate) fn wake_thread(&self) {
        // If the queue is full, the thread is awake.
        _ = self.replies.try_put(PoolReply::Wake);
        drop(self.events.lock());
        self.event_added.notify_all();
    }

    /// Reports that the process of a worker has ended.
    pub(crate) fn record_exit(&self, exited: WorkerExit) {
        self.events.lock().push(exited);
        self.wake_thread();
    }

    /// Returns `true` if the pool has its maximum number of tasks without an outcome.
    pub(crate) fn is_full(&self) -> bool {
        if self.check_owner().is_err() {
            return false;
        }
        let state = self.state.lock();
        state.is_open() && self.settings.max_waiting.is_some_and(|most| state.unsettled >= most)
    }

    /// Wakes as many waiting futures as there is room for. The caller must hold no lock.
    pub(crate) fn wake_waiting(&self) {
        let Some(most) = self.settings.max_waiting else { return };
        let room = {
            let state = self.state.lock();
            if state.is_open() { most.saturating_sub(state.unsettled) } else { usize::MAX }
        };
        self.room.wake(room);
    }

    /// Wakes callers that wait for room to push into a stream that was closed.
    pub(crate) fn wake_stream_pushers(&self) {
        if self.settings.max_waiting.is_none() {
            return;
        }
        // By now, any thread that has found the stream open sleeps, and is woken.
        drop(self.state.lock());
        self.changed.notify_all();
        self.room.wake_all();
    }

    /// Waits until the pool is not full, or `closed` returns `true`. Returns `false` at the time limit.
    /// Returns `true` at once in the pool's thread, which runs callbacks and would wait for itself.
    #[track_caller]
    pub(crate) fn wait_for_room(&self, until: Option<Instant>, closed: impl Fn() -> bool) -> bool {
        let here = std::thread::current().id();
        let is_here = self.thread.get() == Some(&here);
        let Some(most) = self.settings.max_waiting.filter(|_| self.check_owner().is_ok() && !is_here) else {
            return true;
        };
        let subject = || self.describe(None, &format!(", for room for one more task: {most} wait"));
        let has_room = |state: &PoolState| !state.is_open() || state.unsettled < most || closed();
        wait_at(&self.changed, &mut self.state.lock(), until, has_room, subject)
    }
}

impl FunctionOwner for PoolShared {
    fn function_unused(&self, code: u64) {
        if self.check_owner().is_err() {
            return;
        }
        self.unused.lock().push(code);
        self.wake_thread();
    }

    fn describe(&self, job: Option<&CallState>, what: &str) -> Subject {
        let (pool, mut pids, mut running) = (self.settings.pool_name(), Vec::new(), String::new());
        if self.check_owner().is_ok() {
            let state = self.state.lock();
            let living = state.workers.iter().filter(|worker| worker.process.is_some());
            pids = living.map(|worker| worker.pid).collect();
            running = state.running_of(job).iter().map(|task| format!("; {task}")).collect();
        }
        let what = format!("{pool}{what}{running}");
        Subject::other(BlockingCall::Pool, WaitObject::Processes(pids), what)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::child::journal_words::WorkerWords;
    use crate::slots::slot::WorkerSlot;

    /// Returns the state of a pool that has no thread and one worker, which was not started.
    pub(crate) fn shared() -> PoolShared {
        let packer = Queue::bounded(4).unwrap();
        let state = PoolState::new(vec![WorkerSlot::new(packer.clone(), WorkerWords::new().unwrap())]);
        PoolShared::new(PoolSettings::default(), Queue::bounded(4).unwrap(), packer, state)
    }

    /// Returns `true` if a [`PoolReply::Wake`] waits for the pool's thread, and removes it.
    pub(crate) fn is_awake(shared: &PoolShared) -> bool {
        matches!(shared.replies.try_get(), Ok(Some(PoolReply::Wake)))
    }

    /// Without the wake-up, the thread would detect the death at its next periodic check, up to a second
    /// later.
    #[test]
    fn worker_death_wakes_the_pool_thread() {
        let shared = shared();
        shared.record_exit(WorkerExit { worker: 0, pid: 1 });
        assert!(is_awake(&shared));
        assert!(!is_awake(&shared), "once");
    }
}
