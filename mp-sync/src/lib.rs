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
//! | | holds | when a process dies with it |
//! |---|---|---|
//! | [`Lock`] | one thread, of one process | the next one gets `OwnerDied`, and `recover` gives it the data |
//! | [`RLock`] | one thread, as often as it likes | the same |
//! | [`RwLock`] | one writer, or many readers | a writer: the same; a reader: nothing, its place is given back |
//! | [`Semaphore`], [`BoundedSemaphore`] | so many permits | its permits return |
//! | [`Once`] | who runs it | the next one runs it again |
//! | [`Event`] | nobody | nothing |
//! | [`Condition`] | nobody | a notification that it had not taken goes to another one |
//! | [`Barrier`] | nobody | the barrier breaks, if the dead one waited or was [enrolled](Barrier::enroll) |
//!
//! All lie in shared memory, and all handles are serde types inside of messages and of arguments of processes. To clone or
//! send one copies the handle. What is protected is plain data ([`Pod`](bytemuck::Pod)): every bit pattern is a value, so
//! that what a killed process leaves half changed is still one; it has no pointers, which mean nothing elsewhere, and no
//! destructor, which nobody would run. `Lock<()>` protects what is elsewhere.
//!
//! # Waiting
//! Each wait has a form that does not wait (`try_`), one with a time-out and one with a deadline. All look for a while first
//! (up to 50 µs, less where that rarely pays), then sleep, and look again at least every 100 ms, also for the dead. A
//! process that is *stopped* is not dead: who waits for it waits, or gives up with an error that names it. Waiters are
//! served in no particular order.
//!
//! # In a forked copy
//! A raw `fork` makes a copy that is no member: everything fails with [`Error::Forked`](mp_core::Error::Forked) there, and
//! dropping a guard releases nothing.
//!
//! [`steps`] has the algorithms, and what every point of death leaves.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod barrier;
mod condition;
mod data;
mod error;
mod event;
#[cfg(test)]
mod garbage;
mod lock;
mod once;
mod rlock;
mod rwlock;
mod semaphore;
mod shared;
pub mod steps;
mod unlocked;
mod wait;

pub use barrier::{Barrier, Party};
pub use condition::Condition;
pub use error::{AcquireError, BarrierError, Holder};
pub use event::Event;
pub use lock::{Lock, LockGuard};
pub use mp_core::{LockError, Waitable, select, wait};
pub use once::{Once, OnceState};
pub use rlock::{RLock, RLockGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{BoundedSemaphore, Permit, Semaphore};
pub use unlocked::ConditionGuard;
