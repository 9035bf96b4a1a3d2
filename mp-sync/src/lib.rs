//! Synchronization layer of `mp`: locks, semaphores, conditions, barriers and events between processes,
//! robust against the death of any process.
//!
//! ```
//! use mp_sync::{Lock, LockError};
//!
//! let total = Lock::new(40_u64)?; // in shared memory; clones and sent copies are handles to the same lock
//! match total.lock() {
//!     Ok(mut guard) => *guard += 2,
//!     // Its last holder was killed: the data may be half changed.
//!     Err(LockError::OwnerDied { .. }) => *total.recover()? = 42,
//!     Err(other) => return Err(other.into()),
//! }
//! assert_eq!(*total.lock()?, 42);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Lock`] protects data or a critical section, [`Semaphore`] holds a number of
//! permits, and [`Event`] is a flag.
//!
//! | type | held by | when the holder dies |
//! |---|---|---|
//! | [`Lock`] | one thread of one process | locking returns `OwnerDied`, until a caller repairs the data with `recover` |
//! | [`RLock`] | one thread, recursively | as for `Lock` |
//! | [`RwLock`] | one writer, or many readers | a writer: as for `Lock`; a reader: its slot is released |
//! | [`Semaphore`], [`BoundedSemaphore`] | holders of permits | its permits return |
//! | [`Once`] | the thread that runs the closure | the next caller runs the closure again |
//! | [`Event`] | no process | no effect |
//! | [`Condition`] | no process | a notification that a waiter had not taken goes to another waiter |
//! | [`Barrier`] | no process | the barrier breaks, if the process waited or was [enrolled](Barrier::enroll) |
//!
//! All types are handles to shared memory, and serde types for messages and for arguments of processes.
//! Cloning or sending a handle copies only the handle. The protected data is plain ([`Pod`](bytemuck::Pod)):
//! every bit pattern is a valid value, also the half-written one of a killed process. Plain data has no
//! pointers, which are invalid in other processes, and no destructor, which would not run. `Lock<()>`
//! protects a resource outside of the lock.
//!
//! # Waiting
//! Each waiting function has a form that does not wait (`try_`), one with a time-out and one with a deadline.
//! Waiters spin first (as long as a wake-up costs, 5 to 400 µs, up to twice that if spinning often succeeds,
//! less if it rarely does). Then they sleep, and every 100 ms check the state and search for dead processes.
//! Waiters are served in no particular order.
//!
//! A process that is stopped or killed while it *waits* may have consumed a wake-up. Other waiters then check
//! again after up to 100 ms. A process that is *stopped* while it holds a lock or a permit is not dead:
//! waiters wait for the holder, or return an error that names it.
//!
//! Threads of any processes that wait for each other's locks in a cycle without time-outs would wait forever.
//! A thread of the cycle gets [`LockError::Deadlock`] after about 200 ms, with a message that names all
//! threads of the cycle. The other threads continue when that thread drops its guards. [`Deadlock`] describes
//! the search and its cost.
//!
//! # Latency after a death
//! The first process that notices a death wakes the waiters of all processes. This is the parent, which the
//! kernel notifies, or any process that checks for dead processes.
//!
//! | waiting function | returns after the holder is killed | result | result if the holder is stopped |
//! |---|---|---|---|
//! | `Queue::get` | 1.0 ms | `Deserted`, if no other process has the queue | `Empty` |
//! | `Receiver::recv` | 1.1 ms | `Disconnected` | `Empty` |
//! | `Lock::lock` | 0.9 ms | `OwnerDied` | `Held`, which names the holder |
//! | `RwLock::read` | 1.0 ms | `OwnerDied` | `Held`, which names the holder |
//! | `Semaphore::acquire` | 1.0 ms | the permit | `Held`, which names the holder |
//! | `wait(&[&semaphore])` | 1.0 ms | ready | nothing ready |
//! | `Barrier::wait` | 1.0 ms | `MemberDied`, which names the party | `TimedOut`, which names the party if it is enrolled |
//! | `Condition::wait` | 1.0 ms | the notification that the dead process had not taken | no notification |
//!
//! Medians of nine runs, from the `kill` to the return in a third process (2 processors, load 10, Linux 6.18,
//! debug build). Of this time, the kernel takes 0.4 ms to end the process. With a stopped holder, the calls
//! return at their time-out, 0.1 ms late if a processor is free. Reproduce with
//! `cargo test -p mp-tests --test waiting death_times -- --nocapture --test-threads=1`.
//!
//! The latency grows to 100 ms plus scheduling if no parent can notice the death:
//!
//! - the parent is stopped, or did not start the process by this library;
//! - the parent does not watch the process yet (a single [`Process`](https://docs.rs/mp-spawn) in its first
//!   50 ms);
//! - the kernel has no `futex_waitv(2)` (before 5.16).
//!
//! # In a forked copy
//! A child of a raw `fork` is not a member of the arena: every call in it fails with
//! [`Error::Forked`](mp_core::Error::Forked), and dropping a guard releases nothing.
//!
//! [`steps`] contains the algorithms, with the effect of a death at every point.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod barrier;
mod error;
mod event;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod handle;
#[cfg(test)]
mod hostile_words_tests;
mod locks;
mod once;
mod plain;
mod raw_values;
mod semaphore;
mod shareable_list;
mod shared;
pub mod steps;
mod wait;

pub use barrier::{Barrier, BarrierArrival, BarrierMember};
pub use error::{AcquireError, BarrierError, PeerProcess};
pub use event::{Event, EventState};
pub use locks::array::Array;
pub use locks::condition::{Condition, ConditionWaiter};
pub use locks::guard::LockGuard;
pub use locks::lock::Lock;
pub use locks::relock::ConditionGuard;
pub use locks::rlock::{RLock, RLockGuard};
pub use locks::rwlock::{ReadGuard, RwLock, WriteGuard};
pub use mp_core::words::LockKind;
pub use mp_core::{Deadlock, DeadlockStep, LockError, Waitable, select, wait};
pub use once::{Once, OnceState};
pub use plain::Plain;
pub use raw_values::{RawArray, RawValue};
pub use semaphore::{BoundedSemaphore, Permit, Semaphore};
pub use shareable_list::{ListError, ListItem, ShareableList};

/// Doc test of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
