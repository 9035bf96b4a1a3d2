//! Helpers shared by the tests of `tests/`: processes that are started, joined, killed and stopped; messages;
//! usage of shared memory. Each wait has a deadline, and each worker ends by itself.

pub mod block_on;
pub mod interrupts;
pub mod kill;
pub mod limits;
pub mod parcel;
pub mod python;
pub mod refusal;
pub mod scratch;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mp::memory::MemoryStats;
use mp::{
    Arena, GetError, Message, ProcessContext, PutError, Queue, SpawnError, SpawnOptions, start_processes,
};
pub use mp_harness::{DEADLINE, alive, eventually, eventually_none, open_files, signal, threads_are};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Return type of a test's worker.
pub type Outcome = mp::AnyResult<()>;

/// Starts one process.
#[track_caller]
pub fn one_process<F, A, R>(function: F, args: A) -> ProcessContext<R::Value>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: mp::message::IntoOutcome,
{
    start_processes(function, args, SpawnOptions::nprocs(1)).unwrap()
}

/// Joins all processes, at most until the deadline.
pub fn join(context: &ProcessContext) -> Result<(), SpawnError> {
    match context.join_timeout(DEADLINE) {
        Ok(true) => Ok(()),
        Ok(false) => panic!("still running after {DEADLINE:?}: {context:?}"),
        Err(error) => Err(error),
    }
}

/// Joins all processes and returns the first failure, which is expected.
pub fn failure(context: &ProcessContext) -> SpawnError {
    join(context).expect_err("a failure was expected")
}

/// Returns the next message. Panics if none arrives by the deadline.
#[track_caller]
pub fn take<T: Message>(queue: &Queue<T>) -> T {
    match queue.get_timeout(DEADLINE) {
        Ok(Some(value)) => value,
        Ok(None) => panic!("{queue:?} is closed"),
        Err(error) => panic!("nothing from {queue:?}: {error}"),
    }
}

/// Puts a message. Panics if the put fails.
#[track_caller]
pub fn give<T: Message>(queue: &Queue<T>, value: T) {
    if let Err(error) = queue.put_timeout(value, DEADLINE) {
        panic!("not put into {queue:?}: {error}");
    }
}

/// Does the same as [`take`] in a worker, with an error instead of a panic. Returns `None` if the queue is
/// closed.
pub fn next<T: Message>(queue: &Queue<T>) -> Result<Option<T>, GetError> {
    queue.get_timeout(DEADLINE)
}

/// Does the same as [`give`] in a worker, with an error instead of a panic.
pub fn send<T: Message>(queue: &Queue<T>, value: T) -> Outcome {
    queue.put_timeout(value, DEADLINE).map_err(|error: PutError<T>| error.to_string().into())
}

fn echo<T: Message>(_: usize, (there, back): (Queue<T>, Queue<T>)) -> Outcome {
    while let Some(value) = next(&there)? {
        send(&back, value)?;
    }
    Ok(())
}

/// Sends the values through a queue of this process, and then through another process that sends them back.
/// Calls `check` for each received value.
pub fn travels<T: Message>(values: impl Fn() -> Vec<T>, check: impl Fn(usize, T)) {
    let here = Queue::bounded(1).unwrap();
    for (i, value) in values().into_iter().enumerate() {
        give(&here, value);
        check(i, take(&here));
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo::<T>, (there.clone(), back.clone()));
    for (i, value) in values().into_iter().enumerate() {
        give(&there, value);
        check(i, take(&back));
    }
    there.close();
    join(&context).unwrap();
}

/// Does the same as [`travels`] for values that can be compared.
pub fn same<T: Message + Clone + PartialEq + Debug>(values: &[T]) {
    travels(|| values.to_vec(), |i, value| assert_eq!(value, values[i]));
}

/// Prevents other tests of this program from running while the guard exists, for tests that count usage of
/// shared memory.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the same as [`alone`], and waits until all processes of earlier tests have ended. Use it in a test
/// program in which every test holds such a guard.
pub fn settled() -> MutexGuard<'static, ()> {
    let alone = alone();
    let arena = Arena::current().unwrap();
    eventually("processes of the previous test have ended", || {
        arena.reclaim().unwrap();
        arena.members().len() == 1
    });
    alone
}

/// Returns the usage of shared memory that a leak would change: blocks, messages, members.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// Waits until resources of dead processes are reclaimed, so that usage of shared memory is back to `before`.
#[track_caller]
pub fn eventually_in_use(before: (u64, u64, u64), what: &str) {
    eventually(what, || {
        Arena::current().unwrap().reclaim().unwrap();
        in_use() == before
    });
}

/// Returns `true` if this thread of this process sleeps.
pub fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Returns the number of mappings of this process.
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}
