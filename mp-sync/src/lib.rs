//! Locks, semaphores, conditions, barriers and events between processes that survive any kill: the synchronisation layer
//! of `mp`.
//!
//! ```
//! use mp_sync::{Lock, LockError};
//!
//! let total = Lock::new(40_u64)?; // in shared memory; clones and sent copies are handles to the same lock
//! match total.lock() {
//!     Ok(mut guard) => *guard += 2,
//!     // Its last holder was killed: the data is there, perhaps half changed.
//!     Err(LockError::OwnerDied { .. }) => *total.recover()? = 42,
//!     Err(other) => return Err(other.into()),
//! }
//! assert_eq!(*total.lock()?, 42);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! The three types to know: [`Lock`], around data or around nothing, [`Semaphore`], a number of permits, and [`Event`], which is
//! set or not.
//!
//! | | holds | when a process dies with it |
//! |---|---|---|
//! | [`Lock`] | one thread, of one process | locking returns `OwnerDied`, until a caller repairs the data with `recover` |
//! | [`RLock`] | one thread, as often as it likes | the same |
//! | [`RwLock`] | one writer, or many readers | a writer: the same; a reader: nothing, its place is given back |
//! | [`Semaphore`], [`BoundedSemaphore`] | a number of permits | its permits return |
//! | [`Once`] | the thread that runs it | the next one runs it again |
//! | [`Event`] | no process | nothing |
//! | [`Condition`] | no process | a notification that it had not taken goes to another waiter |
//! | [`Barrier`] | no process | the barrier breaks, if the process waited or was [enrolled](Barrier::enroll) |
//!
//! All lie in shared memory, and all handles are serde types inside of messages and of arguments of processes. To clone or
//! send one copies the handle. What is protected is plain data ([`Pod`](bytemuck::Pod)): every bit pattern is a value, so
//! that what a killed process leaves half changed is still one; it has no pointers, which mean nothing elsewhere, and no
//! destructor, which would not run. `Lock<()>` protects what is elsewhere.
//!
//! # Waiting
//! Each wait has a form that does not wait (`try_`), one with a time-out and one with a deadline, which give up when the time is
//! over, as soon as their thread has a processor. A process that is stopped or killed while it *waits* may
//! have got a wake-up meant for other waiters, which look again after up to 100 ms; one that is stopped while
//! it *holds* a lock or a permit delays all that wait for it, for as long. All waiters spin first (as long as a
//! wake-up costs, 5 to 400 µs, up to twice that where it pays, less where it rarely does), then sleep, and look again every 100 ms, also for dead processes. A
//! process that is *stopped* is not dead: a waiter waits for it, or gives up with an error that names it.
//! Waiters are served in no particular order.
//!
//! Threads that wait for each other's locks in a cycle, in whatever processes, without time-outs, would wait for ever: one of them
//! gets [`LockError::Deadlock`] after about 200 ms, with a sentence that names them all, and the others go on when it drops its guards.
//! What is looked at, and what it costs, is at [`Deadlock`].
//!
//! # How soon a waiter hears of a death
//! The first process that notices a death wakes the waiters of all processes. That is the parent, as soon as the kernel tells
//! it, or any process that looks.
//!
//! | a wait in | whose holder is killed ends after | which then returns | whose holder is stopped ends with its time-out |
//! |---|---|---|---|
//! | `Queue::get` | 1.0 ms | `Deserted`, if no other process has the queue | `Empty` |
//! | `Receiver::recv` | 1.1 ms | `Disconnected` | `Empty` |
//! | `Lock::lock` | 0.9 ms | `OwnerDied` | `Held`, which names it |
//! | `RwLock::read` | 1.0 ms | `OwnerDied` | `Held`, which names it |
//! | `Semaphore::acquire` | 1.0 ms | the permit | `Held`, which names it |
//! | `wait(&[&semaphore])` | 1.0 ms | that it is ready | nothing that is ready |
//! | `Barrier::wait` | 1.0 ms | `MemberDied`, which names it | `TimedOut`, which names it if it is enrolled |
//! | `Condition::wait` | 1.0 ms | the notification that the dead process had not taken | no notification |
//!
//! Medians of nine, from the `kill` to the return in a third process, on a machine with 2 processors and a load of 10
//! (Linux 6.18, a debug build); 0.4 ms of it is what the kernel takes to end the process. Time-outs ended 0.1 ms late, where
//! a processor was free. `cargo test -p mp-tests --test waiting death_times -- --nocapture --test-threads=1` prints these figures.
//!
//! It takes longer, up to 100 ms and the time until a processor is free, where the parent can't notice: it is stopped, it is
//! not the one that started the process, or the process is one that the parent does not listen to yet (a single
//! [`Process`](https://docs.rs/mp-spawn) in its first 50 ms); and on kernels without `futex_waitv(2)` (before 5.16).
//!
//! # In a forked copy
//! A raw `fork` makes a copy that is no member: everything fails with [`Error::Forked`](mp_core::Error::Forked) there, and
//! dropping a guard releases nothing.
//!
//! [`steps`] has the algorithms, and what every point of death leaves.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod barrier;
mod error;
mod event;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod garbage;
mod handle;
mod locks;
mod once;
mod plain;
mod raw_values;
mod semaphore;
mod shareable_list;
mod shared;
pub mod steps;
mod wait;

pub use barrier::{Barrier, BarrierMember};
pub use error::{AcquireError, BarrierError, PeerProcess};
pub use event::Event;
pub use locks::array::Array;
pub use locks::condition::Condition;
pub use locks::guard::LockGuard;
pub use locks::lock::Lock;
pub use locks::rlock::{RLock, RLockGuard};
pub use locks::rwlock::{ReadGuard, RwLock, WriteGuard};
pub use locks::unlocked::ConditionGuard;
pub use mp_core::words::LockKind;
pub use mp_core::{Deadlock, DeadlockStep, LockError, Waitable, select, wait};
pub use once::{Once, OnceState};
pub use plain::Plain;
pub use raw_values::{RawArray, RawValue};
pub use semaphore::{BoundedSemaphore, Permit, Semaphore};
pub use shareable_list::{ListError, ListItem, ShareableList};

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
