//! torch.multiprocessing for Rust: worker processes, tensors that travel between them without being copied, and
//! queues that survive the kill of any process at any instruction.
//!
//! ```
//! use mp::{Queue, Tensor};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Work {
//!     jobs: Queue<Tensor<f32>>,
//!     sums: Queue<(usize, f32)>,
//! }
//!
//! // Runs in a process of its own. An `Err` or a panic in here reaches the parent, whole.
//! fn worker(rank: usize, work: Work) -> mp::Result<()> {
//!     while let Some(batch) = work.jobs.get()? {
//!         // The batch never moved: this is the memory that the parent filled.
//!         work.sums.put((rank, batch.iter().sum()))?;
//!     }
//!     Ok(()) // the queue is closed and drained
//! }
//!
//! # fn main() -> mp::Result<()> {
//! let work = Work { jobs: Queue::bounded(8)?, sums: Queue::bounded(8)? };
//! let (jobs, sums) = (work.jobs.clone(), work.sums.clone());
//! let workers = mp::start_processes(worker, work, mp::Options::nprocs(2))?;
//! for i in 0..4 {
//!     jobs.put(Tensor::full(&[1000], i as f32)?)?; // moved into the queue, and gone here
//! }
//! jobs.close();
//! let mut total = 0.0;
//! for _ in 0..4 {
//!     let (_rank, sum) = sums.get()?.expect("nobody closes this queue");
//!     total += sum;
//! }
//! workers.join()?;
//! assert_eq!(total, 6000.0);
//! # Ok(())
//! # }
//! ```
//!
//! That is a whole program: on Linux with glibc no attribute and no call at the start of `main` is needed, and it works
//! in binaries, examples, tests and doc tests alike. (Elsewhere `main` begins with `mp::init()`.)
//!
//! # What is where
//! | | |
//! |---|---|
//! | tensors | [`Tensor`] (one owner, moves), [`FrozenTensor`] (anybody reads), [`SharedTensor`] (anybody writes) |
//! | processes | [`spawn`], [`start_processes`], [`ProcessContext`], [`Options`], [`SpawnError`] |
//! | queues | [`Queue`], [`channel()`], [`JoinableQueue`], [`pipe`], [`Lease`]; [`PutError`], [`GetError`] |
//! | what can be sent | [`Message`], [`Bundle`], [`Reduce`] |
//! | the memory behind it | [`Arena`], [`Storage`], [`MemoryStats`] |
//!
//! Each row is a crate of its own (`mp-core`, `mp-spawn`, `mp-queue`, `mp-reduce`) for those who want only that.
//!
//! # For those who know torch.multiprocessing
//! | torch | mp |
//! |---|---|
//! | `mp.spawn(fn, args, nprocs)` | [`spawn(f, args, nprocs)`](spawn) |
//! | `mp.start_processes(…, join=False)` | [`start_processes`], then [`ProcessContext::join`] |
//! | `ProcessRaisedException`, `ProcessExitedException` | [`SpawnError::ProcessRaised`], [`SpawnError::ProcessExited`] |
//! | `mp.Queue(maxsize)` | [`Queue::bounded`]; typed, and `None` instead of sentinels |
//! | `mp.Queue()`, `mp.SimpleQueue()` | [`Queue::unbounded`] |
//! | `mp.JoinableQueue`, `mp.Pipe` | [`JoinableQueue`], [`pipe`], [`one_way_pipe`] |
//! | `q.put`, `q.get`, `put_nowait`, `get(timeout=…)` | [`Queue::put`], [`Queue::get`], [`Queue::try_put`], [`Queue::get_timeout`] |
//! | `tensor.share_memory_()` | tensors are in shared memory from the start; [`Tensor::from_slice`] copies once |
//! | `model.share_memory()` (Hogwild) | [`Tensor::share`] → [`SharedTensor`] |
//! | "the producer must stay alive" | it need not: memory lives as long as anybody holds it |
//! | `set_sharing_strategy` | [`set_sharing_strategy`] |
//! | `ForkingPickler.register` | [`Reduce`] |
//!
//! # When a process dies
//! SIGKILL at any instruction, of any process, in any order: nobody else hangs, nobody reads half a message, at most the
//! message that the victim was just putting or getting is lost, and what it held is released: memory,
//! messages, its place in the arena. A process that is *stopped* delays only itself.
//!
//! # Features
//! `file_descriptor` (default): the sharing strategy with one anonymous file. `spawn`, `queue` (default): the crates of that
//! name. `file_system`, `cuda`: reserved; they add nothing usable yet.
//!
//! # Limits
//! Linux only; one machine. At most 1024 processes in a tree, a million messages in flight, tensors of 8 dimensions.

pub use mp_core::words::Member;
pub use mp_core::{
    Arena, ClassStats, DType, Element, Error, FrozenTensor, MAX_RANK, MemberInfo, MemoryStats, Number,
    SharedTensor, SharingStrategy, Storage, Tensor, get_all_sharing_strategies, get_sharing_strategy,
    set_sharing_strategy,
};
#[cfg(feature = "cuda")]
pub use mp_cuda as cuda;
#[cfg(feature = "queue")]
pub use mp_queue::{
    Connection, GetError, JoinError, JoinableQueue, Lease, PutError, PutManyError, Queue, QueueOptions,
    Receiver, RecvIntoError, Sender, bounded_channel, channel, one_way_pipe, pipe,
};
pub use mp_reduce::{
    Bundle, Error as MessageError, Message, PackError, Reduce, message, pack, reduced, unpack,
};
#[cfg(feature = "spawn")]
pub use mp_spawn::{
    Exit, Launch, Note, OnFailure, Options, Outcome, ProcessContext, ProcessExited, ProcessRaised,
    RaisedKind, Refusal, Signal, SpawnError, Status, init, is_child, name, parent_pid, rank, spawn,
    start_processes,
};

/// `Result` with any error, as functions that run in workers return it.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
