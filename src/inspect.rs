//! State of a running program: its processes, their waits, queues, locks and memory.
//!
//! ```
//! use mp::inspect::Snapshot;
//! use mp::{Arena, Queue};
//!
//! let jobs = Queue::<u32>::bounded(8)?.named("jobs");
//! jobs.put(7)?;
//! let snapshot = Snapshot::of(Arena::current()?);
//! let queue = snapshot.queues.iter().find(|queue| queue.name == "jobs").unwrap();
//! assert_eq!(queue.ring.as_ref().unwrap().len, 1);
//! assert!(snapshot.prometheus().contains("mp_queue_messages{queue=\"jobs\",kind=\"queue\"} 1\n"));
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with [`Snapshot`]. A snapshot can be serialized. The command `mp` of the crate `multiproc-cli` shows
//! the snapshot of any program of the user, through an [`Observer`]: the guide's page on hangs has examples.
//!
//! With `MP_REPORT=DIRECTORY` in the environment, the parent of a failed worker writes a file into this
//! directory: the worker's error, its last output, and the objects that it held and waited for.

pub use mp_core::{
    FailureSnapshot, HoldersSnapshot, MemorySnapshot, ObjectSnapshot, Observer, OwnerSnapshot, PoolSnapshot,
    PoolWorkerSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, RingState, Snapshot, StorageSnapshot,
    ThreadSnapshot, WaitSnapshot, WaitTimes,
};
