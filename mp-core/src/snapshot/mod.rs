//! Snapshots of a running program: its processes, their waits, queues, locks and memory, for tools and
//! metrics.
//!
//! A snapshot is read from shared memory without a lock, while the program runs ([`read`]). A process takes a
//! snapshot of its own program with [`Snapshot::of`], and of another program with an [`Observer`], whose
//! mapping has no write access.
//!
//! Each object is read between two reads of its block's state and generation. An object that was freed or
//! replaced meanwhile is left out and [counted](Snapshot::changed). Waits are read before and after the
//! objects: a [steady](WaitSnapshot::steady) wait lasted from the first read to the second.

pub(crate) mod observer;
#[doc(hidden)]
pub mod pools;
mod prometheus;
mod read;

use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::ring_layer::RingState;

/// State of a program at one time.
///
/// ```
/// use mp_core::{Arena, Snapshot, Structure};
///
/// let counter = Structure::new("example::Counter", 1)?;
/// let snapshot = Snapshot::of(Arena::current()?);
/// assert_eq!(snapshot.processes[0].pid, std::process::id());
/// assert!(snapshot.objects.iter().any(|object| object.block == counter.hold().block()));
/// # Ok::<(), mp_core::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Random ID of the arena, in hexadecimal.
    pub arena: String,
    /// Version of the library that took the snapshot.
    pub version: String,
    /// Time of the snapshot, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Members of the arena, including dead members whose resources are not released yet. Also processes that
    /// have not joined the arena, if a member waits for them.
    pub processes: Vec<ProcessSnapshot>,
    /// Queues, channels, pipes, and the cells of `watch` and `broadcast`.
    pub queues: Vec<QueueSnapshot>,
    /// Locks, events and all other objects that processes share.
    pub objects: Vec<ObjectSnapshot>,
    /// Pools of worker processes.
    #[serde(default)]
    pub pools: Vec<PoolSnapshot>,
    /// Elements of tensors: the largest blocks, at most [`Snapshot::STORAGES`], the largest first.
    #[serde(default)]
    pub storages: Vec<StorageSnapshot>,
    /// Memory of the arena.
    pub memory: MemorySnapshot,
    /// Last failures of processes, the oldest first.
    #[serde(default)]
    pub failures: Vec<FailureSnapshot>,
    /// Number of objects that changed while they were read, and are missing.
    pub changed: u64,
}

/// A process of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessSnapshot {
    /// Process ID, in the PID namespace of the process itself.
    pub pid: u32,
    /// Tag of the member. Empty if the process has not joined the arena: it has used no shared memory yet.
    pub member: String,
    /// Name, such as `rank-3`, or an empty string. For a process that has not joined: the kernel's name.
    pub name: String,
    /// State of the process.
    pub state: ProcessState,
    /// Process ID of the parent. 0 if it is unknown.
    pub parent: u32,
    /// Number of blocks that the process holds.
    pub blocks: u64,
    /// Number of bytes in the blocks that the process holds. Blocks that several processes hold count for
    /// each.
    pub bytes: u64,
    /// Waits that have lasted for 100 ms. For a dead process: its waits at the time of its death.
    pub waits: Vec<WaitSnapshot>,
    /// Threads that neither wait in a call of this library nor serve it. `None` if they are not known: the
    /// process is dead, or `/proc` doesn't show it.
    pub other_threads: Option<Vec<ThreadSnapshot>>,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ThreadSnapshot {
    /// Thread ID of the kernel.
    pub id: u32,
    /// Name of the thread.
    pub name: String,
}

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ProcessState {
    /// The process runs or sleeps.
    Running,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Dead; its resources are not released yet.
    Dead,
}

/// A thread's wait in a call of this library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitSnapshot {
    /// The waiting thread.
    pub thread: ThreadSnapshot,
    /// Name of the call, such as `Queue::get`.
    pub call: String,
    /// Kind of object that the call waits for.
    pub kind: String,
    /// Block of the object, if it is in shared memory.
    pub object: Option<u32>,
    /// Processes whose end or work the thread waits for.
    pub processes: Vec<u32>,
    /// `true` if the thread waits for more processes than [`processes`](Self::processes) lists.
    pub more_processes: bool,
    /// If `more_processes` is `true`: all children of the waiting process, among them the processes that are
    /// not listed. Empty if the children are unknown, or if a listed process is not a child.
    #[serde(default)]
    pub possible_processes: Vec<u32>,
    /// Place of the call in the source, such as `src/train.rs:88`, if it is known.
    pub place: Option<String>,
    /// Duration of the wait in milliseconds.
    pub waited_ms: u64,
    /// Start of the wait, in milliseconds of the monotonic clock.
    pub since_ms: u64,
    /// Number of checks in which the thread found its condition not met, over all of its waits.
    pub checks: u64,
    /// `true` if the wait has no time-out.
    pub forever: bool,
    /// `true` if the wait began before the objects were read, and had not ended afterwards.
    pub steady: bool,
    /// `true` if only processes that hold the object can end the wait.
    pub ended_by_holders: bool,
    /// Action of another process that ends the wait, such as `could feed it`.
    pub ended_by: String,
    /// Advice for a program that hangs in this call, or an empty string.
    pub advice: String,
}

/// Processes and messages that hold an object.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HoldersSnapshot {
    /// Process IDs.
    pub processes: Vec<u32>,
    /// Number of messages and blocks that hold the object. A holding process that has joined during the
    /// snapshot also counts here, because its ID is not known.
    pub messages: u64,
}

