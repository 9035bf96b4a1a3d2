//! Changes of the number of workers at run time, and rolling replacement of all workers.

use std::time::{Duration, Instant};

use mp_core::sync::Ordering;

use crate::api::pool::{Pool, check_processes, new_slot};
use crate::child::message::{LEAVE, WorkerRequest};
use crate::dispatcher::shared::PoolShared;
use crate::error::PoolError;
use crate::slots::slot::WorkerSlot;
use crate::slots::state::{PoolPhase, PoolState};

impl Pool {
    /// Sets the number of workers of this host, and returns without waiting for them. Workers of
    /// [other hosts](crate::PoolBuilder::cluster) are not counted.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(1)?;
    /// let results = pool.map_async(|x: u64| x * x, 0..1000);
    /// pool.resize(3)?;
    /// assert_eq!(pool.processes(), 3);
    /// pool.resize(2)?;
    /// assert_eq!(results.get()?[999], 998_001);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`processes`](Self::processes) returns the new number at once. [`pids`](Self::pids) and
    /// [`metrics`](Self::metrics) list the existing workers, including surplus workers that have not ended.
    ///
    /// - **More:** workers with the next numbers are started as by [`build`](crate::PoolBuilder::build), with
    ///   the initializer and the [state](crate::StatePool). A failed start is retried, as after a death.
    /// - **Fewer:** the workers with the highest numbers end. Each finishes its running task, drops its
    ///   state, and is not replaced. Other workers do the tasks that it has not begun, so no task is lost or
    ///   done twice. An idle worker ends at once.
    /// - **More, while surplus workers are still running:** a worker that was already asked to end does so,
    ///   and is then replaced.
    ///
    /// If several calls run at once, the last one counts. A surplus worker whose task never ends stays: limit
    /// such tasks by [`timeout`](crate::Call::timeout).
    ///
    /// # When a process dies
    /// When a surplus worker dies, its running task is lost, and the worker is not replaced.
    ///
    /// # Errors
    /// [`PoolError::Settings`] for 0 and for more than 1000, [`PoolError::Closed`] if the pool is closed or
    /// terminated, [`PoolError::Broken`] if no worker is alive, [`PoolError::OtherProcess`] in a forked
    /// process, [`PoolError::Failed`] if shared memory for the new workers is unavailable. The number is
    /// unchanged after an error.
    pub fn resize(&self, processes: usize) -> Result<(), PoolError> {
        self.shared.check_owner()?;
        check_processes(processes)?;
        #[cfg(feature = "net")]
        {
            let _resizing = self.shared.places.resizing();
            let (all, before) = self.shared.places.set_local(processes);
            if let Err(error) = self.shared.set_workers(all) {
                _ = self.shared.places.set_local(before);
                return Err(error);
            }
            _ = self.shared.move_workers();
        }
        #[cfg(not(feature = "net"))]
        self.shared.set_workers(processes)?;
        self.shared.feed();
        Ok(())
    }
}

impl PoolShared {
    /// Sets the number of workers that the pool should have.
    pub(crate) fn set_workers(&self, processes: usize) -> Result<(), PoolError> {
        let messages = mp_core::Arena::current()?.most_messages();
        let mut made = Vec::new();
        // Memory is allocated without the lock; meanwhile another call may remove slots.
        loop {
            let mut state = self.state.lock();
            self.check_open(&state)?;
            let missing = processes.saturating_sub(state.workers.len());
            if missing <= made.len() {
                state.workers.extend(made.drain(..missing));
                state.resize(processes, messages, Instant::now());
                self.wanted.store(processes, Ordering::Relaxed);
                break;
            }
            drop(state);
            while made.len() < missing {
                made.push(new_slot()?);
            }
        }
        self.dismiss_surplus();
        self.wake_thread();
        Ok(())
    }

