//! SIGINT (Ctrl-C) and SIGTERM, in programs whose pool is informed of them: [`PoolBuilder::interrupt`](crate::PoolBuilder::interrupt).
//!
//! The kernel sends the signal to all processes of the program, in an order that nothing depends on:
//!
//! | process | does | what it leaves undone |
//! |---|---|---|
//! | a worker | ends after the task that it is at, or at once if it waits for one; it begins none once it knows | the tasks in its queue and in its chunk, which are found there as those of any worker that has ended |
//! | this one, in the pool's thread | takes back what no worker has begun, and settles it as interrupted; from then on, until the program has taken note of the interrupt, so does each thread that would give a task to a worker | what workers have begun |
//!
//! A worker that ends before this process knows is replaced by one that was never interrupted: its tasks are taken back from that
//! one, too. Killed at any point, a worker leaves what every killed worker does.

use mp_spawn::Interrupt;

use crate::calls::chunk::Ready;
use crate::dispatch::settled::Settled;
use crate::dispatch::shared::Shared;
use crate::error::TaskError;
use crate::steps::chunk::Share;
use crate::workers::state::{State, next_chunk};

impl Shared {
    /// Whether this process is to be told of interrupts.
    pub(crate) fn heeds_interrupts(&self) -> bool {
        self.settings.interrupt == Interrupt::Graceful
    }

    /// Whether it was, and has not taken note of it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.heeds_interrupts() && mp_core::interrupted()
    }

    /// Takes back what no worker has begun, and settles it.
    pub(crate) fn interrupt(&self) {
        let error = &TaskError::Interrupted;
        let mut settled = Settled::new(self);
        let (jobs, later) = {
            let State { workers, returned, jobs, later, emptied, .. } = &mut *self.state.lock();
            for worker in workers.iter_mut() {
                returned.extend(worker.recall_all(false));
                let (rest, nothing) = worker.cut(Share::All, next_chunk());
                returned.extend(rest.map(Ready::rest));
                emptied.extend(nothing);
            }
            returned.drain(..).for_each(|ready| settled.add(ready.chunk, error.clone()));
            (std::mem::take(jobs), std::mem::take(later))
        };
        settled.add_later(later, error);
        jobs.iter().for_each(|job| settled.add_left(job, job.take_rest(), error));
        settled.tell();
    }
}
