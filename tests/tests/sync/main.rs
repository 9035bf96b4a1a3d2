//! Locks, semaphores, events, conditions and barriers between real processes.

mod barrier;
mod locks;
mod waits;
