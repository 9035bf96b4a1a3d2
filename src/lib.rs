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
//!     let (_rank, sum) = sums.get()?.expect("this queue stays open");
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
//! | tensors | [`Tensor`] (one owner, moves), [`FrozenTensor`] (all holders read), [`SharedTensor`] (all holders write) |
//! | views of a borrowed one | [`TensorView`], [`TensorViewMut`] |
//! | of a type known at run time; of none; of parts | [`AnyTensor`], [`dispatch!`]; [`MetaTensor`]; [`SparseCoo`], [`SparseCompressed`], [`NestedTensor`] |
//! | into shared memory | [`ShareMemory`], [`Tensor::from_slice`], [`Tensor::from_iter`] |
//! | processes | [`spawn`], [`start_processes`], [`ProcessContext`], [`Process`], [`Options`], [`SpawnError`] |
//! | a pool of processes | [`Pool`], [`Call`], [`AsyncResult`], [`MapResult`], [`Imap`], [`TaskError`] |
//! | functions that travel | [`closure!`], [`Closure`], [`start_closure`] |
//! | in a shared library, for any host | nothing to do; or [`set_command`], [`export_child_main!`] |
//! | queues | [`Queue`], [`channel()`], [`JoinableQueue`], [`pipe`], [`Lease`]; [`PutError`], [`GetError`] |
//! | waiting for many things | [`wait()`], [`select`], [`Waitable`], [`Descriptor`] |
//! | as futures | [`Queue::get_async`], [`Queue::put_async`], [`Receiver::recv_async`], …, [`ready`] |
//! | connections to other programs | [`Listener`], [`connect`], [`connect_async`], [`SocketOptions`], [`Connection`] |
//! | locks | [`Lock`], [`RLock`], [`RwLock`], [`Once`] |
//! | waiting for others | [`Semaphore`], [`BoundedSemaphore`], [`Event`], [`Condition`], [`Barrier`] |
//! | shared values | [`Lock`], [`Array`] (with a lock), [`RawValue`], [`RawArray`], [`ShareableList`] |
//! | other programs | [`SharedMemory`] (by name), [`MappedFile`], [`Tensor::from_fd`], [`Tensor::to_memfd`] |
//! | what can be sent | [`Message`], [`Bundle`], [`Reduce`] |
//! | the memory behind it | [`Arena`], [`Storage`], [`MemoryStats`] |
//!
//! The layers are crates of their own (`mp-core`, `mp-tensor`, `mp-spawn`, `mp-queue`, `mp-sync`, `mp-pool`, `mp-reduce`),
//! for programs that want only one of them.
//!
//! # For users of torch.multiprocessing
//! | torch | mp |
//! |---|---|
//! | `mp.spawn(fn, args, nprocs)` | [`spawn(f, args, nprocs)`](spawn) |
//! | `mp.start_processes(…, join=False)` | [`start_processes`], then [`ProcessContext::join`] |
//! | `mp.Process(target=f, args=…)`, `start`, `join` | [`Process::spawn`], [`Process::builder`], [`Process::join`] |
//! | `set_executable` | [`set_executable`], [`set_command`]; in a shared library, [`export_child_main!`] |
//! | `set_start_method`, `get_context`, `set_forkserver_preload` | [`set_start_method`], [`get_context`], [`set_forkserver_preload`]: [`StartMethod`]; for `fork`, [`allow_fork`] |
//! | `active_children`, `current_process`, `parent_process` | [`active_children`], [`current_process`], [`parent_process`] |
//! | `mp.Pool(n)`, `apply`, `map`, `imap`, `starmap`, … | [`Pool::new`], [`Pool::apply`], [`Pool::map`], [`Pool::imap`], [`Pool::starmap`]; a killed worker costs one task |
//! | `chunksize`, `initializer`, `maxtasksperchild` | [`Call::chunksize`], [`PoolBuilder::initializer`], [`PoolBuilder::max_tasks_per_child`] |
//! | lambdas and closures as `fn` (ice-learn) | [`closure!`] |
//! | `ProcessRaisedException`, `ProcessExitedException` | [`SpawnError::ProcessRaised`], [`SpawnError::ProcessExited`] |
//! | `mp.Queue(maxsize)` | [`Queue::bounded`]; typed, and `None` instead of sentinels |
//! | `mp.Queue()`, `mp.SimpleQueue()` | [`Queue::unbounded`] |
//! | `mp.JoinableQueue`, `mp.Pipe` | [`JoinableQueue`], [`pipe`], [`one_way_pipe`] |
//! | `q.put`, `q.get`, `put_nowait`, `get(timeout=…)` | [`Queue::put`], [`Queue::get`], [`Queue::try_put`], [`Queue::get_timeout`] |
//! | `multiprocessing.connection.Listener`, `Client` | [`Listener`], [`connect`] |
//! | `multiprocessing.connection.wait` | [`wait()`], [`select`] |
//! | `tensor.share_memory_()` | tensors are in shared memory from the start; [`ShareMemory`] copies once |
//! | `x[1:7:2]`, `x[2]`, `x.t()`, `x.view(…)` | [`slice`](Tensor::slice), [`select`](Tensor::select), [`t`](Tensor::t), [`reshape`](Tensor::reshape), … |
//! | `tensor.storage()` | [`Tensor::typed_storage`]; the bytes of a frozen one, [`FrozenStorage`] |
//! | `requires_grad`, `detach()` | [`Tensor::set_requires_grad`], [`Tensor::detach`]: metadata that travels |
//! | `model.share_memory()` (Hogwild) | [`Tensor::share`] → [`SharedTensor`] |
//! | `mp.Value`, `mp.Array` | [`Lock`], [`Array`]; a lock whose dead holder is reported |
//! | `mp.Lock`, `RLock`, `Semaphore`, `Event`, `Condition`, `Barrier` | the same names: [`Lock`], [`RLock`], … |
//! | `shared_memory.SharedMemory`, `ShareableList` | [`SharedMemory`], [`ShareableList`]: same names, same bytes |
//! | "the producer must stay alive" | it need not: memory lives as long as a process holds it |
//! | `set_sharing_strategy` | [`set_sharing_strategy`] |
//! | `ForkingPickler.register` | [`Reduce`] |
//!
//! # When a process dies
//! SIGKILL at any instruction, of any process, in any order: the other processes continue, no receiver gets
//! half a message, at most the message or batch that the victim was just putting or getting is lost, and what
//! it held is released: memory, messages, its place in the arena. A process that is *stopped* keeps what it
//! holds (locks, permits, leases), and holds up nothing else.
//!
//! # Features
//! `file_descriptor`, `file_system` (default): the sharing strategies, of which one at least is needed. `tensor`, `spawn`, `queue`,
//! `sync`, `pool` (default): the crates of that name. `indicatif`: progress bars for [`Pool::map`]. `ndarray`: tensors as
//! arrays, without copying. `bytes`: frozen tensors as `bytes::Bytes`, without copying. `futures`: queues as `Stream` and
//! `Sink`. `authkey` (default): a secret that two programs prove to each other, and one that each family of processes has. `tokio`: see
//! below. `cuda`: reserved; it adds nothing usable yet.
//!
//! Futures work on any runtime, and need none. With the feature `tokio`, those that are polled within a tokio runtime and wait for a
//! descriptor (connections over sockets, listeners, [`ready`] for processes and descriptors) are woken by the driver of
//! that runtime, as tokio's own sockets are, and this library starts no thread for them: a round trip takes half the time. They may
//! be polled elsewhere later, and outlive the runtime. While one waits in the context of a runtime, a thread
//! has to run that runtime (`Handle::enter` alone runs nothing), as for all of tokio's I/O. Within a runtime
//! without I/O (`enable_io`) everything is as without the feature; tokio says so by a panic, which is caught,
//! and whose message appears once on stderr outside of workers. So it is in programs that abort on panic, and
//! in processes that are copies of others: by the start method `fork`, by a fork server that preloads
//! something, or by a `fork` of the program's own.
//!
//! # Limits
//! Linux only; one machine. At most 1024 processes in a tree, the first one included, tensors of 8 dimensions; how
//! many messages, says [`Queue`](Queue#how-much-fits).

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "authkey", any(feature = "spawn", feature = "queue")))]
pub use mp_core::AuthKey;
pub use mp_core::words::Member;
pub use mp_core::{
    Arena, ArenaOptions, ClassStats, DType, Descriptor, Error, LockError, MemberInfo, MemberStats,
    MemoryStats, SharedCache, SharedMemory, SharingStrategy, Storage, StorageId, Waitable, WeakStorage,
    bytemuck, get_all_sharing_strategies, get_sharing_directory, get_sharing_strategy, ready, select,
    set_sharing_directory, set_sharing_strategy, storage_from_cache, wait,
};
#[cfg(feature = "cuda")]
pub use mp_cuda as cuda;
#[cfg(feature = "pool")]
pub use mp_pool::{
    AsyncResult, Call, Full, Imap, Many, MapResult, One, Pool, PoolBuilder, PoolError, Progress, Shape,
    StarFn, TaskError, TaskOutcome, WorkerLost, current_worker,
};
#[cfg(feature = "queue")]
pub use mp_queue::{
    Address, ConnectError, Connection, DesertedWhen, GetError, JoinError, JoinableQueue, Lease, Leaseholder,
    Listener, Packed, PutError, PutManyError, Queue, QueueOptions, Receiver, RecvIntoError, Room, Sender,
    SimpleQueue, SocketOptions, Tasks, bounded_channel, channel, connect, connect_async, one_way_pipe, pipe,
};
#[cfg(all(feature = "futures", feature = "queue"))]
pub use mp_queue::{Messages, Outlet};
pub use mp_reduce::{
    Bundle, Error as MessageError, Message, PackError, Reduce, message, pack, reduced, unpack,
};
#[cfg(all(feature = "spawn", feature = "log"))]
pub use mp_spawn::log_to_stderr;
#[cfg(feature = "spawn")]
pub use mp_spawn::{
    ActiveChild, Capture, Captured, Closure, Context, CurrentProcess, Exit, Launch, Note, OnFailure, Options,
    Outcome, Output, ParentProcess, Process, ProcessBuilder, ProcessContext, ProcessExited, ProcessRaised,
    RaisedKind, Refusal, Setup, Signal, SpawnError, StartMethod, Status, UnknownStartMethod, Who,
    active_children, allow_fork, closure, cpu_count, current_process, detach, export_child_main,
    get_all_start_methods, get_context, get_start_method, init, is_child, name, parent_pid, parent_process,
    rank, set_command, set_executable, set_forkserver_preload, set_start_method, set_thread_name, spawn,
    start_closure, start_processes, thread_name,
};
#[cfg(feature = "sync")]
pub use mp_sync as sync;
#[cfg(feature = "sync")]
pub use mp_sync::{
    AcquireError, Array, Barrier, BarrierError, BoundedSemaphore, Condition, ConditionGuard, Event, Holder,
    ListError, ListItem, Lock, LockGuard, Once, OnceState, Party, Permit, RLock, RLockGuard, RawArray,
    RawValue, ReadGuard, RwLock, Semaphore, ShareableList, Value, WriteGuard,
};
#[cfg(feature = "tensor")]
pub use mp_tensor::{
    Aliased, AnyTensor, Atomic, Bool, Borrowed, BorrowedMut, Complex, DowncastError, Element, Exclusive,
    F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, Frozen, FrozenBytes, FrozenStorage, FrozenTensor,
    Integer, Layout, MAX_RANK, MappedFile, MetaTensor, Mode, NestedTensor, Number, Readable, Sendable,
    ShareMemory, Shared, SharedTensor, SparseCompressed, SparseCoo, Tensor, TensorView, TensorViewMut,
    TypedStorage, Writable, bf16, dispatch, f16,
};

/// `Result` with any error, as functions that run in workers return it.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
