//! Locks, semaphores, events, conditions and barriers between real processes, and values behind locks.

mod barrier;
mod deadlocks;
mod locks;
mod values;
mod waits;
