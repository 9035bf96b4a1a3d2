//! Handling of SIGINT (Ctrl-C) and SIGTERM for pools that are notified of them:
//! [`PoolBuilder::interrupt`](crate::PoolBuilder::interrupt).
//!
//! The kernel sends the signal to all processes of the program. The order does not matter:
//!
//! | process | action | left for others |
//! |---|---|---|
//! | a worker | ends after its running task, or at once if it waits for a task; begins no task after the signal | the tasks in its queue and in its chunk, which are handled like those of any worker that has ended |
//! | this process, in the pool's thread | withdraws the tasks that no worker has begun, and settles them as interrupted; until the program has acknowledged the interrupt, each thread that would assign a task does the same | tasks that workers have begun |
//!
//! If a worker ends before this process receives the signal, it is replaced by a worker without an interrupt:
//! its tasks are withdrawn from the replacement, too. If it is killed at any point, the effect is the same as
//! for any killed worker.

use mp_spawn::Interrupt;

use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::steps::chunk::CutShare;
use crate::tasks::chunk::{ReadyChunk, next_chunk};
use crate::workers::state::PoolState;

impl PoolShared {
    /// Returns `true` if this process is notified of interrupts.
    pub(crate) fn handles_interrupts(&self) -> bool {
        self.settings.interrupt == Interrupt::Graceful
    }

    /// Returns `true` if this process was interrupted and has not acknowledged it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.handles_interrupts() && mp_core::interrupted()
    }

    /// Withdraws the tasks that no worker has begun, and settles them.
    pub(crate) fn interrupt(&self) {
        let error = &TaskError::Interrupted;
        let mut settled = Settlements::new(self);
        let (jobs, later) = {
            let PoolState { workers, returned, jobs, retries, emptied_chunks, .. } = &mut *self.state.lock();
            for worker in workers.iter_mut() {
                returned.extend(worker.recall_all(false));
                let (rest, nothing) = worker.cut(CutShare::All, next_chunk());
                returned.extend(rest.map(ReadyChunk::unpacked));
                emptied_chunks.extend(nothing);
            }
            returned.drain(..).for_each(|ready| settled.add(ready.chunk, error.clone()));
            (std::mem::take(jobs), retries.take_all())
        };
        settled.add_scheduled(later, error);
        jobs.iter().for_each(|job| settled.add_unsent(job, job.take_unsent(), error));
        settled.deliver();
    }
}