/// A queue, or an object that is built on one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// Number of the queue's block.
    pub block: u32,
    /// Name of the queue, or an empty string.
    pub name: String,
    /// Processes and messages that hold the queue.
    pub holders: HoldersSnapshot,
    /// State of the ring. `None` in a program without the layer of queues.
    #[serde(flatten)]
    pub ring: Option<RingState>,
}

/// An object that processes share and that is not a queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObjectSnapshot {
    /// Number of the object's block.
    pub block: u32,
    /// Kind of object, such as `lock` or `event`; `object` if it is not known.
    pub kind: String,
    /// Name of the object, or an empty string.
    pub name: String,
    /// Processes and messages that hold the object.
    pub holders: HoldersSnapshot,
    /// Thread that holds the lock, if the object is a lock and is held.
    pub owner: Option<OwnerSnapshot>,
}

/// A thread that holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OwnerSnapshot {
    /// Process ID of the holder.
    pub pid: u32,
    /// Thread ID of the holder in the kernel.
    pub thread: u32,
}

/// A pool of worker processes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Number of the pool's block.
    pub block: u32,
    /// Name of the pool, or an empty string.
    pub name: String,
    /// Holders of the pool's block: the process that created the pool.
    pub holders: HoldersSnapshot,
    /// Number of workers that the pool should have.
    pub wanted_workers: u64,
    /// Number of tasks that have no outcome yet: they wait, or run.
    pub pending: u64,
    /// Number of tasks with a result.
    pub done: u64,
    /// Number of tasks that ended with an error, a panic or a time-out.
    pub failed: u64,
    /// Number of tasks that were lost with their worker.
    pub lost: u64,
    /// Number of tasks that were cancelled or refused, or that ended because the pool ended.
    pub cancelled: u64,
    /// Number of retries of tasks.
    pub retried: u64,
    /// Number of workers that were replaced.
    pub restarts: u64,
    /// Workers of the pool, ordered by number.
    pub workers: Vec<PoolWorkerSnapshot>,
}

impl PoolSnapshot {
    /// Returns the number of workers that have tasks.
    pub fn busy_workers(&self) -> u64 {
        self.workers.iter().filter(|worker| worker.chunks > 0).count() as u64
    }
}

/// A worker of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolWorkerSnapshot {
    /// Number of the worker in its pool.
    pub number: u32,
    /// Process ID. 0 if the worker has no process.
    pub pid: u32,
    /// `true` if the worker has reported that it is ready for tasks.
    pub ready: bool,
    /// Number of chunks of tasks that were sent to the worker and have no answer yet.
    pub chunks: u64,
    /// Time in milliseconds since the worker last answered, or, if later, since it received its first
    /// unanswered chunk. 0 without unanswered chunks.
    pub busy_ms: u64,
    /// Number that the running task has set as its note, if any.
    pub note: Option<u64>,
}

/// Memory of the elements of tensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StorageSnapshot {
    /// Number of the block that contains the elements.
    pub block: u32,
    /// `exclusive` for elements with one owner, `frozen` for elements that are no longer written, `shared`
    /// for elements that any holder may write.
    pub kind: String,
    /// Size of the block in bytes: the size of the tensor, rounded up to a size class.
    pub bytes: u64,
    /// Processes and messages that hold the elements.
    pub holders: HoldersSnapshot,
}

/// Failure of a process of a program, as its parent reported it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailureSnapshot {
    /// Time of the failure, in milliseconds since 1970.
    pub at_ms: u64,
    /// Beginning of the error's text.
    pub error: String,
}

/// Memory of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// Size of the arena's address range in bytes. Most addresses have no memory.
    pub size: u64,
    /// Number of bytes of the arena that have pages.
    pub reserved: u64,
    /// Number of bytes in held blocks.
    pub allocated: u64,
    /// Number of bytes in free blocks that have pages.
    pub cached: u64,
    /// Number of held blocks.
    pub blocks: u64,
    /// Number of messages in queues.
    pub queued: u64,
    /// Number of bytes in the blocks that messages in queues hold. Small messages hold no blocks.
    pub queued_bytes: u64,
    /// Number of dead processes whose resources were released.
    pub deaths: u64,
}

impl Snapshot {
    /// Maximum number of elements in [`storages`](Self::storages).
    pub const STORAGES: usize = 100;

    /// Returns the present state of the program of this process. Takes some microseconds for each object,
    /// process and thousand tensors.
    pub fn of(arena: Arena) -> Self {
        read::snapshot(arena)
    }
}

#[cfg(all(test, not(mp_loom), not(miri)))]
mod tests {
    use super::observer::Observer;
    use super::*;
    use crate::shared_structure::Structure;

    #[test]
    fn observer_reads_the_objects_of_this_process() {
        let mine = Structure::new("mp_sync::Event", 1).unwrap();
        crate::waits::name_object(mine.hold(), "started");
        let observer = Observer::of_process(std::process::id()).unwrap();
        let snapshot = observer.snapshot();
        let found = snapshot.objects.iter().find(|object| object.block == mine.hold().block()).unwrap();
        assert_eq!((&*found.kind, &*found.name), ("event", "started"));
        assert_eq!(found.holders.processes, [std::process::id()]);
        assert_eq!(snapshot.arena, Snapshot::of(Arena::current().unwrap()).arena);
    }
}
