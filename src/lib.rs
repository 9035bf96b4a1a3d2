//! torch.multiprocessing for Rust: worker processes, tensors that are sent between them without copying, and
//! queues that survive the death of any process at any instruction.
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
//! // Runs in a process of its own. An `Err` or a panic in it reaches the parent, with all details.
//! fn worker(rank: usize, work: Work) -> mp::AnyResult<()> {
//!     while let Some(batch) = work.jobs.get()? {
//!         // The batch was not copied: this is the memory that the parent filled.
//!         work.sums.put((rank, batch.iter().sum()))?;
//!     }
//!     Ok(()) // the queue is closed and drained
//! }
//!
//! # fn main() -> mp::AnyResult<()> {
//! let work = Work { jobs: Queue::bounded(8)?, sums: Queue::bounded(8)? };
//! let (jobs, sums) = (work.jobs.clone(), work.sums.clone());
//! let workers = mp::start_processes(worker, work, mp::SpawnOptions::nprocs(2))?;
//! for i in 0..4 {
//!     jobs.put(Tensor::full(&[1000], i as f32)?)?; // moved into the queue
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
//! This is a complete program. On Linux with glibc it needs no attribute and no call at the start of `main`,
//! and works in binaries, examples, tests and doc tests. (On other targets, `main` begins with `mp::init()`.)
//!
//! # Modules
//! The crate root re-exports the names that most programs use. Each module covers its subject completely, and
//! begins with an example and the three types to start with.
//!
//! | module | contents | at the root |
//! |---|---|---|
//! | [`process`] | worker processes, functions that can be sent | [`spawn`], [`start_processes`], [`ProcessContext`], [`Process`], [`SpawnOptions`], [`SpawnError`], [`closure!`] |
//! | [`pool`] | pools of worker processes | [`Pool`], [`AsyncResult`], [`TaskError`] |
//! | `data` | batches of a dataset, made in worker processes (feature `data`) | |
//! | [`manager`] | objects in a server process, which all other processes call | [`Manager`], [`Proxy`] |
//! | [`tensor`] | tensors, their views and element types | [`Tensor`] (one owner, moves), [`FrozenTensor`] (all holders read), [`SharedTensor`] (all holders write), [`AnyTensor`] |
//! | [`queue`] | queues and channels | [`Queue`], [`channel()`], [`JoinableQueue`], [`Lease`]; [`PutError`], [`GetError`] |
//! | `cluster` | queues, pools, loaders and synchronization on several hosts (feature `net`) | |
//! | [`connection`] | pipes, and sockets to other programs | [`pipe`], [`Connection`], [`Listener`], [`connect`] |
//! | [`sync`] | locks, semaphores, events, barriers, values | [`Lock`], [`RLock`], [`RwLock`], [`Semaphore`], [`Event`], [`Condition`], [`Barrier`], [`Once`], [`Array`] |
//! | [`list`](mod@list) | Python's lists in shared memory | [`ShareableList`] |
//! | [`mod@wait`] | waiting for several objects, also as futures | [`wait()`], [`select`], [`Waitable`] |
//! | [`message`] | types that can be sent, and their encoding | [`Message`], [`Bundle`] |
//! | [`memory`] | shared memory: size, use, storages, files of other programs | [`Arena`], [`SharedMemory`] |
//! | [`inspect`] | state of a running program, metrics, reports of crashes | [`inspect::Snapshot`] |
//!
//! Functions on memory and tensors return [`Error`]. Functions with several kinds of errors return
//! [`AnyResult`].
//!
//! # Names in examples: `mp_queue` and `mp`
//! Each layer is a crate of its own, and the examples of single items and methods use these crates. In a
//! program with `mp`, the item is at the root or in the module of its subject.
//!
//! | name in an example | name in `mp` |
//! |---|---|
//! | `mp_pool::Pool`, `mp_queue::Queue`, `mp_sync::Lock`, `mp_spawn::closure!`, `mp_tensor::Tensor` | names of the last column above: `mp::Pool`, `mp::Queue`, … |
//! | any other name of `mp_pool` | `mp::pool::…` |
//! | `mp_data::…` (feature `data`) | `mp::data::…` |
//! | `mp_manager::…` | `mp::manager::…` |
//! | `mp_net::…` (feature `net`) | `mp::cluster::…` |
//! | `mp_queue::…` | `mp::queue::…`; pipes and sockets: `mp::connection::…` |
//! | `mp_spawn::…` | `mp::process::…` |
//! | `mp_sync::…` | `mp::sync::…`; lists: `mp::list::…` |
//! | `mp_tensor::…` | `mp::tensor::…` |
//! | `mp_core::…`, `mp_reduce::…` | waiting: `mp::wait::…`; messages: `mp::message::…`; snapshots: `mp::inspect::…`; everything else: `mp::memory::…` |
//!
//! # For users of torch.multiprocessing
//! | torch | mp |
//! |---|---|
//! | `mp.spawn(fn, args, nprocs)` | [`spawn(f, args, nprocs)`](spawn) |
//! | `mp.start_processes(…, join=False)` | [`start_processes`], then [`ProcessContext::join`] |
//! | `mp.Process(target=f, args=…)`, `start`, `join` | [`Process::spawn`], [`Process::builder`], [`Process::join`] |
//! | `set_executable` | [`process::set_executable`], [`process::set_command`]; in a shared library, [`process::export_child_main!`] |
//! | `set_start_method`, `get_context`, `set_forkserver_preload` | [`set_start_method`], [`get_context`], [`process::set_forkserver_preload`]: [`StartMethod`]; for `fork`, [`process::allow_fork`] |
//! | `active_children`, `current_process`, `parent_process` | [`active_children`], [`current_process`], [`parent_process`] |
//! | `mp.Pool(n)`, `apply`, `map`, `imap`, `starmap`, … | [`Pool::new`], [`Pool::apply`], [`Pool::map`], [`Pool::imap`], [`Pool::starmap`]; a killed worker costs one task |
//! | `mp.Manager()`, `manager.dict()`, `register` | [`Manager::start`], [`Proxy`]: any type, and calls that are checked by the compiler |
//! | `chunksize`, `initializer`, `maxtasksperchild` | [`pool::Call::chunksize`], [`pool::PoolBuilder::initializer`], [`pool::PoolBuilder::max_tasks_per_child`] |
//! | lambdas and closures as `fn` (in the library ice-learn) | [`closure!`] |
//! | `ProcessRaisedException`, `ProcessExitedException` | [`SpawnError::ProcessRaised`], [`SpawnError::ProcessExited`] |
//! | `mp.Queue(maxsize)` | [`Queue::bounded`]; typed, and `None` instead of sentinels |
//! | `mp.Queue()`, `mp.SimpleQueue()` | [`Queue::unbounded`] |
//! | `mp.JoinableQueue`, `mp.Pipe` | [`JoinableQueue`], [`pipe`], [`connection::one_way_pipe`] |
//! | `q.put`, `q.get`, `put_nowait`, `get(timeout=…)` | [`Queue::put`], [`Queue::get`], [`Queue::try_put`], [`Queue::get_timeout`] |
//! | `multiprocessing.connection.Listener`, `Client` | [`Listener`], [`connect`] |
//! | `multiprocessing.connection.wait` | [`wait()`], [`select`] |
//! | `tensor.share_memory_()` | tensors are in shared memory from the start; [`ShareMemory`] copies once |
//! | `x[1:7:2]`, `x[2]`, `x.t()`, `x.view(…)` | [`slice`](Tensor::slice), [`select`](Tensor::select), [`t`](Tensor::t), [`reshape`](Tensor::reshape), … |
//! | `tensor.storage()` | [`Tensor::typed_storage`]; the bytes of a frozen tensor, [`tensor::FrozenStorage`] |
//! | `requires_grad`, `detach()` | [`Tensor::set_requires_grad`], [`Tensor::detach`]: metadata that travels |
//! | `model.share_memory()` (Hogwild) | [`Tensor::share`] → [`SharedTensor`] |
//! | `mp.Value`, `mp.Array` | [`Lock`], [`Array`]; a lock whose dead holder is reported |
//! | `mp.Lock`, `RLock`, `Semaphore`, `Event`, `Condition`, `Barrier` | the same names: [`Lock`], [`RLock`], … |
//! | `shared_memory.SharedMemory`, `ShareableList` | [`SharedMemory`], [`ShareableList`]: same names, same bytes |
//! | "the producer must stay alive" | the producer may end: memory lives as long as a process holds it |
//! | `set_sharing_strategy` | [`memory::set_sharing_strategy`] |
//! | `ForkingPickler.register` | [`message::register!`], [`message::Reduce`]; values of any registered type, [`message::AnyValue`] |
//! | pickle's memo: an object with two references arrives as one | the same for tensors and queues; for an `Arc` or `Rc`, [`message::shared`] |
//!
//! # When a process dies
//! Any process may be killed by SIGKILL at any instruction, in any order. The other processes continue, and
//! no receiver gets half a message. At most the message or batch that the victim was putting or getting is
//! lost. Everything that the victim held is released: memory, messages, its slot in the arena.
//!
//! A *stopped* process retains its locks, permits and leases. In rare cases, two other resources also stay
//! unavailable until it continues: a message that a stopped and a crashed process were both handling, and
//! memory of a crashed process that the stopped process was releasing. In an arena without free addresses, a
//! block of a new size may wait as well ([`Error::Held`] after 10 s).
//!
//! # Features
//! | feature | effect |
//! |---|---|
//! | `file_descriptor`, `file_system` (default) | sharing strategies; at least one is required |
//! | `tensor`, `spawn`, `queue`, `sync`, `pool`, `manager` (default) | the crates of that name |
//! | `authkey` (default) | authentication of connections: two programs prove that they have the same secret key; each family of processes has a key of its own |
//! | `data` | data loader |
//! | `indicatif` | progress bars for [`Pool::map`] |
//! | `ndarray` | tensors as arrays, without copying |
//! | `bytes` | frozen tensors as `bytes::Bytes`, without copying |
//! | `futures` | queues as `Stream` and `Sink` |
//! | `log` | events for the `log` crate, and a logger that prints them |
//! | `tracing` | spans and events for the `tracing` crate: starts, tasks, waits, recoveries |
//! | `cuda` | tensors and events on CUDA devices |
//! | `net` | queues, pools, loaders and other objects on several hosts, over gRPC |
//! | `tokio` | wake-ups by tokio's driver, see below |
//!
//! Futures work on any runtime, and without one. The feature `tokio` affects futures that are polled within a
//! tokio runtime and wait for a descriptor: connections over sockets, listeners, and
//! [`wait_async`](wait::wait_async) for processes and descriptors. The driver of that runtime wakes them, as
//! for tokio's own sockets, and this library starts no thread for them: a round trip takes half the time.
//! Such futures may later be polled elsewhere, and outlive the runtime. While such a future waits, a thread
//! has to run the runtime (`Handle::enter` alone does not), as for all of tokio's I/O.
//!
//! The feature has no effect within a runtime without I/O (`enable_io`). In such a runtime, tokio panics. The
//! library catches the panic. Its message appears once on stderr, except in workers. The feature also has no
//! effect in programs that abort on panic, and in forked processes. Processes are forked by the start method
//! `fork`, by a fork server that preloads something, or by the program itself.
//!
//! # Limits
//! Linux only. Memory is shared on one machine, by at most 1024 processes, including the first one (256 in an
//! arena of less than 4 GiB). Tensors have at most 8 dimensions. The number of messages is documented at
//! [`Queue`](Queue#how-much-fits).

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "net")]
pub mod cluster;
#[cfg(feature = "queue")]
pub mod connection;
#[cfg(feature = "data")]
pub mod data;
#[cfg(doctest)]
mod guide;
pub mod inspect;
#[cfg(feature = "sync")]
pub mod list;
#[cfg(feature = "manager")]
pub mod manager;
pub mod memory;
pub mod message;
#[cfg(feature = "pool")]
pub mod pool;
#[cfg(feature = "spawn")]
pub mod process;
#[cfg(feature = "queue")]
pub mod queue;
#[cfg(feature = "sync")]
pub mod sync;
#[cfg(feature = "tensor")]
pub mod tensor;
pub mod wait;

