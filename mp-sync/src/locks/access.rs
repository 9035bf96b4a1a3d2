//! # Safety
//! Implementations of [`ReadAccess`], [`WriteAccess`] and [`SingleThread`] for *keys*: values that give a
//! thread access to the data of a lock. Unsafe, because each implementation is a promise about other threads,
//! and a wrong promise would allow concurrent access. Sound for the reason given at each implementation.
#![allow(unsafe_code)]

use crate::locks::data::{ReadAccess, SingleThread, WriteAccess};
use crate::locks::rlock::LevelGuard;
use crate::locks::rwlock::{ReadHold, WriteHold};
use crate::plain::Plain;

// SAFETY: a `ReadHold` is a reader's slot, or a count in the slot of its thread, and can't be sent to another
// thread. A writer waits for the slot before it creates a `WriteHold`, and the last read in the slot releases
// it.
unsafe impl<T: Plain + Send + Sync> ReadAccess for ReadHold<'_, T> {}
// SAFETY: the owner of a `WriteHold` holds the writers' lock, and has found all readers' slots empty since.
// No reader moves to another slot meanwhile, see `steps::rwlock`.
unsafe impl<T: Plain + Send + Sync> ReadAccess for WriteHold<'_, T> {}
// SAFETY: as above: no other writer or reader is inside, and none enters.
unsafe impl<T: Plain + Send + Sync> WriteAccess for WriteHold<'_, T> {}
// SAFETY: the thread of a `LevelGuard` holds the lock. The guard is not `Send`, and returns no references. A
// thread that waits at a condition has released the lock, and can't use its levels until it has the lock
// again, see `rlock::UnlockedLevels`.
unsafe impl<T: Plain + Send> SingleThread for LevelGuard<'_, T> {}
