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
//! fn worker(rank: usize, work: Work) -> mp::AnyResult<()> {
//!     while let Some(batch) = work.jobs.get()? {
//!         // The batch never moved: this is the memory that the parent filled.
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
//! At the root are the names that most programs use. Each module has all of its subject, and begins with a program and the
//! three types to know.
//!
//! | module | has | at the root |
//! |---|---|---|
//! | [`process`] | worker processes, functions that travel | [`spawn`], [`start_processes`], [`ProcessContext`], [`Process`], [`SpawnOptions`], [`SpawnError`], [`closure!`] |
//! | [`pool`] | pools of them | [`Pool`], [`AsyncResult`], [`TaskError`] |
//! | `data` | batches of a dataset, made in worker processes (feature `data`) | |
//! | [`manager`] | objects in a server process, which all others call | [`Manager`], [`Proxy`] |
//! | [`tensor`] | tensors, their views and element types | [`Tensor`] (one owner, moves), [`FrozenTensor`] (all holders read), [`SharedTensor`] (all holders write), [`AnyTensor`] |
//! | [`queue`] | queues and channels | [`Queue`], [`channel()`], [`JoinableQueue`], [`Lease`]; [`PutError`], [`GetError`] |
//! | [`connection`] | pipes, and sockets to other programs | [`pipe`], [`Connection`], [`Listener`], [`connect`] |
//! | [`sync`] | locks, semaphores, events, barriers, values | [`Lock`], [`RLock`], [`RwLock`], [`Semaphore`], [`Event`], [`Condition`], [`Barrier`], [`Once`], [`Array`] |
//! | [`list`](mod@list) | Python's lists in shared memory | [`ShareableList`] |
//! | [`mod@wait`] | waiting for many things, also as futures | [`wait()`], [`select`], [`Waitable`] |
//! | [`message`] | what can be sent, and how | [`Message`], [`Bundle`] |
//! | [`memory`] | the memory behind it: size, use, storages, files of other programs | [`Arena`], [`SharedMemory`] |
//!
//! Errors of memory and tensors are [`Error`]; functions that may fail in several ways return [`AnyResult`].
//!
//! # Examples say `mp_queue`: write `mp`
//! The layers are crates of their own, for programs that want only one of them, and the examples on the pages of single items and
//! methods are those of these crates. In a program that has `mp`, the same item has one of two names: it is at the root, or in the
//! module of its subject.
//!
//! | an example says | it is |
//! |---|---|
//! | `mp_pool::Pool`, `mp_queue::Queue`, `mp_sync::Lock`, `mp_spawn::closure!`, `mp_tensor::Tensor` | what the last column above has: `mp::Pool`, `mp::Queue`, … |
//! | any other name of `mp_pool` | `mp::pool::…` |
//! | `mp_data::…` (feature `data`) | `mp::data::…` |
//! | `mp_manager::…` | `mp::manager::…` |
//! | `mp_queue::…` | `mp::queue::…`; of pipes and sockets `mp::connection::…` |
//! | `mp_spawn::…` | `mp::process::…` |
//! | `mp_sync::…` | `mp::sync::…`; of lists `mp::list::…` |
//! | `mp_tensor::…` | `mp::tensor::…` |
//! | `mp_core::…`, `mp_reduce::…` | of waiting `mp::wait::…`; of what is sent `mp::message::…`; all else `mp::memory::…` |
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
//! | lambdas and closures as `fn` (ice-learn) | [`closure!`] |
//! | `ProcessRaisedException`, `ProcessExitedException` | [`SpawnError::ProcessRaised`], [`SpawnError::ProcessExited`] |
//! | `mp.Queue(maxsize)` | [`Queue::bounded`]; typed, and `None` instead of sentinels |
//! | `mp.Queue()`, `mp.SimpleQueue()` | [`Queue::unbounded`] |
//! | `mp.JoinableQueue`, `mp.Pipe` | [`JoinableQueue`], [`pipe`], [`connection::one_way_pipe`] |
//! | `q.put`, `q.get`, `put_nowait`, `get(timeout=…)` | [`Queue::put`], [`Queue::get`], [`Queue::try_put`], [`Queue::get_timeout`] |
//! | `multiprocessing.connection.Listener`, `Client` | [`Listener`], [`connect`] |
//! | `multiprocessing.connection.wait` | [`wait()`], [`select`] |
//! | `tensor.share_memory_()` | tensors are in shared memory from the start; [`ShareMemory`] copies once |
//! | `x[1:7:2]`, `x[2]`, `x.t()`, `x.view(…)` | [`slice`](Tensor::slice), [`select`](Tensor::select), [`t`](Tensor::t), [`reshape`](Tensor::reshape), … |
//! | `tensor.storage()` | [`Tensor::typed_storage`]; the bytes of a frozen one, [`tensor::FrozenStorage`] |
//! | `requires_grad`, `detach()` | [`Tensor::set_requires_grad`], [`Tensor::detach`]: metadata that travels |
//! | `model.share_memory()` (Hogwild) | [`Tensor::share`] → [`SharedTensor`] |
//! | `mp.Value`, `mp.Array` | [`Lock`], [`Array`]; a lock whose dead holder is reported |
//! | `mp.Lock`, `RLock`, `Semaphore`, `Event`, `Condition`, `Barrier` | the same names: [`Lock`], [`RLock`], … |
//! | `shared_memory.SharedMemory`, `ShareableList` | [`SharedMemory`], [`ShareableList`]: same names, same bytes |
//! | "the producer must stay alive" | it need not: memory lives as long as a process holds it |
//! | `set_sharing_strategy` | [`memory::set_sharing_strategy`] |
//! | `ForkingPickler.register` | [`message::register!`], [`message::Reduce`]; values of any registered type, [`message::AnyValue`] |
//! | pickle's memo: an object that is mentioned twice is one | tensors and queues are; an `Arc` or `Rc` by [`message::shared`] |
//!
//! # When a process dies
//! SIGKILL at any instruction, of any process, in any order: the other processes continue, no receiver gets
//! half a message, at most the message or batch that the victim was just putting or getting is lost, and what
//! it held is released: memory, messages, its place in the arena. A process that is *stopped* keeps what it
//! holds (locks, permits, leases). In rare cases something else waits for it: a message that it and a crashed
//! process were both in the middle of, the memory of a crashed process that it was just releasing, or, in an
//! arena without free addresses, a block of a new size ([`Error::Held`] after 10 s).
//!
//! # Features
//! `file_descriptor`, `file_system` (default): the sharing strategies, of which one at least is needed. `tensor`,
//! `spawn`, `queue`, `sync`, `pool`, `manager` (default): the crates of that name. `indicatif`: progress bars for [`Pool::map`].
//! `ndarray`: tensors as arrays, without copying. `bytes`: frozen tensors as `bytes::Bytes`, without copying.
//! `futures`: queues as `Stream` and `Sink`. `authkey` (default): a secret that two programs prove to each other, and
//! one that each family of processes has. `data`: a data loader. `log`: events for the `log` crate, and a logger that prints them. `tokio`: see below. `cuda`: tensors and events on CUDA devices.
//!
//! Futures work on any runtime, and need none. With the feature `tokio`, those that are polled within a tokio runtime
//! and wait for a descriptor (connections over sockets, listeners, [`wait_async`](wait::wait_async) for processes and
//! descriptors) are woken by the driver of that runtime, as tokio's own sockets are, and this library starts no thread
//! for them: a round trip takes half the time. They may be polled elsewhere later, and outlive the runtime. While one
//! waits in the context of a runtime, a thread has to run that runtime (`Handle::enter` alone runs nothing), as for all
//! of tokio's I/O. Within a runtime without I/O (`enable_io`) everything is as without the feature; tokio says so by a
//! panic, which is caught, and whose message appears once on stderr outside of workers. So it is in programs that abort
//! on panic, and in processes that are copies of others: by the start method `fork`, by a fork server that preloads
//! something, or by a `fork` of the program's own.
//!
//! # Limits
//! Linux only; one machine. At most 1024 processes share memory, the first one included (256 in an arena of less than
//! 4 GiB), tensors of 8 dimensions; how many messages, says [`Queue`](Queue#how-much-fits).

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "queue")]
pub mod connection;
#[cfg(feature = "data")]
pub mod data;
#[cfg(doctest)]
mod guide;
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
pub use mp_reduce::{Bundle, Fd, Message, descriptor};
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

/// `Result` with any error: for functions that run in workers, and for `main`.
///
/// ```
/// fn worker(rank: usize, numbers: Vec<String>) -> mp::AnyResult<u32> {
///     Ok(numbers.get(rank).ok_or("one number for each")?.parse()?) // any error, by `?`
/// }
///
/// assert_eq!(mp::spawn(worker, vec!["7".into(), "8".into()], 2)?, [7, 8]);
/// # Ok::<(), mp::SpawnError>(())
/// ```
pub type AnyResult<T, E = Box<dyn std::error::Error + Send + Sync>> = Result<T, E>;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
