//! Rolling replacement of all workers.

use std::time::{Duration, Instant};

use crate::api::pool::Pool;
use crate::error::PoolError;
use crate::worker::message::{LEAVE, WorkerRequest};
use crate::workers::state::PoolState;
use crate::workers::worker::Worker;

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
    /// are read at the start, or changed settings. If a task never ends, this call waits for it:
    /// [`timeout`](crate::Call::timeout) bounds that.
    ///
    /// # When a process dies
    /// A worker that dies meanwhile counts as replaced, and so does a worker removed by
    /// [`resize`](Self::resize). If no worker can be started, the pool breaks, which ends this call.
    ///
    /// # Errors
    /// [`PoolError::OtherProcess`] in a forked process, [`PoolError::InCallback`] in a callback of this pool,
    /// [`PoolError::Broken`] if no worker is alive. If the pool is closed or terminated meanwhile, the call
    /// returns `Ok`.
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
    /// Returns the worker of this number, if the pool wants it.
    fn wanted_worker(&self, number: usize) -> Option<&Worker> {
        self.workers.get(number).filter(|_| number < self.wanted)
    }

    /// Asks a worker to end after its tasks. Returns `false` if its queue is full or it is not ready.
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
