//! Locks, semaphores, events, conditions, barriers, and values with a lock, between processes.
//!
//! ```
//! use mp::{Event, Lock, LockError};
//!
//! let total = Lock::new(40_u64)?; // in shared memory: clones and sent copies are handles to the same lock
//! match total.lock() {
//!     Ok(mut guard) => *guard += 2,
//!     // Its owner was killed: the data may be half changed.
//!     Err(LockError::OwnerDied { .. }) => *total.recover()? = 42,
//!     Err(other) => return Err(other.into()),
//! }
//! assert_eq!(*total.lock()?, 42);
//!
//! let (count, done) = (Lock::new(0_i32)?, Event::new()?);
//! *count.lock()? += 1;
//! done.set()?;
//! assert!(done.is_set());
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Lock`] protects data (Python's `Value`) or a critical section, [`Semaphore`]
//! holds a number of permits, and [`Event`] is a flag. Locks of a crashed process are reported as such, and
//! its permits are returned: see the table in [`mp_sync`].
//!
//! | task | items |
//! |---|---|
//! | mutual exclusion | [`Lock`], [`RLock`], [`RwLock`], [`Once`]; [`LockError`]; [`Deadlock`], which is detected across processes |
//! | waiting for other processes | [`Semaphore`], [`BoundedSemaphore`], [`Event`], [`Condition`], [`Barrier`] |
//! | values | [`Lock`], [`Array`]; without a lock, [`RawValue`], [`RawArray`] |
//! | types that can be protected | plain data ([`Plain`]): [`bytemuck::Pod`](bytemuck) |

#[doc(no_inline)]
pub use crate::{
    Array, Barrier, BoundedSemaphore, Condition, Event, Lock, LockError, Once, RLock, RwLock, Semaphore,
};
pub use mp_core::bytemuck;
pub use mp_sync::{
    AcquireError, BarrierArrival, BarrierError, BarrierMember, ConditionGuard, ConditionWaiter, Deadlock,
    DeadlockStep, EventState, LockGuard, LockKind, OnceState, PeerProcess, Permit, Plain, RLockGuard,
    RawArray, RawValue, ReadGuard, WriteGuard,
};
