//! Progress notes of running tasks: one word in shared memory that the pool reads.

use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::watch::Watch;

/// Shared words of this process, if it is a worker. A fork of a worker has none, and does not write into the
/// words of its parent.
static WATCH: PerProcess<OnceLock<Watch>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// Makes this process write its notes into the words of this worker.
pub(crate) fn of_worker(watch: Watch) {
    // Set once in the life of a process.
    _ = WATCH.set(watch);
}

/// Stores a number for the task that runs in this worker, such as its progress or current step. The last
/// number is part of the error if the worker is lost ([`WorkerLost::note`](crate::WorkerLost::note)), if the
/// task [times out](crate::TaskError::TimedOut), and if it returns an error or panics
/// ([`TaskRaised::note`](crate::TaskRaised::note)). [`Pool::running`](crate::Pool::running) shows it while
/// the task runs.
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
/// The call is one store into shared memory: cheap enough for each iteration of a loop. Each task begins
/// without a note; 0 means none. Any thread of the worker may call it. In a process that is not a worker it
/// does nothing.
pub fn note(number: u64) {
    if let Some(watch) = WATCH.get() {
        watch.set_note(number);
    }
}
