//! Progress notes of running tasks: one word in shared memory that the pool reads.

use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::worker::journal_words::WorkerWords;

/// Shared words of this process, if it is a worker. A fork of a worker has none, and does not write into the
/// words of its parent.
static WORDS: PerProcess<OnceLock<WorkerWords>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// Makes this process write its notes into the words of this worker.
pub(crate) fn install(shared_words: WorkerWords) {
    // Set once in the life of a process.
    _ = WORDS.set(shared_words);
}

/// Stores a number for the task that runs in this worker, such as its progress or current step. The last
/// number is part of the error if the worker is lost ([`WorkerLost::note`](crate::WorkerLost::note)) or the
/// task [times out](crate::TaskError::TimedOut). It is also part of the error if the task returns an error or
/// panics ([`TaskRaised::note`](crate::TaskRaised::note)). [`Pool::running`](crate::Pool::running) shows it
/// while the task runs.
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
/// let sum = pool.apply(add, vec![1, 200, 3]);
/// let Err(TaskError::WorkerLost(lost)) = sum else { panic!("the worker aborts") };
/// assert_eq!(lost.note, Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The call is one store into shared memory: cheap enough for each iteration of a loop. Each task begins
/// without a note; 0 means none. Any thread of the worker may call it. In a process that is not a worker it
/// does nothing.
pub fn note(number: u64) {
    if let Some(shared_words) = WORDS.get() {
        shared_words.set_note(number);
    }
}
