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
//! Start with [`Snapshot`]. It can be serialized, and the command `mp` of the crate `multiproc-cli` shows the
//! same of any program of the user, through an [`Observer`]: the guide's page on hangs has examples.
//!
//! `MP_REPORT=DIRECTORY` in the environment makes the parent of a worker that fails write a file about it
//! there: its error, its last output, and what it held and waited for.

pub use mp_core::{
    FailureSnapshot, HoldersSnapshot, MemorySnapshot, ObjectSnapshot, Observer, OwnerSnapshot, PoolSnapshot,
    PoolWorkerSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, RingState, Snapshot, StorageSnapshot,
    ThreadSnapshot, WaitSnapshot, WaitTimes,
};