    /// Returns the number of workers that the pool should have.
    pub(crate) fn workers(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Checks that the pool accepts tasks.
    fn check_open(&self, state: &PoolState) -> Result<(), PoolError> {
        match &state.phase {
            PoolPhase::Open => Ok(()),
            PoolPhase::Closed | PoolPhase::Terminating => {
                Err(PoolError::Closed { pool: self.settings.name.clone() })
            }
            PoolPhase::Broken(why) => Err(PoolError::Broken(why.clone())),
        }
    }

    /// Asks surplus workers to end, and withdraws the tasks that they have not begun. Skips workers whose
    /// next check is not due.
    pub(crate) fn dismiss_surplus(&self) {
        let leave = || self.packed(WorkerRequest::Forget { code: LEAVE }).ok();
        self.state.lock().dismiss_surplus(Instant::now(), leave);
    }
}

/// Time between two checks of a worker that is being replaced.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Pool {
    /// Replaces all workers, one after the other, and blocks until the last new worker is ready.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(2)?;
    /// let before = pool.pids();
    /// pool.recycle()?;
    /// assert!(pool.pids().iter().all(|pid| !before.contains(pid)));
    /// assert_eq!(pool.map(|x: u32| x + 1, [1, 2])?, [2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Each worker finishes the tasks that it already has, then ends. The next worker ends only after the
    /// replacement is ready, so at most one worker is missing at any time, and no task fails. New workers
    /// call the initializer and create their state again: use this for libraries that leak memory, files that
    /// are read at the start, or changed settings. If a task never ends, this call waits for it: limit such
    /// tasks by [`timeout`](crate::Call::timeout).
    ///
    /// # When a process dies
    /// A worker that dies during this call counts as replaced, and so does a worker removed by
    /// [`resize`](Self::resize). If no worker can be started, the pool breaks, which ends this call.
    ///
    /// # Errors
    /// [`PoolError::OtherProcess`] in a forked process, [`PoolError::InCallback`] in a callback of this pool,
    /// [`PoolError::Broken`] if no worker is alive. If the pool is closed or terminated during this call, the
    /// result is `Ok`.
    pub fn recycle(&self) -> Result<(), PoolError> {
        self.check_wait()?;
        for number in 0..self.processes() {
            self.recycle_one(number)?;
        }
        Ok(())
    }

    fn recycle_one(&self, number: usize) -> Result<(), PoolError> {
        let shared = &self.shared;
        let before = shared.state.lock().wanted_worker(number).map(|worker| worker.pid);
        let Some(before) = before else { return Ok(()) };
        let mut asked = false;
        loop {
            // Room for the message may become available later.
            if !asked && let Ok(packed) = shared.packed(WorkerRequest::Forget { code: LEAVE }) {
                asked = shared.state.lock().ask_to_leave(number, before, packed);
            }
            let mut state = shared.state.lock();
            if let Some(error) = state.phase.error() {
                return match error {
                    crate::TaskError::Broken(broken) => Err(PoolError::Broken(broken)),
                    _ => Ok(()),
                };
            }
            let worker = state.wanted_worker(number);
            if !state.is_serving() || worker.is_none_or(|worker| worker.is_successor_of(before)) {
                return Ok(());
            }
            shared.changed.wait_until(&mut state, Instant::now() + POLL_INTERVAL);
        }
    }
}

impl PoolState {
    /// Returns the worker with this number, unless it is surplus.
    fn wanted_worker(&self, number: usize) -> Option<&WorkerSlot> {
        self.workers.get(number).filter(|_| number < self.wanted)
    }

    /// Asks a worker to end after its tasks. Returns `false` if the worker's queue is full or the worker is
    /// not ready.
    fn ask_to_leave(
        &mut self,
        number: usize,
        pid: u32,
        packed: mp_queue::EncodedMessage<WorkerRequest>,
    ) -> bool {
        let found = self.workers.get_mut(number).filter(|found| found.ready && found.pid == pid);
        found.is_some_and(|found| found.ask_to_leave(packed))
    }
}
