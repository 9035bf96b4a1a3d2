//! What the tests with real processes share. Each wait here has a deadline, each worker ends by itself.
#![allow(dead_code, unreachable_pub, missing_docs, unsafe_code)]

pub mod interrupts;
pub mod kill;
pub mod python;
pub mod refusal;
pub mod scratch;
pub mod task;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mp::{
    Arena, GetError, MemoryStats, Message, Options, ProcessContext, PutError, Queue, SpawnError,
    start_processes,
};
use rustix::process::{Pid, Signal, kill_process};

/// For what should take milliseconds on a machine that is busy with something else.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub type Outcome = mp::Result<()>;

/// Waits for all, at most for the deadline.
pub fn join(context: &ProcessContext) -> Result<(), SpawnError> {
    match context.join_timeout(DEADLINE) {
        Ok(true) => Ok(()),
        Ok(false) => panic!("still running after {DEADLINE:?}: {context:?}"),
        Err(error) => Err(error),
    }
}

/// Waits for all; the first failure is expected.
pub fn failure(context: &ProcessContext) -> SpawnError {
    join(context).expect_err("a failure was expected")
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !so() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1)); // sleep: between two looks at what another process did
    }
}

/// The next message, which has to come.
#[track_caller]
pub fn take<T: Message>(queue: &Queue<T>) -> T {
    match queue.get_timeout(DEADLINE) {
        Ok(Some(value)) => value,
        Ok(None) => panic!("{queue:?} is closed"),
        Err(error) => panic!("nothing from {queue:?}: {error}"),
    }
}

/// Puts a message, which has to work.
#[track_caller]
pub fn give<T: Message>(queue: &Queue<T>, value: T) {
    if let Err(error) = queue.put_timeout(value, DEADLINE) {
        panic!("not put into {queue:?}: {error}");
    }
}

/// In a worker: as [`take`], with an error instead of a panic; `None` when the queue is closed.
pub fn next<T: Message>(queue: &Queue<T>) -> Result<Option<T>, GetError> {
    queue.get_timeout(DEADLINE)
}

/// In a worker: as [`give`], with an error instead of a panic.
pub fn send<T: Message>(queue: &Queue<T>, value: T) -> Outcome {
    queue.put_timeout(value, DEADLINE).map_err(|error: PutError<T>| error.to_string().into())
}

fn echo<T: Message>(_: usize, (there, back): (Queue<T>, Queue<T>)) -> Outcome {
    while let Some(value) = next(&there)? {
        send(&back, value)?;
    }
    Ok(())
}

/// Sends values through a queue of this process, and again through another process that sends them back; checks each.
pub fn travels<T: Message>(values: impl Fn() -> Vec<T>, check: impl Fn(usize, T)) {
    let here = Queue::bounded(1).unwrap();
    for (i, value) in values().into_iter().enumerate() {
        give(&here, value);
        check(i, take(&here));
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = start_processes(echo::<T>, (there.clone(), back.clone()), Options::nprocs(1)).unwrap();
    for (i, value) in values().into_iter().enumerate() {
        give(&there, value);
        check(i, take(&back));
    }
    there.close();
    join(&context).unwrap();
}

/// As [`travels`], for values that can be compared.
pub fn same<T: Message + Clone + PartialEq + Debug>(values: &[T]) {
    travels(|| values.to_vec(), |i, value| assert_eq!(value, values[i]));
}

/// Sends a signal to a process that was started here and has not been joined.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Whether a process lives and each of its threads is in this state of `proc(5)`: `S` is asleep, `T` stopped.
pub fn threads_are(pid: u32, state: char) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut threads = 0;
    // One that ends between the look at it and at its threads has none.
    let all = tasks.filter_map(Result::ok).inspect(|_| threads += 1).all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(state))
    });
    all && threads > 0
}

/// No other test in this program uses shared memory as long as this lives: for tests that count what is in
/// it.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`alone`], and no process of the tests before is left: for a test program whose tests are all alone.
pub fn settled() -> MutexGuard<'static, ()> {
    let alone = alone();
    // Only a process that has used a queue can release what dead ones had in theirs.
    drop(Queue::<u8>::bounded(1).unwrap());
    let arena = Arena::current().unwrap();
    eventually("those of the test before are gone", || {
        arena.sweep().unwrap();
        arena.members().len() == 1
    });
    alone
}

/// What a leak would leave in shared memory: blocks, messages, members.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// How many mappings this process has.
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// How many files this process has open.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
