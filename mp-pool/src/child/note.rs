//! What a task says of itself while it runs: one word, for the pool to see.

use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::watch::Watch;

/// The words of this process, if it is a worker. A copy of a worker has none, and does not write into those of its original.
static WATCH: PerProcess<OnceLock<Watch>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// From now on, notes of this process are that worker's.
pub(crate) fn of_worker(watch: Watch) {
    // Once in the life of a process.
    _ = WATCH.set(watch);
}

/// Notes a number for the task that runs here: how far it is, or what it is at. Should its worker be lost, the error has the last
/// one, [`WorkerLost::note`](crate::WorkerLost::note) or that of [`TimedOut`](crate::TaskError::TimedOut); if the task returns an
/// error or panics, [`TaskRaised::note`](crate::TaskRaised::note) is it; while it runs, [`Pool::running`](crate::Pool::running) has it.
///
/// ```
/// use mp_pool::{Pool, TaskError};
///
/// fn add(rows: Vec<u64>) -> u64 {
///     let mut sum = 0;
///     for (at, row) in rows.iter().enumerate() {
///         mp_pool::note(at as u64 + 1);
///         sum += if *row < 100 { *row } else { std::process::abort() };
///     }
///     sum
/// }
///
/// let pool = Pool::builder().processes(1).stderr(mp_spawn::Stdio::Null).build()?;
/// assert_eq!(pool.apply(add, vec![1, 2, 3])?, 6);
/// let Err(TaskError::WorkerLost(lost)) = pool.apply(add, vec![1, 200, 3]) else { panic!("it can't be added") };
/// assert_eq!(lost.note, Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// That is one store into shared memory: cheap enough for each turn of a loop. The next task begins without a note, and 0 is none.
/// From whichever thread of the worker; in a process that is no worker it does nothing.
pub fn note(number: u64) {
    if let Some(watch) = WATCH.get() {
        watch.set_note(number);
    }
}