pub use mp_core::{Arena, DType, Error, LockError, SharedMemory, Waitable, select, wait};
#[cfg(feature = "cuda")]
pub use mp_cuda as cuda;
#[cfg(feature = "manager")]
pub use mp_manager::{Manager, Proxy};
#[cfg(feature = "pool")]
pub use mp_pool::{AsyncResult, Pool, TaskError};
#[cfg(feature = "queue")]
pub use mp_queue::{
    Connection, GetError, JoinableQueue, Lease, Listener, PutError, Queue, QueueOptions, Receiver, Sender,
    bounded_channel, channel, connect, pipe,
};
pub use mp_reduce::{AnyResult, Bundle, Fd, Message, descriptor};
#[cfg(feature = "spawn")]
pub use mp_spawn::{
    Closure, Process, ProcessContext, SpawnError, SpawnOptions, StartMethod, active_children, closure,
    cpu_count, current_process, get_context, init, interrupted, is_child, parent_process, rank,
    set_start_method, spawn, start_processes,
};
#[cfg(feature = "sync")]
pub use mp_sync::{
    Array, Barrier, BoundedSemaphore, Condition, Event, Lock, Once, RLock, RwLock, Semaphore, ShareableList,
};
#[cfg(feature = "tensor")]
pub use mp_tensor::{
    AnyTensor, Element, FrozenTensor, ShareMemory, SharedTensor, Tensor, TensorView, TensorViewMut,
};

/// Doc test of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
